"""Random watches on one stream: through the gateway they must say what etcd's own say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.keyrange import bounds
from gateway.etcdpb import rpc_pb2 as pb
from tests.e2e.operations import KEYS, NOW, PATHS, Op, Requests, op, resolved, weighted
from tests.e2e.peer import Peer, check_alive
from tests.e2e.watching import NODELETE, NOPUT, Stream, creates, told
from tests.etcd import BINARIES, cluster
from tests.gateway_process import gateway

EXAMPLES = int(os.environ.get("SHARDGATE_EXAMPLES", "20"))


@dataclass(frozen=True)
class Cancel:
    """Of the watch that was asked for at this place, or of an id that nobody has."""

    place: int


@dataclass
class Plan:
    """What a client does: writes, then creates and cancels, then writes."""

    before: list[Op]
    steps: list[Any]
    after: list[Op] = field(default_factory=list)


def plans(requests: Requests) -> st.SearchStrategy[Plan]:
    """Compactions among the first writes."""
    compact = st.just(op(pb.CompactionRequest(revision=NOW - 6)))
    before = st.lists(weighted((12, requests.writes()), (1, compact)), max_size=15)
    steps = st.lists(weighted((8, creates(requests)), (1, st.builds(Cancel, st.integers(-1, 5)))), min_size=1, max_size=10)
    return st.builds(Plan, before, steps, st.lists(requests.writes(), max_size=10))


def finals(keys: tuple[bytes, ...]) -> list[Op]:
    """Every watch sees the end of it: all keys are put, then all are deleted."""
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=key, value=b"end")) for key in keys]
    return [op(pb.TxnRequest(success=puts)), op(pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))]


def last_event(create: Any, keys: tuple[bytes, ...], revision: int) -> int | None:
    """The revision of the last event that a watch gets, when `revision` is that of the last deletion."""
    low, high = bounds(create.key or b"\0", create.range_end)
    if not any(low <= key and (high is None or key < high) for key in keys) or create.start_revision > revision:
        return None
    if NODELETE not in create.filters:
        return revision
    return None if NOPUT in create.filters or create.start_revision > revision - 1 else revision - 1


class Follower:
    """One client that does what a plan says."""

    def __init__(self, peer: Peer, keys: tuple[bytes, ...]) -> None:
        self.peer = peer
        self.keys = keys
        self.stream = Stream(peer)
        self.given_up: set[int] = set()
        self.created: dict[int, Any] = {}

    def create(self, requests: list[Any]) -> None:
        """All at once, then wait for the answers."""
        start = len(self.stream.created)
        for request in requests:
            self.stream.send(create_request=request)
        self.stream.wait("created", lambda stream: len(stream.created) == start + len(requests))
        for request, reply in zip(requests, self.stream.created[start:], strict=True):
            if not reply.canceled:
                self.created[reply.watch_id] = request

    def cancel(self, place: int) -> None:
        """The answer comes if there is such a watch. It may have been refused a moment before, for what was compacted."""
        replies = self.stream.created
        watch = replies[place].watch_id if 0 <= place < len(replies) else 4711
        self.stream.send(cancel_request=pb.WatchCancelRequest(watch_id=watch))
        self.given_up.add(watch)
        if watch in self.created:
            self.stream.wait(f"cancel of {watch}", lambda stream: watch in stream.canceled)

    def finish(self, revision: int, compacted: int) -> None:
        """Read all that must come."""
        for watch, request in self.created.items():
            last = last_event(request, self.keys, revision)
            if watch in self.given_up:
                continue
            if request.start_revision and request.start_revision < compacted:
                self.stream.wait(f"compacted {watch}", lambda stream, watch=watch: watch in stream.canceled)
            elif last is not None:
                what = f"watch {watch} of {self.peer.address} is to reach {last}: {told(request)}"
                self.stream.wait(what, lambda stream, watch=watch, last=last: reached(stream.events[watch], last))

    def created_replies(self) -> list[Any]:
        """In order."""
        replies = self.stream.created
        return [(each.watch_id, each.canceled, each.cancel_reason, each.compact_revision) for each in replies]

    def canceled_replies(self) -> dict[int, Any]:
        """By watch. One that the client cancelled may have been cancelled before: a start that is compacted is found out later."""
        replies = self.stream.canceled.items()
        return {watch: watch in self.given_up or (reply.compact_revision, reply.cancel_reason) for watch, reply in replies}

    def events(self, compacted: int = -1) -> list[str]:
        """Line by line, by watch; of a cancelled one, who knows how far it came. Deletions at the very revision of a compaction are told
        until etcd gets round to it."""
        watches = [(watch, self.stream.events[watch]) for watch in sorted(self.stream.events.keys() - self.given_up)]
        kept = ((watch, each) for watch, events in watches for each in events if not (each.type and each.kv.mod_revision == compacted))
        return [f"{watch}: {told(each)}" for watch, each in kept]


def reached(events: list[Any], revision: int) -> bool:
    return bool(events) and events[-1].kv.mod_revision >= revision


@dataclass
class Pair:
    """An etcd, the gateway in front of another, and that other one. `compacted`: the revision, -1 before the first time."""

    direct: Peer
    through: Peer
    behind: Peer
    compacted: int = -1

    def write(self, operation: Op) -> None:
        """To both etcds; compactions through the gateway, which has to know of them."""
        data = operation.data(self.direct.revision())
        other = self.through if operation.path == PATHS[pb.CompactionRequest] else self.behind
        codes = {peer.ask(operation.path, data)[0] for peer in (self.direct, other)}
        assert len(codes) == 1
        if operation.path == PATHS[pb.CompactionRequest] and codes == {0}:
            self.compacted = pb.CompactionRequest.FromString(data).revision


@pytest.fixture(scope="module", params=BINARIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with cluster(request.param) as one, cluster(request.param) as two, gateway({"main": two.urls}) as process:
        with Peer(one.address) as direct, Peer(process.address) as through, Peer(two.address) as behind:
            pair = Pair(direct, through, behind)
            for _ in range(30):  # so that no watch starts at a negative revision
                pair.write(op(pb.PutRequest(key=b"a")))
            yield pair
        check_alive(one, two)


@settings(max_examples=EXAMPLES)
@given(plans(Requests(KEYS)))
def test_random_watches(pair: Pair, plan: Plan) -> None:
    for peer in (pair.direct, pair.behind):
        peer.reset()
    for operation in plan.before:
        pair.write(operation)
    now = pair.direct.revision()
    followers = [Follower(peer, KEYS) for peer in (pair.direct, pair.through)]
    for group in grouped(plan.steps, now):
        for follower in followers:
            follower.cancel(group.place) if isinstance(group, Cancel) else follower.create(group)
    for operation in (*plan.after, *finals(KEYS)):
        pair.write(operation)
    now = pair.direct.revision()
    for follower in followers:
        follower.finish(now, pair.compacted)
        follower.stream.rest(0.02)
        follower.stream.close()
    want, got = followers
    assert got.created_replies() == want.created_replies()
    assert got.canceled_replies() == want.canceled_replies()
    assert got.events(pair.compacted) == want.events(pair.compacted)


def test_fragments(pair: Pair) -> None:
    """A response that is too large for one message comes in parts, to a client that asked for it."""
    for peer in (pair.direct, pair.behind):
        peer.reset()
    start = pair.direct.revision() + 1
    for number in range(4):
        pair.write(op(pb.PutRequest(key=b"a", value=b"%d" % number * 1_000_000)))
    followers = [Follower(peer, KEYS) for peer in (pair.direct, pair.through)]
    for follower in followers:
        follower.create([pb.WatchCreateRequest(key=b"a", start_revision=start, fragment=fragment) for fragment in (True, False, True)])
        follower.stream.wait("all", lambda stream: len(stream.events) == 3 and all(len(events) == 4 for events in stream.events.values()))
        follower.stream.close()
    assert any(len(shape) > 1 for shape in followers[0].stream.shapes.values())
    assert followers[1].events() == followers[0].events()


def test_progress(pair: Pair) -> None:
    """The answer to a progress request comes after all events up to its revision."""
    for peer in (pair.direct, pair.through):
        follower = Follower(peer, KEYS)
        follower.create([pb.WatchCreateRequest(key=b"a"), pb.WatchCreateRequest(key=b"b")])
        pair.write(op(pb.PutRequest(key=b"a")))
        follower.stream.wait("event", lambda stream: len(stream.events) == 1)
        follower.stream.send(progress_request=pb.WatchProgressRequest())
        follower.stream.wait("progress", lambda stream: len(stream.progress) > 0)
        assert [(each.watch_id, each.header.revision) for each in follower.stream.progress] == [(-1, pair.direct.revision())]
        follower.stream.close()


def grouped(steps: list[Any], now: int) -> Iterator[Any]:
    """Cancels, and all creates between two of them. A refused one stands alone: when an automatic id is chosen, the gateway takes an
    id that was asked for shortly before as taken, whether it will be or not."""
    creates: list[Any] = []
    for step in steps:
        alone = isinstance(step, Cancel) or empty(step)
        if alone and creates:
            yield creates
            creates = []
        if isinstance(step, Cancel):
            yield step
        elif alone:
            yield [resolved(step, now)]
        else:
            creates.append(resolved(step, now))
    if creates:
        yield creates


def empty(create: Any) -> bool:
    """etcd refuses it. Without a key it is all keys up to the end."""
    low, high = bounds(create.key or b"\0", create.range_end)
    return high is not None and high <= low
