"""One feed, many watchers: the log of what happened in a cluster, and the watchers that are up with it.

Watchers of the same keys with the same options form a group. What happened to its keys is encoded once for all of them, and where the watch
id is the same too (most streams have one watch, number 0), all get the same bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gateway.core.keyrange import bounds
from gateway.core.reads import varint
from gateway.core.store import Event, Window
from gateway.etcdpb import rpc_pb2 as pb

PIECE = 1 << 20
"""Bytes of events after which a message ends, between two revisions."""

FRAGMENT = 2 << 20
"""Bytes over which a response is cut into fragments, if the watcher takes them: etcd's limit for requests and 512 KiB (v3rpc/watch.go)."""


_UINT64 = (1 << 64) - 1
"""A negative int64 is encoded as the unsigned number of the same bits."""


class Selection(NamedTuple):
    """What a watcher wants to hear of: the keys [low, high), high None: to the last one; and its options."""

    low: bytes
    high: bytes | None
    no_put: bool = False
    no_delete: bool = False
    prev_kv: bool = False
    fragment: bool = False

    @classmethod
    def of(cls, create: pb.WatchCreateRequest) -> Selection:
        """What a request asks for."""
        low, high = bounds(create.key or b"\0", create.range_end)
        no_put, no_delete = (kind in create.filters for kind in (pb.WatchCreateRequest.NOPUT, pb.WatchCreateRequest.NODELETE))
        return cls(low, high, no_put, no_delete, create.prev_kv, create.fragment)

    def encoded(self, events: Sequence[Event]) -> bytes:
        """The events that it is about, as fields 11 of a WatchResponse."""
        low, high, no_put, no_delete, prev_kv, _ = self
        parts = []
        for key, entry, before, deleted in events:
            if key >= low and (high is None or key < high) and not (no_delete if deleted else no_put):
                body = b"\x08\x01" + entry if deleted else entry
                if prev_kv and before is not None:
                    body += b"\x1a" + before[1:]
                parts.append(b"\x5a" + varint(len(body)) + body)
        return b"".join(parts)


class News(NamedTuple):
    """Events for a group, up to and with a revision. `rest`: more of the same revision follows."""

    first: int
    last: int
    events: bytes
    rest: bool = False

    def message(self, header: bytes, number: int) -> bytes:
        """The gRPC-framed WatchResponse for a watcher with this id. `header`: its field 1."""
        middle = (b"\x10" + varint(number & _UINT64) if number else b"") + (b"\x38\x01" if self.rest else b"")
        size = len(header) + len(middle) + len(self.events)
        return b"".join((b"\x00", size.to_bytes(4, "big"), header, middle, self.events))


class Member(Protocol):
    """A watcher in a group. `next`: the first revision that it has not heard of."""

    next: int

    def take(self, news: Sequence[News], group: Group) -> None:
        """What happened; the group gives the bytes."""


class Group:
    """Watchers with the same selection."""

    __slots__ = ("_header", "_messages", "members", "pending", "selection")

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.members: dict[Member, None] = {}
        self.pending: list[tuple[int, list[Event]]] = []
        self._header = b""
        self._messages: dict[tuple[int, int], bytes] = {}

    def deliver(self, header: bytes) -> None:
        """Tell all members what is pending."""
        news = pieces(self.selection, self.pending)
        self.pending = []
        if news:
            self._header = header
            for member in tuple(self.members):
                member.take(news, self)
            self._messages.clear()

    def message(self, news: Sequence[News], at: int, number: int) -> bytes:
        """The bytes of one piece for a watcher with this id, made once."""
        made = self._messages.get((at, number))
        if made is None:
            made = self._messages[at, number] = news[at].message(self._header, number)
        return made


def pieces(selection: Selection, history: Sequence[tuple[int, Sequence[Event]]]) -> list[News]:
    """What a selection hears of a stretch of history: messages of about PIECE bytes that end between revisions, fragments where wanted."""
    found: list[News] = []
    parts: list[bytes] = []
    first = last = size = 0
    for revision, events in history:
        encoded = selection.encoded(events)
        if not encoded:
            continue
        if parts and size + len(encoded) > PIECE:
            found.append(News(first, last, b"".join(parts)))
            parts, size = [], 0
        if selection.fragment and len(encoded) > FRAGMENT:  # more than a PIECE: nothing is pending
            found += fragments(selection, revision, events)
            continue
        first = first if parts else revision
        last = revision
        parts.append(encoded)
        size += len(encoded)
    if parts:
        found.append(News(first, last, b"".join(parts)))
    return found


def fragments(selection: Selection, revision: int, events: Sequence[Event]) -> list[News]:
    """The events of one revision, one by one, as many together as a fragment takes."""
    each = [encoded for event in events if (encoded := selection.encoded((event,)))]
    groups: list[list[bytes]] = [[]]
    size = 0
    for encoded in each:
        if groups[-1] and size + len(encoded) > FRAGMENT:
            groups.append([])
            size = 0
        groups[-1].append(encoded)
        size += len(encoded)
    return [News(revision, revision, b"".join(group), at < len(groups) - 1) for at, group in enumerate(groups)]


class Watchers:
    """`revision`: everything up to it is in the log or before it; `oldest`: events of revisions from here on are all in the log."""

    def __init__(self, window: Window) -> None:
        self.revision = 0
        self.oldest = 1
        self.bytes = 0
        self._window = window
        self._log: deque[tuple[int, list[Event], int]] = deque()
        self._groups: dict[Selection, Group] = {}
        self._touched: dict[Group, None] = {}
        self._index = Index(())
        self._stale = False

    def __len__(self) -> int:
        """Watchers that are up with the log."""
        return sum(len(group.members) for group in self._groups.values())

    @property
    def history(self) -> int:
        """Revisions in the log."""
        return len(self._log)

    def start(self, revision: int) -> None:
        """What happened up to this revision is not known; all that comes after it will be."""
        self._log.clear()
        self.bytes = 0
        self.revision = revision
        self.oldest = revision + 1

    def append(self, revision: int, events: list[Event]) -> None:
        """All that a revision did; none where the events are about keys that nobody watches."""
        self.revision = revision
        if not events:
            return
        size = sum(len(event.entry) + len(event.before or b"") for event in events)
        self._log.append((revision, events, size))
        self.bytes += size
        floor = revision - self._window.revisions
        while self._log and (self._log[0][0] <= floor or self.bytes > self._window.bytes):
            self._forget()
        self._note(revision, events)

    def _forget(self) -> None:
        revision, _, size = self._log.popleft()
        self.bytes -= size
        self.oldest = revision + 1

    def compact(self, revision: int) -> None:
        """The cluster was compacted: a watcher may not start before this revision any more, and what this revision replaced is gone, so
        etcd does not tell it."""
        while self._log and self._log[0][0] < revision:
            self._forget()
        if self._log and self._log[0][0] == revision:
            _, events, size = self._log[0]
            self._log[0] = revision, [event._replace(before=None) for event in events], size
        self.oldest = max(self.oldest, min(revision, self.revision + 1))

    def _note(self, revision: int, events: list[Event]) -> None:
        """Remember for each group that is concerned what it is to be told."""
        if not self._groups:
            return
        if self._stale:
            self._index = Index(self._groups.values())
            self._stale = False
        found: dict[Group, list[Event]] = {}
        for event in events:
            for group in self._index.at(event.key):
                found.setdefault(group, []).append(event)
        for group, own in found.items():
            group.pending.append((revision, own))
            self._touched[group] = None

    def deliver(self, header: bytes) -> None:
        """Tell the watchers what was appended since the last time. `header`: field 1 of a WatchResponse, its revision the log's."""
        touched, self._touched = self._touched, {}
        for group in touched:
            group.deliver(header)

    def join(self, member: Member, selection: Selection) -> Group:
        """A watcher that has heard everything up to the log's revision, or wants to hear of later ones only."""
        group = self._groups.get(selection)
        if group is None:
            group = self._groups[selection] = Group(selection)
            self._stale = True
        group.members[member] = None
        return group

    def leave(self, member: Member, group: Group) -> None:
        """It is told nothing more."""
        group.members.pop(member, None)
        if not group.members and self._groups.get(group.selection) is group:
            del self._groups[group.selection]
            self._touched.pop(group, None)
            self._stale = True

    def read(self, selection: Selection, revision: int, most: int) -> tuple[list[News], int]:
        """What a selection hears from a revision on, of at most about so many bytes of history, and the first revision after that.
        The revision is not before `oldest`."""
        stretch: list[tuple[int, list[Event]]] = []
        size = 0
        for at, events, bytes_ in self._from(revision):
            if size > most:
                return pieces(selection, stretch), at
            stretch.append((at, events))
            size += bytes_
        return pieces(selection, stretch), self.revision + 1

    def _from(self, revision: int) -> Iterator[tuple[int, list[Event], int]]:
        log = self._log
        low, high = 0, len(log)
        while low < high:
            middle = (low + high) // 2
            if log[middle][0] < revision:
                low = middle + 1
            else:
                high = middle
        return islice(log, low, None)


class Index:
    """Which groups a key concerns."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._single: dict[bytes, list[Group]] = {}
        ranges: list[Group] = []
        for group in groups:
            low, high = group.selection.low, group.selection.high
            if high == low + b"\0":
                self._single.setdefault(low, []).append(group)
            elif high is None or low < high:
                ranges.append(group)
        self._starts = sorted({b"", *(edge for group in ranges for edge in group.selection[:2] if edge is not None)})
        self._owners: list[list[Group]] = [[] for _ in self._starts]
        for group in ranges:
            first = bisect_right(self._starts, group.selection.low) - 1
            high = group.selection.high
            last = len(self._starts) if high is None else bisect_right(self._starts, high) - 1
            for at in range(first, last):
                self._owners[at].append(group)

    def at(self, key: bytes) -> list[Group]:
        """Those whose keys it is one of."""
        found = self._owners[bisect_right(self._starts, key) - 1]
        single = self._single.get(key)
        return found + single if single else found
