"""The short way for requests that come whole and are answered from memory: many in one step, without a stream for each.

A request is whole when its HEADERS and all of its DATA, in one frame each, are in one piece of what the peer sent; those of others may be
between them. It is shown to the taker, who answers it at once, or holds it for an answer that comes later, or leaves it to the usual way.
For a held request there is no Stream until the client says something more about it: the client ended its side, its windows are those of
any new stream, and nothing is queued.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from gateway.wire import frames as f
from gateway.wire.hpack import Decoder, Headers
from gateway.wire.output import Output, ReplyForm
from gateway.wire.streams import NOBODY, Limits, Stream

if TYPE_CHECKING:
    from gateway.wire.connection import Connection

_HEAD = Struct(">HBH4s").unpack_from  # the length, which has three bytes; kind and flags as one number; the stream's number as it is sent
_REQUEST = f.HEADERS << 8 | f.END_HEADERS
_WHOLE = f.DATA << 8 | f.END_STREAM
_LONG = f.DEFAULT_FRAME_SIZE >> 8
_BEYOND = b"\x80\x00\x00\x00"
"""Greater than every number whose reserved bit is not set."""

HELD = b""
"""A taker's answer: it will come later."""


class Taker(Protocol):
    """Who is shown whole requests."""

    def wants(self, headers: Headers) -> bool:
        """Requests with this head may be for it."""

    def __call__(self, name: bytes, headers: Headers, timeout: bytes | None, data: bytes) -> bytes | None:
        """`name`: the stream's number in four bytes. Returns all the DATA of the reply; HELD: a holder has it now; None: not for it."""


class Holder(Protocol):
    """Who has requests that wait. `held` has no more of them once they are answered."""

    @property
    def held(self) -> Collection[bytes]: ...

    def part(self, name: bytes, stream: Stream) -> None:
        """The client says something more about a held request: it has a stream now, and is not held any longer."""


class Lane:
    """Of one connection, server role. `begun`: requests whose DATA may follow in the same piece. `holders`: those that hold something."""

    def __init__(self, taker: Taker, form: ReplyForm) -> None:
        self.holders: set[Holder] = set()
        self._taker = taker
        self._form = form
        self.begun: dict[bytes, tuple[Headers, bytes | None]] = {}
        self._conn: Connection
        self._output: Output
        self._decoder: Decoder
        self._limits: Limits

    def join(self, conn: Connection, output: Output, decoder: Decoder, limits: Limits) -> None:
        """The connection it belongs to."""
        self._conn = conn
        self._output = output
        self._decoder = decoder
        self._limits = limits

    @property
    def active(self) -> int:
        """Requests that are under way without a stream."""
        count = len(self.begun)
        for holder in self.holders:
            count += len(holder.held)
        return count

    def _room(self) -> int:
        """How many requests more may be under way."""
        if self._conn.going_away:
            return 0
        room = self._limits.max_streams - len(self._conn.streams) - len(self.begun)
        for holder in self.holders:
            room -= len(holder.held)
        return room

    # what comes

    def run(self, buffer: bytes, at: int) -> int:
        """Takes what it can from a place in the buffer on, where a frame begins; the place of the first byte that it did not take."""
        conn, taker, begun, known, usual = self._conn, self._taker, self.begun, self._decoder.memo.get, self._decoder.as_usual
        size, room, received, wanted = len(buffer), self._room(), 0, None
        taken = b""
        last = before = conn.numbering.last_peer.to_bytes(4, "big")
        replies: list[tuple[bytes, bytes]] = []
        while size - at >= 9 and conn.closing is None:
            high, low, kind, name = _HEAD(buffer, at)
            end = at + 9 + (high << 8 | low)
            if end > size or high >= _LONG:
                break
            if kind == _REQUEST:
                if not (last < name < _BEYOND and name[3] & 1 and room > 0):
                    break
                block = buffer[at + 9 : end]
                found = known(block) or usual(block)
                if found is None:
                    break
                last = name
                room -= 1  # also for those that are answered at once: the client does not know yet
                if found[0] is wanted or taker.wants(found[0]):
                    wanted = found[0]
                    begun[name] = found
                    taken = name
                else:
                    conn.new_stream(int.from_bytes(name, "big"), *found, 0)
            elif kind == _WHOLE and name in begun:
                headers, timeout = begun.pop(name)
                data = buffer[at + 9 : end]
                reply = taker(name, headers, timeout, data)
                if reply:
                    received += len(data)
                    replies.append((name, reply))
                elif reply is None:
                    self._took(last, taken)
                    self._leave(name, headers, timeout, data)
                else:
                    received += len(data)
            else:
                break
            at = end
        if last is not before:
            self._took(last, taken)
        if received:
            conn.received(received)
        if replies:
            self.answer(replies)
        return at

    def _leave(self, name: bytes, headers: Headers, timeout: bytes | None, data: bytes) -> None:
        """It goes the usual way."""
        number = int.from_bytes(name, "big")
        self._conn.new_stream(number, headers, timeout, 0)
        self._conn.on_data(number, data, len(data), f.END_STREAM)

    def _took(self, last: bytes, taken: bytes) -> None:
        """The last request that came, and the last that was not refused."""
        conn = self._conn
        conn.numbering.last_peer = int.from_bytes(last, "big")
        conn.last_taken = max(conn.last_taken, int.from_bytes(taken, "big"))

    def begin(self, number: int, headers: Headers, timeout: bytes | None) -> bool:
        """The headers of a new request came alone: True if it may become one for the taker."""
        if self._room() <= 0 or not self._taker.wants(headers):
            return False
        self.begun[number.to_bytes(4, "big")] = headers, timeout
        self._conn.last_taken = number
        return True

    def find(self, number: int) -> Stream | None:
        """More came of a request that has no stream yet: from now on it has one."""
        if not self.begun and not self.holders:
            return None
        name = number.to_bytes(4, "big")
        begun = self.begun.pop(name, None)
        if begun is not None:
            self._conn.new_stream(number, *begun, 0)
            return self._conn.streams.get(number)
        for holder in self.holders:
            if name in holder.held:
                stream = self.adopt(name)
                holder.part(name, stream)
                return stream
        return None

    def settle(self) -> None:
        """The piece is over: what was begun goes the usual way."""
        while self.begun:
            self.find(int.from_bytes(next(iter(self.begun)), "big"))

    def part(self) -> None:
        """Everything that is under way gets a stream."""
        for holder in tuple(self.holders):
            for name in tuple(holder.held):
                self.find(int.from_bytes(name, "big"))

    def adopt(self, name: bytes) -> Stream:
        """A stream for a request that came whole."""
        number = int.from_bytes(name, "big")
        stream = Stream(number, self._output.stream_window, self._limits.stream_window, NOBODY)
        self._conn.streams[number] = stream
        stream.remote_ended = True
        return stream

    # what goes

    def answer(self, replies: list[tuple[bytes, bytes]]) -> None:
        """Whole unary replies by the names of their streams, which nobody holds any longer."""
        if not self._output.replies(replies, self._form):
            for stream, data in [(self.adopt(name), data) for name, data in replies]:
                self.respond(stream, data)
        if self._conn.going_away:
            self._conn.wind_up()

    def respond(self, stream: Stream, data: bytes) -> None:
        """The same where there is a stream already."""
        self._conn.respond(stream, self._form.headers, data, self._form.trailers)
