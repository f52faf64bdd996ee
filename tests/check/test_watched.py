"""The rules for watches find each kind of wrong in what a watcher was told, made by hand, and nothing where all is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.handmade import A2, A4, B2, B6, A, Event, before, gone, good, kv, told
from tests.check.history import History, Leg, Told
from tests.check.watched import heard_all, next_of, violations


def judged(change: Callable[[History, list[Told], list[Told]], object]) -> list[str]:
    history = good()
    first, second = (leg.told for leg in history.watchers[0].legs)
    change(history, first, second)
    return violations(history)


def instead(second: list[Told], at: int, *events: Any, **fields: Any) -> None:
    second[at] = told(17, at, 6, *events, **fields)


def both(one: int, other: int) -> list[Told]:
    """The first revision, its events the other way round."""
    told_ = good().watchers[0].legs[0].told
    return [told(3, 1, 2, *told_[one].reply.events, fragment=True), told(3, 2, 2, *told_[other].reply.events)]


def swap(replies: list[Told], one: int, other: int) -> None:
    a, b = replies[one], replies[other]
    replies[one], replies[other] = replace(b, position=a.position), replace(a, position=b.position)


def test_what_is_right() -> None:
    assert violations(good()) == []


LAST = before(gone(A, 5), A4), Event(kv=B6)

WRONG: dict[str, tuple[Callable[[History, list[Told], list[Told]], object], str]] = {
    "an event is missing": (lambda h, f, s: s.pop(1), "revision 4 is due, it was told 5"),
    "the last one is missing": (lambda h, f, s: [s.pop(), s.pop()], "at the end revision 5 (2 in all)"),
    "the last one is missing from a new watch": (lambda h, f, s: h.watchers[1].legs[0].told.pop(), "at the end revision 6"),
    "an event comes again": (lambda h, f, s: s.insert(2, s[1]), "revision 4 was told when 5 was next"),
    "an event comes again on the next stream": (lambda h, f, s: s.insert(1, f[3]), "revision 3 was told when 4 was next"),
    "another order": (lambda h, f, s: swap(s, 1, 2), "revision 4 is due, it was told 5"),
    "another order within a revision": (lambda h, f, s: f.__setitem__(slice(1, 3), both(2, 1)), "is due"),
    "half a revision": (lambda h, f, s: f.pop(2), "came between the fragments of revision 2"),
    "half a revision, and no more to come": (lambda h, f, s: [f.pop(2), f[1].reply.ClearField("fragment")], "not all was told at once"),
    "one revision in two responses": (lambda h, f, s: f[1].reply.ClearField("fragment"), "not all was told at once"),
    "something between fragments": (lambda h, f, s: f.__setitem__(2, replace(f[2], position=7)), "came between the fragments"),
    "progress too early": (lambda h, f, s: s.insert(1, told(11, 1, 4)), "at progress to 4 revision 4"),
    "progress for all too early": (lambda h, f, s: s.insert(2, told(11, 2, 5, watch_id=-1)), "at progress to 5 revision 5"),
    "progress, and then what was before it": (lambda h, f, s: f.insert(1, told(2, 1, 2)), "at progress to 2 revision 2"),
    "no prev_kv": (lambda h, f, s: instead(s, 2, gone(A, 5), Event(kv=B6)), "before"),
    "another prev_kv": (lambda h, f, s: instead(s, 2, before(gone(A, 5), A2), Event(kv=B6)), "before"),
    "prev_kv of what did not exist": (lambda h, f, s: instead(s, 2, LAST[0], before(Event(kv=B6), B2)), "before"),
    "a put instead of a deletion": (lambda h, f, s: instead(s, 2, before(Event(kv=gone(A, 5).kv), A4), LAST[1]), "is due"),
    "another value": (lambda h, f, s: instead(s, 2, LAST[0], Event(kv=kv(b"/b", b"x", 6, 6, 1))), "is due"),
    "modified instead of created": (lambda h, f, s: instead(s, 2, LAST[0], Event(kv=kv(b"/b", b"5", 2, 6, 2))), "is due"),
    "what did not happen": (lambda h, f, s: instead(s, 2, *LAST, Event(kv=kv(b"/bb", b"", 6, 6, 1))), "did not happen"),
    "the header of an older revision": (lambda h, f, s: s.__setitem__(2, told(17, 2, 5, *LAST)), "came with the header of 5"),
    "what a filter keeps away": (lambda h, f, s: h.watchers[1].legs[0].told.insert(1, told(9, 1, 5, gone(b"/b", 5))), "did not happen"),
    "prev_kv that was not asked for": (
        lambda h, f, s: h.watchers[1].legs[0].told.__setitem__(1, told(17, 1, 6, before(Event(kv=B6), B2))), "before"),
    "events before it exists": (lambda h, f, s: h.watchers[1].legs[0].told.pop(0), "before it was told that it exists"),
    "it does not exist": (lambda h, f, s: h.watchers[1].legs.clear(), "never told that it exists"),
    "cancelled for no reason": (lambda h, f, s: s.insert(3, told(18, 3, 6, canceled=True)), "cancelled without reason"),
    "cancelled, compacted, but not so far": (
        lambda h, f, s: s.__setitem__(slice(1, 2), [told(16, 1, 6, canceled=True, compact_revision=5)]), "cancelled without reason"),
    "cancelled, compacted, but it was past that": (
        lambda h, f, s: s.insert(3, told(18, 3, 6, canceled=True, compact_revision=4)), "cancelled without reason"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong(change: Callable[[History, list[Told], list[Told]], object], said: str) -> None:
    found = judged(change)
    assert len(found) == 1 and said in found[0], found


def test_a_compaction_takes_away_what_was_not_told_yet() -> None:
    """It goes on from there; of what is before the first event then, nothing is known."""
    history = good()
    whole = history.watchers[0]
    whole.request.start_revision = 1
    late = [told(16, 0, 5, created=True), told(16, 1, 5, canceled=True, compact_revision=4)]
    rest = [told(16, 0, 5, created=True), told(16.5, 1, 5, Event(kv=A4)), told(17, 2, 6, *LAST)]
    whole.legs = [Leg("one", 1, late), Leg("two", 4, rest)]
    assert violations(history) == []
    rest.pop(1)
    assert "revision 4 is due" in violations(history)[0]


def test_prev_kv_is_there_until_a_compaction() -> None:
    assert judged(lambda h, f, s: s.__setitem__(1, told(13.5, 1, 4, Event(kv=A4)))) != []
    assert judged(lambda h, f, s: s.__setitem__(1, told(16, 1, 4, Event(kv=A4)))) == []


def test_where_a_client_goes_on() -> None:
    first, second = (leg.told for leg in good().watchers[0].legs)
    assert (next_of(first, 2), next_of(first[:2], 2), next_of(second, 4), next_of([], 4)) == (4, 2, 7, 4)
    assert next_of([told(1, 0, 5, created=True)], 0) == 6
    assert next_of([told(1, 0, 5, canceled=True, compact_revision=9)], 3) == 9


def test_who_has_heard_all() -> None:
    history = good()
    assert all(heard_all(watcher, history.log) for watcher in history.watchers)
    del history.watchers[0].legs[1].told[2:]
    history.watchers[1].request.filters.append(pb.WatchCreateRequest.NOPUT)
    assert [heard_all(watcher, history.log) for watcher in history.watchers] == [False, True]
