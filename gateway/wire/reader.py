"""Cuts what a peer sends into frames, and puts header blocks together."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Protocol

from gateway.wire import frames as f
from gateway.wire.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    WITH_PRIORITY,
    ProtocolError,
)
from gateway.wire.guards import Guards
from gateway.wire.lane import Lane
from gateway.wire.streams import Limits

_SHAPE = END_HEADERS | PADDED | WITH_PRIORITY
_HEADER = Struct(">HBBBI").unpack_from  # the length has three bytes
_SETTINGS = bytes((f.SETTINGS,))


class Frames(Protocol):
    """Who takes the frames; the methods may raise ProtocolError. No more come once `closing` is set."""

    closing: str | None

    def on_data(self, number: int, data: bytes, length: int, end: int) -> None:
        """DATA without its padding. `length` is what counts for flow control."""

    def on_headers(self, number: int, block: bytes, end: int) -> None:
        """A whole header block."""

    def on_reset(self, number: int, code: int) -> None:
        """RST_STREAM."""

    def on_settings(self, settings: list[tuple[int, int]]) -> None:
        """SETTINGS, to be acknowledged; the values are in their ranges."""

    def on_ping(self, payload: bytes) -> None:
        """PING, to be answered."""

    def on_goaway(self, last: int, code: int, text: str) -> None:
        """GOAWAY: streams after the last one will not be served."""

    def on_window_update(self, number: int, size: int) -> None:
        """WINDOW_UPDATE; number 0 is the connection."""


class FrameReader:
    """`preface`: what the peer sends before its first frame. Frames that are of no use here are counted and end here."""

    __slots__ = ("_block", "_guards", "_lane", "_limits", "_opening", "_preface", "_rest", "_taker")

    def __init__(self, taker: Frames, preface: bytes, guards: Guards, limits: Limits, lane: Lane | None) -> None:
        self._taker = taker
        self._lane = lane
        self._preface = preface
        self._guards = guards
        self._limits = limits
        self._opening = True
        self._rest = b""
        self._block: tuple[int, int, list[bytes]] | None = None  # a header block under way: stream, its end, its pieces

    def feed(self, data: bytes) -> None:
        """All that came from the peer, in any split. Raises ProtocolError, after which the reader is of no use."""
        at = 0
        if self._rest:
            at = self._missing(len(data))
            if at:  # finish the frame that was begun, without a copy of all that comes after it
                self._frames(self._rest + data[:at], 0)
                self._rest = b""
            else:
                data = self._rest + data
        at = self._frames(data, at)
        self._rest = data[at:] if at < len(data) else b""

    def _missing(self, size: int) -> int:
        """How many bytes the frame that was begun lacks, if its head is there and no more than `size` are missing; else 0."""
        rest = self._rest
        if self._opening or len(rest) < 9:
            return 0
        missing = 9 + int.from_bytes(rest[:3], "big") - len(rest)
        return missing if missing <= size else 0

    def _frames(self, buffer: bytes, at: int) -> int:
        """Hands on the whole frames from a place in the buffer on; the place of the first byte that was not used."""
        size = len(buffer)
        if self._opening:
            at = self._read_opening(buffer)
            if self._opening:
                return 0
        taker, lane = self._taker, self._lane
        while size - at >= 9:
            high, low, kind, flags, number = _HEADER(buffer, at)
            length = high << 8 | low
            if length > DEFAULT_FRAME_SIZE:
                raise ProtocolError(f.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            end = at + 9 + length
            if end > size:
                break
            number &= 0x7FFFFFFF
            if self._block is not None and kind != CONTINUATION:
                raise ProtocolError(f.PROTOCOL_ERROR, "a header block was interrupted")
            if lane is not None and (kind == HEADERS or (kind == DATA and lane.begun)) and (after := lane.run(buffer, at)) > at:
                end = after
            elif kind == DATA and not flags & PADDED and number:
                taker.on_data(number, buffer[at + 9 : end], length, flags & END_STREAM)
            elif kind == HEADERS and flags & _SHAPE == END_HEADERS and number:
                taker.on_headers(number, buffer[at + 9 : end], flags & END_STREAM)
            else:
                self._other(kind, flags, number, buffer[at + 9 : end])
            at = end
            if taker.closing is not None:
                return size
        return at

    def _read_opening(self, buffer: bytes) -> int:
        """The preface, then a SETTINGS frame (section 3.4): the place after the preface once that is sure."""
        preface = self._preface
        kind = len(preface) + 3
        if buffer[: len(preface)] != preface[: len(buffer)] or buffer[kind : kind + 1] not in (b"", _SETTINGS):
            raise ProtocolError(f.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface and SETTINGS")
        self._opening = len(buffer) <= kind
        return len(preface)

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        f.check_shape(kind, number, len(payload))
        if kind == DATA:
            self._taker.on_data(number, f.unpad(flags, payload), len(payload), flags & END_STREAM)
        elif kind == HEADERS:
            self._first_piece(flags, number, f.first_block(flags, number, payload))
        elif kind == CONTINUATION:
            self._next_piece(flags, number, payload)
        elif kind in _CONTROL:
            _CONTROL[kind](self, flags, number, payload)
        else:
            self._useless(kind, number, payload)

    def _useless(self, kind: int, number: int, payload: bytes) -> None:
        """PRIORITY, or a kind that nobody knows; PUSH_PROMISE is forbidden: no client allows it, and no server may get it."""
        self._guards.nothing()
        if kind == f.PRIORITY:
            f.check_priority(number, payload)
        elif kind == f.PUSH_PROMISE:
            raise ProtocolError(f.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def _first_piece(self, flags: int, number: int, piece: bytes) -> None:
        if flags & END_HEADERS:
            self._taker.on_headers(number, piece, flags & END_STREAM)
        else:
            self._block = (number, flags & END_STREAM, [piece])

    def _next_piece(self, flags: int, number: int, piece: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise ProtocolError(f.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, end, pieces = self._block
        pieces.append(piece)
        if len(pieces) > self._limits.max_continuations or sum(map(len, pieces)) > 2 * self._limits.max_header_list:
            raise ProtocolError(f.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            self._block = None
            self._taker.on_headers(number, b"".join(pieces), end)

    def _rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        self._taker.on_reset(number, int.from_bytes(payload, "big"))

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if not flags & f.ACK:
            self._guards.nothing()
            self._taker.on_settings(f.read_settings(payload))
        elif payload:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if not flags & f.ACK:
            self._guards.nothing()
            self._taker.on_ping(payload)

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        self._guards.nothing()
        self._taker.on_goaway(*f.read_goaway(payload))

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        self._guards.update()
        self._taker.on_window_update(number, int.from_bytes(payload, "big") & 0x7FFFFFFF)


_CONTROL: dict[int, Callable[[FrameReader, int, int, bytes], None]] = {
    f.RST_STREAM: FrameReader._rst_stream,
    f.SETTINGS: FrameReader._settings,
    f.PING: FrameReader._ping,
    f.GOAWAY: FrameReader._goaway,
    f.WINDOW_UPDATE: FrameReader._window_update,
}
