"""Ranges as etcd writes them, against a walk over all short keys."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keyrange import EVERYTHING_FROM, after, bounds, prefix_end

BYTES = (0x00, 0x2F, 0x61, 0xFE, 0xFF)
KEYS = [bytes(key) for length in range(4) for key in product(BYTES, repeat=length)]
SOME = st.sampled_from(KEYS)


def inside(key: bytes, low: bytes, range_end: bytes) -> bool:
    """etcd's words: no range_end is one key, "\\0" is all keys from `low` on."""
    if not range_end:
        return key == low
    return key >= low and (range_end == b"\0" or key < range_end)


@given(SOME, SOME)
def test_bounds(low: bytes, range_end: bytes) -> None:
    start, stop = bounds(low, range_end)
    assert [key for key in KEYS if key >= start and (stop is None or key < stop)] == [key for key in KEYS if inside(key, low, range_end)]


@given(SOME)
def test_the_end_of_a_prefix(prefix: bytes) -> None:
    assert [key for key in KEYS if inside(key, prefix, prefix_end(prefix))] == [key for key in KEYS if key.startswith(prefix)]


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_nothing_lies_between_a_key_and_the_next(key: bytes, other: bytes) -> None:
    assert key < after(key)
    assert not key < other < after(key)


def test_ends_by_example() -> None:
    assert prefix_end(b"/a/") == b"/a0"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff\xff") == prefix_end(b"") == EVERYTHING_FROM
    assert bounds(b"a", b"") == (b"a", b"a\0")
    assert bounds(b"a", b"\0") == (b"a", None)
