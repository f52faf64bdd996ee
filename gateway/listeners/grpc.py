"""A client's HTTP/2 connection and its gRPC calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from gateway.core.errors import Code
from gateway.etcdpb.methods import METHODS
from gateway.listeners.call import REPLY_FORM, GrpcCall
from gateway.listeners.quick import Batch, Taker
from gateway.services.call import Call, Session
from gateway.wire.connection import Connection, Headers, Role, Stream
from gateway.wire.frames import NO_ERROR, PROTOCOL_ERROR
from gateway.wire.grpc import http_error, request_head, seconds, trailers_only
from gateway.wire.lane import Lane

if TYPE_CHECKING:
    from gateway.listeners.client import ClientPort

Handler = Callable[[Call, bytes], None] | Callable[[Call], Session]

LINGER = 5.0
"""Seconds that a peer has to read the last bytes of a connection that is being closed."""

HIGH_WATER = 256 << 10
"""Bytes in the transport's buffer at which no more DATA is put into it."""


class GrpcConnection(asyncio.Protocol):
    """One client connection: owns the HTTP/2 state, makes a GrpcCall of each stream."""

    def __init__(self, port: ClientPort) -> None:
        self.port = port
        self.loop = asyncio.get_running_loop()
        self.calls: set[GrpcCall] = set()
        self.batches: set[Batch] = set()
        self.partial = 0
        self._transport: asyncio.Transport | None = None
        self.flush_due = False
        self._closing_since: float | None = None
        self._taker = Taker(self)
        self.lane = Lane(self._taker, REPLY_FORM)
        self.conn = Connection(Role.SERVER, self, port.limits, self.loop.time(), self.lane if port.instants else None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(HIGH_WATER)
        self.port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.flush_due = True  # what the services reply at once is written here, without another loop turn
        self._taker.now = now = self.loop.time()
        self.conn.receive(data, now)
        self._taker.end()
        self._flush()

    def touch(self) -> None:
        """Something is to be written: at the end of this loop turn, all at once."""
        if not self.flush_due:
            self.flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.flush_due = False
        transport = self._transport
        if transport is None:
            return
        data = self.conn.take()
        if data:
            transport.write(data)
        if self.conn.closing is not None:
            transport.close()
        elif self.conn.pending:
            self.touch()

    def pause_writing(self) -> None:
        self.conn.pause()

    def resume_writing(self) -> None:
        self.conn.resume()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.port.left(self)
        if self.conn.closing is not None and not self.port.closing:
            self.port.metrics.protocol_error(self.conn.closing)
        self.conn.lost("connection lost")

    def tick(self, now: float) -> None:
        """About once a second: deadlines and keepalive."""
        for call in tuple(self.calls):
            if call.deadline is not None and call.deadline <= now:
                call.expire()
        for batch in tuple(self.batches):
            batch.expire(now)
        self.conn.tick(now)
        self._flush()
        if self.conn.closing is not None:
            self._closing_since = self._closing_since or now
            if now - self._closing_since > LINGER:
                self.abort()  # a close waits until the peer has read what is buffered; this one does not read

    def close(self, text: str) -> None:
        """GOAWAY; the transport closes when the running calls have ended."""
        self.conn.shut_down(NO_ERROR, text)
        self._flush()

    def abort(self) -> None:
        """Close the transport at once."""
        if self._transport is not None:
            self._transport.abort()

    # wire.connection.Handler

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        head = request_head(headers)
        found = self.port.handlers.get(head.path)
        if head.malformed or (end and head.length > 0):
            self.conn.reset(stream, PROTOCOL_ERROR)
            return
        left = None if timeout is None else seconds(timeout)
        if head.refusal is not None:
            self._refuse(stream, head.refusal)
        elif found is None:
            self._refuse(stream, trailers_only(Code.UNIMPLEMENTED, unknown(head.path)))
        elif timeout is not None and left is None:
            self._refuse(stream, http_error(400, Code.INTERNAL, f"malformed grpc-timeout: {timeout.decode('latin-1')}"))
        else:
            stream.expected = head.length
            call = stream.owner = GrpcCall(self, stream, found[0], head, left, found[1])
            if end:
                call.on_data(stream, b"", True)

    def _refuse(self, stream: Stream, block: bytes) -> None:
        self.conn.send_headers(stream, block, True)
        self.port.metrics.refused_requests += 1

    def on_goaway(self, code: int, text: str) -> None:
        """The client opens no more streams: nothing to do, the running ones go on."""

    def on_slots(self) -> None:
        """A server opens no streams."""


def unknown(path: bytes) -> str:
    """grpc-go's text for a path that no service has (its server.go, handleStream)."""
    text = path.decode("utf-8", "replace")
    service, slash, name = text.removeprefix("/").rpartition("/")
    if not slash or not text.startswith("/"):
        return f'malformed method name: "{text}"'
    known = any(method.path.startswith(f"/{service}/".encode()) for method in METHODS.values())
    return f"unknown method {name} for service {service}" if known else f"unknown service {service}"
