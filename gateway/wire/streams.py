"""One HTTP/2 stream: its windows, its queue, who owns it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.hpack import Headers


@dataclass(frozen=True)
class Limits:
    """What this side allows its peer. Sizes in bytes, times in seconds, rates per second."""

    max_streams: int = 16_384
    max_header_list: int = 65_536
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    high_water: int = 256 << 10  # queued bytes of a stream at which `writable` turns false
    low_water: int = 64 << 10
    slice: int = 1 << 20  # bytes of DATA put out at once, so that other connections get their turn
    max_queued: int = 256 << 20  # queued bytes of a connection; beyond, the peer is cut off
    max_control: int = 10_000  # control frames that wait for a peer that does not read
    max_resets: int = 2_000  # streams per second that the peer may open and reset (CVE-2023-44487)
    max_nothings: int = 10_000  # frames per second that carry nothing: PING, SETTINGS, PRIORITY, empty DATA, unknown ones
    max_continuations: int = 64  # frames of one header block
    ping_interval: float = 30.0  # keepalive: PING after this silence while streams are open …
    ping_timeout: float = 20.0  # … and the connection is dead when nothing came for this long after it
    stall: float = 300.0  # a peer whose windows stay shut for so long while data waits is cut off


class Owner(Protocol):
    """What a stream belongs to: a client's call (server role) or an upstream call (client role)."""

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Client role: response headers, or trailers when end. Server role: request trailers (end is true)."""

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
        "closed", "expected", "id", "local_ended", "owner", "queue", "queued", "receive_window", "remote_ended", "send_window",
        "tail", "unreturned", "writable",
    )  # fmt: skip

    def __init__(self, number: int, send_window: int, receive_window: int, owner: Owner) -> None:
        self.id = number
        self.owner = owner
        self.send_window = send_window
        self.receive_window = receive_window
        self.unreturned = 0
        self.queue: deque[bytes] | None = None
        self.queued = 0
        self.tail: bytes | None = None  # the HEADERS frame (or empty DATA) that ends the stream once the queue is empty
        self.writable = True
        self.local_ended = False
        self.remote_ended = False
        self.closed = False
        self.expected = -1  # bytes that content-length promises; -1: it promised nothing
