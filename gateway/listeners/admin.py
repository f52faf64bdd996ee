"""The admin listener: metrics, health, status."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


class State(Protocol):
    """What the admin pages tell of the gateway."""

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics."""

    def ready(self) -> str:
        """"" when the gateway takes calls, else why it does not."""

    def cluster_states(self) -> Mapping[str, str]:
        """Of each cluster "" when it is reached, else why it is not."""

    def status(self) -> dict[str, Any]:
        """All that /status shows; no secrets."""


def make_app(state: State) -> web.Application:
    """The admin pages."""
    pages = _Pages(state)
    app = web.Application()
    app.add_routes([
        web.get("/", pages.index),
        web.get("/metrics", pages.metrics),
        web.get("/livez", pages.livez),
        web.get("/readyz", pages.readyz),
        web.get("/status", pages.status),
    ])
    return app


class _Pages:
    """A cluster that is down takes down its own prefixes only: the gateway stays ready, and `?verbose` names the cluster."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def metrics(self, request: web.Request) -> web.Response:
        encoder, kind = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._state.registry), headers={"Content-Type": kind})

    async def livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        reason = self._state.ready()
        lines = [f"[-]gateway failed: {reason}" if reason else "[+]gateway ok"]
        for name, problem in self._state.cluster_states().items():
            lines.append(f"[-]cluster {name} failed: {problem}" if problem else f"[+]cluster {name} ok")
        if reason:
            return web.Response(status=503, text="\n".join((*lines, "readyz check failed", "")))
        return web.Response(text="\n".join((*lines, "readyz check passed", "")) if "verbose" in request.query else "ok\n")

    async def status(self, request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self._state.status(), indent=2) + "\n", content_type="application/json")

    async def index(self, request: web.Request) -> web.Response:
        status = self._state.status()
        rows = "".join(
            f"<tr><td>{html.escape(cluster['name'])}<td>{html.escape(endpoint['url'])}<td>{html.escape(endpoint['state'])}"
            for cluster in status["clusters"]
            for endpoint in cluster["endpoints"]
        )
        routes = "".join(
            f"<tr><td>{html.escape(route['prefix'] or '(default)')}<td>{html.escape(route['cluster'])}" for route in status["routes"]
        )
        return web.Response(text=_PAGE.format(version=html.escape(status["version"]), rows=rows, routes=routes), content_type="text/html")


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>shardgate</title>
<style>body{{font:16px/1.5 system-ui;margin:2em auto;max-width:50em}}td,th{{text-align:left;padding:.2em 1em .2em 0}}</style>
<h1>shardgate {version}</h1>
<h2>Endpoints</h2><table><tr><th>cluster<th>endpoint<th>state{rows}</table>
<h2>Routes</h2><table><tr><th>prefix<th>cluster{routes}</table>
<p><a href="/metrics">metrics</a> · <a href="/readyz?verbose">readyz</a> · <a href="/status">status</a>
"""
