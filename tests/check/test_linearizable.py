"""The rules for reads and writes find each kind of wrong answer in a history made by hand, and nothing in a right one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.handmade import A2, A4, B2, B6, A, B, Event, good, header, kv, log, operations, ranged
from tests.check.history import History, Operation
from tests.check.keyspace import Keyspace
from tests.check.linearizable import violations

Change = Callable[[dict[str, Operation]], object]


def judged(change: Change) -> list[str]:
    named = operations()
    change(named)
    return violations(History(list(named.values()), [], log()))


def altered(name: str, **fields: Any) -> Change:
    """The operation is another one."""
    return lambda named: named.update({name: replace(named[name], **fields)})


def answered(name: str, reply: Any) -> Change:
    return altered(name, reply=reply)


def besides(operation: Operation) -> Change:
    """One more."""
    return lambda named: named.update({"besides": operation})


def get(client: str, began: float, reply: Any, **fields: Any) -> Operation:
    return Operation(client, pb.RangeRequest(key=A, **fields), began, began + 0.5, reply)


def written(client: str, began: float, revision: int, value: bytes) -> Operation:
    return Operation(client, pb.PutRequest(key=A, value=value), began, began + 0.5, pb.PutResponse(header=header(revision)))


def test_a_right_history() -> None:
    assert violations(good()) == []


WRONG_CONTENT = {
    "another value": answered("list", ranged(2, kv(A, b"x", 2, 2, 1), B2)),
    "another mod_revision": answered("list", ranged(2, kv(A, b"1", 2, 3, 1), B2)),
    "another create_revision": answered("list", ranged(2, kv(A, b"1", 1, 2, 1), B2)),
    "another version": answered("list", ranged(2, kv(A, b"1", 2, 2, 2), B2)),
    "a key is missing": answered("list", ranged(2, A2)),
    "a key too many": answered("list", ranged(2, A2, B2, kv(b"/bb", b"", 2, 2, 1))),
    "another order": answered("list", ranged(2, B2, A2)),
    "another count": answered("page", ranged(2, A2, count=1, more=True)),
    "no more": answered("page", ranged(2, A2, count=2)),
    "over the limit": answered("page", ranged(2, A2, B2, count=2)),
    "counted wrong": answered("count", ranged(4, count=2)),
    "a value where keys were asked for": answered("keys", ranged(6, B6)),
    "serializable, of another revision": answered("old", ranged(3, A4)),
    "a page of another revision": answered("next page", ranged(4)),
    "a deletion that tells another key": answered("delete", pb.DeleteRangeResponse(header=header(3), deleted=1, prev_kvs=[A2])),
    "a deletion that counts wrong": answered("delete", pb.DeleteRangeResponse(header=header(3), deleted=2, prev_kvs=[B2])),
    "a condition that held": answered("swap", pb.TxnResponse(header=header(3), succeeded=True)),
}


@pytest.mark.parametrize("change", WRONG_CONTENT.values(), ids=WRONG_CONTENT)
def test_wrong_content(change: Change) -> None:
    found = judged(change)
    assert len(found) == 1 and "the answer is" in found[0], found


OTHERS = {
    "a revision that never was": (besides(get("y", 19, ranged(9))), "never had revision 9"),
    "a write that is not in the log": (besides(written("y", 17.5, 7, b"7")), "never had revision 7"),
    "a write that was done elsewhere": (altered("last", reply=pb.PutResponse(header=header(7))), "but the cluster did it at 6"),
    "two writes at a revision": (besides(written("y", 16, 6, b"7")), "did something else"),
    "the same write twice": (besides(operations()["last"]), "2 writes were acknowledged at 6"),
    "nobody's event": (lambda named: named.pop("last"), "nobody asked for what happened at 6"),
    "nobody's deletion": (lambda named: named.pop("lost delete"), "nobody asked for what happened at 5"),
    "a write that was acknowledged is not seen": (besides(get("y", 5, ranged(2, A2))), "revision 3 was known 1.0000 s before"),
    "a read that somebody has seen more of": (besides(get("y", 12, ranged(3, A2))), "revision 4 was known 1.0000 s before"),
    "a transaction on what was": (altered("swap", began=11.5, ended=12, client="y"), "revision 4 was known"),
    "a write before what was known": (besides(get("y", 14, ranged(6))), "revision 6 was known 1.5000 s before it began"),
    "serializable, backwards": (besides(get("s", 12, ranged(2, A2), serializable=True)), "went back from 3"),
    "told of what is to come": (altered("count", began=6, ended=6.5, client="y"), "not asked for yet"),
    "an error that etcd would not give": (altered("never", error=("INTERNAL", "")), "no reason for this error"),
    "compacted, but nobody did": (lambda named: named.pop("compaction"), "no reason for this error"),
    "compacted too early": (altered("too old", began=12, ended=13), "no reason for this error"),
    "compacted, but not that one": (altered("too old", request=pb.RangeRequest(key=A, revision=4)), "no reason for this error"),
    "compacted, but it wanted the latest": (altered("too old", request=pb.RangeRequest(key=A)), "no reason for this error"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), OTHERS.values(), ids=OTHERS)
def test_wrong_in_another_way(change: Change, said: str) -> None:
    found = judged(change)
    assert any(said in each for each in found), found


def test_who_may_go_back() -> None:
    """The headers of pages, and serializable reads where several members answer them."""
    assert judged(answered("next page", ranged(1, B2))) == []
    history = good()
    history.operations.append(get("s", 12, ranged(2, A2), serializable=True))
    assert len(violations(history)) == 1 and violations(history, members=3) == []


def test_an_unknown_write_may_be_done_once_at_most() -> None:
    history = good()
    history.log[-1] = 6, [Event(kv=kv(A, b"3", 6, 6, 1))]
    history.operations = [each for each in history.operations if each.client not in ("w", "r") or each.ended < 12]
    assert any("done twice, at 4 and 6" in each for each in violations(history))


@pytest.mark.parametrize(
    ("revision", "event"),
    [
        (8, Event(kv=kv(B, b"6", 6, 8, 2))),
        (7, Event(kv=kv(B, b"6", 7, 7, 1))),
        (7, Event(kv=kv(B, b"6", 6, 7, 3))),
        (7, Event(type=Event.DELETE, kv=kv(A, b"", 0, 7, 0))),
    ],
)
def test_a_log_that_no_etcd_has(revision: int, event: Any) -> None:
    history = good()
    history.operations.append(Operation("y", pb.PutRequest(key=B, value=b"6"), 20, 21, None, ("UNAVAILABLE", "")))
    history.operations.append(Operation("y", pb.DeleteRangeRequest(key=A), 20, 21, None, ("UNAVAILABLE", "")))
    history.log.append((revision, [event]))
    assert violations(history)[0].startswith("the log: ")


def test_a_watch_is_told_as_well() -> None:
    """What a watcher has heard of, a read sees that begins afterwards."""
    history = good()
    history.operations.append(get("y", 8.5, ranged(3, A2)))
    assert violations(history) == []
    history.watchers[0].legs[0].told[-1] = replace(history.watchers[0].legs[0].told[-1], at=8.2)
    assert "revision 4 was known 0.3000 s before" in violations(history)[0]


def long_history(count: int) -> History:
    """One writer; readers that are right."""
    rnd, keys, history = Random(1), Keyspace(), History()
    for number in range(count):
        at = float(number)
        request = pb.PutRequest(key=b"/%d" % rnd.randrange(20), value=b"%d" % number)
        reply, events = keys.write(request, keys.revision + 1)
        keys.apply(keys.revision + 1, events)
        history.log.append((keys.revision, events))
        reply.header.revision = keys.revision
        history.operations.append(Operation("w", request, at, at + 0.3, reply))
        for reader in range(3):
            asked = pb.RangeRequest(key=b"/%d" % rnd.randrange(20), range_end=b"/3" if reader else b"")
            found = keys.range(asked)
            found.header.revision = keys.revision
            history.operations.append(Operation(f"r{reader}", asked, at + 0.4, at + 0.5, found))
    return history


def test_many_operations_take_seconds() -> None:
    history = long_history(10_000)
    start = time.monotonic()
    assert violations(history) == []
    assert time.monotonic() - start < 20
    late = history.operations[30_001]
    history.operations[30_001] = replace(late, began=late.began + 1, ended=late.ended + 1)
    assert len(violations(history)) == 1
