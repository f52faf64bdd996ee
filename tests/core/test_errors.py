"""The errors' texts and codes against what a real etcd answers."""

from typing import Any

import grpc
import pytest

from gateway.core import errors
from gateway.core.errors import Code, RpcError, Status
from gateway.etcdpb import election_pb2
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from tests.etcdpb.live import Etcd, etcd

__all__ = ["etcd"]

PUT = pb.RequestOp(request_put=pb.PutRequest(key=b"k"))
WRONG = [
    (errors.EMPTY_KEY, "kv", "range", pb.RangeRequest()),
    (errors.EMPTY_KEY, "kv", "put", pb.PutRequest()),
    (errors.KEY_NOT_FOUND, "kv", "put", pb.PutRequest(key=b"none", ignore_value=True)),
    (errors.KEY_NOT_FOUND, "kv", "txn", pb.TxnRequest(success=[pb.RequestOp()])),
    (errors.VALUE_PROVIDED, "kv", "put", pb.PutRequest(key=b"k", value=b"v", ignore_value=True)),
    (errors.LEASE_PROVIDED, "kv", "put", pb.PutRequest(key=b"k", lease=1, ignore_lease=True)),
    (errors.TOO_MANY_OPS, "kv", "txn", pb.TxnRequest(success=[PUT] * 129)),
    (errors.DUPLICATE_KEY, "kv", "txn", pb.TxnRequest(success=[PUT, PUT])),
    (errors.REQUEST_TOO_LARGE, "kv", "put", pb.PutRequest(key=b"k", value=bytes(1_600_000))),
    (errors.COMPACTED, "kv", "range", pb.RangeRequest(key=b"k", revision=1)),
    (errors.FUTURE_REVISION, "kv", "range", pb.RangeRequest(key=b"k", revision=1_000_000)),
    (errors.LEASE_NOT_FOUND, "kv", "put", pb.PutRequest(key=b"k", lease=404)),
    (errors.LEASE_NOT_FOUND, "lease", "lease_revoke", pb.LeaseRevokeRequest(ID=404)),
    (errors.LEASE_EXISTS, "lease", "lease_grant", pb.LeaseGrantRequest(ID=7, TTL=60)),
    (errors.LEASE_TTL_TOO_LARGE, "lease", "lease_grant", pb.LeaseGrantRequest(TTL=10_000_000_000)),
    (errors.MEMBER_NOT_FOUND, "cluster", "member_remove", pb.MemberRemoveRequest(ID=404)),
    (errors.MEMBER_BAD_URLS, "cluster", "member_add", pb.MemberAddRequest(peerURLs=["what"])),
    (errors.BAD_LEADER_TRANSFEREE, "maintenance", "move_leader", pb.MoveLeaderRequest(targetID=404)),
    (errors.USER_EMPTY, "auth", "user_add", pb.AuthUserAddRequest()),
    (errors.USER_NOT_FOUND, "auth", "user_get", pb.AuthUserGetRequest(name="nobody")),
    (errors.ROLE_NOT_FOUND, "auth", "role_get", pb.AuthRoleGetRequest(role="nothing")),
    (errors.AUTH_NOT_ENABLED, "auth", "authenticate", pb.AuthenticateRequest(name="root", password="p")),
    (errors.ELECTION_NO_LEADER, "election", "leader", election_pb2.LeaderRequest(name=b"none")),
    (errors.MISSING_LEADER_KEY, "election", "proclaim", election_pb2.ProclaimRequest()),
]


def ask(etcd: Etcd, service: str, name: str, request: Any) -> tuple[int, str]:
    rpc = method(service, name)
    with grpc.insecure_channel(etcd.address) as channel:
        try:
            channel.unary_unary(rpc.path.decode())(request.SerializeToString(), timeout=10)
        except grpc.RpcError as error:
            return error.code().value[0], error.details()  # type: ignore[attr-defined]
    return 0, ""


@pytest.fixture(scope="module")
def prepared(etcd: Etcd) -> Etcd:
    """Revision 1 is compacted, lease 7 exists."""
    for request in (pb.PutRequest(key=b"k"), pb.PutRequest(key=b"k")):
        assert ask(etcd, "kv", "put", request) == (0, "")
    assert ask(etcd, "kv", "compact", pb.CompactionRequest(revision=2)) == (0, "")
    assert ask(etcd, "lease", "lease_grant", pb.LeaseGrantRequest(ID=7, TTL=60)) == (0, "")
    return etcd


@pytest.mark.parametrize(("status", "service", "name", "request_"), WRONG, ids=lambda value: str(value)[:40])
def test_etcd_says_the_same(prepared: Etcd, status: Status, service: str, name: str, request_: Any) -> None:
    assert ask(prepared, service, name, request_) == (status.code, status.text)


def test_reasons_of_a_canceled_watch(prepared: Etcd) -> None:
    wrong = [pb.WatchCreateRequest(key=b"b", range_end=b"a"), *[pb.WatchCreateRequest(key=b"k", watch_id=5)] * 2]
    requests = [pb.WatchRequest(create_request=create) for create in wrong]
    with grpc.insecure_channel(prepared.address) as channel:
        watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch", pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
        )
        replies = watch(iter(requests), timeout=10)
        reasons = [next(replies).cancel_reason for _ in requests]
        replies.cancel()
    assert reasons == [errors.EMPTY_WATCH_RANGE, "", errors.DUPLICATE_WATCH_ID]


def test_a_status_makes_a_new_error_each_time() -> None:
    first, second = errors.EMPTY_KEY.error(), errors.EMPTY_KEY.error()
    assert first is not second
    assert (first.code, first.text) == (Code.INVALID_ARGUMENT, "etcdserver: key is not provided")
    with pytest.raises(RpcError, match=r"^INVALID_ARGUMENT: etcdserver: key is not provided$"):
        raise first


def test_an_unknown_code_can_be_printed() -> None:
    assert str(RpcError(99, "what")) == "99: what"
