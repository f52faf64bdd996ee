"""The numbers of streams: which were opened, and by whom (RFC 9113, section 5.1.1)."""

from __future__ import annotations

from gateway.wire.frames import PROTOCOL_ERROR, STREAM_CLOSED, ProtocolError

_REMEMBERED = 1_000


class Numbering:
    """`last_peer`: the highest number that the peer opened. A stream is idle until it is opened. It is cut off when this side ended it
    before the peer did: more frames for it may be under way, and are no fault; the latest thousand are remembered."""

    __slots__ = ("_cut_off", "_next_own", "_server", "last_peer")

    def __init__(self, server: bool) -> None:
        self._server = server
        self._next_own = 1
        self._cut_off: dict[int, None] = {}  # in the order of the cuts
        self.last_peer = 0

    def next(self) -> int:
        """Client role: a number for a new stream."""
        number = self._next_own
        self._next_own = number + 2
        return number

    def check_opened(self, number: int) -> None:
        """Raises ProtocolError if the stream is idle."""
        by_peer = number & 1 == self._server
        if number > self.last_peer if by_peer else number >= self._next_own:
            raise ProtocolError(PROTOCOL_ERROR, f"frame for stream {number}, which was never opened")

    def cut(self, number: int) -> None:
        """This side ended the stream."""
        self._cut_off[number] = None
        if len(self._cut_off) > _REMEMBERED:
            del self._cut_off[next(iter(self._cut_off))]

    def was_cut(self, number: int) -> bool:
        """More may come for it."""
        return number in self._cut_off

    def opens(self, number: int) -> bool:
        """HEADERS came for a stream that is not open. True: they open it; False: it was cut off. Raises ProtocolError."""
        if not self._server:
            self.check_opened(number)
            return False
        if not number & 1:
            raise ProtocolError(PROTOCOL_ERROR, f"stream {number} is not a client's number")
        if number > self.last_peer:
            self.last_peer = number
            return True
        if number not in self._cut_off:
            raise ProtocolError(STREAM_CLOSED, f"HEADERS for closed stream {number}")
        return False
