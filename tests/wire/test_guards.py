"""Every guard speaks when it must and is silent when it may not; everything a peer can make grow has a bound."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from gateway.wire import frames as f
from gateway.wire.connection import Limits, Role
from gateway.wire.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS_ACK,
    frame,
    headers_frame,
    rst_stream,
    settings_frame,
    window_update,
)
from gateway.wire.hpack import encode_static, literal, literal_inserted
from tests.wire.side import BLOCK, FRIENDLY, GREETING, Side, frames, kinds
from tests.wire.test_rules import goaway, resets

OK = headers_frame(encode_static(((b":status", b"200"),)), end=True)
REQUEST = frame(HEADERS, END_HEADERS, 1, BLOCK)
CALM = FRIENDLY
FLOODS = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "SETTINGS": settings_frame({f.MAX_HEADER_LIST_SIZE: 1}),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "empty DATA": frame(DATA, 0, 1, b""),
    "padding": frame(DATA, f.PADDED, 1, b"\x01\0"),
    "unknown": frame(0xEE, 0, 0, b""),
    "window updates": window_update(1, 1),
    "window updates of the connection": window_update(0, 1),
    "window updates of closed streams": window_update(1, 1),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_that_bring_nothing_on(kind: str) -> None:
    """So many a second are fine; more end the connection."""
    side = Side(Role.SERVER, CALM, greeted=True)
    side.receive(REQUEST)
    if "closed" in kind:
        side.receive(rst_stream(1, CANCEL))
    for _ in range(3):
        side.now += 1.0
        side.receive(FLOODS[kind] * 9_990)
        assert side.conn.closing is None
        side.conn.take()
    side.receive(FLOODS[kind] * 20)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_late_frames_for_closed_streams_are_counted() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    side.receive(REQUEST + rst_stream(1, CANCEL))
    side.receive(frame(DATA, 0, 1, b"x") * 10_010)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_late_headers_for_streams_that_were_cut_off_are_counted() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    heard = side.request(1, end=False)
    assert heard.stream is not None
    side.conn.reset(heard.stream, CANCEL)
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b"x", b"y")) * 10_010)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_window_updates_that_data_deserves() -> None:
    """A client that reads much in small bites says so with many frames."""
    side = Side(Role.SERVER, CALM, greeted=True)
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.send_data(heard.stream, bytes(1_000_000), False)
    for _ in range(50):
        side.conn.take()
        side.receive((window_update(0, 3) + window_update(1, 3)) * 4_000)
        assert side.conn.closing is None


def test_rapid_reset() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    numbers = iter(range(1, 1 << 20, 2))
    for _ in range(3):
        side.now += 1.0
        for _ in range(1_990):
            number = next(numbers)
            side.receive(frame(HEADERS, END_HEADERS, number, BLOCK) + rst_stream(number, CANCEL))
        assert side.conn.closing is None
    for _ in range(20):
        number = next(numbers)
        side.receive(frame(HEADERS, END_HEADERS, number, BLOCK) + rst_stream(number, CANCEL))
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_rapid_reset_by_breaking_the_rules() -> None:
    """The peer need not send RST_STREAM to have the server do the work for nothing."""
    side = Side(Role.SERVER, CALM, greeted=True)
    for number in range(1, 5_000, 2):
        side.receive(frame(HEADERS, END_HEADERS, number, BLOCK) + window_update(number, 0))
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_deadlines_that_pass_for_many_calls_at_once_are_no_attack() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    for number in range(1, 9_001, 2):
        side.request(number)
    side.now += 5.0
    for number in range(1, 9_001, 2):
        side.receive(rst_stream(number, CANCEL))
    assert side.conn.closing is None


def test_stream_limit() -> None:
    side = Side(Role.SERVER, Limits(max_streams=2), greeted=True)
    for number in (1, 3, 5):
        side.receive(frame(HEADERS, END_HEADERS, number, BLOCK))
    assert list(side.heard) == [1, 3]
    assert resets(side) == {5: f.REFUSED_STREAM}
    side.receive(rst_stream(1, CANCEL))
    side.request(7)
    for number in range(9, 5_000, 2):
        side.receive(frame(HEADERS, END_HEADERS, number, BLOCK))
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_continuations_without_end() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    side.receive(frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, b"") * 70)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_header_block_of_any_length() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    side.receive(frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, literal(b"x", bytes(16_000))) * 9)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_header_list_over_the_limit() -> None:
    """The stream is refused, the connection goes on, its table in step."""
    side = Side(Role.SERVER, Limits(max_header_list=4_000), greeted=True)
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK + literal_inserted(b"big", b"v" * 3_900)))
    assert resets(side) == {1: ENHANCE_YOUR_CALM}
    assert not side.heard
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, literal_inserted(b"a", b"b") + BLOCK))
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, b"\xbe" + BLOCK))
    assert side.heard[5].headers[0][0] == (b"a", b"b")


def test_header_lists_over_the_limit_are_resets() -> None:
    side = Side(Role.SERVER, Limits(max_header_list=100), greeted=True)
    for number in range(1, 5_000, 2):
        side.receive(frame(HEADERS, END_HEADERS | END_STREAM, number, literal(b"big", b"v" * 260)))
    assert side.conn.closing == "more than 2000 stream resets in a second"


def test_hpack_bomb() -> None:
    """A block of references to one large field would be 60 MB of headers: it costs its references, and a few a second are enough."""
    side = Side(Role.SERVER, CALM, greeted=True)
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK + literal_inserted(b"big", b"v" * 4_000)))
    bomb = b"\xbe" * 16_000
    tracemalloc.start()
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, bomb))
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert resets(side) == {3: ENHANCE_YOUR_CALM}
    for number in range(5, 203, 2):
        side.receive(frame(HEADERS, END_HEADERS | END_STREAM, number, bomb))
    assert goaway(side) == ENHANCE_YOUR_CALM
    assert list(side.heard) == [1]


def test_trailers_over_the_limit() -> None:
    side = Side(Role.SERVER, Limits(max_header_list=4_000), greeted=True)
    heard = side.request(1, end=False)
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b"x", b"y" * 4_000)))
    assert heard.reset == ENHANCE_YOUR_CALM


def test_settings_that_touch_many_streams_weigh_more() -> None:
    """Each change of the initial window is a look at each stream."""
    side = Side(Role.SERVER, CALM, greeted=True)
    for number in range(1, 20_001, 2):
        side.request(number)
    windows = settings_frame({f.INITIAL_WINDOW_SIZE: 1}) + settings_frame({f.INITIAL_WINDOW_SIZE: 2})
    side.now += 1.0
    side.receive(windows * 20)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_one_settings_frame_with_many_windows_costs_one_look() -> None:
    side = Side(Role.SERVER, CALM, greeted=True)
    for number in range(1, 20_001, 2):
        side.request(number)
    many = b"".join(b"\0\4" + number.to_bytes(4, "big") for number in range(2_000, 4_500))
    start = time.process_time()
    side.receive(frame(f.SETTINGS, 0, 0, many))
    assert time.process_time() - start < 1
    stream = side.heard[1].stream
    assert stream is not None and stream.send_window == 4_499


# Peers that do not read


def test_queued_bytes() -> None:
    side = Side(Role.SERVER, Limits(max_queued=1_000_000), greeted=True)
    for number in (1, 3):
        heard = side.request(number)
        assert heard.stream is not None
        side.conn.send_data(heard.stream, bytes(500_000), False)
    assert side.conn.closing is None
    third = side.request(5)
    assert third.stream is not None
    side.conn.respond(third.stream, OK, bytes(200_000), OK)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_answers_to_frames_of_a_peer_that_does_not_read() -> None:
    side = Side(Role.SERVER, Limits(max_control=1_000, max_nothings=1 << 30), greeted=True)
    side.conn.pause()
    for _ in range(100):
        side.receive(settings_frame({}) * 100)
        if side.conn.closing is not None:
            break
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_refusals_for_a_peer_that_does_not_read() -> None:
    """Replies without DATA have no window to wait for."""
    side = Side(Role.SERVER, Limits(max_control=1_000), greeted=True)
    side.conn.pause()
    for number in range(1, 5_000, 2):
        if side.conn.closing is None:
            heard = side.request(number)
            assert heard.stream is not None
            side.conn.send_headers(heard.stream, OK[1], True)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_a_peer_that_never_opens_its_window() -> None:
    side = Side(Role.SERVER, Limits(stall=60, ping_interval=1e9), greeted=True)
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.send_data(heard.stream, bytes(100_000), False)
    for now in range(0, 100, 10):
        side.conn.tick(now)
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_a_peer_that_reads_slowly_is_not_cut_off() -> None:
    side = Side(Role.SERVER, Limits(stall=60, ping_interval=1e9), greeted=True)
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.send_data(heard.stream, bytes(100_000), False)
    for now in range(0, 1000, 10):
        side.conn.tick(now)
        if now % 50 == 0:
            side.receive(window_update(0, 10) + window_update(1, 10))
            side.conn.take()
    assert side.conn.closing is None


def test_a_transport_that_stays_full() -> None:
    side = Side(Role.SERVER, Limits(stall=60, ping_interval=1e9), greeted=True)
    side.conn.tick(0)
    side.conn.pause()
    for now in range(0, 61, 10):
        side.conn.tick(now)
    assert side.conn.closing is None
    side.conn.resume()
    side.conn.tick(61)
    side.conn.pause()
    for now in range(70, 150, 10):
        side.conn.tick(now)
    assert goaway(side) == ENHANCE_YOUR_CALM


# Half-open connections


@pytest.mark.parametrize("role", Role)
def test_keepalive(role: Role) -> None:
    side = Side(role, Limits(ping_interval=30, ping_timeout=20), greeted=True)
    if role is Role.CLIENT:
        side.open(BLOCK, None, True)
        side.conn.take()
    side.conn.tick(29)
    assert side.conn.take() == b""
    side.conn.tick(31)
    (ping,) = frames(side.conn.take())
    assert ping[:3] == (PING, 0, 0)
    side.conn.tick(50)
    assert side.conn.take() == b""  # one is enough
    side.now = 50.5
    side.receive(frame(PING, ACK, 0, ping[3]))
    side.conn.tick(52)
    assert side.conn.closing is None
    side.conn.tick(81)
    assert kinds(side.conn.take()) == [PING]
    side.conn.tick(100)
    assert side.conn.closing is None
    side.conn.tick(102)
    assert goaway(side) == f.NO_ERROR


def test_a_client_without_calls_does_not_ping() -> None:
    """etcd forbids it."""
    side = Side(Role.CLIENT, greeted=True)
    side.conn.tick(1000)
    assert side.conn.take() == b""


# Pings of clients, by grpc-go's rule


def ping(side: Side, at: float) -> None:
    side.now = at
    side.receive(frame(PING, 0, 0, bytes(8)))


def test_too_many_pings() -> None:
    side = Side(Role.SERVER, Limits(), greeted=True)
    side.request(1)
    for at in (1, 2, 3):
        ping(side, at)
        assert side.conn.closing is None
    ping(side, 4)
    assert side.conn.closing == "too_many_pings"
    assert goaway(side) == ENHANCE_YOUR_CALM


def test_pings_as_etcd_allows() -> None:
    side = Side(Role.SERVER, Limits(), greeted=True)
    side.request(1)
    for at in range(0, 1000, 5):
        ping(side, at)
    assert side.conn.closing is None


def test_pings_without_calls() -> None:
    side = Side(Role.SERVER, Limits(), greeted=True)
    for at in (0, 1000, 2000):
        ping(side, at)
    assert side.conn.closing is None
    ping(side, 3000)
    assert side.conn.closing == "too_many_pings"


def test_pings_between_data_are_forgiven() -> None:
    """grpc-go and gRPC core measure the line when they receive."""
    side = Side(Role.SERVER, Limits(), greeted=True)
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK[1], False)
    for at in range(100):
        side.conn.send_data(heard.stream, b"x", False)
        side.conn.take()
        ping(side, at / 100)
        ping(side, at / 100)
    assert side.conn.closing is None
    ping(side, 1.1)
    assert side.conn.closing is None
    ping(side, 1.2)  # the third after the one that was forgiven
    assert side.conn.closing == "too_many_pings"


# Bounds


def test_memory_of_streams_that_were_cut_off() -> None:
    side = Side(Role.SERVER, Limits(max_resets=1 << 30), greeted=True)
    for number in range(1, 10_001, 2):
        side.receive(frame(HEADERS, END_HEADERS, number, BLOCK) + window_update(number, 0))
    assert len(side.conn.numbering._cut_off) == 1_000
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 9_999, BLOCK))
    assert side.conn.closing is None


def test_a_connection_is_small() -> None:
    tracemalloc.start()
    sides = [Side(Role.SERVER, Limits(), greeted=True) for _ in range(100)]
    used = tracemalloc.get_traced_memory()[0] / len(sides)
    tracemalloc.stop()
    assert used < 8_000


def test_every_byte_of_a_greeting_may_come_alone() -> None:
    side = Side(Role.SERVER, Limits())
    for byte in GREETING:
        side.receive(bytes((byte,)))
    assert SETTINGS_ACK in side.conn.take()


def test_closing_text_fits_its_frame() -> None:
    side = Side(Role.SERVER, Limits(), greeted=True)
    side.conn.shut_down(f.NO_ERROR, "x" * 10_000)
    kind, _, _, payload = frames(side.conn.take())[-1]
    assert (kind, len(payload)) == (GOAWAY, 8 + 256)
    assert RST_STREAM not in kinds(side.conn.take())
