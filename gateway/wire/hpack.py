"""Header compression (RFC 7541): a decoder for what peers send, an encoder for what we send.

gRPC clients send a new `grpc-timeout` with every call, inserted into the dynamic table each time. So the decoder keeps that one value
apart: the other fields of a client's calls are then equal from call to call, and what is made of them can be memoised.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.wire.huffman import HuffmanError
from gateway.wire.huffman import decode as huffman
from gateway.wire.huffman import decode_once as huffman_once
from gateway.wire.tables import STATIC

Pair = tuple[bytes, bytes]
Headers = tuple[Pair, ...]

TIMEOUT = b"grpc-timeout"
DEFAULT_TABLE = 4096
OVERHEAD = 32
_MAX_MEMO = 256
_MAX_INT_BYTES = 5
_STATIC_TABLE: tuple[Pair, ...] = ((b"", b""), *STATIC)
_FIRST_DYNAMIC = len(_STATIC_TABLE)
_NEWEST_NAME = 0x40 | _FIRST_DYNAMIC
"""Begins a literal that is to be inserted, under the name of the newest entry."""
_STATIC_PAIRS = {pair: number for number, pair in reversed(list(enumerate(_STATIC_TABLE))) if number}
_STATIC_NAMES = {pair[0]: number for number, pair in reversed(list(enumerate(_STATIC_TABLE))) if number}


class HpackError(ValueError):
    """The block can't be decoded: a connection error COMPRESSION_ERROR (9)."""

    code = 0x9


class HeaderListTooLarge(ValueError):
    """The decoded list is over the limit; the table is in step all the same."""


class _Shape(NamedTuple):
    """What the blocks of one client's calls have in common: indexed fields that mean `headers`, then a `grpc-timeout` that is inserted
    under the newest entry's name, which is the timeout of the call before. With each insertion the index of each other entry grows by one:
    the `size` bytes before the timeout's value, read as one number, are `base` plus the insertions so far times `moving`, until there were
    so many insertions that an index needs another byte. `numbers`: the entries, counted from the first that was ever inserted, those of the
    static table negative; `oldest` is the first of them to be evicted."""

    size: int
    base: int
    moving: int
    until: int
    oldest: int
    headers: Headers
    numbers: tuple[int, ...]


def _shape(headers: Headers, numbers: tuple[int, ...], oldest: int, inserted: int) -> _Shape:
    """After so many insertions. The table has at most 128 entries, so an index takes two bytes at most."""
    newest = _FIRST_DYNAMIC + inserted
    size, fields, moving = 1, 0, 0
    highest = 0  # index of one byte
    for number in numbers:
        if number < 0:
            size, fields, moving = size + 1, fields << 8 | 0x80 - number, moving << 8
        elif (index := newest - number) < 0x7F:
            size, fields, moving = size + 1, fields << 8 | 0x80 + index, moving << 8 | 1
            highest = max(highest, index)
        else:
            size, fields, moving = size + 2, fields << 16 | 0xFF00 + index - 0x7F, moving << 16 | 1
    fields, moving = fields << 8 | _NEWEST_NAME, moving << 8
    return _Shape(size, fields - inserted * moving, moving, inserted + 0x7F - highest, oldest, headers, numbers)


class Decoder:
    """One connection's decoding table."""

    def __init__(self, max_header_list: int) -> None:
        self._max_list = max_header_list
        self._table: list[Pair] = []  # the newest last
        self._size = 0
        self._max_size = DEFAULT_TABLE
        self.memo: dict[bytes, tuple[Headers, bytes | None]] = {}
        self._inserted = 0  # entries, since the beginning
        self._usual: _Shape | None = None

    def decode(self, block: bytes) -> tuple[Headers, bytes | None]:
        """The fields in order, `grpc-timeout` taken out, and its value. Raises HpackError or HeaderListTooLarge."""
        known = self.memo.get(block)
        if known is not None:
            return known
        try:
            return self.as_usual(block) or self._decode(block)
        except IndexError:
            raise HpackError("header block ends too early or names an entry that does not exist") from None
        except HuffmanError as error:
            raise HpackError(str(error)) from None

    def as_usual(self, block: bytes) -> tuple[Headers, bytes] | None:
        """What a block of the usual shape means, None for another, which has changed nothing."""
        shape, inserted = self._usual, self._inserted
        if shape is None:
            return None
        if inserted >= shape[3]:
            shape = self._usual = _shape(shape.headers, shape.numbers, shape.oldest, inserted)
        size, base, moving, _, oldest, headers, _ = shape
        table, length = self._table, len(block) - size - 1
        if (
            not 0 < length < 0x7F
            or int.from_bytes(block[:size], "big") != base + inserted * moving
            or oldest <= inserted - len(table)
        ):
            return None
        value, prefix = block[size + 1 :], block[size]
        if prefix == 0x80 | length:
            try:
                value = huffman_once(value)
            except HuffmanError:
                return None
        elif prefix != length:
            return None
        self._insert((TIMEOUT, value))
        return headers, value

    def _learned(self, headers: Headers, numbers: list[int]) -> _Shape | None:
        """The shape that the next block will have if it means the same but for its timeout. `numbers` as in a shape, and 0 for a field that
        is not in a table."""
        usable = numbers and 0 not in numbers and len(numbers) <= 64 and self._table and self._table[-1][0] == TIMEOUT
        oldest = min((number for number in numbers if number > 0), default=self._inserted)
        return _shape(headers, tuple(numbers), oldest, self._inserted) if usable else None

    def _decode(self, block: bytes) -> tuple[Headers, bytes | None]:
        table = self._table
        fields: list[Pair] = []
        numbers: list[int] = []
        timeout: bytes | None = None
        changed = False
        at = 0
        end = len(block)
        while at < end:
            byte = block[at]
            if byte & 0x80:  # indexed field
                index = byte & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                if index < _FIRST_DYNAMIC:
                    if not index:
                        raise HpackError("index 0")
                    fields.append(_STATIC_TABLE[index])
                    numbers.append(-index)
                else:
                    pair = table[_FIRST_DYNAMIC - 1 - index]
                    if pair[0] == TIMEOUT:
                        timeout = pair[1]
                    else:
                        fields.append(pair)
                        numbers.append(self._inserted + _FIRST_DYNAMIC - index)
                continue
            if byte & 0xE0 == 0x20:
                if fields or timeout is not None:
                    raise HpackError("table size update after a field")
                size, at = _integer_of(block, at, 0x1F)
                self._resize(size)
                changed = True
                continue
            pair, at = self._literal(block, at, 0x3F if byte & 0x40 else 0x0F)
            if byte & 0x40:
                self._insert(pair)
                changed = True
            if pair[0] == TIMEOUT:
                timeout = pair[1]
            else:
                fields.append(pair)
                numbers.append(self._inserted if byte & 0x40 else 0)
        result = tuple(fields), timeout
        self._remember(block, result, changed)
        if changed:
            self._usual = self._learned(result[0], numbers) if timeout is not None else None
        if (len(block) > 256 or len(fields) > 64) and sum(len(n) + len(v) + OVERHEAD for n, v in fields) > self._max_list:
            self.memo.pop(block, None)
            raise HeaderListTooLarge(f"header list of more than {self._max_list} bytes")
        return result

    def _remember(self, block: bytes, result: tuple[Headers, bytes | None], changed: bool) -> None:
        """The same block means the same until the table changes."""
        if not changed and len(block) <= 512:
            if len(self.memo) >= _MAX_MEMO:
                self.memo.clear()
            self.memo[block] = result

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Pair, int]:
        """A field with a value of its own, and the place after it; `mask` has the bits of the name's index."""
        index, at = _integer_of(block, at, mask)
        if not index:
            name, at = _string(block, at)
        elif index < _FIRST_DYNAMIC:
            name = _STATIC_TABLE[index][0]
        else:
            name = self._table[_FIRST_DYNAMIC - 1 - index][0]
        value, at = _string(block, at)
        return (name, value), at

    def _insert(self, pair: Pair) -> None:
        if self.memo:
            self.memo.clear()
        table = self._table
        self._inserted += 1
        size = self._size + len(pair[0]) + len(pair[1]) + OVERHEAD
        table.append(pair)
        while size > self._max_size:
            name, value = table.pop(0)
            size -= len(name) + len(value) + OVERHEAD
        self._size = size

    def _resize(self, size: int) -> None:
        if size > DEFAULT_TABLE:
            raise HpackError(f"table size {size} is over the {DEFAULT_TABLE} that SETTINGS allow")
        self._max_size = size
        self.memo.clear()
        while self._size > size:
            name, value = self._table.pop(0)
            self._size -= len(name) + len(value) + OVERHEAD


def _integer_of(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """An integer whose prefix stands in block[at]; the integer and the place after it."""
    prefix = block[at] & mask
    return (prefix, at + 1) if prefix < mask else _integer(block, at + 1, mask)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The bytes that follow a full prefix (section 5.1)."""
    value = mask
    for shift in range(0, 7 * _MAX_INT_BYTES, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HpackError("integer of more than 32 bits")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    size = first & 0x7F
    at += 1
    if size == 0x7F:
        size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise HpackError("string longer than the block")
    data = block[at:end]
    return (huffman(data) if first & 0x80 else data), end


def integer(value: int, mask: int, flags: int) -> bytes:
    """An integer with a prefix of the bits in `mask`; `flags` are the bits before it."""
    if value < mask:
        return bytes((flags | value,))
    out = bytearray((flags | mask,))
    value -= mask
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """A field that touches no table."""
    number = _STATIC_NAMES.get(name)
    head = integer(number, 0x0F, 0) if number else b"\x00" + integer(len(name), 0x7F, 0) + name
    return head + integer(len(value), 0x7F, 0) + value


def encode_static(pairs: Headers) -> bytes:
    """A block that no table changes: the same bytes on every connection."""
    return b"".join(_static(pair) for pair in pairs)


def _static(pair: Pair) -> bytes:
    number = _STATIC_PAIRS.get(pair)
    return integer(number, 0x7F, 0x80) if number else literal(*pair)


class Encoder:
    """One connection's encoding table: a few fields that are sent again and again, as table references.

    Entries are never evicted: when the table is full, what is left goes out as literals. `generation` changes whenever the numbers of
    entries do: a block encoded without an insertion stays right as long as it is the same.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._table: list[Pair] = []  # the newest last
        self._size = 0
        self._max_size = DEFAULT_TABLE

    def resize(self, size: int) -> bytes:
        """The peer's SETTINGS_HEADER_TABLE_SIZE. A smaller table is begun anew, and the next block sent, whatever is in it, has to begin
        with the bytes returned (section 4.2); a larger one is not needed."""
        if size >= self._max_size:
            return b""
        self._max_size = size
        self._table.clear()
        self._size = 0
        self.generation += 1
        return integer(size, 0x1F, 0x20)

    def encode(self, pairs: Headers) -> bytes:
        """The block; fields that are new and fit are inserted into the table."""
        return b"".join([self._field(pair) for pair in pairs])

    def _field(self, pair: Pair) -> bytes:
        if pair in _STATIC_PAIRS:
            return _static(pair)
        if pair in self._table:
            return integer(_FIRST_DYNAMIC + len(self._table) - 1 - self._table.index(pair), 0x7F, 0x80)
        size = len(pair[0]) + len(pair[1]) + OVERHEAD
        if self._size + size > self._max_size:
            return literal(*pair)
        self._table.append(pair)
        self._size += size
        self.generation += 1
        return literal_inserted(*pair)


def literal_inserted(name: bytes, value: bytes) -> bytes:
    """A field that the peer puts into its table."""
    number = _STATIC_NAMES.get(name)
    head = integer(number, 0x3F, 0x40) if number else b"\x40" + integer(len(name), 0x7F, 0) + name
    return head + integer(len(value), 0x7F, 0) + value
