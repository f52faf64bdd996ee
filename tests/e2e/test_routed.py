"""Three clusters behind one gateway against etcds that have the same keys: one for each cluster, and one that has them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.keyrange import bounds
from gateway.etcdpb import rpc_pb2 as pb
from tests.e2e.operations import NOW, PATHS, Op, Requests, op, resolved, weighted
from tests.e2e.peer import Answer, Peer, check_alive, comparable
from tests.e2e.test_differential import EXAMPLES
from tests.e2e.watching import NODELETE, NOPUT, Stream, creates, told
from tests.etcd import cluster
from tests.gateway_process import gateway

KEYS = (b"/a", b"/a/1", b"/a/2", b"/a/2/x", b"/a0", b"/ab", b"/b", b"/b/1", b"/b/2", b"/c", b"m", b"\0", b"\xff")
OWNED = ((b"/a", b"/a\0", "one"), (b"/a/", b"/a0", "one"), (b"/b", b"/b\0", "two"), (b"/b/", b"/b0", "two"))
BORDERS = (b"", *sorted({border for low, high, _ in OWNED for border in (low, high)}))
NAMES = ("main", "one", "two")
ORDERS = (0, 1, 2)
"""An unknown sort order over several clusters gets the error that etcd has had since 3.6; older ones put up with it."""

REQUESTS = Requests(KEYS, ORDERS)


def owner(key: bytes) -> str:
    """The cluster of a key, by looking at all there is."""
    return next((name for low, high, name in OWNED if low <= key < high), "main")


def owners(key: bytes, end: bytes) -> set[str]:
    """The clusters of a range. An empty one is its key's, and what has no key goes anywhere: etcd refuses it."""
    found = {owner(key)}
    if key and end:
        found |= {owner(border) for border in BORDERS if key < border and (end == b"\0" or border < end)}
    return found


def touched(request: Any) -> set[str]:
    """The clusters of all keys that a request names."""
    if isinstance(request, pb.TxnRequest):
        ops = (*request.success, *request.failure)
        parts = (*request.compare, *(getattr(each, each.WhichOneof("request") or "request_txn") for each in ops))
        return set().union(*map(touched, parts))
    return owners(request.key, getattr(request, "range_end", b""))


@dataclass
class Site:
    """`alone`: an etcd for each cluster that gets only that cluster's requests; `model`: one that has all keys."""

    through: Peer
    alone: dict[str, Peer]
    model: Peer
    behind: list[Peer]

    def reset(self) -> None:
        for peer in (*self.behind, *self.alone.values(), self.model):
            peer.reset()
        for operation in REQUESTS.preset():
            self.check(operation)

    def check(self, operation: Op) -> None:
        """The request's clusters decide what its answer is compared with."""
        request = operation.request
        if isinstance(request, pb.LeaseGrantRequest):
            self.everywhere(operation)
        elif len(names := touched(request)) <= 1:
            self.in_one(operation, *(names or {"main"}))
        elif isinstance(request, pb.RangeRequest):
            self.across(request)
        else:
            self.refused(operation)

    def everywhere(self, operation: Op) -> None:
        """Leases are home's, and known to all."""
        want = [peer.ask(operation.path, operation.data(0)) for peer in (*self.alone.values(), self.model)]
        same(self.through.ask(operation.path, operation.data(0)), want[0], operation)

    def in_one(self, operation: Op, name: str) -> None:
        """Just as that cluster's etcd; the model follows."""
        data = operation.data(self.alone[name].revision())
        want = self.alone[name].ask(operation.path, data)
        same(self.through.ask(operation.path, data), want, operation)
        if want[0] == 0 and not isinstance(operation.request, pb.RangeRequest):
            self.follow(operation, want[2][0])

    def follow(self, operation: Op, reply: Any) -> None:
        """The writes that have happened, in the model. A transaction's compares of revisions could turn out otherwise there."""
        request = operation.request
        if isinstance(request, pb.TxnRequest):
            for ops in done(request, reply):
                self.model.must(ops)
        else:
            self.model.must(request)

    def across(self, request: Any) -> None:
        """As if one etcd had all keys, but for revisions, which can't be compared."""
        asked = pb.RangeRequest()
        asked.CopyFrom(request)
        for name in ("min_mod_revision", "max_mod_revision", "min_create_revision", "max_create_revision"):
            asked.ClearField(name)
        path, data = PATHS[pb.RangeRequest], asked.SerializeToString()
        got = self.through.ask(path, data)
        if request.revision > 0:
            assert (got[0], got[1][:38]) == (3, "shardgate: range at a revision over se"), got
        elif request.sort_target not in (pb.RangeRequest.CREATE, pb.RangeRequest.MOD):
            assert in_order(asked, got) == in_order(asked, self.model.ask(path, data)), asked

    def refused(self, operation: Op) -> None:
        """By etcd's own error if it has one, and nothing is done."""
        before = [peer.revision() for peer in self.alone.values()]
        got = self.through.ask(operation.path, operation.data(0))
        assert got[0] != 0, operation
        want = self.judge(operation.request) if isinstance(operation.request, pb.TxnRequest) else (0, "")
        if want[0]:
            assert got[:2] == want, operation
        else:
            assert got[0] == 3 and got[1].startswith("shardgate: ") and " over several clusters: " in got[1], (got, operation)
        assert [peer.revision() for peer in self.alone.values()] == before

    def judge(self, request: Any) -> tuple[int, str]:
        """What etcd has against a transaction that is not carried out."""
        never = pb.Compare(key=b"never", target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=1 << 40)
        held = pb.TxnRequest(compare=[never], success=[pb.RequestOp(request_txn=request)])
        return self.model.ask(PATHS[pb.TxnRequest], held.SerializeToString())[:2]


def same(got: Answer, want: Answer, operation: Op) -> None:
    assert comparable(got) == comparable(want), operation


def done(request: Any, reply: Any) -> Iterator[Any]:
    """The puts and deletions of a transaction that were carried out, in order."""
    for each, result in zip(request.success if reply.succeeded else request.failure, reply.responses, strict=True):
        kind = each.WhichOneof("request")
        if kind == "request_txn":
            yield from done(each.request_txn, result.response_txn)
        elif kind != "request_range":
            yield getattr(each, kind)


def in_order(request: Any, answer: Answer) -> Any:
    """Code and text, or keys with values and versions in order, count and more; no revisions. Sorted by another target than the key, what
    is equal comes in any order (Go's sort is not stable): then it is the order of the targets, and all keys if a limit cuts none off."""
    code, text, replies = answer
    if code:
        return code, text
    (reply,) = replies
    kvs = [(kv.key, kv.value, kv.version, kv.lease) for kv in reply.kvs]
    if request.sort_target == pb.RangeRequest.KEY:
        return kvs, reply.count, reply.more
    target = 2 if request.sort_target == pb.RangeRequest.VERSION else 1
    return [kv[target] for kv in kvs], [] if reply.more else sorted(kvs), reply.count, reply.more


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        behind = {name: stack.enter_context(cluster()) for name in NAMES}
        others = [stack.enter_context(cluster()) for _ in (*NAMES, "all")]
        urls = {name: each.urls for name, each in behind.items()}
        process = stack.enter_context(gateway(urls, {"/a/": "one", "/b/": "two"}))
        through = stack.enter_context(Peer(process.address))
        peers = [stack.enter_context(Peer(each.address)) for each in (*behind.values(), *others)]
        site = Site(through, dict(zip(NAMES, peers[3:6], strict=True)), peers[6], peers[:3])
        for key in (b"m", b"/a/1", b"/b/1") * 20:  # so that no watch starts at a negative revision
            site.check(op(pb.PutRequest(key=key)))
        yield site
        check_alive(*behind.values(), *others)


def operations() -> st.SearchStrategy[Op]:
    """Requests whose keys mostly are in one cluster, and those that are anywhere."""
    near = [Requests([key for key in KEYS if owner(key) == name], ORDERS) for name in NAMES]
    kinds = [(3, strategy) for each in near for strategy in (each.ranges(), each.puts(), each.deletes(), each.txns())]
    anywhere = (REQUESTS.ranges(), REQUESTS.ranges(), REQUESTS.deletes(), REQUESTS.txns(1))
    return weighted(*kinds, *((2, each) for each in anywhere)).map(op)


def writes() -> st.SearchStrategy[Op]:
    """Those that change keys, of one cluster each."""
    near = [Requests([key for key in KEYS if owner(key) == name], ORDERS) for name in NAMES]
    return st.one_of(*(each.writes() for each in near))


@settings(max_examples=EXAMPLES)
@given(st.lists(operations(), min_size=5, max_size=30))
def test_random_requests(site: Site, operations: list[Op]) -> None:
    site.reset()
    for operation in operations:
        site.check(operation)


Watched = tuple[Any, Stream, int]
"""A watch of the gateway's stream: its request, the reference's stream, its id there."""


class Watching:
    """A stream at the gateway, and one at each etcd that knows what it should say."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.through = Stream(site.through)
        self.references = {name: Stream(peer) for name, peer in (*site.alone.items(), ("", site.model))}
        self.watches: dict[int, Watched] = {}

    def create(self, request: Any) -> None:
        """From now where it is over several clusters: at a revision it is refused."""
        names = owners(request.key or b"\0", request.range_end)
        if len(names) == 1:
            name = names.pop()
            request = resolved(request, self.site.alone[name].revision())
            self.compare(request, self.references[name])
        elif request.start_revision:
            reply = created(self.through, request)
            assert (reply.watch_id, reply.canceled) == (-1, True) and reply.cancel_reason.startswith("shardgate: a watch over several")
        else:
            self.compare(request, self.references[""])

    def compare(self, request: Any, reference: Stream) -> None:
        got, want = created(self.through, request), created(reference, request)
        assert (got.canceled, got.cancel_reason) == (want.canceled, want.cancel_reason)
        if not got.canceled:
            self.watches[got.watch_id] = request, reference, want.watch_id

    def finish(self) -> None:
        """Wait for the last events that `finals` makes, everywhere."""
        for watch, (request, reference, number) in self.watches.items():
            for stream, each in ((reference, number), (self.through, watch)):
                what = f"watch {each}: {told(request)}"
                stream.wait(what, lambda stream, request=request, each=each: finished(request, stream, each))
        for stream in (self.through, *self.references.values()):
            stream.rest(0.02)
            stream.close()

    def check(self) -> None:
        """The events of each watch, in the order of each cluster."""
        for watch, (request, reference, number) in self.watches.items():
            got, want = self.through.events[watch], reference.events[number]
            if reference is self.references[""]:
                assert by_owner(got) == by_owner(want), request
            else:
                assert list(map(told, got)) == list(map(told, want)), request
            assert self.through.canceled.keys() <= self.watches.keys()


def created(stream: Stream, request: Any) -> Any:
    count = len(stream.created)
    stream.send(create_request=request)
    stream.wait(f"created: {told(request)}", lambda stream: len(stream.created) > count)
    return stream.created[-1]


def by_owner(events: list[Any]) -> dict[str, list[Any]]:
    """Without revisions: each cluster counts its own."""
    found: dict[str, list[Any]] = {name: [] for name in NAMES}
    for event in events:
        kv = event.kv
        found[owner(kv.key)].append((event.type, kv.key, kv.value, kv.version, kv.lease, event.prev_kv.value, event.prev_kv.version))
    return found


def finals() -> Iterator[Op]:
    """Every key is put and deleted at last."""
    for key in KEYS:
        yield op(pb.PutRequest(key=key, value=b"end"))
        yield op(pb.DeleteRangeRequest(key=key))


def finished(request: Any, stream: Stream, watch: int) -> bool:
    """All that it will get has come. One that starts at what is compacted is cancelled instead."""
    if watch in stream.canceled or {NOPUT, NODELETE} <= set(request.filters):
        return True
    low, high = bounds(request.key or b"\0", request.range_end)
    awaited = {key for key in KEYS if low <= key and (high is None or key < high)}
    deletes = NODELETE not in request.filters
    seen = {event.kv.key for event in stream.events[watch] if (event.prev_kv if deletes else event.kv).value == b"end"}
    return awaited <= seen


def watches() -> st.SearchStrategy[Any]:
    """In one cluster or over several, from now or the past. `prev_kv` tells the last deletion from others."""
    near = [Requests([key for key in KEYS if owner(key) == name]) for name in NAMES]
    anywhere = creates(REQUESTS, usual_start=40)
    return st.one_of(*map(creates, near), anywhere, anywhere).map(_tame)


def _tame(request: Any) -> Any:
    request.prev_kv, request.watch_id = True, 0
    if request.start_revision >= NOW:  # later than the last write
        request.start_revision = NOW
    return request


@settings(max_examples=EXAMPLES // 2)
@given(st.lists(writes(), max_size=10), st.lists(watches(), min_size=1, max_size=8), st.lists(writes(), max_size=10))
def test_random_watches(site: Site, before: list[Op], requests: list[Any], after: list[Op]) -> None:
    site.reset()
    for operation in before:
        site.check(operation)
    watching = Watching(site)
    for request in requests:
        watching.create(request)
    for operation in (*after, *finals()):
        site.check(operation)
    watching.finish()
    watching.check()
