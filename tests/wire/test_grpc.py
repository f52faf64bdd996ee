"""gRPC's framing: heads, messages, statuses."""

from __future__ import annotations

import base64
import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Code, RpcError
from gateway.wire import grpc
from gateway.wire.grpc import (
    MessageReader,
    binary,
    frame_message,
    http_error,
    parse_status,
    percent_encode,
    request_head,
    seconds,
    timeout_value,
    trailers,
    trailers_only,
    whole,
)
from gateway.wire.hpack import Decoder, Headers
from tests.wire.side import REQUEST


def fields(block: bytes) -> Headers:
    """A header block of ours, decoded."""
    return Decoder(1 << 20).decode(block)[0]


def changed(drop: bytes = b"", *more: tuple[bytes, bytes]) -> Headers:
    """The usual request without one field, with more."""
    return (*(pair for pair in REQUEST if pair[0] != drop), *more)


# Request heads


def test_the_usual_head() -> None:
    head = request_head((*REQUEST, (b"token", b"t"), (b"user-agent", b"u"), (b"hasleader", b"true"), (b"content-length", b"12")))
    assert head.path == b"/etcdserverpb.KV/Range"
    assert head.metadata == {b"token": b"t", b"hasleader": b"true"}
    assert (head.compressed, head.length, head.malformed, head.refusal) == (False, 12, False, None)
    assert request_head(REQUEST) is request_head(REQUEST)
    assert request_head(REQUEST).metadata is grpc.NO_METADATA


@pytest.mark.parametrize(
    "headers",
    [
        changed(b":path"),
        changed(b":method"),
        changed(b":scheme"),
        changed(b":path", (b":path", b"/late")),  # after the regular fields
        ((b":path", b"/twice"), *REQUEST),
        ((b":path", b""), *changed(b":path")),
        ((b":status", b"200"), *REQUEST),
        ((b":unknown", b"x"), *REQUEST),
        changed(b"te", (b"te", b"gzip")),
        changed(b"", (b"Upper", b"x")),
        changed(b"", (b"connection", b"close")),
        changed(b"", (b"transfer-encoding", b"chunked")),
        changed(b"", (b"", b"x")),
        changed(b"", (b"a b", b"x")),
        changed(b"", (b"x", b"a\r\nb")),
        changed(b"", (b"x", b"a\0b")),
        changed(b"", (b"content-length", b"-2")),
        changed(b"", (b"content-length", b"1x")),
        (),
    ],
)
def test_malformed_heads(headers: Headers) -> None:
    head = request_head(headers)
    assert head.malformed
    assert head.refusal is None


@pytest.mark.parametrize(
    ("headers", "http", "code", "text"),
    [
        (changed(b"content-type"), b"415", Code.INVALID_ARGUMENT, b'invalid gRPC request content-type ""'),
        (changed(b"content-type", (b"content-type", b"text/Plain")), b"415", Code.INVALID_ARGUMENT, b"text/Plain"),
        (changed(b"content-type", (b"content-type", b"application/grpcx")), b"415", Code.INVALID_ARGUMENT, b"application/grpcx"),
        (((b":method", b"GET"), *changed(b":method")), b"405", Code.INTERNAL, b'with :method "GET" which should be POST'),
        (changed(b"", (b"grpc-encoding", b"br")), b"200", Code.UNIMPLEMENTED, b'is not installed for grpc-encoding "br"'),
    ],
)
def test_refused_heads(headers: Headers, http: bytes, code: Code, text: bytes) -> None:
    refusal = request_head(headers).refusal
    assert refusal is not None
    answer = dict(fields(refusal))
    assert answer[b":status"] == http
    assert answer[b"grpc-status"] == b"%d" % code
    assert text in answer[b"grpc-message"]


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"Application/GRPC;x", b"application/grpc+json"])
def test_content_types_that_are_taken(kind: bytes) -> None:
    assert request_head(changed(b"content-type", (b"content-type", kind))).refusal is None


def test_memory_of_heads_is_bounded() -> None:
    for number in range(3000):
        request_head(changed(b"", (b"x", b"%d" % number)))
    request_head(changed(b"", (b"huge", b"x" * 5000)))
    assert len(grpc._heads) <= 1024
    assert changed(b"", (b"huge", b"x" * 5000)) not in grpc._heads


# Timeouts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9), (b"99999999H", 99999999 * 3600),
        (b"", None), (b"S", None), (b"1", None), (b"1s", None), (b"123456789S", None), (b"-1S", None), (b"1.5S", None), (b" 1S", None),
    ],
)  # fmt: skip
def test_timeouts(value: bytes, expected: float | None) -> None:
    assert seconds(value) == (None if expected is None else pytest.approx(expected))


@given(st.floats(1e-6, 1e9))
def test_timeout_survives_the_way_there(left: float) -> None:
    value = timeout_value(left)
    assert len(value) <= 9
    there = seconds(value)
    assert there is not None
    assert there <= left * 1.001
    assert there >= min(left, 99_999_999) * 0.999 - 1e-6


def test_a_deadline_that_has_passed_is_still_a_timeout() -> None:
    assert timeout_value(-5.0) == timeout_value(0.0) == b"1u"


# Messages

MESSAGES = st.lists(st.binary(max_size=400), max_size=8)


@given(MESSAGES, st.lists(st.integers(1, 100)))
def test_messages_in_any_cut(messages: list[bytes], sizes: list[int]) -> None:
    data = b"".join(map(frame_message, messages))
    reader = MessageReader(400)
    got: list[bytes] = []
    for size in [*sizes, len(data)]:
        got += reader.feed(data[:size])
        data = data[size:]
    assert got == messages
    assert reader.buffered == 0


def test_buffered_counts_what_is_not_handed_out() -> None:
    reader = MessageReader(None)
    data = frame_message(b"abc") + frame_message(b"de") + b"\0\0"
    seen = [(message, reader.buffered) for message in reader.feed(data)]
    assert seen == [(b"abc", 9), (b"de", 2)]
    assert reader.buffered == 2


@pytest.mark.parametrize(
    ("data", "compressed", "code", "text"),
    [
        (frame_message(bytes(101)), False, Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (101 vs. 100)"),
        (b"\0\xff\xff\xff\xff", False, Code.RESOURCE_EXHAUSTED, "4294967295 vs. 100"),
        (b"\x01\0\0\0\x01x", False, Code.INTERNAL, "compressed flag set with identity or empty encoding"),
        (b"\x02\0\0\0\x01x", True, Code.INTERNAL, "unexpected payload format 2"),
        (b"\x01\0\0\0\x01x", True, Code.INTERNAL, "failed to decompress"),
        (b"\x01\0\0\0\x14" + gzip.compress(bytes(90))[:20], True, Code.INTERNAL, "unexpected EOF"),
    ],
)
def test_bad_messages(data: bytes, compressed: bool, code: Code, text: str) -> None:
    with pytest.raises(RpcError) as caught:
        list(MessageReader(100, compressed).feed(data))
    assert caught.value.code == code
    assert text in caught.value.text


def test_messages_before_a_bad_one_are_handed_out() -> None:
    reader = MessageReader(10)
    got = []
    with pytest.raises(RpcError):
        for message in reader.feed(frame_message(b"good") + frame_message(bytes(11))):
            got.append(message)
    assert got == [b"good"]


def test_gzip() -> None:
    packed = gzip.compress(b"a" * 1000)
    data = b"\x01" + len(packed).to_bytes(4, "big") + packed + frame_message(b"plain")
    assert list(MessageReader(1000, compressed=True).feed(data)) == [b"a" * 1000, b"plain"]


def test_gzip_bomb_is_not_unpacked() -> None:
    bomb = zlib.compressobj(9, wbits=31)
    packed = bomb.compress(bytes(100 << 20)) + bomb.flush()
    with pytest.raises(RpcError, match="after decompression larger than max 1000000"):
        list(MessageReader(1_000_000, compressed=True).feed(b"\x01" + len(packed).to_bytes(4, "big") + packed))


def test_whole() -> None:
    assert whole(frame_message(b"x")) == b"x"
    assert whole(frame_message(b"")) == b""
    for data in (b"", b"\0\0\0\0", frame_message(b"x")[:-1], frame_message(b"x") + b"y", b"\x01" + frame_message(b"x")[1:]):
        assert whole(data) is None


# Statuses


@given(st.integers(1, 16), st.text(st.characters(codec="utf-8"), max_size=60))
def test_status_there_and_back(code: int, text: str) -> None:
    assert parse_status(fields(trailers(code, text))) == (code, text)
    only = fields(trailers_only(code, text))
    assert only[0] == (b":status", b"200")
    assert parse_status(only) == (code, text)
    assert all(0x20 <= byte <= 0x7E for byte in percent_encode(text))


def test_ok() -> None:
    assert parse_status(fields(trailers(0, ""))) == (0, "")
    assert parse_status(((b"grpc-status", b"0"), (b"grpc-message", b""))) == (0, "")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (((b":status", b"503"),), Code.UNAVAILABLE),
        (((b":status", b"401"),), Code.UNAUTHENTICATED),
        (((b":status", b"404"),), Code.UNIMPLEMENTED),
        (((b":status", b"400"),), Code.INTERNAL),
        (((b":status", b"200"),), Code.UNKNOWN),
        (((b":status", b"abc"),), Code.UNKNOWN),
        (((b"grpc-status", b"x"),), Code.UNKNOWN),
        ((), Code.UNKNOWN),
    ],
)
def test_replies_without_a_status(headers: Headers, code: Code) -> None:
    assert parse_status(headers)[0] == code


def test_http_errors_say_it_in_both_ways() -> None:
    answer = dict(fields(http_error(415, Code.INVALID_ARGUMENT, "no")))
    assert answer == {b":status": b"415", b"content-type": b"application/grpc", b"grpc-status": b"3", b"grpc-message": b"no"}


@given(st.binary(max_size=50), st.booleans())
def test_binary_metadata(value: bytes, padded: bool) -> None:
    text = base64.b64encode(value)
    assert binary(text if padded else text.rstrip(b"=")) == value


def test_binary_metadata_that_is_none() -> None:
    assert binary(b"a") is None
    assert binary(b"a b*") is None
