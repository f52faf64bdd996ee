"""Ranges read from a store, letter by letter as etcd answers them (`Range` in its server/etcdserver/apply.go and, since 3.6, txn/range.go).

A large range is read in steps, between which events may be applied: the answer is of one revision all the same.
"""

from __future__ import annotations

from gateway.core.keyrange import bounds
from gateway.core.store import Store
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import KeyValue

STEP = 4_000
"""Keys that are looked at in a step, about a millisecond."""

DECODED_STEP = 400
"""The same where each one must be decoded."""

_ORDERS = (pb.RangeRequest.NONE, pb.RangeRequest.ASCEND, pb.RangeRequest.DESCEND)


class Moved(Exception):
    """The store can't answer: its history does not reach back to the revision any longer, or etcd's versions differ in the answer."""


def obstacle(request: pb.RangeRequest) -> str | None:
    """Why a request is better answered by etcd: it is an error, or its answer depends on how etcd sorts equals."""
    if not request.key:
        return "error"
    if request.sort_target != pb.RangeRequest.KEY or request.sort_order not in _ORDERS:
        return "sort"
    return None


class Reading:
    """One range at one revision. `step` until `done`; then `parts` are the tagged KeyValues, `size` their bytes, and `tail` is what follows
    them in the message."""

    def __init__(self, store: Store, request: pb.RangeRequest) -> None:
        """`request` has no obstacle; its revision is 0 or less for the store's own, or one within the store's history, else Moved."""
        self.revision = request.revision if request.revision > 0 else store.revision
        self.parts: list[bytes] = []
        self.size = 0
        self.done = False
        self._store = store
        self._request = request
        self._key, self._end = bounds(request.key, request.range_end)
        self._check()
        self._count = store.count(self._key, self._end, self.revision)
        self._filtered = bool(
            request.min_mod_revision or request.max_mod_revision or request.min_create_revision or request.max_create_revision
        )
        self._decoded = self._filtered or request.keys_only
        self._left = request.limit if request.limit > 0 else self._count
        self._more = 0 < request.limit < self._count and not self._filtered and not request.count_only
        self._last: bytes | None = None
        self._descending = request.sort_order == pb.RangeRequest.DESCEND

    def _check(self) -> None:
        if self.revision < self._store.oldest or self.revision > self._store.revision:
            raise Moved

    @property
    def tail(self) -> bytes:
        """The fields after the keys: `more` and `count`."""
        return (b"\x18\x01" if self._more else b"") + (b"\x20" + varint(self._count) if self._count else b"")

    def step(self) -> None:
        """Read on. Raises Moved."""
        self._check()
        if self._request.count_only or not self._count:
            self.done = True
        left = DECODED_STEP if self._decoded else STEP
        while left and not self.done:
            most = left if self._filtered else min(left, self._left)
            names = self._store.names(self._key, self._end, self._last, self._descending, most)
            left -= len(names)
            if names:
                self._last = names[-1]
                entries = self._store.entries(names, self.revision)
                self._take(self._decode(entries) if self._decoded else entries)
            self.done = self.done or not names

    def _take(self, entries: list[bytes]) -> None:
        """A filtered range with a limit goes on until it has seen one too many: then there is more."""
        if len(entries) > self._left:
            self._more = True
            del entries[self._left :]
        self._left -= len(entries)
        self.parts += entries
        self.size += sum(map(len, entries))
        self.done = not self._left and (self._more or not self._filtered)

    def _decode(self, entries: list[bytes]) -> list[bytes]:
        kvs = [KeyValue.FromString(untagged(entry)) for entry in entries]
        if self._filtered:
            kept = [(entry, kv) for entry, kv in zip(entries, kvs, strict=True) if self._wanted(kv)]
            entries, kvs = [entry for entry, _ in kept], [kv for _, kv in kept]
        if not self._request.keys_only:
            return entries
        if any(kv.lease for kv in kvs):
            raise Moved  # etcd 3.7 leaves the lease out with the value, older ones don't
        return [without_value(kv) for kv in kvs]

    def _wanted(self, kv: KeyValue) -> bool:
        asked = self._request
        return not (
            (asked.max_mod_revision and kv.mod_revision > asked.max_mod_revision)
            or (asked.min_mod_revision and kv.mod_revision < asked.min_mod_revision)
            or (asked.max_create_revision and kv.create_revision > asked.max_create_revision)
            or (asked.min_create_revision and kv.create_revision < asked.min_create_revision)
        )


def without_value(kv: KeyValue) -> bytes:
    """Its entry in a reply with keys only."""
    kv.ClearField("value")
    return tagged(kv.SerializeToString())


def tagged(kv: bytes) -> bytes:
    """A serialised KeyValue as field 2 of a message."""
    size = len(kv)
    if size < 0x80:
        return b"\x12%c%b" % (size, kv)
    if size < 0x4000:
        return b"\x12%c%c%b" % (size & 0x7F | 0x80, size >> 7, kv)
    return b"\x12" + varint(size) + kv


def untagged(entry: bytes) -> bytes:
    """The KeyValue of an entry."""
    at = 1
    while entry[at] > 0x7F:
        at += 1
    return entry[at + 1 :]


def varint(number: int) -> bytes:
    """Protobuf's encoding of a number that is not negative."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
