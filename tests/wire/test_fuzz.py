"""Bytes that are nearly right, for SHARDGATE_FUZZ_SECONDS (10): the only harm they do is to their own connection.

A failure names its seed; SHARDGATE_FUZZ_SEED=… runs that one case again.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable

import pytest

from gateway.core.errors import RpcError
from gateway.wire import frames as f
from gateway.wire.connection import Headers, Limits, Role, Stream
from gateway.wire.frames import CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PREFACE, frame
from gateway.wire.grpc import RESPONSE_HEADERS, TRAILERS_OK, MessageReader, frame_message, parse_status, request_head, seconds, trailers
from gateway.wire.hpack import Encoder, literal, literal_inserted
from tests.wire.side import REQUEST, Heard, Side, kinds

SECONDS = float(os.environ.get("SHARDGATE_FUZZ_SECONDS", "10"))
SEED = os.environ.get("SHARDGATE_FUZZ_SEED")
LIMITS = Limits(max_streams=50, max_header_list=8_000, stream_window=70_000, connection_window=100_000, slice=20_000, max_queued=400_000,
                max_control=2_000, high_water=30_000, low_water=5_000)  # fmt: skip
MOST_CASES = 1 << 40
Random = random.Random


class Fuzzed(Side):
    """A side whose owners do at random what applications do."""

    def __init__(self, role: Role, rng: Random) -> None:
        super().__init__(role, LIMITS)
        self.rng = rng
        self.said = 0

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        super().on_stream(stream, headers, timeout, end)
        head = request_head(headers)
        seconds(timeout or b"")
        if head.malformed:
            self.conn.reset(stream, f.PROTOCOL_ERROR)
        elif head.refusal is not None:
            self.conn.send_headers(stream, head.refusal, True)
        else:
            stream.expected = head.length
            stream.owner = self.heard[stream.id] = Application(self, stream, [headers], ended=end)

    def say(self, stream: Stream) -> None:
        """Something, or nothing."""
        size = self.rng.choice((0, 10, 1_000, 40_000))
        end = self.rng.random() < 0.3
        match self.rng.randrange(6):
            case 0:
                self.conn.send_headers(stream, RESPONSE_HEADERS, end)
            case 1:
                self.conn.send_headers(stream, trailers(5, "x" * self.rng.choice((1, 20_000))), True)
            case 2 | 3:
                self.conn.send_data(stream, bytes(size), end)
            case 4:
                self.conn.respond(stream, f.headers_frame(RESPONSE_HEADERS, False), bytes(size), f.headers_frame(TRAILERS_OK, True))
            case 5 if end:
                self.conn.reset(stream, f.CANCEL)
        self.said += size + 20_000

    def meddle(self) -> None:
        """What the transport, the clock and the application do between two chunks."""
        match self.rng.randrange(8):
            case 0:
                self.conn.pause()
            case 1:
                self.conn.resume()
            case 2:
                self.now += self.rng.choice((0.1, 1.0, 40.0))
                self.conn.tick(self.now)
            case 3 if self.heard:
                stream = self.rng.choice(list(self.heard.values())).stream
                assert stream is not None
                self.say(stream)
            case 4 if self.rng.random() < 0.02:
                self.conn.shut_down(f.NO_ERROR, "bye")
            case 5 if self.conn.can_open and not self.conn._server:
                heard = self.open_one()
                assert heard.stream is not None
                self.say(heard.stream)

    def open_one(self) -> Heard:
        """Client role: one more call."""
        heard = Application(self)
        block = self.conn.encoder.encode(REQUEST) + literal(b"grpc-timeout", b"%du" % self.rng.randrange(10**6))
        data = self.rng.choice((None, frame_message(b"x" * self.rng.choice((3, 30_000)))))
        heard.stream = self.conn.open(heard, block, data, self.rng.random() < 0.7)
        self.heard[heard.stream.id] = heard
        self.said += 30_100
        return heard

    def check(self) -> None:
        """The books balance, and nothing has grown without bound."""
        conn, output, reader = self.conn, self.conn._output, self.conn._reader
        assert output.queued == sum(stream.queued for stream in conn.streams.values())
        assert output.queued <= LIMITS.max_queued + 40_000 or conn.closing is not None
        for number, stream in conn.streams.items():
            assert not stream.closed
            assert stream.queued == sum(map(len, stream.queue or ())) - stream.offset
            waits = stream.queued > 0 and stream.send_window > 0
            assert (number in output._ready) == waits
        assert len(conn.streams) <= 100
        assert len(output._ready) <= len(conn.streams)
        assert len(conn.numbering._cut_off) <= 1_000
        assert conn._decoder._size <= 4_096
        assert reader._block is None or sum(map(len, reader._block[2])) <= 2 * LIMITS.max_header_list + 16_384
        assert len(reader._rest) < 9 + 16_384
        assert len(output.chunks) <= LIMITS.max_control + 30_000


class Application(Heard):
    """An owner that reads what it hears as gRPC."""

    def __init__(self, side: Fuzzed, stream: Stream | None = None, headers: list[Headers] | None = None, ended: bool = False) -> None:
        super().__init__(side, stream, headers or [], ended=ended)
        self.fuzzed = side
        self.messages = MessageReader(1_000, compressed=side.rng.random() < 0.5)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        super().on_headers(stream, headers, end)
        parse_status(headers)
        self.fuzzed.say(stream)

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        super().on_data(stream, data, end)
        try:
            for _ in self.messages.feed(data):
                self.fuzzed.say(stream)
        except RpcError as error:
            self.fuzzed.conn.send_headers(stream, trailers(error.code, error.text), True)

    def on_drained(self, stream: Stream) -> None:
        super().on_drained(stream)
        self.fuzzed.say(stream)


def conversation(rng: Random, role: Role) -> list[bytes]:
    """What a good peer sends to a side of this role: a greeting, then frames."""
    encoder = Encoder()
    parts = [] if role is Role.CLIENT else [PREFACE]
    parts.append(f.settings_frame({f.INITIAL_WINDOW_SIZE: rng.choice((10, 65_535, 1 << 20)), f.HEADER_TABLE_SIZE: rng.choice((0, 4096))}))
    for number in range(1, rng.randrange(3, 40), 2):
        if role is Role.SERVER:
            head = encoder.encode((*REQUEST, *rng.choice(((), ((b"token", b"abc"),), ((b"content-length", b"8"),)))))
            head += literal_inserted(b"grpc-timeout", b"%du" % rng.randrange(10**7))
        else:
            head = encoder.encode(((b":status", b"200"), (b"content-type", b"application/grpc")))
        parts.append(frame(HEADERS, END_HEADERS, number, head) if rng.random() < 0.8 else cut(rng, number, head))
        for _ in range(rng.randrange(4)):
            parts.append(frame(DATA, 0, number, frame_message(rng.randbytes(rng.choice((3, 3, 3, 900))))))
        parts.append(rng.choice((
            frame(DATA, f.END_STREAM, number, frame_message(b"end")),
            frame(HEADERS, END_HEADERS | f.END_STREAM, number, encoder.encode(((b"grpc-status", b"0"),))),
            f.rst_stream(number, rng.choice((f.NO_ERROR, f.CANCEL, f.REFUSED_STREAM))),
            b"",
        )))  # fmt: skip
        parts.append(rng.choice((
            f.window_update(0, rng.choice((1, 1_000, 1 << 20))), f.window_update(number, rng.choice((1, 1_000, 1 << 20))),
            frame(f.PING, rng.choice((0, 1)), 0, rng.randbytes(8)), f.SETTINGS_ACK, b"",
            f.settings_frame({f.INITIAL_WINDOW_SIZE: rng.randrange(1 << 17), f.MAX_FRAME_SIZE: 16_384 + rng.randrange(1 << 17)}),
            frame(f.PRIORITY, 0, number, bytes(5)), frame(0xEE, 7, number, b"?"), f.goaway(number, 0, "bye") if rng.random() < 0.1 else b"",
        )))  # fmt: skip
    return [part for part in parts if part]


def cut(rng: Random, number: int, head: bytes) -> bytes:
    """HEADERS with padding and CONTINUATION."""
    at = rng.randrange(len(head) + 1)
    first = frame(HEADERS, f.PADDED, number, b"\x04" + head[:at] + bytes(4))
    return first + frame(CONTINUATION, END_HEADERS, number, head[at:])


def mutate(rng: Random, parts: list[bytes]) -> bytes:
    """Frames lost, doubled and moved, their heads changed; then single bytes."""
    parts = list(parts)
    for _ in range(rng.choice((0, 0, 1, 3, 10))):
        at = rng.randrange(len(parts))
        match rng.randrange(6):
            case 0:
                del parts[at : at + 1]
            case 1:
                parts[at:at] = [parts[at]] * rng.choice((1, 5, 300))
            case 2:
                parts.insert(rng.randrange(len(parts)), parts.pop(at))
            case 3 if len(parts[at]) >= 9:
                head = bytearray(parts[at])
                head[rng.randrange(9)] = rng.choice((0, 1, 2, 4, 8, 255, rng.randrange(256)))
                parts[at] = bytes(head)
            case 4:
                kind, flags, number = rng.randrange(12), rng.randrange(256), rng.choice((0, 1, 2, 3, 1 << 20))
                parts.insert(at, frame(kind, flags, number, rng.randbytes(rng.choice((0, 4, 5, 6, 8, 50)))))
            case 5:
                parts[at] = frame(HEADERS, END_HEADERS, rng.randrange(1, 60), rng.randbytes(rng.randrange(1, 60)))
        if not parts:
            return b""
    data = bytearray(b"".join(parts))
    for _ in range(rng.choice((0, 0, 0, 1, 2, 10))):
        if data:
            at = rng.randrange(len(data))
            data[at : at + rng.choice((0, 1, 1, 1, 5))] = rng.randbytes(rng.choice((0, 1, 1, 5)))
    return bytes(data)


def one_case(seed: str) -> str | None:
    """Runs it; how the connection ended, None if it did not."""
    rng = Random(seed)
    role = rng.choice(list(Role))
    side = Fuzzed(role, rng)
    if role is Role.CLIENT:
        for _ in range(rng.randrange(8)):
            side.open_one()
    data = mutate(rng, conversation(rng, role))
    out = side.conn.take()
    at = 0
    while at < len(data):
        size = rng.choice((1, 7, 100, 5_000, 100_000))
        side.conn.receive(data[at : at + size], side.now)
        at += size
        side.check()
        side.meddle()
        side.check()
        if rng.random() < 0.8:
            out += side.conn.take()
    if side.conn.closing is not None:
        out += side.conn.take()
        side.conn.receive(data, side.now)
        assert side.conn.take() == b""
        assert GOAWAY in kinds(out)
    side.conn.lost("lost")
    assert len(out) <= 1_000 + 20 * len(data) + 2 * side.said
    assert not side.conn.streams
    assert side.conn._output.queued == 0
    return side.conn.closing


def fuzz(case: Callable[[str], str | None]) -> dict[str, int]:
    """Case after case until the time is over; how they ended."""
    first = str(random.SystemRandom().randrange(1 << 32))
    stop = time.monotonic() + SECONDS
    ends: dict[str, int] = {}
    for number in range(MOST_CASES):
        seed = SEED or f"{first}.{number}"
        try:
            end = case(seed) or ""
        except Exception as error:
            error.add_note(f"run it again with SHARDGATE_FUZZ_SEED={seed}")
            raise
        key = "".join(letter for letter in end if not letter.isdigit())
        ends[key] = ends.get(key, 0) + 1
        if SEED or time.monotonic() > stop:
            break
    return ends


def test_fuzz() -> None:
    ends = fuzz(one_case)
    print(ends)
    if not SEED and SECONDS >= 5:
        assert sum(ends.values()) > 100
        assert ends["lost"] > 10, "hardly a conversation went through: what is tested?"
        assert len(ends) > 10, "hardly a rule was broken: what is tested?"


@pytest.mark.soak
def test_fuzz_for_long() -> None:
    """What the process-wide memories keep is bounded, too."""
    for number in range(3_000):
        one_case(str(number))
    gc.collect()
    before = memory()
    fuzz(one_case)
    gc.collect()
    assert memory() < before * 1.1 + (8 << 20)


def memory() -> int:
    """Resident bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
