"""Whole revisions from what a feed's watch stream brings.

One watch on all keys brings every revision in order. Several watches on parts of the keyspace don't: each brings its own events, and only
a progress notification for the whole stream proves that up to its revision nothing is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.etcdpb.kv_pb2 import Event
from gateway.etcdpb.rpc_pb2 import ResponseHeader, WatchResponse

Whole = tuple[ResponseHeader, Sequence[Event]]
"""Events in the order of their revisions, complete up to the header's revision as far as the watches reach."""

ALL = -1
"""The watch_id of a progress notification for all watches of the stream."""


class Stretch:
    """Of one watch on all keys."""

    def __init__(self) -> None:
        self._fragments: list[Event] = []

    def take(self, reply: WatchResponse) -> Whole | None:
        """What is whole now."""
        if not reply.fragment and not self._fragments:
            return reply.header, reply.events
        self._fragments.extend(reply.events)
        if reply.fragment:
            return None
        events, self._fragments = self._fragments, []
        return reply.header, events


class Patchwork:
    """Of several watches. `waiting`: events that no progress has proven yet."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    @property
    def waiting(self) -> bool:
        """Progress should be asked for."""
        return bool(self._events)

    def take(self, reply: WatchResponse) -> Whole | None:
        """What is whole now."""
        if reply.events:
            self._events.extend(reply.events)
            return None
        if reply.watch_id != ALL:
            return None
        proven = sorted((each for each in self._events if each.kv.mod_revision <= reply.header.revision), key=_revision)
        self._events = [each for each in self._events if each.kv.mod_revision > reply.header.revision]
        return reply.header, proven


def _revision(event: Event) -> int:
    return event.kv.mod_revision


def proves_progress(version: Sequence[int]) -> bool:
    """Whether an etcd of this version answers a progress request rightly: before, the answer could come ahead of events (etcd issue 15220,
    mended in 3.4.25 and 3.5.8), and fresh watches got none (mended in 3.4.31 and 3.5.13)."""
    first = (3, 5, 13) if tuple(version[:2]) == (3, 5) else (3, 4, 31)
    return tuple(version) >= first
