"""The JSON API on a port of its own, in a thread, with service methods that a test brings along."""

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop
from aiohttp import web

from gateway.core.errors import RpcError
from gateway.etcdpb.methods import Method
from gateway.listeners.json import make_runner
from gateway.listeners.jsoncall import JsonCall

MAX_REQUEST = 2 << 20
T = TypeVar("T")


class Facts:
    """Implements gateway.listeners.pages.Facts."""

    def __init__(self) -> None:
        self.unknown_version: RpcError | None = None
        self.unhealthy = ""
        self.failed: dict[str, str] = {"main": "", "events": ""}

    async def version(self) -> Mapping[str, str]:
        if self.unknown_version is not None:
            raise self.unknown_version
        return {"etcdserver": "3.5.1", "etcdcluster": "3.5.0"}

    async def health(self) -> tuple[bool, str]:
        return not self.unhealthy, self.unhealthy

    async def checks(self) -> Mapping[str, str]:
        return self.failed

    def metrics(self) -> bytes:
        return b"up 1\n"


@dataclass
class Site:
    """A running one. `records` has what the recorder was told, `crashes` the exceptions."""

    loop: asyncio.AbstractEventLoop
    port: int = 0
    facts: Facts = field(default_factory=Facts)
    records: list[tuple[str, int]] = field(default_factory=list)
    crashes: list[Exception] = field(default_factory=list)

    def record(self, call: JsonCall, code: int, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.records.append((call.method.label, code))

    def crashed(self, call: JsonCall, error: Exception) -> None:
        self.crashes.append(error)

    def ask(
        self, path: str, body: bytes = b"{}", headers: Mapping[str, str] | None = None, verb: str = "POST"
    ) -> tuple[int, str]:
        """Status and body of one request."""
        response = self.open(path, body, headers, verb)
        return response.status, response.read().decode()

    def open(
        self, path: str, body: bytes = b"{}", headers: Mapping[str, str] | None = None, verb: str = "POST"
    ) -> http.client.HTTPResponse:
        """A response to read on from."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(verb, path, body, dict(headers or {}))
        return connection.getresponse()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the site's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


@contextlib.contextmanager
def serving(handlers: Mapping[Method, Callable[..., Any]]) -> Iterator[Site]:
    """The site, as long as the block runs."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    site = Site(loop)
    runner = make_runner(handlers, site.facts, site, MAX_REQUEST)

    async def start() -> int:
        await runner.setup()
        tcp = web.TCPSite(runner, "127.0.0.1", 0)
        await tcp.start()
        return int(runner.addresses[0][1])

    try:
        site.port = site.run(start())
        yield site
    finally:
        site.run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
