"""What the JSON listener answers besides calls: wrong verbs and paths, bad HTTP, and the pages."""

import socket
from collections.abc import Iterator

import pytest

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import METHODS
from tests.listeners.jsonsite import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(dict.fromkeys(METHODS.values(), lambda *args: pytest.fail("no call was made"))) as site:
        yield site


def test_bytes_that_are_no_http(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and not worth a line in the log, unlike a defect of a page."""
    for data in (b"\x16\x03\x01what\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"GET /\0 HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
            sock.sendall(data)
            assert b" 400 Bad Request\r\n" in sock.recv(1000)
    assert caplog.records == []
    site.facts.metrics = None  # type: ignore[assignment]
    assert site.ask("/metrics", verb="GET")[0] == 500
    assert "TypeError" in caplog.text


def test_wrong_verbs_and_paths(site: Site) -> None:
    assert site.ask("/v3/kv/range", verb="GET") == (405, "Method Not Allowed\n")
    assert site.ask("/v3/kv/range", verb="PUT") == (405, "Method Not Allowed\n")
    assert site.ask("/v3/nothing") == (404, "Not Found\n")
    assert site.ask("/v3/kv/range/") == (404, "Not Found\n")
    assert site.ask("/v3alpha/kv/range") == (404, "404 page not found\n")
    assert site.ask("/", verb="GET") == (404, "404 page not found\n")
    response = site.open("/v3/kv/range", verb="OPTIONS")
    assert (response.status, response.read(), response.headers["Access-Control-Allow-Origin"]) == (200, b"", "*")


def test_a_method_without_a_handler_is_not_found() -> None:
    with serving({}) as site:
        assert site.ask("/v3/kv/range") == (404, "Not Found\n")


def test_version(site: Site) -> None:
    assert site.ask("/version", verb="GET") == (200, '{"etcdserver":"3.5.1","etcdcluster":"3.5.0"}')
    assert site.ask("/version") == (405, "Method Not Allowed\n")
    assert site.open("/version").headers["Allow"] == "GET"
    site.facts.unknown_version = RpcError(Code.UNAVAILABLE, "no endpoint")
    assert site.ask("/version", verb="GET")[0] == 503


def test_health(site: Site) -> None:
    assert site.ask("/health", verb="GET") == (200, '{"health":"true","reason":""}')
    site.facts.unhealthy = "RAFT NO LEADER"
    assert site.ask("/health", verb="GET") == (503, '{"health":"false","reason":"RAFT NO LEADER"}')


def test_livez_and_readyz(site: Site) -> None:
    assert site.ask("/livez", verb="GET") == (200, "ok\n")
    assert site.ask("/readyz", verb="GET") == (200, "ok\n")
    assert site.ask("/readyz?verbose", verb="GET") == (200, "[+]main ok\n[+]events ok\nok\n")
    site.facts.failed["events"] = "no endpoint answers"
    assert site.ask("/readyz", verb="GET") == (503, "[+]main ok\n[-]events failed: no endpoint answers\n")
    assert site.ask("/readyz?exclude=events&verbose", verb="GET") == (200, "[+]main ok\nok\n")


def test_metrics(site: Site) -> None:
    response = site.open("/metrics", verb="GET")
    assert response.read() == b"up 1\n"
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
