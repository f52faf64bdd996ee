"""One end of a connection without a network: it remembers what it was told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.wire.connection import Connection, Headers, Limits, Role, Stream
from gateway.wire.frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from gateway.wire.hpack import encode_static

REQUEST: Headers = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/etcdserverpb.KV/Range"), (b":authority", b"127.0.0.1:2379"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"),
)  # fmt: skip
BLOCK = encode_static(REQUEST)
GREETING = PREFACE + frame(SETTINGS, 0, 0, b"")
FRIENDLY = Limits(min_ping_interval=0.0, min_idle_ping_interval=0.0)
"""For peers that ping as they like."""


@dataclass
class Heard:
    """A stream's owner: all that came for it."""

    side: Side
    stream: Stream | None = None
    headers: list[Headers] = field(default_factory=list)
    timeout: bytes | None = None
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None
    drained: int = 0

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        assert not self.over
        self.headers.append(headers)
        self.ended = end

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        assert not self.over
        self.data += data
        self.ended = end
        if self.side.consumes:
            self.side.conn.consume(stream, len(data))

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        assert self.reset is None
        self.reset = code

    def on_drained(self, stream: Stream) -> None:
        self.drained += 1

    @property
    def over(self) -> bool:
        """Nothing more may come."""
        return self.ended or self.reset is not None


class Side:
    """A handler. `heard` has the owners by stream number; `consumes`: received bytes are given back at once."""

    def __init__(self, role: Role = Role.SERVER, limits: Limits = FRIENDLY, greeted: bool = False) -> None:
        self.heard: dict[int, Heard] = {}
        self.goaways: list[tuple[int, str]] = []
        self.slots = 0
        self.consumes = True
        self.now = 0.0
        self.conn = Connection(role, self, limits, self.now)
        if greeted:
            self.conn.take()
            self.receive(GREETING if role is Role.SERVER else GREETING[len(PREFACE) :])
            self.conn.take()

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        heard = self.heard[stream.id] = Heard(self, stream, [headers], timeout, ended=end)
        stream.owner = heard

    def on_goaway(self, code: int, text: str) -> None:
        self.goaways.append((code, text))

    def on_slots(self) -> None:
        self.slots += 1

    def open(self, block: bytes, data: bytes | None, end: bool) -> Heard:
        """Client role: a new stream."""
        heard = Heard(self)
        heard.stream = self.conn.open(heard, block, data, end)
        self.heard[heard.stream.id] = heard
        return heard

    def receive(self, data: bytes, sizes: Iterable[int] = ()) -> None:
        """The bytes, cut into pieces of these sizes; the rest at once."""
        at = 0
        for size in sizes:
            if at < len(data):
                self.conn.receive(data[at : at + size], self.now)
                at += size
        if at < len(data):
            self.conn.receive(data[at:], self.now)

    def request(self, number: int, end: bool = True) -> Heard:
        """Server role: a request's headers come."""
        self.receive(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), number, BLOCK))
        return self.heard[number]


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame after a preface, if there is one; all must be whole."""
    found = []
    data = data.removeprefix(PREFACE)
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        assert len(data) >= end
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end]))
        data = data[end:]
    return found


def kinds(data: bytes) -> list[int]:
    """The kinds of the frames."""
    return [kind for kind, *_ in frames(data)]
