"""Odd gRPC requests get the answer that a real etcd of the newest line gives: grpc-go's codes and texts."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from gateway.core.errors import RpcError
from gateway.wire.connection import Connection, Headers, Limits, Role, Stream
from gateway.wire.grpc import MessageReader, frame_message, request_head, trailers_only
from gateway.wire.hpack import Decoder, encode_static
from tests.etcd import EtcdCluster, minor
from tests.wire.side import REQUEST

RANGE = frame_message(b"\x0a\x01a")
MOST = 2 << 20  # etcd's --max-request-bytes and what it adds


def changed(drop: bytes, *more: tuple[bytes, bytes]) -> Headers:
    """The usual request without one field, with more; pseudo-fields come first."""
    return tuple(sorted((*(pair for pair in REQUEST if pair[0] != drop), *more), key=lambda pair: pair[0][:1] != b":"))


HEADS = {
    "no content-type": changed(b"content-type"),
    "another content-type": changed(b"content-type", (b"content-type", b"text/Plain")),
    "a longer content-type": changed(b"content-type", (b"content-type", b"application/grpcx")),
    "GET": changed(b":method", (b":method", b"GET")),
}
MESSAGES = {
    "an encoding that nobody has": (changed(b"", (b"grpc-encoding", b"br")), RANGE),
    "compressed without saying how": (REQUEST, b"\x01" + RANGE[1:]),
    "a flag that does not exist": (REQUEST, b"\x02" + RANGE[1:]),
    "a message that is too large": (REQUEST, b"\0\xff\xff\xff\xffabc"),
}


class Asked(asyncio.Protocol):
    """One request, as the bytes come; the fields of the answer."""

    def __init__(self, headers: Headers, body: bytes) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.over = asyncio.get_running_loop().create_future()
        self.conn = Connection(Role.CLIENT, self, Limits(), 0.0)
        self.conn.open(self, encode_static(headers), body, True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.conn.take())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.conn.receive(data, 0.0)
        self.transport.write(self.conn.take())  # type: ignore[attr-defined]

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        self.fields |= dict(headers)
        if end:
            self.over.set_result(None)

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self.over.set_exception(ConnectionError(text))

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None: ...
    def on_drained(self, stream: Stream) -> None: ...
    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None: ...
    def on_goaway(self, code: int, text: str) -> None: ...
    def on_slots(self) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


def ask(etcd: EtcdCluster, headers: Headers, body: bytes) -> dict[bytes, bytes]:
    """What etcd answers."""

    async def run() -> dict[bytes, bytes]:
        host, _, port = etcd.members[0].address.rpartition(":")
        transport, asked = await asyncio.get_running_loop().create_connection(lambda: Asked(headers, body), host, int(port))
        async with asyncio.timeout(10):
            await asked.over
        transport.close()
        return asked.fields

    return uvloop.run(run())


def ours(headers: Headers, body: bytes) -> dict[bytes, bytes]:
    """What the gateway's framing answers."""
    head = request_head(headers)
    block = head.refusal
    if block is None:
        with pytest.raises(RpcError) as caught:
            list(MessageReader(MOST, head.compressed).feed(body))
        block = trailers_only(caught.value.code, caught.value.text)
    return dict(Decoder(1 << 16).decode(block)[0])


@pytest.mark.parametrize("case", HEADS)
def test_heads(etcd: EtcdCluster, case: str) -> None:
    if minor(etcd.version) < "3.7":
        pytest.skip("grpc-go of before 2022 resets the stream without a word")
    assert ours(HEADS[case], RANGE) == ask(etcd, HEADS[case], RANGE)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(etcd: EtcdCluster, case: str) -> None:
    assert ours(*MESSAGES[case]) == ask(etcd, *MESSAGES[case])
