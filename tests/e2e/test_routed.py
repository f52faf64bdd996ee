"""Three clusters behind one gateway against etcds that have the same keys: one for each cluster, and one that has them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.etcdpb import rpc_pb2 as pb
from tests.e2e.operations import PATHS, Op, Requests, op, weighted
from tests.e2e.peer import Answer, Peer, comparable
from tests.e2e.test_differential import EXAMPLES
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
            assert without_revisions(got) == without_revisions(self.model.ask(path, data)), asked

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


def without_revisions(answer: Answer) -> Any:
    """Code and text, or keys with values and versions in order, count and more."""
    code, text, replies = answer
    return code, text, [([(kv.key, kv.value, kv.version, kv.lease) for kv in reply.kvs], reply.count, reply.more) for reply in replies]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        behind = {name: stack.enter_context(cluster()) for name in NAMES}
        others = [stack.enter_context(cluster()) for _ in (*NAMES, "all")]
        urls = {name: each.urls for name, each in behind.items()}
        process = stack.enter_context(gateway(urls, {"/a/": "one", "/b/": "two"}))
        through = stack.enter_context(Peer(process.address))
        peers = [stack.enter_context(Peer(each.address)) for each in (*behind.values(), *others)]
        yield Site(through, dict(zip(NAMES, peers[3:6], strict=True)), peers[6], peers[:3])


def operations() -> st.SearchStrategy[Op]:
    """Requests whose keys mostly are in one cluster, and those that are anywhere."""
    near = [Requests([key for key in KEYS if owner(key) == name], ORDERS) for name in NAMES]
    kinds = [(3, strategy) for each in near for strategy in (each.ranges(), each.puts(), each.deletes(), each.txns())]
    anywhere = (REQUESTS.ranges(), REQUESTS.ranges(), REQUESTS.deletes(), REQUESTS.txns(1))
    return weighted(*kinds, *((2, each) for each in anywhere)).map(op)


@settings(max_examples=EXAMPLES)
@given(st.lists(operations(), min_size=5, max_size=30))
def test_random_requests(site: Site, operations: list[Op]) -> None:
    site.reset()
    for operation in operations:
        site.check(operation)
