"""The admin listener: metrics, health, status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.listeners import weblog


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


def make_runner(state: State) -> web.AppRunner:
    """The pages in a runner; to be set up and given an address."""
    return web.AppRunner(make_app(state), access_log=None, logger=weblog.logger(), shutdown_timeout=1.0)


def make_app(state: State) -> web.Application:
    """The admin pages."""
    pages = _Pages(state)
    app = web.Application()
    app.on_response_prepare.append(_guard)
    app.add_routes([
        web.get("/", pages.index),
        web.get("/metrics", pages.metrics),
        web.get("/livez", pages.livez),
        web.get("/readyz", pages.readyz),
        web.get("/status", pages.status),
    ])
    return app


async def _guard(request: web.Request, response: web.StreamResponse) -> None:
    """Pages are of this moment, and load nothing."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    response.headers["X-Content-Type-Options"] = "nosniff"


class _Pages:
    """Alive: the process answers. Ready: it takes calls. A cluster that is down takes down its own prefixes only, and every gateway would
    lose it at once; so it changes nothing of that, and `?verbose` names it."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def metrics(self, request: web.Request) -> web.Response:
        encoder, kind = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._state.registry), headers={"Content-Type": kind})

    async def livez(self, request: web.Request) -> web.Response:
        return _checked("livez", {"gateway": ""}, "", "verbose" in request.query)

    async def readyz(self, request: web.Request) -> web.Response:
        reason = self._state.ready()
        clusters = {f"cluster {name}": problem for name, problem in self._state.cluster_states().items()}
        return _checked("readyz", {"gateway": reason, **clusters}, reason, "verbose" in request.query)

    async def status(self, request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self._state.status(), indent=2) + "\n", content_type="application/json")

    async def index(self, request: web.Request) -> web.Response:
        return web.Response(text=_page(self._state.status(), self._state.cluster_states()), content_type="text/html")


def _checked(page: str, checks: Mapping[str, str], failure: str, verbose: bool) -> web.Response:
    """As Kubernetes' own health pages look. Only `failure` makes the page fail."""
    if not failure and not verbose:
        return web.Response(text="ok\n")
    lines = [f"[-]{name} failed: {problem}" if problem else f"[+]{name} ok" for name, problem in checks.items()]
    lines.append(f"{page} check {'failed' if failure else 'passed'}\n")
    return web.Response(status=503 if failure else 200, text="\n".join(lines))


def _page(status: Mapping[str, Any], clusters: Mapping[str, str]) -> str:
    listeners = [(each["name"], each["address"], each["home"], each["connections"]) for each in status["listeners"]]
    endpoints = [
        (cluster["name"], endpoint["url"], endpoint["state"], endpoint["error"])
        for cluster in status["clusters"]
        for endpoint in cluster["endpoints"]
    ]
    routes = [(route["prefix"] or "(default)", route["cluster"]) for route in status["routes"]]
    down = [name for name, problem in clusters.items() if problem]
    parts = (
        f"<h1>shardgate {escape(status['version'])}</h1>",
        f"<p>Up for {_span(status['uptime_seconds'])}. {escape(_health(down))}</p>",
        _table("Listeners", ("name", "address", "home", "connections"), listeners),
        _table("Endpoints", ("cluster", "endpoint", "state", "error"), endpoints),
        _table("Routes", ("prefix", "cluster"), routes),
        '<p><a href="/metrics">metrics</a> · <a href="/readyz?verbose">readyz</a> · <a href="/status">status as JSON</a></p>',
    )
    return _HEAD + "\n".join(parts) + "\n"


def _health(down: list[str]) -> str:
    return f"Not reached: {', '.join(down)}." if down else "All clusters are reached."


def _span(seconds: float) -> str:
    """"3 h 25 min" """
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes else f"{int(seconds)} s"


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{column}" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) + "\n" for row in rows)
    return f"<h2>{title}</h2>\n<table><tr>{head}\n{body}</table>"


_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>shardgate</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
th, td { text-align: left; vertical-align: top; padding: .2em 1.5em .2em 0 }
</style>
"""
