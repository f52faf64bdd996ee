"""Frame by frame, the short way is not to be told from the usual one: whatever a client sends, in whatever order, split and state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.listeners.grpc import GrpcConnection
from gateway.wire import frames as f
from gateway.wire.connection import Limits
from gateway.wire.grpc import frame_message
from tests.listeners.test_quick import RANGE, Site, Transport, run

HEAD = (
    (":method", "POST"), (":scheme", "http"), (":path", RANGE.path.decode()), (":authority", "x"), ("content-type", "application/grpc"),
    ("te", "trailers"), ("user-agent", "grpc-go/1.38.0"),
)  # fmt: skip
MESSAGES = (
    b"now/a", b"now/" + b"b" * 300, b"later/a", b"later/b", b"later/" + b"c" * 900, b"gone/c", b"refused", b"", b"now/" + bytes(2000),
)  # fmt: skip
TIMEOUTS = (None, None, "1S", "4999123u", "4999124u", "3n")


class Closing(Transport):
    """A transport that may be closed."""

    def close(self) -> None: ...


class Raw:
    """Writes a client's frames."""

    def __init__(self, seed: int, timeouts: tuple[str | None, ...] = TIMEOUTS) -> None:
        self.rng = Random(seed)
        self.timeouts = timeouts
        self.encoder = Encoder()
        self.opened: list[int] = []
        self.unfinished: list[tuple[int, bytes]] = []

    def act(self, kind: str) -> bytes:
        return bytes(getattr(self, kind)())

    def _any(self) -> int:
        return self.rng.choice([*self.opened, 1, 2, 99, max(self.opened, default=1) + 1])

    def headers(self, end: bool = False, message: bytes | None = None) -> bytes:
        rng = self.rng
        number = self.opened[-1] + rng.choice((2, 2, 2, 4)) if self.opened else 1
        self.opened.append(number)
        data = frame_message(rng.choice(MESSAGES) if message is None else message)
        timeout = rng.choice(self.timeouts)
        fields = [*HEAD, *([("grpc-timeout", timeout)] if timeout else [])]
        if rng.random() < 0.1:
            fields.append(("content-length", str(len(data) + rng.choice((0, 0, 1)))))
        if rng.random() < 0.05:
            fields = [(name, "/nothing" if name == ":path" else value) for name, value in fields]
        if not end:
            self.unfinished.append((number, data))
        return f.frame(f.HEADERS, f.END_HEADERS | (f.END_STREAM if end else 0), number, self.encoder.encode(fields))

    def data(self) -> bytes:
        """The end of a request that was begun."""
        if not self.unfinished:
            return b""
        number, data = self.unfinished.pop(self.rng.randrange(len(self.unfinished)))
        return f.frame(f.DATA, f.END_STREAM, number, data)

    def whole(self) -> bytes:
        head = self.headers()
        number, data = self.unfinished.pop()
        return head + f.frame(f.DATA, f.END_STREAM, number, data)

    def many(self) -> bytes:
        return b"".join(self.whole() for _ in range(self.rng.randrange(5)))

    def interleaved(self) -> bytes:
        heads = b"".join(self.headers() for _ in range(self.rng.randrange(5)))
        return heads + b"".join(self.data() for _ in tuple(self.unfinished))

    def parts(self) -> bytes:
        head = self.headers()
        number, data = self.unfinished.pop()
        cut = self.rng.randrange(len(data) + 1)
        return head + f.frame(f.DATA, 0, number, data[:cut]) + f.frame(f.DATA, f.END_STREAM, number, data[cut:])

    def padded(self) -> bytes:
        head = self.headers()
        number, data = self.unfinished.pop()
        return head + f.frame(f.DATA, f.END_STREAM | f.PADDED, number, b"\x03" + data + bytes(3))

    def trailers(self) -> bytes:
        head = self.headers()
        number, data = self.unfinished.pop()
        end = f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, number, self.encoder.encode([("x", "y")]))
        return head + f.frame(f.DATA, 0, number, data) + end

    def empty(self) -> bytes:
        return self.headers(end=True)

    def reset(self) -> bytes:
        return f.rst_stream(self.rng.choice(self.opened), f.CANCEL) if self.opened else b""

    def window(self) -> bytes:
        return f.window_update(self.rng.choice([0, *self.opened]), self.rng.choice((1, 1000)))

    def resize(self) -> bytes:
        return f.settings_frame({f.INITIAL_WINDOW_SIZE: self.rng.choice((0, 10, 65_535))})

    def ping(self) -> bytes:
        return f.frame(f.PING, 0, 0, bytes(8))

    def unknown(self) -> bytes:
        return f.frame(200, 0, self._any(), b"?")

    def late(self) -> bytes:
        """DATA for a stream that was opened before, maybe long over."""
        return f.frame(f.DATA, self.rng.choice((0, 1)), self.rng.choice(self.opened), b"late") if self.opened else b""

    def again(self) -> bytes:
        """HEADERS for one."""
        if self.rng.random() < 0.5:
            return f.frame(f.HEADERS, f.END_HEADERS, self._any(), self.encoder.encode(HEAD))
        return f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, self._any(), self.encoder.encode([("x", "y")]))

    def reserved(self) -> bytes:
        """A whole request whose numbers have the reserved bit set."""
        data = bytearray(self.whole())
        data[5] |= 0x80
        data[9 + int.from_bytes(data[:3], "big") + 5] |= 0x80
        return data

    def wrong(self) -> bytes:
        """What ends the connection."""
        return self.rng.choice((
            f.frame(f.DATA, 0, 0, b""),
            f.frame(f.DATA, f.END_STREAM, 999_999, b"never opened"),
            f.frame(f.HEADERS, f.END_HEADERS, 8, b"\x82"),
            f.frame(f.HEADERS, f.END_HEADERS, 999_997, b"\xff\xff\xff"),
            f.frame(f.HEADERS, 0, 999_999, b"") + f.frame(f.DATA, 1, 1, b""),
            f.frame(f.SETTINGS, 0, 0, b"odd"),
            f.window_update(0, 0),
            bytes((0, 64, 1, 0, 1, 0, 0, 0, 1)) + bytes(16_385),
        ))

    def finish(self) -> bytes:
        """Windows wide open."""
        return f.settings_frame({f.INITIAL_WINDOW_SIZE: 1 << 20}) + f.window_update(0, 1 << 20)


OFTEN = ("whole", "many", "interleaved", "headers", "data")
SELDOM = ("parts", "padded", "trailers", "empty", "reset", "window", "resize", "ping", "unknown", "late", "reserved")
ACTS = st.lists(st.sampled_from(OFTEN * 4 + SELDOM * 2 + ("again", "wrong")), max_size=25)


@dataclass
class Heard:
    """What the gateway said: the frames of each stream in order, DATA put together; of the connection; and what was counted."""

    streams: dict[int, list[tuple[int, int, bytes]]]
    connection: list[tuple[int, int, bytes]]
    closing: str | None
    counted: dict[str, Any]
    cancelled: int


def hear(site: Site) -> Heard:
    streams: dict[int, list[tuple[int, int, bytes]]] = {}
    connection = []
    data, at = bytes(site.transport.sent), 0
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        kind, flags, number = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big")
        payload, at = data[at + 9 : end], end
        if kind == f.WINDOW_UPDATE:
            continue
        if not number:
            connection.append((kind, flags, payload))
            continue
        said = streams.setdefault(number, [])
        if kind == f.DATA and said and said[-1][0] == f.DATA:
            payload = said.pop()[2] + payload
        said.append((kind, flags, payload))
    nowhere = site.metrics.calls("", RANGE)
    return Heard(streams, connection, site.connection.conn.closing, site.counted(), sum(nowhere.codes))


def play(acts: list[bytes], cuts: list[int], quick: bool, confirmed: bool, wait: float, max_streams: int) -> Heard:
    """What each act sends is one piece, and is cut further."""
    site = Site(quick)
    site.transport = Closing()
    site.port.limits = Limits(max_streams=max_streams, min_ping_interval=0.0, min_idle_ping_interval=0.0)
    site.connection = GrpcConnection(site.port)
    site.connection.connection_made(site.transport)
    connection = site.connection
    for number, data in enumerate([f.PREFACE + f.settings_frame({}), *acts]):
        places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts[number % 3 :: 3])})
        for low, high in pairwise(places):
            connection.data_received(data[low:high])
        if number % 4 == 3:
            site.memory.tell(confirmed)
            connection._flush()
    connection.tick(asyncio.get_running_loop().time() + wait)
    for more in (confirmed, True):
        site.memory.tell(more)
        connection._flush()
        connection.data_received(Raw(0).finish())
    connection._flush()
    if connection.conn.closing is None:
        assert connection.conn.active == len(connection.calls), "only what has not ended yet is under way"
    connection.connection_lost(None)
    site.memory.tell()
    assert not connection.calls and not connection.batches and not connection.lane.holders and connection.conn.active == 0
    return hear(site)


@settings(max_examples=400, deadline=None)
@given(
    ACTS, st.integers(0, 1 << 32), st.lists(st.integers(0, 100_000), max_size=9), st.booleans(), st.sampled_from((0.0, 2.0)),
    st.sampled_from((3, 100)),
)  # fmt: skip
def test_any_frames(kinds: list[str], seed: int, cuts: list[int], confirmed: bool, wait: float, max_streams: int) -> None:
    # where streams are few it matters when one ends: the usual way refuses a bad timeout before the request's DATA is there
    client = Raw(seed, TIMEOUTS if max_streams < 100 else (*TIMEOUTS, "bad"))
    acts = [client.act(kind) for kind in kinds]

    def work() -> None:
        usual = play(acts, [], False, confirmed, wait, max_streams)
        for quick, split in ((True, []), (True, cuts), (False, cuts)):
            assert play(acts, split, quick, confirmed, wait, max_streams) == usual

    run(work)


@pytest.mark.parametrize("number", [0, 2, 98, 0x8000_0062])
def test_numbers_that_open_nothing(number: int) -> None:
    client = Raw(1, (None,))
    acts = [client.whole(), client.whole(), client.whole()]
    at = 9 + int.from_bytes(acts[2][:3], "big")
    name = number.to_bytes(4, "big")
    acts[2] = acts[2][:5] + name + acts[2][9 : at + 5] + name + acts[2][at + 9 :]

    def work() -> None:
        usual, quick = (play(acts, [], quick, True, 0.0, 100) for quick in (False, True))
        assert usual == quick and usual.closing not in (None, "connection lost")

    run(work)


@pytest.mark.parametrize("size", range(1, 200, 7))
def test_any_piece_size(size: int) -> None:
    client = Raw(size)
    data = b"".join(client.act(kind) for kind in (*OFTEN, *SELDOM) * 3)

    def work() -> None:
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert play(pieces, [], True, True, 0.0, 100) == play(pieces, [], False, True, 0.0, 100)

    run(work)
