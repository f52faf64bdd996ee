"""One gRPC call of a client: the stream's owner towards the wire, the Call towards the services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.services.call import Session
from gateway.wire.connection import Headers, Stream
from gateway.wire.frames import headers_frame
from gateway.wire.grpc import (
    RESPONSE_HEADERS,
    TRAILERS_OK,
    MessageReader,
    RequestHead,
    frame_message,
    trailers,
    trailers_only,
    whole,
)
from gateway.wire.output import ReplyForm

if TYPE_CHECKING:
    from gateway.listeners.grpc import GrpcConnection

REPLY_HEADERS = headers_frame(RESPONSE_HEADERS, end=False)
REPLY_TRAILERS = headers_frame(TRAILERS_OK, end=True)
REPLY_FORM = ReplyForm(REPLY_HEADERS, REPLY_TRAILERS)

MAX_PARTIAL = 32 << 20
"""Bytes of unfinished request messages that one connection may have the gateway hold."""

DEADLINE = RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
"""grpc-go's text."""


class Recorder(Protocol):
    """Who counts and logs the calls. `slow`: seconds from which on a call is slow."""

    slow: float

    def slow_request(self, call: Any, code: int, seconds: float) -> None:
        """Log a call that was recorded otherwise."""

    def record(self, call: Any, code: int, seconds: float) -> None:
        """The call has ended."""

    def crashed(self, call: Any, error: Exception) -> None:
        """A service raised what is no RpcError."""


class GrpcCall:
    """Implements gateway.services.call.Call and gateway.wire.connection.Owner."""

    cluster = ""
    on_cancel: Callable[[], None] | None = None
    on_writable: Callable[[], None] | None = None
    deadline: float | None = None
    ended = False
    framed = b""
    bytes_in = 0
    bytes_out = 0
    _answered = False
    _received = False
    _reader: MessageReader | None = None
    session: Session | None = None
    _task: asyncio.Task[bytes | None] | None = None

    def __init__(
        self, connection: GrpcConnection, stream: Stream, method: Method, head: RequestHead, timeout: float | None, handler: Any
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._handler = handler
        self.method = method
        self.metadata: Mapping[bytes, bytes] = head.metadata
        self._compressed = head.compressed
        self._started = perf_counter()  # the loop's own time has milliseconds only
        if timeout is not None:
            self.deadline = connection.loop.time() + timeout
        connection.calls.add(self)
        if method.client_streaming:
            self.session = handler(self)

    def take_over(self, framed: bytes, deadline: float | None) -> None:
        """Its request has come already."""
        self._received = True
        self.deadline = deadline
        self.framed = framed
        self.bytes_in = len(framed) - 5

    # what comes from the client

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Request trailers: gRPC has no use for them but the end of the stream."""
        self.on_data(stream, b"", True)

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        message = whole(data) if self._reader is None else None
        if message is not None and len(message) <= self._connection.port.max_request_bytes:
            if end and self.session is None and not self._received:  # the common case: a unary call in one frame
                self._received = True
                self.framed = data
                self.bytes_in = len(message)
                self._handler(self, message)
                return
            self._take(message)
        elif data:
            self._read(data)
        if end and not self.ended:
            self._end_of_requests()
        elif not end:
            self._connection.conn.consume(stream, len(data))

    def _read(self, data: bytes) -> None:
        """A message in pieces, or several in one piece."""
        reader = self._reader
        if reader is None:
            reader = self._reader = MessageReader(self._connection.port.max_request_bytes, self._compressed)
        before = reader.buffered
        try:
            for message in reader.feed(data):
                self._take(message)
        except RpcError as error:
            self.fail(error)
        connection = self._connection
        connection.partial += reader.buffered - before
        if connection.partial > MAX_PARTIAL:
            self.fail(RpcError(Code.RESOURCE_EXHAUSTED, f"more than {MAX_PARTIAL} bytes of unfinished requests on one connection"))

    def _take(self, message: bytes) -> None:
        if self.ended:
            return
        self.bytes_in += len(message)
        if self.session is not None:
            self.session.message(message)
        elif not self._received:
            self._received = True
            self.framed = frame_message(message)
            self._handler(self, message)

    def _end_of_requests(self) -> None:
        if self._reader is not None and self._reader.buffered:
            self.fail(RpcError(Code.UNKNOWN, "unexpected EOF"))
        elif self.session is not None:
            self.session.half_close()
        elif not self._received:
            self.fail(RpcError(Code.UNKNOWN, "EOF"))

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        if not self.ended:
            self._cancelled(Code.CANCELLED)

    def on_drained(self, stream: Stream) -> None:
        if self.on_writable is not None:
            self.on_writable()

    def expire(self) -> None:
        """The client's deadline has passed."""
        if not self.ended:
            self._answer_error(DEADLINE)
            self._cancelled(Code.DEADLINE_EXCEEDED)

    def _cancelled(self, code: int) -> None:
        tell = self.on_cancel
        self._close(code)
        if self._task is not None:
            self._task.cancel()
        if tell is not None:
            tell()

    # what the services answer

    @property
    def writable(self) -> bool:
        return self._stream.writable

    def reply(self, message: bytes) -> None:
        self.reply_raw(frame_message(message))

    def reply_raw(self, data: bytes) -> None:
        if self.ended:
            return
        connection = self._connection
        self.bytes_out += len(data)
        connection.conn.respond(self._stream, REPLY_HEADERS, data, REPLY_TRAILERS)
        self._close(0)
        if not connection.flush_due:
            connection.touch()

    def send(self, message: bytes) -> None:
        self.send_raw(frame_message(message))

    def send_raw(self, data: bytes) -> None:
        if self.ended:
            return
        connection = self._connection
        self.bytes_out += len(data)
        if not self._answered:
            self._answered = True
            connection.conn.send_headers(self._stream, RESPONSE_HEADERS, False)
        connection.conn.send_data(self._stream, data, False)
        connection.touch()

    def end(self) -> None:
        if self.ended:
            return
        connection = self._connection
        if not self._answered:
            connection.conn.send_headers(self._stream, RESPONSE_HEADERS, False)
        connection.conn.send_headers(self._stream, TRAILERS_OK, True)
        self._close(Code.OK)
        connection.touch()

    def fail(self, error: RpcError) -> None:
        if not self.ended:
            self._answer_error(error)
            self._close(error.code)

    def _answer_error(self, error: RpcError) -> None:
        block = (trailers if self._answered else trailers_only)(error.code, error.text)
        self._connection.conn.send_headers(self._stream, block, True)
        self._connection.touch()

    def _close(self, code: int) -> None:
        """The answer is on its way: count it, and let go of what the client may still send."""
        self.ended = True
        if self.on_cancel is not None:
            self.on_cancel = None
        if self.on_writable is not None:
            self.on_writable = None
        connection = self._connection
        connection.calls.discard(self)
        if self._reader is not None:
            connection.partial -= self._reader.buffered
        connection.port.observer.record(self, code, perf_counter() - self._started)

    def run(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        self._task = self._connection.loop.create_task(work)
        self._task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[bytes | None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, RpcError):
            self.fail(error)
        elif isinstance(error, Exception):
            self._connection.port.observer.crashed(self, error)
            self.fail(RpcError(Code.INTERNAL, "the gateway failed to answer; its log says why"))
        elif (message := task.result()) is not None:
            self.reply(message)
