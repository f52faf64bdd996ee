"""One HTTP/2 connection to an etcd endpoint: the transport side of the client role."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

from gateway.etcdpb.methods import Method
from gateway.wire.connection import Connection, Headers, Limits, Owner, Role, Stream
from gateway.wire.grpc import timeout_value
from gateway.wire.hpack import literal

LIMITS = Limits(stream_window=1 << 20, connection_window=1 << 26, ping_interval=10.0, ping_timeout=5.0)


class Watcher(Protocol):
    """Who keeps a channel: told when it can be used, has room again, or is gone."""

    def on_ready(self, channel: Channel) -> None:
        """The peer's first bytes came: it speaks HTTP/2."""

    def on_slots(self, channel: Channel) -> None:
        """A stream may be opened again after the peer's limit had been reached."""

    def on_retired(self, channel: Channel, reason: str) -> None:
        """The peer wants no more calls on this channel; those under way go on."""

    def on_lost(self, channel: Channel, reason: str) -> None:
        """The channel is gone; calls under way have been told. Called exactly once."""


class Channel(asyncio.Protocol):
    """One connection; `usable` while new streams may be opened on it."""

    def __init__(self, authority: str, watcher: Watcher) -> None:
        self._loop = asyncio.get_running_loop()
        self.authority = authority
        self._authority = authority.encode()
        self._watcher = watcher
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._ready = False
        self._gone = False
        self._blocks: dict[Method, tuple[int, bytes]] = {}
        self.conn = Connection(Role.CLIENT, self, LIMITS, self._loop.time())

    @property
    def usable(self) -> bool:
        """Ready, not on its way out, and below the peer's stream limit."""
        return self._ready and self.conn.can_open

    def open(
        self, owner: Owner, method: Method, data: bytes | None, end: bool, metadata: Mapping[bytes, bytes], deadline: float | None
    ) -> Stream:
        """Open a stream for one call. `data` is gRPC-framed; `deadline` in loop time."""
        known = self._blocks.get(method)
        block = known[1] if known is not None and known[0] == self.conn.encoder.generation else self._block(method)
        if deadline is not None:
            block += literal(b"grpc-timeout", timeout_value(deadline - self._loop.time()))
        if metadata:
            block += b"".join([literal(name, value) for name, value in metadata.items()])
        stream = self.conn.open(owner, block, data, end)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return stream

    def _block(self, method: Method) -> bytes:
        """The constant request headers of a method. The first block inserts them into the peer's table, the next ones refer to it."""
        encoder = self.conn.encoder
        pairs = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.path),
            (b":authority", self._authority),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
        first = encoder.encode(pairs)
        self._blocks[method] = (encoder.generation, encoder.encode(pairs))
        return first

    def touch(self) -> None:
        """Something was put into the connection from outside a receive: write it at the end of this loop turn."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        data = self.conn.take()
        if data and self._transport is not None:
            self._transport.write(data)
        if self.conn.closing is not None:
            self._close(self.conn.closing)
        elif self.conn.pending:
            self.touch()

    def _close(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.close()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._gone:
            return
        self._gone = True
        self._ready = False
        self.conn.lost(reason)
        self._watcher.on_lost(self, reason)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(reason)

    def tick(self, now: float) -> None:
        """About once a second: keepalive."""
        self.conn.tick(now)
        if self.conn.closing is not None:
            self.abort(self.conn.closing)
        else:
            self._flush()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.conn.receive(data, self._loop.time())
        if not self._ready and self.conn.closing is None:
            self._ready = True
            self._watcher.on_ready(self)
        self._flush()

    def pause_writing(self) -> None:
        self.conn.pause()

    def resume_writing(self) -> None:
        self.conn.resume()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lose(str(error) if error else "connection closed by the endpoint")

    # wire.connection.Handler

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        raise AssertionError("a client-role connection accepts no streams")

    def on_goaway(self, code: int, text: str) -> None:
        """The endpoint is shutting down: a new channel takes the new calls, this one finishes its own."""
        self._ready = False
        self._watcher.on_retired(self, f"endpoint sent GOAWAY {code} {text}".rstrip())

    def on_slots(self) -> None:
        self._watcher.on_slots(self)
