"""Requests that no gRPC library would send: the gateway's status and text are those of the etcd behind it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import BINARIES, cluster, minor
from tests.gateway_process import gateway

MESSAGE = pb.RangeRequest(key=b"a").SerializeToString()
FRAME = b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE
USUAL = {
    ":method": "POST", ":scheme": "http", ":authority": "x", ":path": "/etcdserverpb.KV/Range",
    "content-type": "application/grpc", "te": "trailers",
}  # fmt: skip

Answer = dict[str, str]

EVERYWHERE: dict[str, tuple[dict[str, str], bytes]] = {
    "usual": ({}, FRAME),
    "no te": ({"te": ""}, FRAME),
    "proto": ({"content-type": "application/grpc+proto"}, FRAME),
    "parameter": ({"content-type": "application/grpc;x=1"}, FRAME),
    "two messages": ({}, FRAME * 2),
    "half a message": ({}, FRAME[:-1]),
    "no message": ({}, b""),
    "too large": ({}, b"\0\xff\xff\xff\xffx"),
    "compressed with nothing": ({}, b"\1" + FRAME[1:]),
    "compressed with what nobody has": ({"grpc-encoding": "br"}, b"\1" + FRAME[1:]),
    "unknown method": ({":path": "/etcdserverpb.KV/Nothing"}, FRAME),
    "unknown service": ({":path": "/no.KV/Range"}, FRAME),
    "query": ({":path": "/etcdserverpb.KV/Range?x"}, FRAME),
    "longest timeout": ({"grpc-timeout": "99999999H"}, FRAME),
    "reserved metadata": ({"grpc-foo": "x"}, FRAME),
}
NEWEST: dict[str, tuple[dict[str, str], bytes]] = {
    "content type": ({"content-type": "text/plain"}, FRAME),
    "no content type": ({"content-type": ""}, FRAME),
    "web": ({"content-type": "application/grpc-web"}, FRAME),
    "GET": ({":method": "GET"}, FRAME),
    "one word": ({":path": "/x"}, FRAME),
    "no slash": ({":path": "etcdserverpb.KV/Range"}, FRAME),
}
"""Older etcds reset such streams without a word, or have another code."""


@pytest.fixture(scope="module", params=BINARIES)
def addresses(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Of one etcd and a gateway before it."""
    with cluster(request.param) as etcd, gateway({"main": etcd.urls}) as process:
        yield etcd.address, process.address


@pytest.mark.parametrize("case", EVERYWHERE)
def test_answers(addresses: tuple[str, str], case: str) -> None:
    etcd, through = addresses
    assert ask(through, *EVERYWHERE[case]) == ask(etcd, *EVERYWHERE[case])


@pytest.mark.parametrize("case", NEWEST)
def test_newest_answers(addresses: tuple[str, str], case: str, request: pytest.FixtureRequest) -> None:
    etcd, through = addresses
    if minor(request.node.callspec.params["addresses"]) in ("3.4", "3.5"):
        assert "grpc-status" in ask(through, *NEWEST[case])
    else:
        assert ask(through, *NEWEST[case]) == ask(etcd, *NEWEST[case])


def ask(address: str, changed: dict[str, str], body: bytes) -> Answer:
    """The status of one request; `changed` headers with an empty value are left out."""
    host, _, port = address.rpartition(":")
    conn = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    conn.initiate_connection()
    conn.send_headers(1, [(name, value) for name, value in (USUAL | changed).items() if value])
    conn.send_data(1, body, end_stream=True)
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(conn.data_to_send())
        return _answer(conn, sock)


def _answer(conn: H2Connection, sock: socket.socket) -> Answer:
    found: Answer = {}
    while data := sock.recv(1 << 16):
        for event in conn.receive_data(data):
            if isinstance(event, ResponseReceived | TrailersReceived):
                found |= {name: value for name, value in event.headers if name in (":status", "grpc-status", "grpc-message") and value}
            elif isinstance(event, StreamEnded):
                return found
            elif isinstance(event, StreamReset | ConnectionTerminated):
                return {"error": str(event.error_code)}
        sock.sendall(conn.data_to_send())
    return {"error": "closed"}
