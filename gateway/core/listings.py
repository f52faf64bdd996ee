"""The last large ranges that were read from a store, ready to be sent: many clients ask for the same list at the same moment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

MOST = 32
MOST_BYTES = 64 << 20
PIECE = 256 << 10
"""Bytes of a piece, unless a single entry is larger."""


class Listing(NamedTuple):
    """A range at a revision: the fields of its message but for the header, in pieces."""

    revision: int
    size: int
    pieces: Sequence[bytes]


class Listings:
    """By request; the least recently used are forgotten first, and those that nobody asked for between two calls of `age`."""

    def __init__(self) -> None:
        self.bytes = 0
        self._kept: OrderedDict[bytes, Listing] = OrderedDict()
        self._used: set[bytes] = set()

    def find(self, request: bytes, revision: int) -> Listing | None:
        """The answer to the request at this revision."""
        found = self._kept.get(request)
        if found is None or found.revision != revision:
            return None
        self._kept.move_to_end(request)
        self._used.add(request)
        return found

    def keep(self, request: bytes, listing: Listing) -> None:
        """Remember it, if it is not too large."""
        self._forget(request)
        self.bytes += listing.size
        self._kept[request] = listing
        self._used.add(request)
        while self.bytes > MOST_BYTES or len(self._kept) > MOST:
            self._forget(next(iter(self._kept)))

    def _forget(self, request: bytes) -> None:
        listing = self._kept.pop(request, None)
        self.bytes -= listing.size if listing else 0

    def age(self) -> None:
        """Call now and then."""
        for request in self._kept.keys() - self._used:
            self._forget(request)
        self._used.clear()

    def clear(self) -> None:
        """Forget all."""
        self.bytes = 0
        self._kept.clear()


def in_pieces(parts: Sequence[bytes], tail: bytes) -> list[bytes]:
    """The parts of a message joined to pieces."""
    pieces, first, size = [], 0, 0
    for at, part in enumerate(parts):
        size += len(part)
        if size >= PIECE:
            pieces.append(b"".join(parts[first : at + 1]))
            first, size = at + 1, 0
    pieces.append(b"".join((*parts[first:], tail)))
    return pieces
