"""Whether one etcd could have told so: the rules for watches.

Ordered, unique, atomic, reliable, resumable and bookmarkable come down to one: what a watcher is told is the log from its start on, as far
as it wants to hear of it; whole revisions at a time; and after progress to a revision nothing up to it is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.check.history import History, Leg, Told, Watcher, compacted
from tests.check.keyspace import Keyspace


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the log, and what its key was before, None: it did not exist."""

    event: Any
    before: Any


class Log:
    """What happened, with what was before it. Raises keyspace.Unsound."""

    def __init__(self, history: History) -> None:
        keys = Keyspace()
        self.revisions: list[int] = []
        self._happened: list[list[Happened]] = []
        self.compactions = history.compactions()
        for revision, events in history.log:
            self.revisions.append(revision)
            self._happened.append([Happened(event, keys.get(event.kv.key)) for event in events])
            keys.apply(revision, events)

    def due(self, watcher: Watcher, first: int, last: int) -> list[tuple[int, list[Happened]]]:
        """What a watcher is to be told of the revisions from `first` to `last`."""
        found = []
        for at in range(bisect_left(self.revisions, first), bisect_left(self.revisions, last + 1)):
            wanted = [each for each in self._happened[at] if watcher.wants(each.event)]
            if wanted:
                found.append((self.revisions[at], wanted))
        return found


def violations(history: History) -> list[str]:
    """What no etcd would have told; empty if all is well."""
    log = Log(history)
    return [f"{watcher.name}: {each}" for watcher in history.watchers for each in Listener(watcher, log).run()]


class Listener:
    """Goes through what one watcher was told. `next`: the first revision that it has not heard of, 0 while that is not known."""

    def __init__(self, watcher: Watcher, log: Log) -> None:
        self._watcher = watcher
        self._log = log
        self._held: list[Any] = []
        self.next = int(watcher.request.start_revision)

    def run(self) -> Iterator[str]:
        """What is wrong; no more after the first event that is wrong, as all others would be."""
        try:
            for leg in self._watcher.legs:
                yield from self._leg(leg)
            if not self.next:
                yield "it was never told that it exists"
            elif self._log.revisions:
                self._nothing_due(self._log.revisions[-1], "at the end")
        except Wrong as error:
            yield str(error)

    def _nothing_due(self, last: int, when: str) -> None:
        """Up to a revision everything was told. Raises Wrong."""
        missed = self._log.due(self._watcher, self.next, last)
        if missed:
            raise Wrong(f"{when} revision {missed[0][0]} ({len(missed)} in all) had not been told")

    def _leg(self, leg: Leg) -> Iterator[str]:
        """What a stream told. Raises Wrong."""
        self._held = []
        position = -1
        for told in leg.told:
            reply = told.reply
            if self._held and (not reply.events or told.position != position + 1):
                raise Wrong(f"something came between the fragments of revision {self._held[-1].kv.mod_revision}")
            position = told.position
            if reply.created:
                self.next = self.next or reply.header.revision + 1
            if reply.canceled:
                yield from self._canceled(told)
            elif reply.events:
                self._held += reply.events
                if not reply.fragment:
                    self._events(self._held, told)
                    self._held = []
            elif not reply.created:
                self._nothing_due(reply.header.revision, f"at progress to {reply.header.revision}")
                self.next = max(self.next, reply.header.revision + 1)

    def _canceled(self, told: Told) -> Iterator[str]:
        """Only a compaction of what it has not heard of ends a watch."""
        at = told.reply.compact_revision
        if not at or not self.next or self.next >= at or compacted(self._log.compactions, told.at) < at:
            yield f"cancelled without reason, next would have been {self.next}: {' '.join(str(told.reply).split())}"
        self.next = max(self.next, at)

    def _events(self, events: Sequence[Any], told: Told) -> None:
        """Whole revisions, all that is due of each. Raises Wrong."""
        first, last = events[0].kv.mod_revision, events[-1].kv.mod_revision
        if not self.next:
            raise Wrong(f"events of {first} came before it was told that it exists")
        if first < self.next:
            raise Wrong(f"revision {first} was told when {self.next} was next")
        if told.reply.header.revision < last:
            raise Wrong(f"an event of {last} came with the header of {told.reply.header.revision}")
        due = [(revision, each) for revision, happened in self._log.due(self._watcher, self.next, last) for each in happened]
        for number, event in enumerate(events):
            if number >= len(due):
                raise Wrong(f"it was told what did not happen: {_text(event)}")
            revision, happened = due[number]
            if event.kv.mod_revision != revision:
                raise Wrong(f"revision {revision} is due, it was told {event.kv.mod_revision}")
            self._compare(event, happened, told)
        if len(due) > len(events):
            raise Wrong(f"of revision {due[len(events)][0]} not all was told at once")
        self.next = last + 1

    def _compare(self, event: Any, happened: Happened, told: Told) -> None:
        """All of an event: type, KeyValue with its revisions and version, what was before. Raises Wrong."""
        if event.type != happened.event.type or event.kv != happened.event.kv:
            raise Wrong(f"{_text(happened.event)} is due, it was told {_text(event)}")
        before = event.prev_kv if event.HasField("prev_kv") else None
        wanted = happened.before if self._watcher.request.prev_kv else None
        if before != wanted and not (before is None and compacted(self._log.compactions, told.at) >= event.kv.mod_revision):
            raise Wrong(f"before {_text(event.kv)} there was {_text(wanted)}, it was told {_text(before)}")


class Wrong(Exception):
    """What a watcher was told can't have been."""


def _text(message: Any) -> str:
    return " ".join(str(message).split())[:300]


def next_of(told: Sequence[Told], start: int) -> int:
    """Where a client goes on after what it was told on one stream: fragments of a response are one for it, and one that did not come whole
    is forgotten, as by etcd's own client."""
    following = start
    for each in told:
        reply = each.reply
        if reply.created:
            following = following or reply.header.revision + 1
        if reply.canceled:
            following = max(following, reply.compact_revision)
        elif reply.events and not reply.fragment:
            following = reply.events[-1].kv.mod_revision + 1
        elif not reply.events and not reply.created:
            following = max(following, reply.header.revision + 1)
    return following


def heard_all(watcher: Watcher, log: Sequence[tuple[int, Sequence[Any]]]) -> bool:
    """It has been told the last event of the log that is for it."""
    last = next((revision for revision, events in reversed(log) if any(watcher.wants(event) for event in events)), 0)
    start = watcher.request.start_revision
    for leg in watcher.legs:
        start = next_of(leg.told, start)
    return start > last
