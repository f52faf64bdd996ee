"""A small gRPC server on our own framing, for foreign clients: it answers each call with the bytes that came, or a constant.

`python -m tests.wire.echo PORT [CONSTANT_SIZE]` runs it by hand, for h2load.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from gateway.core.errors import RpcError
from gateway.wire.connection import Connection, Headers, Limits, Role, Stream
from gateway.wire.frames import NO_ERROR, PROTOCOL_ERROR, headers_frame
from gateway.wire.grpc import (
    RESPONSE_HEADERS,
    TRAILERS_OK,
    MessageReader,
    frame_message,
    request_head,
    trailers,
    trailers_only,
    whole,
)

HEADERS = headers_frame(RESPONSE_HEADERS, end=False)
TRAILERS = headers_frame(TRAILERS_OK, end=True)
MAX_MESSAGE = 8 << 20


class EchoCall:
    """/echo/Unary sends back its one message, /echo/Stream each at once, /echo/Fail an error; any other path answers a page after a
    moment, so that calls are under way together."""

    def __init__(self, server: EchoConnection, path: bytes, compressed: bool) -> None:
        self._server = server
        self._path = path
        self._reader = MessageReader(MAX_MESSAGE, compressed)
        self._messages: list[bytes] = []
        self._answered = False

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        self.on_data(stream, b"", True)

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        conn = self._server.conn
        conn.consume(stream, len(data))
        try:
            for message in self._reader.feed(data):
                self._message(stream, message)
        except RpcError as error:
            conn.send_headers(stream, trailers_only(error.code, error.text), True)
        if end and not stream.closed:
            self._end(stream)

    def _message(self, stream: Stream, message: bytes) -> None:
        if self._path != b"/echo/Stream":
            self._messages.append(message)
            return
        self._begin(stream)
        self._server.conn.send_data(stream, frame_message(message), False)

    def _begin(self, stream: Stream) -> None:
        if not self._answered:
            self._answered = True
            self._server.conn.send_headers(stream, RESPONSE_HEADERS, False)

    def _end(self, stream: Stream) -> None:
        conn = self._server.conn
        if self._path == b"/echo/Unary":
            conn.respond(stream, HEADERS, frame_message(b"".join(self._messages)), TRAILERS)
        elif self._path == b"/echo/Fail":
            code, _, text = b"".join(self._messages).partition(b" ")
            conn.send_headers(stream, trailers_only(int(code), text.decode()), True)
        elif self._path == b"/echo/Late":
            self._begin(stream)
            conn.send_data(stream, frame_message(b"".join(self._messages)), False)
            conn.send_headers(stream, trailers(9, "after the data"), True)
        elif self._path == b"/echo/Stream":
            self._begin(stream)
            conn.send_headers(stream, TRAILERS_OK, True)
        else:
            self._server.later(lambda: self._page(stream))

    def _page(self, stream: Stream) -> None:
        self._begin(stream)
        self._server.conn.send_data(stream, b"a page\n", True)

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self._server.resets.append(code)

    def on_drained(self, stream: Stream) -> None: ...


class Constant:
    """Answers each unary call with the same bytes: what the framing itself costs."""

    def __init__(self, server: EchoConnection, data: bytes) -> None:
        self._server = server
        self._data = data

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None: ...

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        if end and whole(data) is not None:
            self._server.conn.respond(stream, HEADERS, self._data, TRAILERS)

    def on_reset(self, stream: Stream, code: int, text: str) -> None: ...
    def on_drained(self, stream: Stream) -> None: ...


class EchoConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, site: EchoSite) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._transport: asyncio.Transport | None = None
        self.resets: list[int] = []
        self.conn = Connection(Role.SERVER, self, site.limits, self._loop.time())
        self._constant = Constant(self, frame_message(bytes(site.constant))) if site.constant else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(256 << 10)
        self._site.connections.append(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.conn.receive(data, self._loop.time())
        self._flush()

    def later(self, work: Callable[[], None]) -> None:
        """In a moment."""
        self._loop.call_later(0.1, lambda: (work(), self._flush()))

    def shut_down(self) -> None:
        """GOAWAY, from another thread."""
        self._loop.call_soon_threadsafe(self._shut_down)

    def _shut_down(self) -> None:
        self.conn.shut_down(NO_ERROR, "bye")
        self._flush()

    def _flush(self) -> None:
        self._due = False
        if self._transport is None:
            return
        data = self.conn.take()
        if data:
            self._transport.write(data)
        if self.conn.closing is not None:
            self._transport.close()
        elif self.conn.pending and not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def pause_writing(self) -> None:
        self.conn.pause()

    def resume_writing(self) -> None:
        self.conn.resume()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.conn.closing:
            self._site.verdicts.append(self.conn.closing)
        self.conn.lost("connection lost")

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        head = request_head(headers)
        if head.malformed or (end and head.length > 0):
            self.conn.reset(stream, PROTOCOL_ERROR)
            return
        if self._constant is not None:
            stream.owner = self._constant
            return
        stream.expected = head.length
        stream.owner = EchoCall(self, head.path, head.compressed)
        if head.refusal is not None and self._site.strict:
            self.conn.send_headers(stream, head.refusal, True)
        elif end:
            stream.owner.on_data(stream, b"", True)

    def on_goaway(self, code: int, text: str) -> None: ...
    def on_slots(self) -> None: ...


class EchoSite:
    """The server: its port, its connections, and why some of them were ended. `strict`: other than gRPC is refused."""

    def __init__(self, limits: Limits | None = None, constant: int = 0, strict: bool = True) -> None:
        self.limits = limits or Limits()
        self.constant = constant
        self.strict = strict
        self.port = 0
        self.connections: list[EchoConnection] = []
        self.verdicts: list[str] = []

    async def listen(self, port: int = 0) -> asyncio.Server:
        """Start to accept; 0 chooses a free port."""
        server = await asyncio.get_running_loop().create_server(lambda: EchoConnection(self), "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        return server


@contextmanager
def serving(site: EchoSite) -> Iterator[EchoSite]:
    """The server in a thread with an event loop of its own."""
    loop = uvloop.new_event_loop()
    server = loop.run_until_complete(site.listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _main(port: int, constant: int) -> None:
    async with await EchoSite(constant=constant, strict=False).listen(port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
