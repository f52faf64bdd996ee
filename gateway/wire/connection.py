"""INTERFACE SKETCH, to be implemented: one HTTP/2 connection, either role, sans-IO (RFC 9113)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

Headers = tuple[tuple[bytes, bytes], ...]


class Role(Enum):
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True)
class Limits:
    """What this side allows its peer. Sizes in bytes, times in seconds."""

    max_streams: int = 16_384
    max_frame_size: int = 16_384
    max_header_list: int = 65_536
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    high_water: int = 256 << 10      # queued bytes of a stream at which `writable` turns false
    low_water: int = 64 << 10
    max_queued: int = 64 << 20       # queued bytes of a whole connection, control frames included; beyond: the peer is cut off
    ping_interval: float = 30.0      # keepalive: PING after this silence …
    ping_timeout: float = 20.0       # … and the connection is dead when nothing came for this long after it
    # + whatever the flood guards need (resets per second, control frames per second, …)


class Owner(Protocol):
    """What a stream belongs to: a client's call (server role) or an upstream call (client role)."""

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Client role: response headers, or trailers when end. Server role: request trailers (end is true)."""

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None: ...
    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        """The peer reset the stream, or the connection was lost (`Connection.lost`), or GOAWAY left it out. Nothing more comes.
        code is the HTTP/2 error code; REFUSED_STREAM means the peer surely did not process it."""

    def on_writable(self, stream: Stream) -> None:
        """The stream's queue fell below low_water after it had been over high_water."""


class Handler(Protocol):
    """What a connection belongs to."""

    def on_stream(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Server role: a request's headers came; set `stream.owner` before returning (or reset the stream)."""

    def on_goaway(self, code: int, text: str) -> None:
        """The peer will take no more streams; those it left out got on_reset(REFUSED_STREAM)."""

    def on_slots(self) -> None:
        """Client role: `can_open` turned true again."""


class Stream:
    """One HTTP/2 stream; slots only, made by the Connection."""

    id: int
    owner: Owner
    queued: int          # bytes given to send_data and not yet in Connection.out
    writable: bool
    closed: bool         # both directions ended, or reset


class Connection:
    """`receive` calls handler and owners synchronously; what is to be written gathers in `out` (the caller joins and writes it once
    per loop turn with `take`). After a protocol error or a guard's verdict `closing` is a text that says why, the GOAWAY frame is
    in `out`: write it, then close the transport."""

    closing: str | None
    can_open: bool

    def __init__(self, role: Role, handler: Handler, limits: Limits, now: float) -> None:
        """Puts the preface and SETTINGS into `out`."""

    def receive(self, data: bytes, now: float) -> None: ...
    def take(self) -> bytes:
        """All bytes to write now, b"" when there are none; empties `out`."""

    def pause(self) -> None:
        """The transport's buffer is full: emit no DATA until `resume` (control frames go on, bounded by max_queued)."""

    def resume(self) -> None: ...
    def open(self, owner: Owner, block: bytes, data: bytes | None, end: bool) -> Stream:
        """Client role: HEADERS with this HPACK block, then data if not None, END_STREAM if end. Fast path: unary calls."""

    def send_headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """HEADERS; behind queued data if there is any (trailers)."""

    def send_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """DATA under flow control, split to the peer's max frame size, queued when a window is shut."""

    def reset(self, stream: Stream, code: int) -> None:
        """RST_STREAM; drops what is queued; the owner hears nothing more. A closed stream: no effect."""

    def consume(self, stream: Stream, n: int) -> None:
        """The application is done with n received bytes: opens the stream's window again (batched WINDOW_UPDATE). The connection's
        window is opened by the Connection itself as data comes in."""

    def shut_down(self, code: int, text: str) -> None:
        """GOAWAY: existing streams go on, new ones are refused; closing is set when the last one has ended."""

    def tick(self, now: float) -> None:
        """Call about once a second: keepalive pings, their timeout, guards' budgets, stalled peers."""

    def lost(self, text: str) -> None:
        """The transport is gone: every open stream's owner gets on_reset."""
