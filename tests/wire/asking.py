"""A small gRPC client on our own framing."""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.wire.connection import Connection, Headers, Limits, Role, Stream
from gateway.wire.frames import CANCEL
from gateway.wire.grpc import MessageReader, frame_message, parse_status, timeout_value
from gateway.wire.hpack import literal


class Ask:
    """One call: its messages, and in `done` its status."""

    def __init__(self, client: AskingClient) -> None:
        self.client = client
        self.stream: Stream | None = None
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.reset: int | None = None
        self._reader = MessageReader(None)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if end and not self.done.done():
            self.done.set_result(parse_status(headers))

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        for message in self._reader.feed(data):
            self.messages.put_nowait(message)
        self.client.conn.consume(stream, len(data))

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self.reset = code
        if not self.done.done():
            self.done.set_exception(ConnectionError(text))

    def on_drained(self, stream: Stream) -> None: ...

    def send(self, message: bytes, end: bool = False) -> None:
        """One more message."""
        assert self.stream is not None
        self.client.conn.send_data(self.stream, frame_message(message), end)
        self.client.flush()

    def cancel(self) -> None:
        """RST_STREAM."""
        assert self.stream is not None
        self.client.conn.reset(self.stream, CANCEL)
        self.client.flush()

    async def reply(self) -> bytes:
        """The one message of a call that ends well."""
        assert await self.done == (0, "")
        return self.messages.get_nowait()


class AskingClient(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.goaways: list[tuple[int, str]] = []
        self.conn = Connection(Role.CLIENT, self, limits or Limits(), self._loop.time())
        self.lost = self._loop.create_future()

    @classmethod
    async def connect(cls, port: int, limits: Limits | None = None) -> AskingClient:
        """A connection to 127.0.0.1."""
        _, client = await asyncio.get_running_loop().create_connection(lambda: cls(limits), "127.0.0.1", port)
        return client

    def ask(self, path: bytes, message: bytes | None, end: bool = True, timeout: float = 20.0, **metadata: bytes) -> Ask:
        """Open a call."""
        ask = Ask(self)
        block = self.conn.encoder.encode((
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"test"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        ))  # fmt: skip
        block += literal(b"grpc-timeout", timeout_value(timeout))
        block += b"".join(literal(name.replace("_", "-").encode(), value) for name, value in metadata.items())
        ask.stream = self.conn.open(ask, block, None if message is None else frame_message(message), end)
        self.flush()
        return ask

    def flush(self) -> None:
        """Write what there is."""
        if self._transport is None:
            return
        data = self.conn.take()
        if data:
            self._transport.write(data)
        if self.conn.closing is not None:
            self._transport.close()
        elif self.conn.pending:
            self._loop.call_soon(self.flush)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.conn.receive(data, self._loop.time())
        self.flush()

    def pause_writing(self) -> None:
        self.conn.pause()

    def resume_writing(self) -> None:
        self.conn.resume()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.conn.lost("connection lost")
        self.lost.set_result(None)

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        raise AssertionError("a client accepts no streams")

    def on_goaway(self, code: int, text: str) -> None:
        self.goaways.append((code, text))

    def on_slots(self) -> None: ...
