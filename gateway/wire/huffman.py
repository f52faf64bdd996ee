"""The Huffman code of HPACK (RFC 7541, section 5.2), three bytes at a time where they were seen before, else four bits."""

from __future__ import annotations

from gateway.wire.tables import HUFFMAN

EOS = 256
_MAX_MEMO = 4096
_MAX_STEPS = 65_536


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


class _Node(dict[bytes, "tuple[_Node, bytes]"]):
    """What up to three bytes bring that come at a node of the code's tree: the next node and the symbols on the way. Remembered as they are
    needed; `remembered`: how many of all nodes."""

    remembered = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __missing__(self, data: bytes) -> tuple[_Node, bytes]:
        """Raises HuffmanError."""
        number, symbols = self.number, bytearray()
        for byte in data:
            for nibble in (byte >> 4, byte & 15):
                number, symbol = _STEPS[number << 4 | nibble]
                if number < 0:
                    raise HuffmanError("no such Huffman code")
                if symbol >= 0:
                    symbols.append(symbol)
        step = _nodes[number], bytes(symbols)
        if _Node.remembered < _MAX_STEPS:
            _Node.remembered += 1
            self[data] = step
        return step


_nodes = [_Node(number) for number in range(len(_STEPS) // 16)]
_ROOT = _nodes[0]
_memo: dict[bytes, bytes] = {}


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
    node, text = _ROOT[data[:3]]
    while data := data[3:]:
        node, more = node[data[:3]]
        text += more
    if node.number not in _ENDS:
        raise HuffmanError("wrong padding after a Huffman code")
    return text
