"""Flow control: the peer's windows hold back what we send, ours hold back the peer, and nobody starves."""

from __future__ import annotations

import time

import pytest

from gateway.wire import frames as f
from gateway.wire.connection import Limits, Role, Stream
from gateway.wire.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers_frame,
    settings_frame,
    window_update,
)
from gateway.wire.hpack import encode_static
from tests.wire.side import BLOCK, Heard, Side, frames, kinds

HEADS = headers_frame(encode_static(((b":status", b"200"),)), end=False)
TAILS = headers_frame(encode_static(((b"grpc-status", b"0"),)), end=True)
OPEN_WIDE = window_update(0, 1 << 30) + settings_frame({f.INITIAL_WINDOW_SIZE: 1 << 30})


def server(limits: Limits | None = None, opening: bytes = b"") -> Side:
    side = Side(Role.SERVER, limits or Limits(), greeted=True)
    side.receive(opening)
    side.conn.take()
    return side


def data_of(chunk: bytes, number: int = 1) -> bytes:
    """The DATA of a stream, padding and all."""
    return b"".join(payload for kind, _, stream, payload in frames(chunk) if kind == DATA and stream == number)


def send(side: Side, heard: Heard, data: bytes, end: bool = False) -> None:
    assert heard.stream is not None
    side.conn.send_data(heard.stream, data, end)


def drain(side: Side, number: int = 1) -> bytes:
    """What comes out of turns that nothing but the turn keeps back."""
    data = b""
    while side.conn.pending:
        data += data_of(side.conn.take(), number)
    return data


def test_a_unary_reply_is_three_frames_in_one_piece() -> None:
    side = server()
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.respond(heard.stream, HEADS, b"reply", TAILS)
    assert kinds(side.conn.take()) == [HEADERS, DATA, HEADERS]
    assert heard.stream.closed
    assert side.conn.active == 0


def test_a_unary_reply_before_the_request_has_ended() -> None:
    side = server()
    heard = side.request(1, end=False)
    assert heard.stream is not None
    side.conn.respond(heard.stream, HEADS, b"reply", TAILS)
    assert kinds(side.conn.take()) == [HEADERS, DATA, HEADERS, RST_STREAM]


@pytest.mark.parametrize("size", [DEFAULT_WINDOW, DEFAULT_WINDOW + 1, 16_384, 16_385, 0])
def test_replies_at_the_edge_of_window_and_frame(size: int) -> None:
    side = server()
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.respond(heard.stream, HEADS, bytes(size), TAILS)
    out = side.conn.take()
    assert len(data_of(out)) == min(size, DEFAULT_WINDOW)
    assert all(len(payload) <= 16_384 for _, _, _, payload in frames(out))
    side.receive(window_update(0, 10) + window_update(1, 10))
    out += side.conn.take()
    assert data_of(out) == bytes(size)
    assert frames(out)[-1][:2] == (HEADERS, END_HEADERS | END_STREAM)
    assert heard.stream.closed


def test_a_shut_connection_window_holds_all_streams_back_and_serves_them_in_turn() -> None:
    side = server(opening=settings_frame({f.INITIAL_WINDOW_SIZE: 1 << 20}))
    one, two = side.request(1), side.request(3)
    send(side, one, b"1" * 100_000)
    send(side, two, b"2" * 100_000)
    assert drain(side) == b"1" * DEFAULT_WINDOW
    assert not side.conn.pending
    side.receive(window_update(0, 50_000))
    out = side.conn.take()
    assert (len(data_of(out, 1)), len(data_of(out, 3))) == (100_000 - DEFAULT_WINDOW, 50_000 - (100_000 - DEFAULT_WINDOW))
    side.receive(window_update(0, 1 << 20))
    assert drain(side, 3) == b"2" * (100_000 - 15_535)


def test_a_stream_whose_own_window_is_shut_does_not_hold_others_back() -> None:
    side = server(opening=window_update(0, 1 << 20))
    slow, quick = side.request(1), side.request(3)
    send(side, slow, bytes(DEFAULT_WINDOW + 100))
    assert len(drain(side)) == DEFAULT_WINDOW
    assert not side.conn.pending  # or the loop would turn for nothing
    assert quick.stream is not None
    side.conn.respond(quick.stream, HEADS, b"reply", TAILS)
    assert data_of(side.conn.take(), 3) == b"reply"
    side.receive(window_update(1, 60))
    assert len(drain(side)) == 60
    side.receive(window_update(1, 60))
    assert len(drain(side)) == 40


def test_windows_turn_negative_and_come_back() -> None:
    side = server()
    heard = side.request(1)
    send(side, heard, bytes(1000))
    send(side, heard, bytes(0), end=False)
    side.receive(settings_frame({f.INITIAL_WINDOW_SIZE: 100}))  # the stream's window is -900 now
    assert heard.stream is not None
    assert heard.stream.send_window == -900
    send(side, heard, b"more", end=True)
    assert data_of(side.conn.take()) == bytes(1000)
    side.receive(window_update(1, 901))
    assert drain(side) == b"m"
    side.receive(settings_frame({f.INITIAL_WINDOW_SIZE: 103}))
    assert drain(side) == b"ore"
    assert heard.stream.local_ended
    assert heard.stream.closed


def test_settings_shut_the_windows_of_streams_that_wait_for_their_turn() -> None:
    side = server(opening=settings_frame({f.INITIAL_WINDOW_SIZE: 100_000}))
    heard = side.request(1)
    send(side, heard, bytes(90_000))
    assert len(drain(side)) == DEFAULT_WINDOW
    side.receive(settings_frame({f.INITIAL_WINDOW_SIZE: 0}) + window_update(0, 50_000))
    assert drain(side) == b""
    side.receive(settings_frame({f.INITIAL_WINDOW_SIZE: 90_000}))
    assert len(drain(side)) == 90_000 - DEFAULT_WINDOW


def test_frames_grow_as_the_peer_allows() -> None:
    side = server(opening=OPEN_WIDE + settings_frame({f.MAX_FRAME_SIZE: 100_000}))
    heard = side.request(1)
    send(side, heard, bytes(250_000))
    out = side.conn.take()
    assert [len(payload) for kind, _, _, payload in frames(out) if kind == DATA] == [100_000, 100_000, 50_000]


def test_a_turn_puts_out_a_slice() -> None:
    side = server(Limits(slice=50_000), OPEN_WIDE)
    one, two = side.request(1), side.request(3)
    send(side, one, bytes(120_000))
    send(side, two, bytes(120_000))
    turns = []
    while side.conn.pending:
        out = side.conn.take()
        turns.append((len(data_of(out, 1)), len(data_of(out, 3))))
    assert sum(first for first, _ in turns) == sum(second for _, second in turns) == 120_000
    assert all(sum(turn) <= 100_000 for turn in turns)
    assert turns[1][0] * turns[1][1] == 0 or sum(turns[1]) <= 100_000
    assert turns[1][1] or turns[0][1]  # the second stream was served before the first was through


def test_small_replies_do_not_wait_behind_a_large_one() -> None:
    side = server(Limits(slice=50_000), OPEN_WIDE)
    send(side, side.request(1), bytes(5_000_000))
    side.conn.take()
    quick = side.request(3)
    assert quick.stream is not None
    side.conn.respond(quick.stream, HEADS, b"reply", TAILS)
    assert data_of(side.conn.take(), 3) == b"reply"


def test_a_paused_transport_gets_nothing() -> None:
    side = server()
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.pause()
    side.conn.respond(heard.stream, HEADS, b"reply", TAILS)
    side.receive(settings_frame({}))
    assert side.conn.take() == b""
    assert not side.conn.pending
    side.conn.resume()
    assert side.conn.pending
    assert kinds(side.conn.take()) == [HEADERS, SETTINGS, DATA, HEADERS]


def test_writable_and_drained() -> None:
    side = server(Limits(high_water=1000, low_water=100))
    heard = side.request(1)
    assert heard.stream is not None
    send(side, heard, bytes(DEFAULT_WINDOW + 1000))
    assert heard.stream.writable
    send(side, heard, b"x")
    assert not heard.stream.writable
    side.receive(window_update(0, 5000) + window_update(1, 900))
    side.conn.take()
    assert (heard.drained, heard.stream.writable, heard.stream.queued) == (0, False, 101)
    side.receive(window_update(1, 1))
    side.conn.take()
    assert (heard.drained, heard.stream.writable, heard.stream.queued) == (1, True, 100)


def test_an_owner_that_refills_when_drained() -> None:
    """It may say more from within on_drained; order holds."""
    side = server(Limits(slice=30_000, high_water=20_000, low_water=5_000), OPEN_WIDE)
    heard = side.request(1)
    stream = heard.stream
    assert stream is not None
    pieces = iter(bytes([number]) * 25_000 for number in range(1, 40))

    class Refiller(Heard):
        def on_drained(self, stream: Stream) -> None:
            while stream.writable and (piece := next(pieces, b"")):
                send(side, heard, piece)

    stream.owner = Refiller(side)
    side.conn.pause()
    send(side, heard, bytes(25_000))
    side.conn.resume()
    assert drain(side) == b"".join(bytes([number]) * 25_000 for number in range(40))


def test_reset_drops_what_is_queued() -> None:
    side = server()
    heard = side.request(1)
    send(side, heard, bytes(1_000_000), end=True)
    assert heard.stream is not None
    side.conn.reset(heard.stream, f.CANCEL)
    side.conn.take()
    side.receive(window_update(0, 1 << 20))
    assert not side.conn.pending
    assert heard.stream.queued == 0


def test_reset_of_a_stream_that_waits_for_its_turn() -> None:
    side = server(opening=settings_frame({f.INITIAL_WINDOW_SIZE: 1 << 20}))
    heard = side.request(1)
    send(side, heard, bytes(100_000), end=True)
    side.conn.take()
    side.receive(frame(RST_STREAM, 0, 1, bytes(4)) + window_update(0, 1 << 20))
    assert not side.conn.pending
    assert side.conn.take() == b""


def test_a_large_reply_in_tiny_windows_costs_no_copies() -> None:
    """A piece that waits is not copied for each frame: 30,000 windows of one byte, out of 50 MB, in a moment."""
    side = server()
    heard = side.request(1)
    send(side, heard, bytes(50_000_000))
    side.conn.take()
    start = time.process_time()
    for _ in range(30):
        side.receive((window_update(1, 1) + window_update(0, 1)) * 1000)
        assert len(data_of(side.conn.take())) == 1000
    assert time.process_time() - start < 3


# What comes in


def test_windows_are_given_back_when_the_owner_is_done() -> None:
    side = server(Limits(stream_window=100_000, connection_window=1 << 20))
    side.consumes = False
    heard = side.request(1, end=False)
    side.receive(frame(DATA, 0, 1, bytes(10_000)) * 6)
    assert WINDOW_UPDATE not in kinds(side.conn.take())
    assert heard.stream is not None
    side.conn.consume(heard.stream, 49_999)
    assert side.conn.take() == b""
    side.conn.consume(heard.stream, 1)
    assert frames(side.conn.take()) == [(WINDOW_UPDATE, 0, 1, (50_000).to_bytes(4, "big"))]
    side.conn.consume(heard.stream, 10_000)
    assert side.conn.take() == b""
    side.receive(frame(DATA, 0, 1, bytes(10_000)) * 9)
    assert heard.reset is None
    side.receive(frame(DATA, 0, 1, b"x"))
    assert heard.reset == f.FLOW_CONTROL_ERROR


def test_the_connection_window_is_given_back_at_once() -> None:
    side = server(Limits(stream_window=1 << 20, connection_window=100_000))
    side.consumes = False
    side.request(1, end=False)
    side.receive(frame(DATA, 0, 1, bytes(10_000)) * 9)
    updates = [payload for kind, _, stream, payload in frames(side.conn.take()) if kind == WINDOW_UPDATE and not stream]
    assert updates == [(50_000).to_bytes(4, "big")]


def test_padding_and_late_data_are_given_back_too() -> None:
    side = server(Limits(stream_window=65_535, connection_window=65_535))
    heard = side.request(1, end=False)
    for _ in range(200):  # 50 KB that are nothing but padding
        side.receive(frame(DATA, PADDED, 1, b"\xff" + bytes(255)))
    for _ in range(100):
        side.receive(frame(DATA, PADDED, 1, b"\xc8" + b"x" * 55 + bytes(200)))
    assert heard.reset is None
    assert len(heard.data) == 5500
    assert heard.stream is not None
    side.conn.reset(heard.stream, f.CANCEL)
    side.receive(frame(DATA, 0, 1, bytes(10_000)) * 20)
    updates = [payload for kind, _, stream, payload in frames(side.conn.take()) if kind == WINDOW_UPDATE and not stream]
    back = sum(int.from_bytes(payload, "big") for payload in updates)
    assert back > 200_000 + 256 * 300 - 65_535


# Client role


def test_a_request_larger_than_the_windows() -> None:
    side = Side(Role.CLIENT, greeted=True)
    heard = side.open(BLOCK, b"r" * 100_000, True)
    out = side.conn.take()
    assert len(data_of(out)) == DEFAULT_WINDOW
    side.receive(window_update(0, 1 << 20) + window_update(1, 1 << 20))
    out += side.conn.take()
    assert data_of(out) == b"r" * 100_000
    assert frames(out)[-1] == (DATA, END_STREAM, 1, b"")
    assert heard.stream is not None
    assert heard.stream.local_ended


def test_the_peers_stream_limit() -> None:
    side = Side(Role.CLIENT, greeted=True)
    side.receive(settings_frame({f.MAX_CONCURRENT_STREAMS: 2}))
    side.open(BLOCK, None, True)
    assert side.conn.can_open
    side.open(BLOCK, None, True)
    assert not side.conn.can_open
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, HEADS[1]))
    assert side.slots == 1
    assert side.conn.can_open
    side.open(BLOCK, None, True)
    side.receive(settings_frame({f.MAX_CONCURRENT_STREAMS: 1}))
    side.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, HEADS[1]))
    assert (side.slots, side.conn.can_open) == (1, False)
    side.receive(settings_frame({f.MAX_CONCURRENT_STREAMS: 3}))
    assert (side.slots, side.conn.can_open) == (2, True)


def test_a_long_header_block_goes_out_in_pieces() -> None:
    side = Side(Role.CLIENT, greeted=True)
    side.open(encode_static(((b"x", b"y" * 40_000),)), b"data", True)
    assert kinds(side.conn.take()) == [HEADERS, f.CONTINUATION, f.CONTINUATION, DATA]


def test_a_smaller_table_is_announced_in_the_next_block_whatever_it_is() -> None:
    side = server(opening=settings_frame({f.HEADER_TABLE_SIZE: 0}))
    one, two = side.request(1), side.request(3)
    assert one.stream is not None and two.stream is not None
    side.conn.respond(one.stream, HEADS, b"", TAILS)
    side.conn.respond(two.stream, HEADS, b"", TAILS)
    blocks = [payload for kind, _, _, payload in frames(side.conn.take()) if kind == HEADERS]
    assert blocks == [b"\x20" + HEADS[1], TAILS[1], HEADS[1], TAILS[1]]


def test_a_smaller_table_is_announced_by_trailers_that_waited() -> None:
    side = server()
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.respond(heard.stream, HEADS, bytes(DEFAULT_WINDOW + 1), TAILS)
    side.conn.take()
    side.receive(settings_frame({f.HEADER_TABLE_SIZE: 100}) + window_update(0, 1) + window_update(1, 1))
    assert frames(side.conn.take())[-1][3] == b"\x3f\x45" + TAILS[1]
