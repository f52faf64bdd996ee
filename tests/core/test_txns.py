"""etcd's errors about transactions, case by case; tests/services/test_kv.py compares random ones with etcd's own answers."""

from __future__ import annotations

import pytest

from gateway.core.errors import DUPLICATE_KEY, EMPTY_KEY, INVALID_SORT, KEY_NOT_FOUND, LEASE_PROVIDED, TOO_MANY_OPS, VALUE_PROVIDED, Status
from gateway.core.txns import txn_error
from gateway.etcdpb import rpc_pb2 as pb


def put(key: bytes, **fields: object) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, **fields))


def delete(key: bytes, range_end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=range_end))


def read(key: bytes, **fields: object) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, **fields))


def txn(*success: pb.RequestOp, failure: tuple[pb.RequestOp, ...] = ()) -> pb.RequestOp:
    return pb.RequestOp(request_txn=pb.TxnRequest(success=success, failure=failure))


def nested(depth: int) -> pb.RequestOp:
    op = put(b"a")
    for _ in range(depth):
        op = txn(op)
    return op


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        ([], None),
        ([put(b"a"), put(b"b"), delete(b"c"), read(b"a")], None),
        # shape
        ([pb.RequestOp()], KEY_NOT_FOUND),
        ([put(b"")], EMPTY_KEY),
        ([delete(b"", b"z")], EMPTY_KEY),
        ([read(b"", range_end=b"z")], EMPTY_KEY),
        ([txn(read(b""))], EMPTY_KEY),
        ([read(b"a", sort_target=5)], INVALID_SORT),
        ([read(b"a", sort_order=5)], None),
        ([put(b"a", ignore_value=True, value=b"v")], VALUE_PROVIDED),
        ([put(b"a", ignore_value=True)], None),
        ([put(b"a", ignore_lease=True, lease=1)], LEASE_PROVIDED),
        ([put(b"a", ignore_lease=True)], None),
        # numbers: what is nested has what its parents leave
        ([put(b"%d" % at) for at in range(128)], None),
        ([put(b"%d" % at) for at in range(129)], TOO_MANY_OPS),
        ([nested(20)], None),
        ([nested(20), *(put(b"%d" % at) for at in range(107))], None),
        ([nested(20), *(put(b"%d" % at) for at in range(108))], TOO_MANY_OPS),
        # keys that are written twice
        ([put(b"a"), put(b"a")], DUPLICATE_KEY),
        ([put(b"b"), delete(b"a", b"c")], DUPLICATE_KEY),
        ([put(b"c"), delete(b"a", b"c")], None),
        ([put(b"a"), delete(b"a")], DUPLICATE_KEY),
        ([put(b"a\0"), delete(b"a")], None),
        ([put(b"b"), delete(b"c", b"a")], None),
        ([put(b"b"), delete(b"a", b"\0")], None),
        ([delete(b"a", b"c"), delete(b"b")], None),
        ([put(b"a"), txn(put(b"a"))], DUPLICATE_KEY),
        ([put(b"a"), txn(failure=(put(b"a"),))], DUPLICATE_KEY),
        ([put(b"a"), txn(delete(b"a"))], DUPLICATE_KEY),
        ([delete(b"a"), txn(put(b"a"))], DUPLICATE_KEY),
        ([delete(b"a"), txn(failure=(put(b"a"),))], DUPLICATE_KEY),
        ([txn(put(b"a"), failure=(put(b"a"),))], None),
        ([txn(put(b"a"), failure=(delete(b"a"),))], None),
        ([txn(put(b"a")), txn(put(b"a"))], DUPLICATE_KEY),
        ([txn(put(b"a")), txn(failure=(put(b"a"),))], DUPLICATE_KEY),
        ([txn(put(b"a")), txn(put(b"b"), failure=(put(b"a"),))], DUPLICATE_KEY),
        ([txn(delete(b"a")), txn(put(b"a"))], DUPLICATE_KEY),
        ([txn(put(b"a")), txn(delete(b"a"))], None),
        ([txn(put(b"a"), put(b"a"))], DUPLICATE_KEY),
    ],
    ids=str,
)
def test_operations(ops: list[pb.RequestOp], wanted: Status | None) -> None:
    assert txn_error(pb.TxnRequest(success=ops)) == wanted
    assert txn_error(pb.TxnRequest(failure=ops)) == wanted


def test_both_branches_may_write_a_key() -> None:
    assert txn_error(pb.TxnRequest(success=[put(b"a")], failure=[put(b"a"), delete(b"b")])) is None


def test_compares() -> None:
    assert txn_error(pb.TxnRequest(compare=[pb.Compare(key=b"a")] * 128)) is None
    assert txn_error(pb.TxnRequest(compare=[pb.Compare(key=b"a")] * 129)) == TOO_MANY_OPS
    assert txn_error(pb.TxnRequest(compare=[pb.Compare()], success=[pb.RequestOp()])) == EMPTY_KEY
