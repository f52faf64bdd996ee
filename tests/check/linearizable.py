"""Whether one etcd could have answered so: the rules for reads and writes.

The log gives the keys at each revision. A reply is right if it says what the keys were at its revision, and its revision is one that it may
be of. Each rule is one pass over sorted operations, so all of it takes O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.history import History, Operation, compacted
from tests.check.keyspace import Keyspace, Unsound, without_headers, wrote

PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
"""Codes that say nothing of what became of a call. Nothing else may go wrong with what the workload asks, but for DROPPED."""

DROPPED = ("UNKNOWN", "raft proposal dropped")
"""What etcd says of a write when leadership moves at that moment."""

COMPACTED = "etcdserver: mvcc: required revision has been compacted"


def violations(history: History, members: int = 1) -> list[str]:
    """What no etcd would have answered; empty if all is well. `members`: how many may answer a serializable read that is forwarded."""
    replay = Replay(history)
    try:
        found = list(replay.run())
    except Unsound as error:
        return [f"the log: {error}"]
    return [*found, *_stale(history), *_of_the_future(history, replay.begun), *_backwards(history, members), *_refused(history)]


class Replay:
    """Goes through the log and compares. `begun`: when the write that made a revision was asked for."""

    def __init__(self, history: History) -> None:
        self.begun: dict[int, float] = {}
        self._log = history.log
        self._reads: dict[int, list[Operation]] = defaultdict(list)
        self._writes: dict[int, list[Operation]] = defaultdict(list)
        self._by_value: dict[tuple[bytes, bytes], Operation] = {}
        self._deletes: list[Operation] = []
        self._claimed: dict[int, int] = {}
        for each in history.operations:
            self._sort_in(each)

    def _sort_in(self, each: Operation) -> None:
        if isinstance(each.request, pb.CompactionRequest):
            return
        if isinstance(each.request, pb.RangeRequest):
            if each.reply is not None:
                self._reads[each.request.revision or each.revision].append(each)
            return
        for put in puts(each.request):
            self._by_value[put.key, put.value] = each
        if each.reply is None and not any(True for _ in puts(each.request)):
            self._deletes.append(each)
        if each.reply is not None:
            (self._writes if wrote(each) else self._reads)[each.revision].append(each)

    def run(self) -> Iterator[str]:
        """Raises Unsound."""
        keys = Keyspace()
        yield from self._judge_reads(keys)
        for revision, events in self._log:
            yield from self._claim(keys, revision, list(events))
            keys.apply(revision, events)
            yield from self._judge_reads(keys)
        for revision, left in (*self._writes.items(), *self._reads.items()):
            for each in left:
                yield f"the cluster never had revision {revision}: {each}"

    def _judge_reads(self, keys: Keyspace) -> Iterator[str]:
        """A write that changed nothing is a read as well."""
        for each in self._reads.pop(keys.revision, ()):
            right = keys.range(each.request) if isinstance(each.request, pb.RangeRequest) else keys.write(each.request, 0)[0]
            if without_headers(each.reply) != right:
                yield f"at {keys.revision} the answer is {' '.join(str(right).split())[:300]}: {each}"

    def _claim(self, keys: Keyspace, revision: int, events: list[Any]) -> Iterator[str]:
        """Each revision is of one write: one that was acknowledged at it, else one whose outcome its client does not know."""
        owners = self._writes.pop(revision, [])
        if not owners:
            yield from self._claim_unknown(keys, revision, events)
            return
        for each in owners:
            self.begun[revision] = each.began
            self._claimed[id(each)] = revision
            reply, caused = keys.write(each.request, revision)
            if caused != events:
                yield f"acknowledged at {revision}, where the cluster did something else: {each}"
            elif without_headers(each.reply) != reply:
                yield f"at {revision} the answer is {' '.join(str(reply).split())[:300]}: {each}"
        if len(owners) > 1:
            yield f"{len(owners)} writes were acknowledged at {revision}: {owners[0]} and {owners[1]}"

    def _claim_unknown(self, keys: Keyspace, revision: int, events: list[Any]) -> Iterator[str]:
        named = {id(each): each for event in events if (each := self._by_value.get((event.kv.key, event.kv.value))) is not None}
        for each in [*named.values(), *self._deletes]:
            if keys.write(each.request, revision)[1] != events:
                continue
            if each.reply is not None:
                yield f"acknowledged at {each.revision}, but the cluster did it at {revision}: {each}"
            elif id(each) in self._claimed:
                yield f"done twice, at {self._claimed[id(each)]} and {revision}: {each}"
            self._claimed[id(each)] = revision
            self.begun[revision] = each.began
            if each in self._deletes:
                self._deletes.remove(each)
            return
        yield f"nobody asked for what happened at {revision}: {' '.join(map(str, events))[:300]}"


def puts(request: Any) -> Iterator[Any]:
    """The puts in a write, in either branch."""
    if isinstance(request, pb.PutRequest):
        yield request
    elif isinstance(request, pb.TxnRequest):
        yield from (each.request_put for each in (*request.success, *request.failure) if each.HasField("request_put"))


def _stale(history: History) -> Iterator[str]:
    """What anybody was told before a linearizable call began, it has to see; and a write comes after it."""
    told = [(each.ended, each.revision) for each in history.operations if each.reply is not None]
    told += [
        (told.at, event.kv.mod_revision)
        for watcher in history.watchers
        for leg in watcher.legs
        for told in leg.told
        for event in told.reply.events[-1:]
    ]
    told.sort()
    ends, highest = [end for end, _ in told], [0]
    for _, revision in told:
        highest.append(max(highest[-1], revision))
    for each in history.operations:
        if each.reply is None or isinstance(each.request, pb.CompactionRequest) or not linearizable(each):
            continue
        known = highest[bisect_left(ends, each.began)]
        if each.revision < known + wrote(each):
            yield f"revision {known} was known {_before(each, ends, highest, known):.4f} s before it began: {each}"


def _before(each: Operation, ends: list[float], highest: list[int], known: int) -> float:
    return each.began - ends[bisect_left(highest, known) - 1]


def linearizable(each: Operation) -> bool:
    """A read of an old revision sees that one, and the header of its reply promises nothing."""
    return not isinstance(each.request, pb.RangeRequest) or not (each.request.serializable or each.request.revision)


def _of_the_future(history: History, begun: dict[int, float]) -> Iterator[str]:
    """Nobody is told of a write before it was asked for."""
    latest: list[float] = [0.0, 0.0]
    for revision, _ in history.log:
        latest.append(max(latest[-1], begun.get(revision, 0.0)))
    for each in history.operations:
        if 0 < each.revision < len(latest) and latest[each.revision] > each.ended:
            yield f"it was told of a write that was not asked for yet: {each}"


def _backwards(history: History, members: int) -> Iterator[str]:
    """On one connection revisions only grow. Not so in the headers of reads that are pinned to a revision, as they may join a flight that
    was sent before: only what they found has to be right. Nor, with several members, those of serializable reads, which any may answer."""
    last: dict[str, Operation] = {}
    for each in sorted((each for each in history.operations if each.revision), key=lambda each: each.ended):
        if isinstance(each.request, pb.RangeRequest) and (each.request.revision or (each.request.serializable and members > 1)):
            continue
        before = last.get(each.client)
        if before is not None and each.revision < before.revision and before.ended <= each.began:
            yield f"went back from {before.revision}: {each}"
        if before is None or each.revision > before.revision:
            last[each.client] = each


def _refused(history: History) -> Iterator[str]:
    """Errors that etcd would not have given."""
    compactions = history.compactions()
    for each in history.operations:
        code, text = each.error
        if not code or code in PASSING or each.error == DROPPED:
            continue
        pinned = isinstance(each.request, pb.RangeRequest) and each.request.revision
        if not (pinned and text == COMPACTED and compacted(compactions, each.ended) > pinned):
            yield f"no reason for this error: {each}"
