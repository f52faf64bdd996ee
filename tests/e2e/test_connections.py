"""What clients cost: memory at rest, per connection and per watch, and connections to etcd."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from hpack import Encoder

from gateway.core.store import Window
from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import EtcdCluster, get, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

MIB = 1 << 20
IDLE = 60 * MIB
PER_CONNECTION = 30 << 10
CONNECTIONS = 2000
UPSTREAM = 8
"""Connections to one endpoint at most, however many clients there are."""

REQUEST = (
    (":method", "POST"), (":scheme", "http"), (":path", "/etcdserverpb.KV/Range"), (":authority", "127.0.0.1:2379"),
    ("content-type", "application/grpc"), ("user-agent", "grpc-go/1.47.0"), ("te", "trailers"),
)  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def opening(key: bytes) -> bytes:
    """All that a client sends for its first call, a range of one key."""
    message = pb.RangeRequest(key=key).SerializeToString()
    head = frame(1, 4, 1, Encoder().encode([*REQUEST, ("grpc-timeout", "4999m")]))
    body = frame(0, 1, 1, b"\0" + len(message).to_bytes(4, "big") + message)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + head + body


@contextlib.contextmanager
def connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """As many clients as Kubernetes' API server has, which opens one connection per resource; each has made a call."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        opened = []
        for number in range(count):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            sock.sendall(opening(b"key%d" % number))
            opened.append(sock)
        for sock in opened:
            answer = b""
            while b"\x00\x00\x01" not in answer or len(answer) < 60:
                part = sock.recv(65536)
                assert part, "the gateway closed the connection"
                answer += part
        yield opened


@pytest.fixture
def process(main_etcd: EtcdCluster) -> Iterator[GatewayProcess]:
    with gateway({"main": main_etcd.urls}) as running:
        yield running


def test_memory_at_rest(process: GatewayProcess) -> None:
    with Client(process.address) as client:
        for _ in range(100):
            client.put(b"x")
    get(process.address, "/health")
    process.admin("/metrics")
    assert process.rss() < IDLE


def test_many_connections(process: GatewayProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 200:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with connections(process.address, 50):
            pass  # what is made once is made
        before = process.rss()
        with connections(process.address, CONNECTIONS):
            assert process.metric("shardgate_client_connections") == CONNECTIONS
            assert (process.rss() - before) / CONNECTIONS < PER_CONNECTION
            assert process.metric("shardgate_upstream_connections") <= UPSTREAM
        wait_for("all closed", lambda: process.metric("shardgate_client_connections") == 0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_watches(process: GatewayProcess) -> None:
    """Fifty streams with a hundred watches each; an event reaches every one of them."""
    streams, each = 50, 100
    with Client(process.address) as client, contextlib.ExitStack() as stack:
        before = process.rss()
        watching = [stack.enter_context(client.watching()) for _ in range(streams)]
        for stream in watching:
            for _ in range(each):
                stream.create(b"watched")
        for stream in watching:
            assert sorted(stream.next().watch_id for _ in range(each)) == list(range(each))
        assert process.metric("shardgate_watches") == streams * each
        assert process.rss() - before < 40 * MIB
        client.put(b"watched")
        for stream in watching:
            assert len(list(stream.events(each))) == each
    wait_for("all gone", lambda: process.metric("shardgate_watches") == 0, 10)


def test_a_client_that_does_not_read(process: GatewayProcess) -> None:
    """Replies that nobody reads are held back at etcd's side; others do not notice."""
    with Client(process.address) as client, client.watching(paused=True) as lazy, client.watching() as busy:
        lazy.create(b"large")
        busy.created(b"large")
        before = process.rss()
        for _ in range(250):
            client.put(b"large", bytes(MIB))
        assert len(list(busy.events(250, 60))) == 250
        assert process.rss() - before < 2 * Window().bytes + 80 * MIB
        start = time.monotonic()
        client.put(b"small")
        assert time.monotonic() - start < 1
        lazy.read()
        assert len(list(lazy.events(250, 60))) == 250
