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
_jumps: dict[int, tuple[int, bytes]] = {}
"""By node * 256 + byte: the next node, and the symbols on the way. Filled as they are needed; there are at most 256 times 256."""


def _jump(node: int, byte: int) -> tuple[int, bytes]:
    """Both halves of a byte. Raises HuffmanError."""
    start, out = node, bytearray()
    for nibble in (byte >> 4, byte & 15):
        node, symbol = _STEPS[node << 4 | nibble]
        if node < 0:
            raise HuffmanError("no such Huffman code")
        if symbol >= 0:
            out.append(symbol)
    _jumps[start << 8 | byte] = node, bytes(out)
    return _jumps[start << 8 | byte]


def decode(data: bytes) -> bytes:
    """Raises HuffmanError for a code that does not exist, an encoded EOS, or wrong padding."""
    text = _memo.get(data)
    if text is None:
        text = decode_once(data)
        if len(data) <= 64:
            if len(_memo) >= _MAX_MEMO:
                _memo.clear()
            _memo[data] = text
    return text


def decode_once(data: bytes) -> bytes:
    """The same for what will hardly come again."""
    node = 0
    text = b""
    for byte in data:
        jump = _jumps.get(node << 8 | byte)
        node, symbols = jump if jump is not None else _jump(node, byte)
        text += symbols
    if node not in _ENDS:
        raise HuffmanError("wrong padding after a Huffman code")
    return text
