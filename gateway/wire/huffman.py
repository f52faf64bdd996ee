"""The Huffman code of HPACK (RFC 7541, section 5.2), four bits at a time."""

from gateway.wire.tables import HUFFMAN

EOS = 256
_MAX_MEMO = 4096


class HuffmanError(ValueError):
    """The bytes are no valid Huffman code."""


def _build() -> tuple[list[tuple[int, int]], frozenset[int]]:
    """Transitions by node * 16 + nibble -> (next node, symbol or -1); (-1, -1) where no code goes on. And the nodes in which a
    string may end: those reached from the root by at most seven one-bits (the padding)."""
    children: list[list[int]] = [[0, 0]]
    symbols: list[int] = [-1]
    for symbol, (code, bits) in enumerate(HUFFMAN):
        node = 0
        for shift in range(bits - 1, -1, -1):
            bit = code >> shift & 1
            if not children[node][bit]:
                children.append([0, 0])
                symbols.append(-1)
                children[node][bit] = len(children) - 1
            node = children[node][bit]
        symbols[node] = symbol
    steps = [_walk(children, symbols, node, nibble) for node in range(len(children)) for nibble in range(16)]
    ends = [0]
    for _ in range(7):
        ends.append(children[ends[-1]][1])
    return steps, frozenset(ends)


def _walk(children: list[list[int]], symbols: list[int], node: int, nibble: int) -> tuple[int, int]:
    found = -1
    for shift in (3, 2, 1, 0):
        node = children[node][nibble >> shift & 1]
        if symbols[node] == EOS or not node:
            return -1, -1
        if symbols[node] >= 0:
            found = symbols[node]
            node = 0
    return node, found


_STEPS, _ENDS = _build()
_memo: dict[bytes, bytes] = {}


def decode(data: bytes) -> bytes:
    """Raises HuffmanError for a code that does not exist, an encoded EOS, or wrong padding."""
    known = _memo.get(data)
    if known is not None:
        return known
    node = 0
    out = bytearray()
    for byte in data:
        node, symbol = _STEPS[node << 4 | byte >> 4]
        if symbol >= 0:
            out.append(symbol)
        if node < 0:
            raise HuffmanError("no such Huffman code")
        node, symbol = _STEPS[node << 4 | byte & 15]
        if symbol >= 0:
            out.append(symbol)
        if node < 0:
            raise HuffmanError("no such Huffman code")
    if node not in _ENDS:
        raise HuffmanError("wrong padding after a Huffman code")
    text = bytes(out)
    if len(data) <= 64:
        if len(_memo) >= _MAX_MEMO:
            _memo.clear()
        _memo[data] = text
    return text
