"""The admin pages on a real port."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, web
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from gateway.etcdpb.methods import method
from gateway.listeners.admin import make_runner
from gateway.metrics import Metrics

DOWN = "http://127.0.0.1:1: <b>Connection refused</b>"


@dataclass
class State:
    """Implements gateway.listeners.admin.State."""

    reason: str = ""
    clusters: dict[str, str] = field(default_factory=lambda: {"main": "", "events": DOWN})
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    def ready(self) -> str:
        return self.reason

    def cluster_states(self) -> Mapping[str, str]:
        return self.clusters

    def status(self) -> dict[str, Any]:
        endpoint = {"url": "http://127.0.0.1:1", "state": "failing", "connections": 0, "error": DOWN}
        return {
            "version": "1.2.3",
            "uptime_seconds": 7384.5,
            "ready": True,
            "listeners": [{"name": "clients", "address": "127.0.0.1:2379", "home": "main", "connections": 5}],
            "clusters": [{"name": "events", "available": False, "endpoints": [endpoint]}],
            "routes": [{"prefix": "", "cluster": "main", "cache": True}, {"prefix": "/<x>/", "cluster": "events", "cache": False}],
        }


def serve(state: State, work: Callable[[str], Awaitable[None]]) -> None:
    """Run a test against the pages; it gets their URL."""

    async def run() -> None:
        runner = make_runner(state)
        await runner.setup()
        sock = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, sock).start()
        try:
            await asyncio.wait_for(work(f"http://127.0.0.1:{sock.getsockname()[1]}"), 20)
        finally:
            await runner.cleanup()

    asyncio.run(run())


async def get(url: str, verb: str = "GET", **headers: str) -> tuple[ClientResponse, str]:
    async with ClientSession() as session, session.request(verb, url, headers=headers) as response:
        return response, await response.text()


def test_metrics_in_both_formats() -> None:
    state = State()
    state.metrics.calls("main", method("kv", "range")).ended(0, 0.003, 10, 20)

    async def work(url: str) -> None:
        response, text = await get(f"{url}/metrics")
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain; version=")
        assert 'shardgate_requests_total{cluster="main",code="OK",method="KV/Range"} 1.0' in text
        names = {family.name for family in prometheus(text)}
        assert {"process_resident_memory_bytes", "process_open_fds", "python_info", "python_gc_collections"} <= names
        response, text = await get(f"{url}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert names <= {family.name for family in openmetrics(text)}

    serve(state, work)


def test_health() -> None:
    state = State()

    async def work(url: str) -> None:
        response, text = await get(f"{url}/livez")
        assert (response.status, text) == (200, "ok\n")
        response, text = await get(f"{url}/livez?verbose")
        assert (response.status, text) == (200, "[+]gateway ok\nlivez check passed\n")
        response, text = await get(f"{url}/readyz")
        assert (response.status, text) == (200, "ok\n")
        clusters = f"[+]cluster main ok\n[-]cluster events failed: {DOWN}\n"
        response, text = await get(f"{url}/readyz?verbose")
        assert (response.status, text) == (200, f"[+]gateway ok\n{clusters}readyz check passed\n")
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        state.reason = "stopping"
        for query in ("", "?verbose"):
            response, text = await get(f"{url}/readyz{query}")
            assert (response.status, text) == (503, f"[-]gateway failed: stopping\n{clusters}readyz check failed\n")
        response, text = await get(f"{url}/livez")
        assert response.status == 200

    serve(state, work)


def test_status() -> None:
    state = State()

    async def work(url: str) -> None:
        response, text = await get(f"{url}/status")
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        assert json.loads(text) == state.status()

    serve(state, work)


def test_status_page_shows_texts_as_texts() -> None:
    async def work(url: str) -> None:
        response, text = await get(f"{url}/")
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "<b>" not in text and "<x>" not in text and "&lt;b&gt;Connection refused&lt;/b&gt;" in text
        for shown in ("shardgate 1.2.3", "2 h 3 min", "Not reached: events.", "127.0.0.1:2379", "failing", "/&lt;x&gt;/", "(default)"):
            assert shown in text

    serve(State(), work)


def test_only_reading() -> None:
    async def work(url: str) -> None:
        for page in ("", "metrics", "livez", "readyz", "status"):
            response, _ = await get(f"{url}/{page}", "POST")
            assert response.status == 405
            response, text = await get(f"{url}/{page}", "HEAD")
            assert response.status == 200 and not text
            assert response.headers["Cache-Control"] == "no-store"
        response, _ = await get(f"{url}/etc/passwd")
        assert response.status == 404

    serve(State(), work)


GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000,
    b"\0" * 70_000,
)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_no_error_of_ours(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work(url: str) -> None:
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(garbage)
        answer = await reader.read(1000)
        assert answer.startswith(b"HTTP/1.0 400 ")
        writer.close()
        assert (await get(f"{url}/livez"))[0].status == 200

    serve(State(), work)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
