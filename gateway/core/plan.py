"""Where a KV request goes: to one cluster, to several, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.errors import DUPLICATE_KEY, EMPTY_KEY, KEY_NOT_FOUND, LEASE_PROVIDED, TOO_MANY_OPS, VALUE_PROVIDED, Code, Status
from gateway.core.keyrange import bounds
from gateway.core.routes import Routes, Span

if TYPE_CHECKING:
    from gateway.etcdpb import rpc_pb2 as pb

MAX_TXN_OPS = 128
"""etcd's default of --max-txn-ops."""
MAX_NESTING = 64
"""Depth of transactions in transactions that is looked into; protobuf itself parses about a hundred levels."""
_NAMED = 4
_SORTS = range(3), range(5)

Range = tuple[bytes, bytes]
"""(key, range_end) as etcd writes them."""


@dataclass(frozen=True, slots=True)
class Forward:
    """To one cluster, as it came."""

    cluster: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """A part to each cluster, the replies joined."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered by the gateway itself."""

    status: Status


Decision = Forward | Scatter | Refuse


def plan_range(routes: Routes, request: pb.RangeRequest) -> Decision:
    """Over several clusters only at revision 0: a revision belongs to one cluster. What etcd refuses anyway goes to one that says so."""
    spans = routes.spans(request.key, request.range_end)
    if len(spans) == 1 or not request.key or request.sort_order not in _SORTS[0] or request.sort_target not in _SORTS[1]:
        return Forward(spans[0].cluster)
    if request.revision > 0:
        return Refuse(_several("range at a revision", [(request.key, request.range_end)], routes, "read each cluster's keys apart"))
    return Scatter(spans)


def plan_delete(routes: Routes, request: pb.DeleteRangeRequest) -> Decision:
    """One cluster or refused: a deletion over several would not be atomic."""
    spans = routes.spans(request.key, request.range_end)
    if len(spans) == 1 or not request.key:
        return Forward(spans[0].cluster)
    return Refuse(_several("delete_range", [(request.key, request.range_end)], routes, "delete each cluster's keys apart"))


def plan_txn(routes: Routes, request: pb.TxnRequest, home: str) -> Decision:
    """One cluster or refused; without any key the home cluster. etcd's own errors come before the refusal."""
    ranges = list(txn_ranges(request))
    clusters = {span.cluster for key, end in ranges for span in routes.spans(key, end)}
    if len(clusters) <= 1:
        return Forward(clusters.pop() if clusters else home)
    wrong = txn_error(request)
    return Refuse(wrong or _several("txn", ranges, routes, "keep a transaction's keys in one cluster"))


def _several(what: str, ranges: Iterable[Range], routes: Routes, advice: str) -> Status:
    """Names the first range of each cluster."""
    named: dict[str, str] = {}
    for key, end in ranges:
        for span in routes.spans(key, end):
            named.setdefault(span.cluster, quoted(span.key) + (f" to {quoted(span.end)}" if span.end else ""))
    parts = [f"{text} is in {cluster}" for cluster, text in list(named.items())[:_NAMED]]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return Status(Code.INVALID_ARGUMENT, f"shardgate: {what} over several clusters: {', '.join(parts)}{more}; {advice}")


def quoted(key: bytes) -> str:
    """A key for a message: printable, at most 64 bytes of it."""
    return repr(key if len(key) <= 64 else key[:61] + b"...")[1:]


def txn_ranges(request: pb.TxnRequest, depth: int = 0) -> Iterator[Range]:
    """Every key and range that a transaction compares, reads or writes, nested ones included."""
    for compare in request.compare:
        yield compare.key, compare.range_end
    for op in (*request.success, *request.failure):
        kind = op.WhichOneof("request")
        if kind == "request_put":
            yield op.request_put.key, b""
        elif kind == "request_range":
            yield op.request_range.key, op.request_range.range_end
        elif kind == "request_delete_range":
            yield op.request_delete_range.key, op.request_delete_range.range_end
        elif kind == "request_txn" and depth < MAX_NESTING:
            yield from txn_ranges(op.request_txn, depth + 1)


def txn_leases(request: pb.TxnRequest, depth: int = 0) -> Iterator[int]:
    """Every lease that a transaction's puts name."""
    for op in (*request.success, *request.failure):
        kind = op.WhichOneof("request")
        if kind == "request_put" and op.request_put.lease:
            yield op.request_put.lease
        elif kind == "request_txn" and depth < MAX_NESTING:
            yield from txn_leases(op.request_txn, depth + 1)


def txn_error(request: pb.TxnRequest, allowed: int = MAX_TXN_OPS) -> Status | None:
    """What etcd says of a bad transaction before it runs (server/etcdserver/api/v3rpc/key.go); None for a good one."""
    return _shape_error(request, allowed) or (DUPLICATE_KEY if _overlaps(request.success) or _overlaps(request.failure) else None)


def _shape_error(request: pb.TxnRequest, allowed: int) -> Status | None:
    count = max(len(request.compare), len(request.success), len(request.failure))
    if count > allowed:
        return TOO_MANY_OPS
    if not all(compare.key for compare in request.compare):
        return EMPTY_KEY
    errors = (_op_error(op, allowed - count) for op in (*request.success, *request.failure))
    return next((error for error in errors if error is not None), None)


def _op_error(op: pb.RequestOp, allowed: int) -> Status | None:
    match op.WhichOneof("request"):
        case "request_range":
            return None if op.request_range.key else EMPTY_KEY
        case "request_delete_range":
            return None if op.request_delete_range.key else EMPTY_KEY
        case "request_put":
            return _put_error(op.request_put)
        case "request_txn":
            return _shape_error(op.request_txn, allowed)
    return KEY_NOT_FOUND


def _put_error(put: pb.PutRequest) -> Status | None:
    if not put.key:
        return EMPTY_KEY
    if put.ignore_value and put.value:
        return VALUE_PROVIDED
    return LEASE_PROVIDED if put.ignore_lease and put.lease else None


def _overlaps(ops: Iterable[pb.RequestOp]) -> bool:
    """Two puts of one key, or a put into a deleted range, that could both happen."""
    try:
        _writes(list(ops))
    except _Overlap:
        return True
    return False


class _Overlap(Exception):
    """A key is written twice."""


def _writes(ops: list[pb.RequestOp]) -> tuple[set[bytes], list[tuple[bytes, bytes | None]]]:
    """Keys put and ranges deleted by these operations and what is nested in them. Raises _Overlap."""
    deletes = [bounds(op.request_delete_range.key, op.request_delete_range.range_end) for op in ops if _is(op, "request_delete_range")]
    puts: set[bytes] = set()
    for op in (op for op in ops if _is(op, "request_txn")):
        then_puts, then_deletes = _writes(list(op.request_txn.success))
        else_puts, else_deletes = _writes(list(op.request_txn.failure))
        _add(puts, then_puts, deletes)
        _add(puts - then_puts, else_puts, deletes)  # of `success` and `failure` only one happens
        puts |= then_puts | else_puts
        deletes += then_deletes + else_deletes
    for op in (op for op in ops if _is(op, "request_put")):
        _add(puts, {op.request_put.key}, deletes)
        puts.add(op.request_put.key)
    return puts, deletes


def _add(puts: set[bytes], keys: set[bytes], deletes: list[tuple[bytes, bytes | None]]) -> None:
    if puts & keys or any(low <= key and (high is None or key < high) for key in keys for low, high in deletes):
        raise _Overlap


def _is(op: pb.RequestOp, kind: str) -> bool:
    return bool(op.WhichOneof("request") == kind)
