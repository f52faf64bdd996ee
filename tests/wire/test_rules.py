"""What RFC 9113 forbids ends the connection or the stream with the right code; what it allows is taken."""

from __future__ import annotations

import pytest

from gateway.wire import frames as f
from gateway.wire.connection import Limits, Role
from gateway.wire.frames import (
    ACK,
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    rst_stream,
    settings_frame,
    window_update,
)
from gateway.wire.hpack import encode_static, literal
from tests.wire.side import BLOCK, GREETING, REQUEST, Heard, Side, frames, kinds

ALL = END_HEADERS | END_STREAM
TRAILER = literal(b"x", b"y")
OK = encode_static(((b":status", b"200"),))
UNKNOWN = 0xEE


def server(limits: Limits | None = None) -> Side:
    return Side(Role.SERVER, limits, greeted=True) if limits else Side(Role.SERVER, greeted=True)


def client() -> tuple[Side, Heard]:
    """A client with one call under way, whose request is complete."""
    side = Side(Role.CLIENT, greeted=True)
    heard = side.open(BLOCK, None, True)
    side.conn.take()
    return side, heard


def goaway(side: Side) -> int:
    """The code of the GOAWAY that ended the connection."""
    assert side.conn.closing is not None
    (payload,) = [payload for kind, _, _, payload in frames(side.conn.take()) if kind == GOAWAY]
    assert payload[8:].decode() == side.conn.closing[:256]
    return int.from_bytes(payload[4:8], "big")


def resets(side: Side) -> dict[int, int]:
    """Codes of the RST_STREAM frames by stream; the connection goes on."""
    assert side.conn.closing is None
    return {number: int.from_bytes(payload, "big") for kind, _, number, payload in frames(side.conn.take()) if kind == RST_STREAM}


OPEN = frame(HEADERS, END_HEADERS, 1, BLOCK)
DONE = frame(HEADERS, ALL, 1, BLOCK)

CONNECTION_ERRORS = {
    "frame too long": (b"\x00\x40\x01" + bytes(6), FRAME_SIZE_ERROR),
    "DATA on no stream": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), PROTOCOL_ERROR),
    "padding longer than DATA": (OPEN + frame(DATA, PADDED, 1, b"\x05abc"), PROTOCOL_ERROR),
    "padding as long as DATA": (OPEN + frame(DATA, PADDED, 1, b"\x03ab"), PROTOCOL_ERROR),
    "padding without its length": (OPEN + frame(DATA, PADDED, 1, b""), PROTOCOL_ERROR),
    "HEADERS on no stream": (frame(HEADERS, ALL, 0, BLOCK), PROTOCOL_ERROR),
    "HEADERS on an even stream": (frame(HEADERS, ALL, 2, BLOCK), PROTOCOL_ERROR),
    "HEADERS with a lower number": (frame(HEADERS, ALL, 5, BLOCK) + frame(HEADERS, ALL, 3, BLOCK), STREAM_CLOSED),
    "HEADERS too short for priority": (frame(HEADERS, ALL | WITH_PRIORITY, 1, b"abc"), FRAME_SIZE_ERROR),
    "HEADERS that depend on themselves": (frame(HEADERS, ALL | WITH_PRIORITY, 1, b"\0\0\0\1\0" + BLOCK), PROTOCOL_ERROR),
    "padding longer than HEADERS": (frame(HEADERS, ALL | PADDED, 1, b"\xff" + BLOCK), PROTOCOL_ERROR),
    "broken block": (frame(HEADERS, ALL, 1, b"\x80"), COMPRESSION_ERROR),
    "block interrupted": (frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "block interrupted by an unknown frame": (frame(HEADERS, 0, 1, BLOCK) + frame(UNKNOWN, 0, 1, b"x"), PROTOCOL_ERROR),
    "block continued elsewhere": (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b""), PROTOCOL_ERROR),
    "CONTINUATION alone": (frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
    "CONTINUATION after the end of the block": (OPEN + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
    "CONTINUATION on no stream": (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 0, b""), PROTOCOL_ERROR),
    "PRIORITY on no stream": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    "PRIORITY of the wrong length": (frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    "PRIORITY on itself": (frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), PROTOCOL_ERROR),
    "RST_STREAM on no stream": (frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (rst_stream(1, CANCEL), PROTOCOL_ERROR),
    "RST_STREAM of the wrong length": (OPEN + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
    "SETTINGS of the wrong length": (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "SETTINGS acknowledgement with a payload": (frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (settings_frame({f.ENABLE_PUSH: 2}), PROTOCOL_ERROR),
    "initial window too large": (settings_frame({f.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW_CONTROL_ERROR),
    "max frame size too small": (settings_frame({f.MAX_FRAME_SIZE: 16_383}), PROTOCOL_ERROR),
    "max frame size too large": (settings_frame({f.MAX_FRAME_SIZE: 1 << 24}), PROTOCOL_ERROR),
    "initial window that overflows a stream's": (
        OPEN + window_update(1, (1 << 31) - 1 - 65_535) + settings_frame({f.INITIAL_WINDOW_SIZE: 65_536}), FLOW_CONTROL_ERROR,
    ),
    "PUSH_PROMISE": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), PROTOCOL_ERROR),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "PING of the wrong length": (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "GOAWAY too short": (frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (window_update(0, 0), PROTOCOL_ERROR),
    "WINDOW_UPDATE of the wrong length": (frame(WINDOW_UPDATE, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE on an idle stream": (window_update(1, 5), PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream of ours": (window_update(2, 5), PROTOCOL_ERROR),
    "window of the connection over 2^31-1": (window_update(0, (1 << 31) - 1), FLOW_CONTROL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_connection_errors(case: str) -> None:
    data, code = CONNECTION_ERRORS[case]
    side = server()
    side.receive(data)
    assert goaway(side) == code
    side.receive(OPEN + DONE)  # nothing counts any more
    assert side.conn.take() == b""


STREAM_ERRORS = {
    "DATA after the end": (DONE + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "HEADERS after the end": (DONE + frame(HEADERS, ALL, 1, TRAILER), STREAM_CLOSED),
    "trailers without an end": (OPEN + frame(HEADERS, END_HEADERS, 1, TRAILER), PROTOCOL_ERROR),
    "trailers with a pseudo-field": (OPEN + frame(HEADERS, ALL, 1, BLOCK), PROTOCOL_ERROR),
    "WINDOW_UPDATE of 0": (OPEN + window_update(1, 0), PROTOCOL_ERROR),
    "window over 2^31-1": (OPEN + window_update(1, (1 << 31) - 1), FLOW_CONTROL_ERROR),
}


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_stream_errors(case: str) -> None:
    data, code = STREAM_ERRORS[case]
    side = server()
    side.receive(data)
    assert resets(side) == {1: code}
    assert side.heard[1].reset == code
    assert side.conn.active == 0
    side.request(3)  # the others do not care


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frame(PING, 0, 0, bytes(8)), PREFACE + OPEN, b"PRI * HTTP/2.0\r\n\r\nXX"]
)
def test_a_connection_that_begins_otherwise(first: bytes) -> None:
    for step in (1, len(first)):
        side = Side()
        side.receive(first, [step] * len(first))
        assert goaway(side) == PROTOCOL_ERROR


def test_a_server_that_begins_otherwise() -> None:
    side = Side(Role.CLIENT)
    side.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert goaway(side) == PROTOCOL_ERROR


def test_what_each_side_says_first() -> None:
    limits = Limits(stream_window=100_000, connection_window=65_536, max_header_list=5_000, max_streams=7)
    hello = Side(Role.SERVER, limits).conn.take()
    values = {f.INITIAL_WINDOW_SIZE: 100_000, f.MAX_HEADER_LIST_SIZE: 5_000, f.MAX_CONCURRENT_STREAMS: 7}
    assert hello == settings_frame(values) + window_update(0, 1)
    hello = Side(Role.CLIENT, limits).conn.take()
    values = {f.INITIAL_WINDOW_SIZE: 100_000, f.MAX_HEADER_LIST_SIZE: 5_000, f.ENABLE_PUSH: 0}
    assert hello == PREFACE + settings_frame(values) + window_update(0, 1)


def test_greeting_in_single_bytes() -> None:
    side = Side()
    side.receive(GREETING + DONE, [1] * 200)
    assert side.heard[1].ended
    assert SETTINGS_ACK in side.conn.take()


def test_what_is_allowed() -> None:
    """Padding, priorities, unknown frames, flags and settings, and more for streams that are closed."""
    side = server()
    padded = b"\x03" + bytes(5) + BLOCK + bytes(3)
    side.receive(frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, padded))
    side.receive(frame(UNKNOWN, 0xFF, 1, b"x") + frame(PRIORITY, 0, 7, b"\0\0\0\1\5") + frame(PING, ACK, 0, bytes(8)))
    side.receive(frame(DATA, PADDED | 0xF0, 1, b"\x02ab" + bytes(2)) + frame(DATA, PADDED, 1, b"\x01\0"))
    side.receive(settings_frame({0x99: 1, f.MAX_HEADER_LIST_SIZE: 5, f.MAX_CONCURRENT_STREAMS: 0}))
    side.receive(frame(HEADERS, ALL, 1, TRAILER))
    heard = side.heard[1]
    assert (bytes(heard.data), heard.headers, heard.ended) == (b"ab", [REQUEST, ((b"x", b"y"),)], True)
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK, True)
    side.receive(window_update(1, 5) + rst_stream(1, CANCEL) + frame(PRIORITY, 0, 1, bytes(5)))
    assert side.conn.closing is None
    assert kinds(side.conn.take()) == [SETTINGS, HEADERS]


def test_reserved_bit_of_the_stream_number() -> None:
    side = server()
    side.receive(DONE[:5] + b"\x80" + DONE[6:])
    assert side.heard[1].ended


def test_block_in_pieces() -> None:
    side = server()
    side.receive(frame(HEADERS, END_STREAM | PADDED, 1, b"\x02" + BLOCK[:3] + bytes(2)) + frame(CONTINUATION, 0, 1, b""))
    side.receive(frame(CONTINUATION, END_HEADERS, 1, BLOCK[3:]), [1] * 20)
    assert side.heard[1].headers == [REQUEST]
    assert side.heard[1].ended


def test_late_frames_for_a_stream_that_we_ended() -> None:
    side = server()
    heard = side.request(1, end=False)
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK, True)
    assert resets(side) == {1: NO_ERROR}
    side.receive(frame(DATA, 0, 1, b"late") + frame(HEADERS, ALL, 1, TRAILER) + rst_stream(1, CANCEL))
    assert resets(side) == {}
    assert not heard.data


def test_data_for_a_stream_that_ended_long_ago() -> None:
    side = server()
    heard = side.request(1)
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK, True)
    side.receive(frame(DATA, 0, 1, b"x"))
    assert resets(side) == {1: STREAM_CLOSED}


@pytest.mark.parametrize(("length", "data"), [(3, b"ab"), (3, b"abcd"), (3, b"")])
def test_content_length(length: int, data: bytes) -> None:
    side = server()
    heard = side.request(1, end=False)
    assert heard.stream is not None
    heard.stream.expected = length
    side.receive(frame(DATA, END_STREAM, 1, data))
    assert resets(side) == {1: PROTOCOL_ERROR}


def test_content_length_that_holds() -> None:
    side = server()
    heard = side.request(1, end=False)
    assert heard.stream is not None
    heard.stream.expected = 3
    side.receive(frame(DATA, 0, 1, b"ab") + frame(DATA, PADDED, 1, b"\x01c\0") + frame(HEADERS, ALL, 1, TRAILER))
    assert resets(side) == {}
    assert heard.ended


def test_trailers_before_the_promised_length() -> None:
    side = server()
    heard = side.request(1, end=False)
    assert heard.stream is not None
    heard.stream.expected = 3
    side.receive(frame(HEADERS, ALL, 1, TRAILER))
    assert resets(side) == {1: PROTOCOL_ERROR}


# Client role

RESPONSES = {
    "no status": (frame(HEADERS, END_HEADERS, 1, TRAILER), PROTOCOL_ERROR),
    "nothing at all": (frame(HEADERS, ALL, 1, b""), PROTOCOL_ERROR),
    "a status that is no number": (frame(HEADERS, ALL, 1, literal(b":status", b"20x")), PROTOCOL_ERROR),
    "an interim response that ends": (frame(HEADERS, ALL, 1, literal(b":status", b"100")), PROTOCOL_ERROR),
    "headers twice": (frame(HEADERS, END_HEADERS, 1, OK) * 2, PROTOCOL_ERROR),
    "trailers without an end": (frame(HEADERS, END_HEADERS, 1, OK) + frame(HEADERS, END_HEADERS, 1, TRAILER), PROTOCOL_ERROR),
    "status in the trailers": (frame(HEADERS, END_HEADERS, 1, OK) + frame(HEADERS, ALL, 1, OK), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_that_are_none(case: str) -> None:
    data, code = RESPONSES[case]
    side, heard = client()
    side.receive(data)
    assert resets(side) == {1: code}
    assert heard.reset == code


def test_response_after_interim_ones() -> None:
    side, heard = client()
    side.receive(frame(HEADERS, END_HEADERS, 1, literal(b":status", b"103")) * 2 + frame(HEADERS, END_HEADERS, 1, OK))
    side.receive(frame(DATA, 0, 1, b"x") + frame(HEADERS, ALL, 1, b""))
    assert heard.headers == [((b":status", b"200"),), ()]
    assert heard.ended
    assert heard.stream is not None
    assert heard.stream.closed


def test_the_server_answers_before_the_request_is_complete() -> None:
    side = Side(Role.CLIENT, greeted=True)
    heard = side.open(BLOCK, None, False)
    side.conn.take()
    side.receive(frame(HEADERS, ALL, 1, OK))
    assert heard.ended
    assert resets(side) == {1: NO_ERROR}
    side.receive(rst_stream(1, NO_ERROR))
    assert resets(side) == {}


@pytest.mark.parametrize(
    "data",
    [
        frame(PUSH_PROMISE, END_HEADERS, 1, (2).to_bytes(4, "big") + BLOCK),
        frame(HEADERS, END_HEADERS, 2, OK),
        frame(HEADERS, END_HEADERS, 3, OK),
        frame(DATA, 0, 3, b"x"),
    ],
)
def test_a_server_opens_no_streams(data: bytes) -> None:
    side, _ = client()
    side.receive(data)
    assert goaway(side) == PROTOCOL_ERROR


def test_a_response_for_a_call_that_was_given_up() -> None:
    side, heard = client()
    assert heard.stream is not None
    side.conn.reset(heard.stream, CANCEL)
    side.receive(frame(HEADERS, END_HEADERS, 1, OK) + frame(DATA, 0, 1, b"x") + frame(HEADERS, ALL, 1, b""))
    assert resets(side) == {1: CANCEL}
    assert not heard.headers


# How connections end


def test_goaway_refuses_what_was_not_taken() -> None:
    side = Side(Role.CLIENT, greeted=True)
    first, second = side.open(BLOCK, None, True), side.open(BLOCK, b"x", True)
    side.receive(frame(GOAWAY, 0, 0, (1).to_bytes(4, "big") + NO_ERROR.to_bytes(4, "big") + b"bye"))
    assert side.goaways == [(NO_ERROR, "bye")]
    assert (first.reset, second.reset) == (None, REFUSED_STREAM)
    assert not side.conn.can_open
    side.receive(frame(HEADERS, ALL, 1, OK))
    assert first.ended


def test_shut_down_lets_calls_end() -> None:
    side = server()
    heard = side.request(1)
    side.conn.shut_down(NO_ERROR, "bye")
    side.conn.shut_down(NO_ERROR, "once more")
    assert [payload for kind, _, _, payload in frames(side.conn.take()) if kind == GOAWAY] == [b"\0\0\0\1\0\0\0\0bye"]
    side.receive(frame(HEADERS, ALL, 3, BLOCK))
    assert resets(side) == {3: REFUSED_STREAM}
    assert 3 not in side.heard
    assert side.conn.closing is None
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK, True)
    assert side.conn.closing is not None


def test_shut_down_without_calls() -> None:
    side = server()
    side.conn.shut_down(NO_ERROR, "bye")
    assert side.conn.closing == "bye"
    assert kinds(side.conn.take()) == [GOAWAY]


def test_errors_after_shut_down_do_not_take_back_what_was_refused() -> None:
    """The last stream of a second GOAWAY is not higher than that of the first (section 6.8)."""
    side = server()
    side.request(1)
    side.conn.shut_down(NO_ERROR, "bye")
    side.receive(frame(HEADERS, ALL, 3, BLOCK) + frame(PING, 0, 0, b""))
    last = [payload[:4] for kind, _, _, payload in frames(side.conn.take()) if kind == GOAWAY]
    assert last == [b"\0\0\0\1", b"\0\0\0\1"]


@pytest.mark.parametrize("role", Role)
def test_lost_connections_tell_every_owner(role: Role) -> None:
    if role is Role.SERVER:
        side = server()
        heard = [side.request(1), side.request(3, end=False)]
    else:
        side, first = client()
        heard = [first, side.open(BLOCK, bytes(100_000), False)]
    side.conn.lost("gone")
    side.conn.lost("gone again")
    assert [each.reset for each in heard] == [f.INTERNAL_ERROR] * 2
    assert side.conn.closing == "gone"
    assert not side.conn.can_open
    assert side.conn.active == 0


def test_resets_reach_the_owner_once() -> None:
    side = server()
    heard = side.request(1)
    side.receive(rst_stream(1, CANCEL) * 2)
    assert heard.reset == CANCEL
    assert heard.stream is not None
    side.conn.send_headers(heard.stream, OK, False)
    side.conn.send_data(heard.stream, b"x", True)
    side.conn.respond(heard.stream, (b"", b""), b"", (b"", b""))
    side.conn.reset(heard.stream, CANCEL)
    assert resets(side) == {}
    assert side.conn.take() == b""
