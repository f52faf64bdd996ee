"""The pages that etcd's client port has beside the API: /version, /health, /livez, /readyz, /metrics."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aiohttp import web

from gateway.core.errors import RpcError
from gateway.listeners.jsonanswer import CORS, dump, error_response, plain


class Facts(Protocol):
    """What the pages tell."""

    async def version(self) -> Mapping[str, str]:
        """{"etcdserver": "3.5.1", "etcdcluster": "3.5.0"}; raises RpcError when it is not known."""

    async def health(self) -> tuple[bool, str]:
        """Whether the home cluster serves, and if not, why."""

    async def checks(self) -> Mapping[str, str]:
        """What /readyz looks at: of each check "" if it is passed, else the reason."""

    def metrics(self) -> bytes:
        """The text of /metrics."""


class Pages:
    """The pages by their path, for GET."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.by_path: Mapping[str, Callable[[web.Request], Awaitable[web.Response]]] = {
            "/version": self._version,
            "/health": self._health,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }

    async def _version(self, request: web.Request) -> web.Response:
        try:
            text = dump(dict(await self._facts.version()))
        except RpcError as error:
            return error_response(error)
        return web.Response(body=text.encode(), headers=CORS | {"Content-Type": "application/json"})

    async def _health(self, request: web.Request) -> web.Response:
        healthy, reason = await self._facts.health()
        text = dump({"health": "true" if healthy else "false", "reason": reason})
        return web.Response(status=200 if healthy else 503, text=text, headers=CORS)

    async def _livez(self, request: web.Request) -> web.Response:
        return plain(200, "ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        """`?exclude=NAME` leaves a check out, `?verbose` names them; a failed one is named anyway."""
        excluded = request.query.getall("exclude", [])
        checks = {name: reason for name, reason in (await self._facts.checks()).items() if name not in excluded}
        lines = [f"[-]{name} failed: {reason}" if reason else f"[+]{name} ok" for name, reason in checks.items()]
        if any(checks.values()):
            return plain(503, "\n".join(lines))
        return plain(200, "\n".join([*lines, "ok"] if "verbose" in request.query else ["ok"]))

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = CORS | {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._facts.metrics(), headers=headers)
