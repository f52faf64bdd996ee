"""One HTTP/2 stream: its windows, its queue, who owns it; and what a connection allows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gateway.wire import frames as f
from gateway.wire.hpack import Headers


class Role(Enum):
    """Which side of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class Handler(Protocol):
    """What a connection belongs to."""

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        """Server role: a request's headers came, `grpc-timeout` apart; set `stream.owner` before returning, or reset the stream."""

    def on_goaway(self, code: int, text: str) -> None:
        """The peer will take no more streams; those it left out got on_reset(REFUSED_STREAM)."""

    def on_slots(self) -> None:
        """Client role: `can_open` turned true again."""


@dataclass(frozen=True)
class Limits:
    """What this side allows its peer. Sizes in bytes, times in seconds, rates per second."""

    max_streams: int = 16_384
    max_header_list: int = 65_536
    stream_window: int = 1 << 20  # windows are 65,535 bytes at least: what a peer may use before it has read our SETTINGS
    connection_window: int = 1 << 24
    high_water: int = 256 << 10  # queued bytes of a stream at which `writable` turns false
    low_water: int = 64 << 10
    slice: int = 1 << 20  # bytes of DATA put out at once, so that other connections get their turn
    max_queued: int = 1 << 30  # queued bytes of a connection; beyond, the peer is cut off
    max_control: int = 50_000  # frames other than DATA that wait for a peer that does not read
    max_resets: int = 2_000  # streams per second that the peer may open and reset (CVE-2023-44487)
    max_nothings: int = 10_000  # frames per second that carry nothing: PING, SETTINGS, PRIORITY, empty DATA, unknown ones
    max_continuations: int = 64  # frames of one header block
    min_ping_interval: float = 5.0  # between a client's pings while it has streams open, as etcd's --grpc-keepalive-min-time …
    min_idle_ping_interval: float = 7200.0  # … and while it has none
    ping_interval: float = 30.0  # keepalive: PING after this silence (a client: only while streams are open) …
    ping_timeout: float = 20.0  # … and the connection is dead when nothing came for this long after it
    stall: float = 300.0  # a peer that takes nothing for so long while something waits is cut off


def greeting(role: Role, limits: Limits) -> bytes:
    """What this side says first."""
    values = {f.INITIAL_WINDOW_SIZE: limits.stream_window, f.MAX_HEADER_LIST_SIZE: limits.max_header_list}
    if role is Role.SERVER:
        values[f.MAX_CONCURRENT_STREAMS] = limits.max_streams
    else:
        values[f.ENABLE_PUSH] = 0
    preface = b"" if role is Role.SERVER else f.PREFACE
    more = limits.connection_window - f.DEFAULT_WINDOW
    return preface + f.settings_frame(values) + (f.window_update(0, more) if more else b"")


class Owner(Protocol):
    """What a stream belongs to: a client's call (server role) or an upstream call (client role)."""

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Client role: response headers, which begin with `:status`, or trailers when end. Server role: request trailers (end is true)."""

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """Received bytes, padding taken off. Give them back with Connection.consume when done, unless end."""

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        """The peer reset the stream, or the connection was lost, or GOAWAY left it out. Nothing more comes. REFUSED_STREAM means that
        the peer surely did not process it."""

    def on_drained(self, stream: Stream) -> None:
        """The stream's queue fell below low_water after it had been over high_water."""


class _Nobody:
    """Owner of a stream that nobody cares for."""

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None: ...
    def on_data(self, stream: Stream, data: bytes, end: bool) -> None: ...
    def on_reset(self, stream: Stream, code: int, text: str) -> None: ...
    def on_drained(self, stream: Stream) -> None: ...


NOBODY: Owner = _Nobody()


class Stream:
    """Made by the Connection. `queued`: bytes given to send_data that are not out yet. `closed`: both directions ended, or reset."""

    __slots__ = (
        "answered", "closed", "expected", "id", "local_ended", "offset", "owner", "queue", "queued", "receive_window", "remote_ended",
        "send_window", "tail", "unreturned", "writable",
    )  # fmt: skip

    def __init__(self, number: int, send_window: int, receive_window: int, owner: Owner) -> None:
        self.id = number
        self.owner = owner
        self.send_window = send_window
        self.receive_window = receive_window
        self.unreturned = 0
        self.queue: deque[bytes] | None = None  # never empty
        self.offset = 0  # bytes of the queue's first piece that are out
        self.queued = 0
        self.tail: bytes | None = None  # ends the stream once the queue is empty: trailers, or b"" for an empty DATA frame
        self.writable = True
        self.local_ended = False  # the application said all; it may still be queued
        self.remote_ended = False
        self.answered = False  # client role: the response's headers came
        self.closed = False
        self.expected = -1  # bytes that content-length promises; -1: it promised nothing


def data_fault(stream: Stream, size: int, end: int) -> int:
    """The error code for DATA that breaks a rule, else NO_ERROR; counts it against the promised content-length (section 8.1.1)."""
    if stream.remote_ended:
        return f.STREAM_CLOSED
    if stream.receive_window < 0:
        return f.FLOW_CONTROL_ERROR
    if stream.expected < 0:
        return f.NO_ERROR
    stream.expected -= size
    return f.PROTOCOL_ERROR if stream.expected < 0 or (end and stream.expected) else f.NO_ERROR


INTERIM = -1
"""No error code: a 1xx response, which is skipped (section 8.1)."""


class Heads:
    """Whether the headers of an open stream are right. Most are the very ones that were found good before: the decoder remembers blocks."""

    __slots__ = ("_server", "_usual", "_usual_trailers")

    def __init__(self, server: bool) -> None:
        self._server = server
        self._usual: Headers | None = None  # client role: a response head, and trailers, that were found good
        self._usual_trailers: Headers | None = None

    def fault(self, stream: Stream, headers: Headers, end: int) -> int:
        """The error code for headers that may not come at this point of the stream, INTERIM, or NO_ERROR (section 8.1)."""
        usual = self._usual_trailers if stream.answered else self._usual
        if headers is usual and not stream.remote_ended and bool(end) == stream.answered:
            return f.NO_ERROR
        first = not self._server and not stream.answered
        if first and not end and headers and headers[0][0] == b":status" and headers[0][1][:1] == b"1":
            return INTERIM
        code = self._look(stream, headers, end, first)
        if not code and not self._server:
            if stream.answered:
                self._usual_trailers = headers
            elif not end:
                self._usual = headers
        return code

    def _look(self, stream: Stream, headers: Headers, end: int, first: bool) -> int:
        if stream.remote_ended:
            return f.STREAM_CLOSED
        if first:
            return f.NO_ERROR if _has_status(headers) else f.PROTOCOL_ERROR
        trailers = end and stream.expected <= 0 and not any(name[:1] == b":" for name, _ in headers)
        return f.NO_ERROR if trailers else f.PROTOCOL_ERROR


def _has_status(headers: Headers) -> bool:
    name, value = headers[0] if headers else (b"", b"")
    return name == b":status" and len(value) == 3 and value.isdigit() and value[:1] != b"1"
