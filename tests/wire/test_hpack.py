"""Header compression, with the `hpack` package as the other end."""

from __future__ import annotations

from random import Random
from typing import Any

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import huffman
from gateway.wire.hpack import (
    DEFAULT_TABLE,
    TIMEOUT,
    Decoder,
    Encoder,
    HeaderListTooLarge,
    Headers,
    HpackError,
    encode_static,
    integer,
    literal,
    literal_inserted,
)
from gateway.wire.tables import HUFFMAN, STATIC

LIMIT = 1 << 20
POOL = (
    (b":method", b"POST"), (b":method", b"PUT"), (b":path", b"/etcdserverpb.KV/Range"), (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-go/1.38.0"), (b"te", b"trailers"), (b"token", b"abc.12"), (b"x", b""), (b"big", b"v" * 900),
    (b"bigger", b"w" * 4090),
)  # fmt: skip
NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: name != TIMEOUT)
PAIRS = st.one_of(st.sampled_from(POOL), st.tuples(NAMES, st.binary(max_size=300)))
LISTS = st.lists(PAIRS, max_size=12)
TIMEOUTS = st.none() | st.integers(0, 99_999_999).map(lambda number: b"%du" % number)


@given(st.lists(st.tuples(LISTS, TIMEOUTS, st.booleans(), st.none() | st.integers(0, DEFAULT_TABLE)), max_size=20))
def test_decoder_follows_a_foreign_encoder(blocks: list[tuple[Headers, bytes | None, bool, int | None]]) -> None:
    theirs, ours = hpack.Encoder(), Decoder(LIMIT)
    for pairs, timeout, shortened, table in blocks:
        if table is not None:
            theirs.header_table_size = table
        fields = [*pairs, *([(TIMEOUT, timeout)] if timeout is not None else [])]
        block = theirs.encode(fields, huffman=shortened)
        assert ours.decode(block) == (tuple(pairs), timeout)


CALL = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/etcdserverpb.KV/Range"), (b":authority", b"127.0.0.1:2379"),
    (b"content-type", b"application/grpc"), (b"user-agent", b"grpc-go/1.38.0"), (b"te", b"trailers"),
)  # fmt: skip
OTHERS: list[tuple[Headers, bytes | None]] = [
    (CALL, None), ((*CALL, (b"token", b"abc.12")), b"1S"), (CALL[:3], b"99999999n"), ((), b"5S"), (CALL[::-1], b"7m"),
]  # fmt: skip


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.sampled_from(OTHERS), st.booleans(), st.none() | st.integers(0, DEFAULT_TABLE)), max_size=5),
    st.integers(),
)
def test_a_clients_calls_over_and_over(phases: list[tuple[int, tuple[Headers, bytes | None], bool, int | None]], seed: int) -> None:
    """The same head with another timeout each time, longer than the table keeps anything; at times another call, or a new table size."""
    theirs, ours, rng = hpack.Encoder(), Decoder(LIMIT), Random(seed)
    for count, (pairs, timeout), shortened, table in phases:
        if table is not None:
            theirs.header_table_size = table
        calls = [(CALL, b"%du" % rng.randrange(10 ** rng.choice((4, 7, 8)))) for _ in range(count)]
        for fields, value in [*calls, (pairs, timeout)]:
            block = theirs.encode([*fields, *([(TIMEOUT, value)] if value is not None else [])], huffman=shortened)
            before = ours._inserted
            usual = ours.as_usual(block)
            assert usual in (None, (fields, value))
            assert usual is not None or ours._inserted == before, "what is not recognised changes nothing"
            assert (usual or ours.decode(block)) == (fields, value)
            assert list(theirs.header_table.dynamic_entries) == ours._table[::-1]


def test_most_blocks_of_a_client_are_recognised() -> None:
    theirs, ours, recognised = hpack.Encoder(), Decoder(LIMIT), 0
    for number in range(1000):
        block = theirs.encode([*CALL, (TIMEOUT, b"%du" % (4_999_999 - number))])
        recognised += ours.as_usual(block) is not None or not ours.decode(block)
    assert recognised > 950


def test_a_head_that_is_nearly_the_usual_one() -> None:
    """Whatever byte of a usual block is another one, the answer is that of a decoder that has learned nothing."""
    for at in range(9):
        for byte in range(256):
            theirs, ours, plain_one = hpack.Encoder(), Decoder(LIMIT), Decoder(LIMIT)
            for number in range(3):
                block = theirs.encode([*CALL[:4], (TIMEOUT, b"%du" % number)])
                assert ours.decode(block) == plain_one._decode(block)
            block = theirs.encode([*CALL[:4], (TIMEOUT, b"777u")])
            changed = block[:at] + bytes((byte,)) + block[at + 1 :]
            answers: list[Any] = []
            for decode in (ours.decode, lambda block, one=plain_one: decode_plainly(one, block)):
                try:
                    answers.append(decode(changed))
                except HpackError as error:
                    answers.append(str(error))
            assert answers[0] == answers[1]


def decode_plainly(decoder: Decoder, block: bytes) -> tuple[Headers, bytes | None]:
    """Without what was learned of the blocks before."""
    decoder._usual = None
    decoder.memo.clear()
    return decoder.decode(block)


@given(st.lists(st.tuples(LISTS, st.none() | st.integers(0, 2 * DEFAULT_TABLE)), max_size=20))
def test_foreign_decoder_follows_our_encoder(blocks: list[tuple[list[tuple[bytes, bytes]], int | None]]) -> None:
    ours, theirs = Encoder(), hpack.Decoder(max_header_list_size=LIMIT)
    for pairs, table in blocks:
        update = b""
        if table is not None:
            update = ours.resize(table)
            theirs.max_allowed_table_size = table
        assert plain(theirs.decode(update + ours.encode(tuple(pairs)), raw=True)) == pairs


@given(LISTS)
def test_stateless_blocks(pairs: list[tuple[bytes, bytes]]) -> None:
    theirs = hpack.Decoder(max_header_list_size=LIMIT)
    for _ in range(2):
        assert plain(theirs.decode(encode_static(tuple(pairs)), raw=True)) == pairs
        assert plain(theirs.decode(b"".join(literal(*pair) for pair in pairs), raw=True)) == pairs
        assert len(theirs.header_table.dynamic_entries) == 0


@given(st.binary(max_size=200), st.lists(LISTS, max_size=3))
def test_any_bytes_decode_alike_or_fail_alike(noise: bytes, before: list[list[tuple[bytes, bytes]]]) -> None:
    encoder, theirs, ours = hpack.Encoder(), hpack.Decoder(max_header_list_size=LIMIT), Decoder(LIMIT)
    theirs.max_allowed_table_size = DEFAULT_TABLE
    for pairs in before:
        block = encoder.encode(pairs)
        theirs.decode(block, raw=True)
        ours.decode(block)
    try:
        expected = plain(theirs.decode(noise, raw=True))
    except hpack.HPACKError:
        expected = None
    try:
        fields, timeout = ours.decode(noise)
    except HpackError:
        assert expected is None or oversized_integer(noise)
    else:
        assert timeout is None
        assert expected == list(fields)


def oversized_integer(block: bytes) -> bool:
    """`hpack` takes integers of any length; ours have five bytes at most."""
    return any(all(byte & 0x80 for byte in block[at : at + 5]) and len(block) >= at + 5 for at in range(len(block)))


def plain(fields: object) -> list[tuple[bytes, bytes]]:
    """hpack's fields as bare pairs."""
    assert isinstance(fields, list)
    return [(bytes(name), bytes(value)) for name, value in fields]


def hpack_huffman(text: bytes) -> bytes:
    """As `hpack` encodes it."""
    codes, lengths = hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    return bytes(hpack.huffman.HuffmanEncoder(codes, lengths).encode(text))


@given(st.binary(max_size=300))
def test_huffman_reads_what_hpack_writes(text: bytes) -> None:
    data = hpack_huffman(text)
    assert huffman.decode(data) == text
    assert huffman.decode(data) == text  # from memory


@given(st.binary(max_size=40))
def test_huffman_of_any_bytes(data: bytes) -> None:
    """What decodes, encodes to the same bytes again: there is one code for each text."""
    try:
        text = huffman.decode(data)
    except huffman.HuffmanError:
        return
    bits = "".join(f"{HUFFMAN[byte][0]:0{HUFFMAN[byte][1]}b}" for byte in text)
    bits += "1" * (-len(bits) % 8)
    assert int(bits or "0", 2).to_bytes(len(bits) // 8, "big") == data


def test_tables_are_those_of_the_rfc() -> None:
    assert list(STATIC) == [(bytes(name), bytes(value)) for name, value in hpack.table.HeaderTable.STATIC_TABLE]
    codes = zip(hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH, strict=True)
    assert list(HUFFMAN) == list(codes)


ENTRY = literal_inserted(b"name", b"value")


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "names an entry"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "more than 32 bits"),
        (b"\xff", "ends too early"),
        (b"\x40\x01", "longer than the block"),
        (b"\x40\x01a", "ends too early"),
        (b"\x40\x01a\x05bc", "longer than the block"),
        (b"\x00\x81\xff\x00", "padding"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "Huffman"),
        (b"\x82\x20", "after a field"),
        (b"\x3f\xe2\x1f", "4097 is over"),
        (b"\x20\xbe", "names an entry"),
    ],
)
def test_broken_blocks(block: bytes, why: str) -> None:
    decoder = Decoder(LIMIT)
    decoder.decode(ENTRY) if why != "names an entry" else None
    with pytest.raises(HpackError, match=why):
        decoder.decode(block)


def test_size_updates_evict() -> None:
    decoder = Decoder(LIMIT)
    decoder.decode(ENTRY)
    assert decoder.decode(b"\xbe") == (((b"name", b"value"),), None)
    decoder.decode(b"\x20")
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


def test_memory_of_blocks_ends_with_the_table_they_were_read_with() -> None:
    decoder = Decoder(LIMIT)
    decoder.decode(literal_inserted(b"a", b"1"))
    assert decoder.decode(b"\xbe")[0] == ((b"a", b"1"),)
    assert decoder.decode(b"\xbe")[0] is decoder.decode(b"\xbe")[0]
    decoder.decode(literal_inserted(b"b", b"2"))
    assert decoder.decode(b"\xbe")[0] == ((b"b", b"2"),)


def test_memory_of_blocks_is_bounded() -> None:
    decoder = Decoder(LIMIT)
    for number in range(5000):
        decoder.decode(literal(b"x", b"%d" % number))
    assert len(decoder.memo) <= 256
    for number in range(20_000):
        huffman.decode(hpack_huffman(b"%d" % number))
    assert len(huffman._memo) <= 4096


@pytest.mark.parametrize("count", [3, 200])
def test_header_list_over_the_limit_keeps_the_table_in_step(count: int) -> None:
    """A bomb: references to one large field. The limit speaks, and the connection's other blocks still decode."""
    decoder = Decoder(4000)
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(literal_inserted(b"big", b"v" * 3000) + b"\xbe" * count + literal_inserted(b"next", b"n"))
    assert decoder.decode(b"\xbe") == (((b"next", b"n"),), None)


def test_an_integer_that_takes_the_whole_prefix() -> None:
    assert integer(1337, 0x1F, 0) == b"\x1f\x9a\x0a"  # RFC 7541, C.1.2
    assert integer(30, 0x1F, 0) == b"\x1e"


def test_stable_blocks_turn_into_references() -> None:
    encoder = Encoder()
    first = encoder.encode(POOL[:8])
    generation = encoder.generation
    second = encoder.encode(POOL[:8])
    assert len(second) == 8 < len(first)
    assert encoder.generation == generation
    assert encoder.resize(4096) == b""
    assert encoder.generation == generation
    assert encoder.resize(0) == b"\x20"
    assert encoder.generation != generation
    assert encoder.encode(((b"x", b""),)) == literal(b"x", b"")


def test_full_table_is_left_alone() -> None:
    encoder = Encoder()
    encoder.encode(tuple((b"name%d" % number, b"v" * 60) for number in range(60)))
    generation = encoder.generation
    assert encoder.encode(((b"late", b"v" * 4000),)) == literal(b"late", b"v" * 4000)
    assert encoder.generation == generation
