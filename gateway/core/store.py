"""The in-memory MVCC copy of a cluster's cached keys, and what happened to them within a window of revisions.

A version of a key is kept as the bytes of its KeyValue with the tag of field 2 in front: the same bytes stand in a RangeResponse
(kvs = 2) and in an Event (kv = 2), so nothing is encoded twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from sortedcontainers import SortedList


class Version(NamedTuple):
    """One version of a key: its mod_revision and its tagged KeyValue, None for a deletion."""

    revision: int
    entry: bytes | None


class Event(NamedTuple):
    """What one revision did to one key, as a watch with prev_kv tells it. `entry`: the tagged KeyValue, of a deletion one of key and
    mod_revision only. `before`: the tagged KeyValue that it replaced, None if the key did not exist or etcd has compacted it."""

    key: bytes
    entry: bytes
    before: bytes | None
    deleted: bool


@dataclass(frozen=True)
class Window:
    """How much history is kept: revisions, and bytes of superseded versions."""

    revisions: int = 10_000
    bytes: int = 64 << 20


class Store:
    """`revision`: everything up to it is applied. `oldest`: reads at revisions from here on are exact."""

    def __init__(self, window: Window) -> None:
        self.revision = 0
        self.oldest = 0
        self.bytes = 0
        self.history_bytes = 0
        self._window = window
        self._keys: SortedList[bytes] = SortedList()
        self._tombs: SortedList[bytes] = SortedList()
        self._latest: dict[bytes, Version] = {}
        self._older: dict[bytes, list[Version]] = {}
        self._log: deque[tuple[int, tuple[bytes, ...], int]] = deque()

    def __len__(self) -> int:
        return len(self._keys) - len(self._tombs)

    def load(self, versions: Iterable[tuple[bytes, Version]]) -> None:
        """Keys as they stand at the revision that `start` will name; in key order, page by page."""
        latest = self._latest
        fresh = []
        for key, version in versions:
            latest[key] = version
            fresh.append(key)
            self.bytes += len(key) + len(version.entry or b"")
        self._keys.update(fresh)

    def start(self, revision: int) -> None:
        """All pages of this revision are loaded; events after it may come."""
        self.revision = self.oldest = revision

    def apply(self, revision: int, events: Iterable[Event]) -> None:
        """All events of the next revision at once (those of keys that are not cached left out). ValueError if it is not a later one."""
        if revision <= self.revision:
            raise ValueError(f"revision {revision} after {self.revision}")
        superseded = 0
        touched = []
        for key, entry, _, deleted in events:
            superseded += self._put(key, Version(revision, None if deleted else entry))
            touched.append(key)
        self.revision = revision
        if touched:
            self.history_bytes += superseded
            self._log.append((revision, tuple(touched), superseded))
        self._trim()

    def _put(self, key: bytes, version: Version) -> int:
        """Returns the bytes that became history."""
        before = self._latest.get(key)
        self._latest[key] = version
        self.bytes += len(version.entry or b"")
        if before is None:
            self._keys.add(key)
            self.bytes += len(key)
            if version.entry is None:
                self._tombs.add(key)
            return len(key)
        self._older.setdefault(key, []).append(before)
        if before.entry is None and version.entry is not None:
            self._tombs.remove(key)
        elif before.entry is not None and version.entry is None:
            self._tombs.add(key)
        return len(before.entry or b"") + len(key)

    def _trim(self) -> None:
        log = self._log
        floor = self.revision - self._window.revisions
        while log and (log[0][0] <= floor or self.history_bytes > self._window.bytes):
            revision, keys, superseded = log.popleft()
            self.history_bytes -= superseded
            self.oldest = revision
            for key in keys:
                self._forget(key, revision)
        self.oldest = max(self.oldest, floor)

    def compact(self, revision: int) -> None:
        """The cluster compacted: nothing below this revision is readable any more."""
        log = self._log
        while log and log[0][0] <= revision:
            at, keys, superseded = log.popleft()
            self.history_bytes -= superseded
            for key in keys:
                self._forget(key, at)
        self.oldest = max(self.oldest, min(revision, self.revision))

    def _forget(self, key: bytes, revision: int) -> None:
        """Drop the versions of a key that nobody can read at `revision` or later."""
        chain = self._older.get(key)
        if chain is not None:
            keep = bisect_right(chain, revision, key=_revision) - 1
            if self._latest[key].revision <= revision:
                keep = len(chain)
            if keep > 0:
                self.bytes -= sum(len(version.entry or b"") for version in chain[:keep])
                del chain[:keep]
            if not chain:
                del self._older[key]
        latest = self._latest.get(key)
        if latest is not None and latest.entry is None and latest.revision <= revision:
            del self._latest[key]
            self._keys.remove(key)
            self._tombs.remove(key)
            self.bytes -= len(key)

    # reading

    def get(self, key: bytes, revision: int) -> bytes | None:
        """The key's entry at a revision within [oldest, revision]; None if it does not exist there."""
        version = self._latest.get(key)
        if version is None:
            return None
        return version.entry if version.revision <= revision else self._at(key, revision)

    def _at(self, key: bytes, revision: int) -> bytes | None:
        chain = self._older.get(key)
        if chain is None:
            return None
        index = bisect_right(chain, revision, key=_revision)
        return chain[index - 1].entry if index else None

    def newest(self, key: bytes) -> bytes | None:
        """The key's entry at the store's revision; None if it does not exist."""
        version = self._latest.get(key)
        return None if version is None else version.entry

    def names(self, key: bytes, end: bytes | None, last: bytes | None, descending: bool, most: int) -> list[bytes]:
        """Keys of [key, end), end None: to the last key, that exist now or did within the history; those that follow `last`, in order."""
        if descending:
            return list(islice(self._keys.irange(key, end if last is None else last, (True, False), True), most))
        return list(islice(self._keys.irange(key if last is None else last, end, (last is None, False)), most))

    def entries(self, names: list[bytes], revision: int) -> list[bytes]:
        """The entries at a revision of those that exist there."""
        latest = self._latest
        if revision == self.revision:
            return [entry for name in names if (entry := latest[name].entry) is not None]
        versions = ((name, latest[name]) for name in names)
        found = (version.entry if version.revision <= revision else self._at(name, revision) for name, version in versions)
        return [entry for entry in found if entry is not None]

    def scan(self, key: bytes, end: bytes | None, revision: int) -> list[bytes]:
        """All entries of [key, end) in key order at a revision; end None: to the last key."""
        return self.entries(self.names(key, end, None, False, len(self._keys)), revision)

    def count(self, key: bytes, end: bytes | None, revision: int) -> int:
        """How many keys of [key, end) exist at a revision: O(log n) for the store's own, and a look at what happened since for others."""
        found = _between(self._keys, key, end) - _between(self._tombs, key, end)
        if revision < self.revision:
            for name in self._touched_since(revision):
                if key <= name and (end is None or name < end):
                    found += (self.get(name, revision) is not None) - (self.newest(name) is not None)
        return found

    def _touched_since(self, revision: int) -> set[bytes]:
        names: set[bytes] = set()
        for at, keys, _ in reversed(self._log):
            if at <= revision:
                break
            names.update(keys)
        return names


def _revision(version: Version) -> int:
    return version.revision


def _between(names: SortedList[bytes], key: bytes, end: bytes | None) -> int:
    high: int = len(names) if end is None else names.bisect_left(end)
    low: int = names.bisect_left(key)
    return max(0, high - low)
