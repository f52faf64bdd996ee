"""Upstream calls: what is sent to an endpoint for one request, and where its reply goes.

Three forms, each the owner of an HTTP/2 stream: a Relay passes a client's bytes through, a Unary is awaited by the gateway
itself, a Streaming is a two-way stream (Watch, LeaseKeepAlive).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.etcdpb.rpc_pb2 import ResponseHeader
from gateway.upstream.channel import Channel
from gateway.wire.connection import Headers, Stream
from gateway.wire.frames import CANCEL, REFUSED_STREAM
from gateway.wire.grpc import MessageReader, frame_message, parse_status

STATUS_OK = (b":status", b"200")
NOTHING: Mapping[bytes, bytes] = {}

SMALL = 16_384
"""Bytes of a unary reply that wait for its status."""

MAX_REFUSALS = 5
"""Times that a call is sent again because an endpoint refused it unprocessed."""

MAX_QUEUED = 8 << 20
"""Bytes that may wait on a two-way stream which the endpoint does not read; beyond, the stream is given up."""

NOT_SENT = RpcError(Code.UNAVAILABLE, "there is no connection available")
"""etcd's clientv3 retries writes on this text only (client/v3/retry.go): it says that nothing was sent."""


class Caller(Protocol):
    """The client's side of a relay: what gateway.services.call.Call offers."""

    method: Method
    metadata: Mapping[bytes, bytes]
    deadline: float | None
    framed: bytes
    cluster: str
    on_cancel: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def writable(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    def reply_raw(self, data: bytes) -> None: ...
    def send_raw(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def fail(self, error: RpcError) -> None: ...


class Receiver(Protocol):
    """Takes what a two-way stream brings; called on the event loop."""

    def on_message(self, data: bytes) -> None:
        """One whole serialised protobuf message."""

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over: None for OK. Called exactly once, unless the stream was cancelled from this side."""


class Outgoing(Protocol):
    """A call that waits for a channel."""

    def start(self, channel: Channel) -> None:
        """Send it. Nothing happens if it was cancelled meanwhile."""

    def refuse(self, error: RpcError) -> None:
        """No channel is to be had."""


def lost(channel: Channel, reason: str) -> RpcError:
    """The outcome is unknown: sent, and no reply."""
    return RpcError(Code.UNAVAILABLE, f"connection to {channel.authority} lost before the reply came: {reason}")


def no_trailers() -> RpcError:
    """As grpc-go says it."""
    return RpcError(Code.INTERNAL, "server closed the stream without sending trailers")


def header_revision(data: bytes, at: int) -> int:
    """The revision in the header at the front of the reply that begins there: its field 1, below 128 bytes, as it is four numbers. 0 where
    there is none."""
    if data[at : at + 1] != b"\x0a":
        return 0
    try:
        return int(ResponseHeader.FromString(data[at + 2 : at + 2 + data[at + 1]]).revision)
    except (DecodeError, IndexError):
        return 0


class Relay:
    """A client's request, forwarded as the bytes it came in; reply bytes go on as they come. A small unary reply waits for its status, so
    that all of it is written at once."""

    _channel: Channel
    _stream: Stream | None = None
    _reply = b""
    _passing = False
    _held = 0
    _refusals = 0

    def __init__(self, call: Caller, retry: Callable[[Outgoing], None], seen: Callable[[int], None] | None) -> None:
        self._call = call
        self._retry = retry
        self._seen = seen

    def start(self, channel: Channel) -> None:
        call = self._call
        if call.ended:
            return
        self._channel = channel
        self._stream = channel.open(self, call.method, call.framed, True, call.metadata, call.deadline)
        call.on_cancel = self._cancel

    def refuse(self, error: RpcError) -> None:
        self._call.fail(error)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if end:
            code, text = parse_status(headers)
            if code:
                self._call.fail(RpcError(code, text))
            elif self._reply and not self._passing:
                self._call.reply_raw(self._reply)
            else:
                self._call.end()
        elif headers[0] != STATUS_OK:
            self._cancel()
            self._call.fail(RpcError(*parse_status(headers)))

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        if self._seen is not None:
            self._seen(header_revision(data, 5))
            self._seen = None
        if not self._passing and not self._reply and len(data) < SMALL and not self._call.method.server_streaming:
            self._reply = data
        else:
            self._pass(stream, data)
        if end:
            self._call.fail(no_trailers())

    def _pass(self, stream: Stream, data: bytes) -> None:
        call = self._call
        if not self._passing:
            self._passing = True
            data = self._reply + data
        call.send_raw(data)
        if call.writable:
            self._channel.conn.consume(stream, len(data))
        else:
            self._held += len(data)
            call.on_writable = self._release

    def _release(self) -> None:
        """The client reads again: let the endpoint send on."""
        if self._stream is not None:
            self._channel.conn.consume(self._stream, self._held)
            self._channel.touch()
        self._held = 0

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        if code == REFUSED_STREAM:  # the peer surely did not process it (RFC 9113, section 8.7)
            self._call.on_cancel = None
            self._refusals += 1
            self._retry(self) if self._refusals < MAX_REFUSALS else self.refuse(NOT_SENT)
        else:
            self._call.fail(lost(self._channel, text))

    def on_drained(self, stream: Stream) -> None:
        """The request's last bytes went out."""

    def _cancel(self) -> None:
        if self._stream is not None:
            self._channel.conn.reset(self._stream, CANCEL)
            self._channel.touch()


class Unary:
    """One call of the gateway's own; `reply` resolves to the serialised message or raises RpcError."""

    __slots__ = ("_channel", "_data", "_deadline", "_metadata", "_method", "_reader", "_refusals", "_reply", "_retry", "_stream", "reply")

    def __init__(
        self,
        method: Method,
        message: bytes,
        deadline: float | None,
        metadata: Mapping[bytes, bytes],
        retry: Callable[[Outgoing], None],
    ) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._method = method
        self._data = frame_message(message)
        self._deadline = deadline
        self._metadata = metadata
        self._retry = retry
        self._reader = MessageReader(None)
        self._refusals = 0
        self._reply = b""
        self._channel: Channel | None = None
        self._stream: Stream | None = None

    def start(self, channel: Channel) -> None:
        if not self.reply.done():
            self._channel = channel
            self._stream = channel.open(self, self._method, self._data, True, self._metadata, self._deadline)

    def refuse(self, error: RpcError) -> None:
        if not self.reply.done():
            self.reply.set_exception(RpcError(error.code, error.text))

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if end or headers[0] != STATUS_OK:
            code, text = parse_status(headers)
            if code:
                self.refuse(RpcError(code, text))
            elif not self.reply.done():
                self.reply.set_result(self._reply)

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        assert self._channel is not None
        try:
            for message in self._reader.feed(data):
                self._reply = message
        except RpcError as error:  # no gRPC message, though the endpoint says so
            self.refuse(error)
            self.cancel()
            return
        self._channel.conn.consume(stream, len(data))
        if end:
            self.refuse(no_trailers())

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        assert self._channel is not None
        if code == REFUSED_STREAM and not self.reply.done():
            self._refusals += 1
            self._retry(self) if self._refusals < MAX_REFUSALS else self.refuse(NOT_SENT)
        else:
            self.refuse(lost(self._channel, text))

    def on_drained(self, stream: Stream) -> None:
        """The request's last bytes went out."""

    def cancel(self) -> None:
        """Nobody waits for it any longer."""
        if self._channel is not None and self._stream is not None:
            self._channel.conn.reset(self._stream, CANCEL)
            self._channel.touch()


class Streaming:
    """A two-way stream; messages sent before a channel is there wait (bounded)."""

    __slots__ = (
        "_channel", "_ended", "_half_closed", "_held", "_metadata", "_method", "_paused", "_reader", "_receiver", "_stream", "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, method: Method, receiver: Receiver, metadata: Mapping[bytes, bytes]) -> None:
        self._method = method
        self._receiver = receiver
        self._metadata = metadata
        self._reader = MessageReader(None)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._half_closed = False
        self._paused = False
        self._held = 0
        self._ended = False
        self._channel: Channel | None = None
        self._stream: Stream | None = None

    # for the service

    def send(self, message: bytes) -> None:
        """Queue one message for the endpoint."""
        if self._ended or self._half_closed:
            return
        data = frame_message(message)
        if self._channel is None or self._stream is None:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            queued = self._waiting_bytes
        else:
            self._channel.conn.send_data(self._stream, data, False)
            self._channel.touch()
            queued = self._stream.queued
        if queued > MAX_QUEUED:
            self.cancel()
            self._waiting.clear()
            self._receiver.on_end(RpcError(Code.RESOURCE_EXHAUSTED, "the endpoint does not take what is sent on the stream"))

    def half_close(self) -> None:
        """No more messages from this side."""
        self._half_closed = True
        if self._channel is not None and self._stream is not None and not self._ended:
            self._channel.conn.send_data(self._stream, b"", True)
            self._channel.touch()

    def cancel(self) -> None:
        """Reset the stream; the receiver hears nothing more."""
        if self._ended:
            return
        self._ended = True
        if self._channel is not None and self._stream is not None:
            self._channel.conn.reset(self._stream, CANCEL)
            self._channel.touch()

    def pause(self) -> None:
        """Stop reading (the client is slow): at most the stream's window of bytes is still delivered."""
        self._paused = True

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._held and self._channel is not None and self._stream is not None:
            self._channel.conn.consume(self._stream, self._held)
            self._channel.touch()
        self._held = 0

    # Outgoing and wire.connection.Owner

    def start(self, channel: Channel) -> None:
        if self._ended:
            return
        self._channel = channel
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._stream = channel.open(self, self._method, data or None, self._half_closed, self._metadata, None)

    def refuse(self, error: RpcError) -> None:
        self._end(error)

    def _end(self, error: RpcError | None) -> None:
        if not self._ended:
            self._ended = True
            self._receiver.on_end(error)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if end or headers[0] != STATUS_OK:
            code, text = parse_status(headers)
            self._end(RpcError(code, text) if code else None)

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        assert self._channel is not None
        try:
            messages = list(self._reader.feed(data))
        except RpcError as error:  # no gRPC message, though the endpoint says so
            self._channel.conn.reset(stream, CANCEL)
            self._end(error)
            return
        for message in messages:
            if self._ended:
                return
            self._receiver.on_message(message)
        if self._paused:
            self._held += len(data)
        else:
            self._channel.conn.consume(stream, len(data))
        if end:
            self._end(no_trailers())

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        assert self._channel is not None
        self._end(lost(self._channel, text))

    def on_drained(self, stream: Stream) -> None:
        """Nothing waits for it: what is queued is bounded in `send`."""
