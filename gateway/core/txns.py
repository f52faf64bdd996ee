"""What etcd says of a bad transaction before it runs.

Needed where a transaction is not sent to any etcd. The order of the checks is that of etcd (server/etcdserver/api/v3rpc/key.go),
so that the first error is the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from gateway.core.errors import DUPLICATE_KEY, EMPTY_KEY, INVALID_SORT, KEY_NOT_FOUND, LEASE_PROVIDED, TOO_MANY_OPS, VALUE_PROVIDED, Status
from gateway.core.keyrange import after
from gateway.etcdpb import rpc_pb2 as pb

MAX_TXN_OPS = 128
"""etcd's default of --max-txn-ops; what is nested has what its parents leave."""

SORT_TARGETS = range(5)
"""What etcd can sort by. Up to 3.5 it does not check and is killed by any other (by one in a transaction that writes, again at each
restart), so the gateway refuses that itself, with the error that etcd has had since 3.6."""

Interval = tuple[bytes, bytes]
"""[low, high). etcd compares range ends here as they are written: b"\\0" (to the last key) is below every key, the interval is empty."""


def txn_error(request: pb.TxnRequest, allowed: int = MAX_TXN_OPS) -> Status | None:
    """etcd's error, None for a good transaction."""
    wrong = _shape_error(request, allowed)
    if wrong is not None:
        return wrong
    try:
        _writes(request.success)
        _writes(request.failure)
    except _Overlap:
        return DUPLICATE_KEY
    return None


def _shape_error(request: pb.TxnRequest, allowed: int) -> Status | None:
    count = max(len(request.compare), len(request.success), len(request.failure))
    if count > allowed:
        return TOO_MANY_OPS
    if not all(compare.key for compare in request.compare):
        return EMPTY_KEY
    errors = (_op_error(op, allowed - count) for op in chain(request.success, request.failure))
    return next((error for error in errors if error is not None), None)


def _op_error(op: pb.RequestOp, allowed: int) -> Status | None:
    match op.WhichOneof("request"):
        case "request_range":
            return _range_error(op.request_range)
        case "request_put":
            return _put_error(op.request_put)
        case "request_delete_range":
            return None if op.request_delete_range.key else EMPTY_KEY
        case "request_txn":
            return _shape_error(op.request_txn, allowed)
    return KEY_NOT_FOUND


def _range_error(request: pb.RangeRequest) -> Status | None:
    if not request.key:
        return EMPTY_KEY
    return None if request.sort_target in SORT_TARGETS else INVALID_SORT


def _put_error(put: pb.PutRequest) -> Status | None:
    if not put.key:
        return EMPTY_KEY
    if put.ignore_value and put.value:
        return VALUE_PROVIDED
    return LEASE_PROVIDED if put.ignore_lease and put.lease else None


class _Overlap(Exception):
    """A key is put twice, or put and deleted."""


def _writes(ops: Sequence[pb.RequestOp]) -> tuple[set[bytes], list[Interval]]:
    """Keys put and ranges deleted by these operations and what is nested in them. Raises _Overlap. As in etcd, a nested put is held against
    the deletions of its own level and of what is nested before it."""
    deletes = [_interval(op.request_delete_range) for op in ops if op.WhichOneof("request") == "request_delete_range"]
    puts: set[bytes] = set()
    for op in ops:
        if op.WhichOneof("request") == "request_txn":
            then_puts, then_deletes = _writes(op.request_txn.success)
            else_puts, else_deletes = _writes(op.request_txn.failure)
            _check(then_puts, puts, deletes)
            _check(else_puts, puts, deletes)  # of `success` and `failure` only one happens
            puts |= then_puts | else_puts
            deletes += then_deletes + else_deletes
    for op in ops:
        if op.WhichOneof("request") == "request_put":
            _check({op.request_put.key}, puts, deletes)
            puts.add(op.request_put.key)
    return puts, deletes


def _interval(request: pb.DeleteRangeRequest) -> Interval:
    return request.key, request.range_end or after(request.key)


def _check(keys: set[bytes], puts: set[bytes], deletes: Iterable[Interval]) -> None:
    if not keys.isdisjoint(puts) or any(low <= key < high for low, high in deletes for key in keys):
        raise _Overlap
