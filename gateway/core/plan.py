"""Where a KV request goes: to one cluster, to several, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain

from gateway.core.errors import INVALID_SORT, Code, Status
from gateway.core.routes import Routes, Span
from gateway.core.txns import SORT_TARGETS, txn_error
from gateway.etcdpb import rpc_pb2 as pb

_NAMED = 4
"""Clusters that a refusal names."""

Range = tuple[bytes, bytes]
"""(key, range_end) as etcd writes them."""


@dataclass(frozen=True, slots=True)
class Forward:
    """To one cluster, as it came. `leases`: those that it attaches to keys. `cache`, `coalesce`: a read may be answered from the cluster's
    store, or share its call with others: the routes of all its keys allow it."""

    cluster: str
    leases: tuple[int, ...] = ()
    cache: bool = False
    coalesce: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """A part to each cluster, the replies joined. `parts`: the spans of one cluster each, the cluster with the lowest key first."""

    parts: tuple[tuple[Span, ...], ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered by the gateway itself."""

    status: Status


Decision = Forward | Scatter | Refuse


@cache
def forward(cluster: str) -> Forward:
    """The one for this cluster, without leases: most requests are decided so, and there are few clusters."""
    return Forward(cluster)


def read_of(routes: Routes, key: bytes, range_end: bytes) -> Forward:
    """A read of one cluster."""
    owners = routes.owners(key, range_end)
    cached, coalesced = all(owner.cache for owner in owners), all(owner.coalesce for owner in owners)
    return Forward(owners[0].cluster, cache=cached, coalesce=coalesced)


def only_key(request: bytes) -> bytes | None:
    """The key of a RangeRequest that is nothing but a key below 128 bytes (field 1), `serializable` (field 7) apart: by far the most
    frequent request, and its encoding is short enough to be read without decoding. None for all others."""
    if request[:1] != b"\x0a" or len(request) < 3:
        return None
    end = 2 + request[1]
    if request[1] < 0x80 and (len(request) == end or (len(request) == end + 2 and request[end:] == b"\x38\x01")):
        return request[2:end]
    return None


def plan_range(routes: Routes, request: pb.RangeRequest) -> Decision:
    """Over several clusters only at revision 0: a revision belongs to one cluster."""
    if request.sort_target not in SORT_TARGETS and request.key:
        return Refuse(INVALID_SORT)
    spans = routes.spans(request.key, request.range_end)
    if len(spans) == 1:
        return read_of(routes, request.key, request.range_end)
    if not request.key:
        return forward(spans[0].cluster)
    if request.revision > 0:
        return Refuse(_several("range at a revision", [(request.key, request.range_end)], routes, "read each cluster's keys apart"))
    return Scatter(_by_cluster(spans))


def _by_cluster(spans: Iterable[Span]) -> tuple[tuple[Span, ...], ...]:
    owned: dict[str, list[Span]] = {}
    for span in spans:
        owned.setdefault(span.cluster, []).append(span)
    return tuple(map(tuple, owned.values()))


def plan_range_stream(routes: Routes, request: pb.RangeRequest) -> Decision:
    """One cluster, or the code that makes kube-apiserver use `range` instead."""
    spans = routes.spans(request.key, request.range_end)
    if len(spans) == 1 or not request.key:
        return forward(spans[0].cluster)
    text = _several("range_stream", [(request.key, request.range_end)], routes, "use range").text
    return Refuse(Status(Code.UNIMPLEMENTED, text))


def plan_delete(routes: Routes, request: pb.DeleteRangeRequest) -> Decision:
    """One cluster or refused: a deletion over several would not be atomic."""
    spans = routes.spans(request.key, request.range_end)
    if len(spans) == 1 or not request.key:
        return forward(spans[0].cluster)
    return Refuse(_several("delete_range", [(request.key, request.range_end)], routes, "delete each cluster's keys apart"))


def plan_put(routes: Routes, request: pb.PutRequest) -> Forward:
    """To the key's cluster."""
    cluster = routes.cluster_of(request.key)
    return Forward(cluster, (request.lease,)) if request.lease else forward(cluster)


def plan_txn(routes: Routes, request: pb.TxnRequest, home: str) -> Decision:
    """One cluster or refused; without any key the home cluster. etcd's own errors come before the refusal."""
    touched = Footprint()
    touched.add(request)
    if not touched.sortable:
        return Refuse(txn_error(request) or INVALID_SORT)
    owners = {routes.cluster_of(key) for key in touched.keys}
    owners.update(span.cluster for key, end in touched.ranges for span in routes.spans(key, end))
    if len(owners) > 1:
        ranges = chain(((key, b"") for key in touched.keys), touched.ranges)
        return Refuse(txn_error(request) or _several("txn", ranges, routes, "keep a transaction's keys in one cluster"))
    return Forward(owners.pop() if owners else home, tuple(touched.leases))


class Footprint:
    """All that a transaction compares, reads or writes, what is nested in it included: keys, ranges, leases (each once, in order)."""

    __slots__ = ("keys", "leases", "ranges", "sortable")

    def __init__(self) -> None:
        self.keys: dict[bytes, None] = {}
        self.ranges: list[Range] = []
        self.leases: dict[int, None] = {}
        self.sortable = True
        """Every range has a sort target that etcd knows."""

    def add(self, request: pb.TxnRequest) -> None:
        """Take in a transaction."""
        for compare in request.compare:
            self._range(compare.key, compare.range_end)
        for op in request.success:
            self._op(op)
        for op in request.failure:
            self._op(op)

    def _range(self, key: bytes, end: bytes) -> None:
        if end:
            self.ranges.append((key, end))
        else:
            self.keys[key] = None

    def _op(self, op: pb.RequestOp) -> None:
        kind = op.WhichOneof("request")
        if kind == "request_put":
            put = op.request_put
            self.keys[put.key] = None
            if put.lease:
                self.leases[put.lease] = None
        elif kind == "request_range":
            read = op.request_range
            self._range(read.key, read.range_end)
            self.sortable = self.sortable and read.sort_target in SORT_TARGETS
        elif kind == "request_delete_range":
            self._range(op.request_delete_range.key, op.request_delete_range.range_end)
        elif kind == "request_txn":
            self.add(op.request_txn)


def _several(what: str, ranges: Iterable[Range], routes: Routes, advice: str) -> Status:
    """Names the first range of each cluster."""
    named: dict[str, Span] = {}
    for key, end in ranges:
        for span in routes.spans(key, end):
            named.setdefault(span.cluster, span)
    parts = [f"{_quoted(span)} is in {cluster}" for cluster, span in list(named.items())[:_NAMED]]
    more = f" and {len(named) - _NAMED} clusters more" if len(named) > _NAMED else ""
    return Status(Code.INVALID_ARGUMENT, f"shardgate: {what} over several clusters: {', '.join(parts)}{more}; {advice}")


def _quoted(span: Span) -> str:
    return quoted(span.key) + (f" to {quoted(span.end)}" if span.end else "")


def quoted(key: bytes) -> str:
    """A key for a message: printable, at most 64 bytes of it."""
    return repr(key if len(key) <= 64 else key[:61] + b"...")[1:]
