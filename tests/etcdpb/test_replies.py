"""Replies of real etcd, every RPC that it knows, have no field that our messages lack, and are the same bytes when written again."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gateway.etcdpb import auth_pb2, election_pb2, lock_pb2, rpc_pb2
from gateway.etcdpb.methods import METHODS, Method, method
from tests.etcdpb.live import Etcd, etcd

__all__ = ["etcd"]

RUNS_ONLY_IN_LARGER_CLUSTERS = {"Cluster/MemberPromote"}
SINCE = {"Maintenance/Downgrade": (3, 5), "Auth/AuthStatus": (3, 5), "KV/RangeStream": (3, 7)}


def unknown_fields(message: Message) -> Iterator[str]:
    """Where a message or one inside it has fields that its type does not."""
    for field in UnknownFieldSet(message):
        yield f"{message.DESCRIPTOR.full_name} {field.field_number}"
    for _, value in message.ListFields():
        for part in value if hasattr(value, "add") else [value]:
            if isinstance(part, Message):
                yield from unknown_fields(part)


class Client:
    """Calls RPCs by name, and remembers which ones were answered."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.token = ""
        self.answered: set[str] = set()

    def __call__(self, service: str, name: str, *requests: Message, replies: int = 1) -> Any:
        """The last of the first `replies` replies."""
        rpc = method(service, name)
        metadata = [("token", self.token)] if self.token else []
        call = self._stub(rpc)(iter(requests) if rpc.client_streaming else requests[0], metadata=metadata, timeout=10)
        answers = [next(call) for _ in range(replies)] if rpc.server_streaming else [call]
        if rpc.server_streaming:
            call.cancel()
        for data in answers:
            self._check(rpc, data)
        self.answered.add(rpc.label)
        return rpc.reply.FromString(answers[-1])

    def _stub(self, rpc: Method) -> Any:
        streams = "stream" if rpc.client_streaming else "unary", "stream" if rpc.server_streaming else "unary"
        return getattr(self.channel, "_".join(streams))(rpc.path.decode(), lambda m: m.SerializeToString(), None)

    def _check(self, rpc: Method, data: bytes) -> None:
        reply = rpc.reply.FromString(data)
        assert list(unknown_fields(reply)) == []
        assert reply.SerializeToString(deterministic=True) == data


def kv(call: Client) -> None:
    pb = rpc_pb2
    lease = call("lease", "lease_grant", pb.LeaseGrantRequest(TTL=60)).ID
    call("kv", "put", pb.PutRequest(key=b"k", value=b"v", lease=lease))
    assert call("kv", "put", pb.PutRequest(key=b"k", value=b"w", prev_kv=True, ignore_lease=True)).prev_kv.lease == lease
    read = pb.RangeRequest(key=b"k")
    call("kv", "put", pb.PutRequest(key=b"l", value=b"x"))
    found = call("kv", "range", pb.RangeRequest(key=b"\0", range_end=b"\0", limit=1, sort_order="DESCEND", sort_target="MOD"))
    assert found.more and found.count == 2
    compare = pb.Compare(key=b"k", target="VERSION", result="GREATER", version=0)
    nested = pb.TxnRequest(success=[pb.RequestOp(request_range=read), pb.RequestOp(request_put=pb.PutRequest(key=b"m", prev_kv=True))])
    delete = pb.DeleteRangeRequest(key=b"l", prev_kv=True)
    ops = [pb.RequestOp(request_txn=nested), pb.RequestOp(request_delete_range=delete)]
    assert call("kv", "txn", pb.TxnRequest(compare=[compare], success=ops)).responses[1].response_delete_range.prev_kvs
    watched = call("watch", "watch", *[pb.WatchRequest(create_request=pb.WatchCreateRequest(
        key=b"\0", range_end=b"\0", start_revision=2, prev_kv=True, fragment=True, progress_notify=True))], replies=2)
    assert len(watched.events) == 5
    assert call("lease", "lease_time_to_live", pb.LeaseTimeToLiveRequest(ID=lease, keys=True)).keys == [b"k"]
    assert call("lease", "lease_keep_alive", pb.LeaseKeepAliveRequest(ID=lease)).TTL == 60
    assert call("lease", "lease_leases", pb.LeaseLeasesRequest()).leases[0].ID == lease
    assert call("kv", "delete_range", pb.DeleteRangeRequest(key=b"m", prev_kv=True)).deleted == 1
    call("kv", "compact", pb.CompactionRequest(revision=3, physical=True))
    compacted = call("watch", "watch", pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"k", start_revision=1)), replies=2)
    assert compacted.canceled and compacted.compact_revision == 3
    call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=lease))


def range_stream(call: Client) -> None:
    call("kv", "put", rpc_pb2.PutRequest(key=b"k", value=b"v"))
    assert call("kv", "range_stream", rpc_pb2.RangeRequest(key=b"k")).range_response.kvs[0].value == b"v"


def cluster(call: Client) -> None:
    pb = rpc_pb2
    me = call("cluster", "member_list", pb.MemberListRequest(linearizable=True)).members[0]
    added = call("cluster", "member_add", pb.MemberAddRequest(peerURLs=["http://127.0.0.1:1"], isLearner=True)).member
    assert added.isLearner
    call("cluster", "member_update", pb.MemberUpdateRequest(ID=me.ID, peerURLs=me.peerURLs))
    call("cluster", "member_remove", pb.MemberRemoveRequest(ID=added.ID))
    call("maintenance", "move_leader", pb.MoveLeaderRequest(targetID=me.ID))


def maintenance(call: Client, version: str) -> None:
    pb = rpc_pb2
    me = call("maintenance", "status", pb.StatusRequest()).leader
    call("maintenance", "alarm", pb.AlarmRequest(action="ACTIVATE", memberID=me, alarm="NOSPACE"))
    assert call("maintenance", "status", pb.StatusRequest()).errors
    assert call("maintenance", "alarm", pb.AlarmRequest()).alarms[0].alarm == pb.NOSPACE
    call("maintenance", "alarm", pb.AlarmRequest(action="DEACTIVATE", memberID=me, alarm="NOSPACE"))
    call("maintenance", "defragment", pb.DefragmentRequest())
    call("maintenance", "hash", pb.HashRequest())
    assert call("maintenance", "hash_kv", pb.HashKVRequest()).hash
    call("maintenance", "snapshot", pb.SnapshotRequest())
    if known("Maintenance/Downgrade", version):
        major, minor, _ = version.split(".")
        call("maintenance", "downgrade", pb.DowngradeRequest(action="VALIDATE", version=f"{major}.{int(minor) - 1}.0"))


def lock_and_election(call: Client) -> None:
    locked = call("lock", "lock", lock_pb2.LockRequest(name=b"lock"))
    call("lock", "unlock", lock_pb2.UnlockRequest(key=locked.key))
    leader = call("election", "campaign", election_pb2.CampaignRequest(name=b"e", value=b"v")).leader
    call("election", "proclaim", election_pb2.ProclaimRequest(leader=leader, value=b"w"))
    assert call("election", "leader", election_pb2.LeaderRequest(name=b"e")).kv.value == b"w"
    call("election", "observe", election_pb2.LeaderRequest(name=b"e"))
    call("election", "resign", election_pb2.ResignRequest(leader=leader))


def auth(call: Client, version: str) -> None:
    pb = rpc_pb2
    call("auth", "user_add", pb.AuthUserAddRequest(name="root", password="p"))
    call("auth", "user_add", pb.AuthUserAddRequest(name="u", options=auth_pb2.UserAddOptions(no_password=True)))
    call("auth", "user_change_password", pb.AuthUserChangePasswordRequest(name="root", password="q"))
    call("auth", "role_add", pb.AuthRoleAddRequest(name="root"))
    call("auth", "role_add", pb.AuthRoleAddRequest(name="r"))
    permission = auth_pb2.Permission(permType="READWRITE", key=b"a", range_end=b"b")
    call("auth", "role_grant_permission", pb.AuthRoleGrantPermissionRequest(name="r", perm=permission))
    assert call("auth", "role_get", pb.AuthRoleGetRequest(role="r")).perm == [permission]
    call("auth", "role_revoke_permission", pb.AuthRoleRevokePermissionRequest(role="r", key=b"a", range_end=b"b"))
    call("auth", "user_grant_role", pb.AuthUserGrantRoleRequest(user="root", role="root"))
    call("auth", "user_grant_role", pb.AuthUserGrantRoleRequest(user="u", role="r"))
    assert call("auth", "user_get", pb.AuthUserGetRequest(name="u")).roles == ["r"]
    call("auth", "user_revoke_role", pb.AuthUserRevokeRoleRequest(name="u", role="r"))
    call("auth", "auth_enable", pb.AuthEnableRequest())
    call.token = call("auth", "authenticate", pb.AuthenticateRequest(name="root", password="q")).token
    assert call("auth", "user_list", pb.AuthUserListRequest()).users == ["root", "u"]
    assert call("auth", "role_list", pb.AuthRoleListRequest()).roles == ["r", "root"]
    call("auth", "user_delete", pb.AuthUserDeleteRequest(name="u"))
    call("auth", "role_delete", pb.AuthRoleDeleteRequest(role="r"))
    if known("Auth/AuthStatus", version):
        assert call("auth", "auth_status", pb.AuthStatusRequest()).enabled
    call("auth", "auth_disable", pb.AuthDisableRequest())


def known(label: str, version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) >= SINCE.get(label, (3, 4))


def test_every_reply_is_known(etcd: Etcd) -> None:
    call = Client(etcd.address)
    kv(call)
    cluster(call)
    maintenance(call, etcd.version)
    lock_and_election(call)
    if known("KV/RangeStream", etcd.version):
        range_stream(call)
    auth(call, etcd.version)
    labels = {rpc.label for rpc in METHODS.values() if known(rpc.label, etcd.version)}
    assert call.answered == labels - RUNS_ONLY_IN_LARGER_CLUSTERS


@pytest.mark.parametrize("label", SINCE)
def test_an_unknown_rpc_is_unimplemented(etcd: Etcd, label: str) -> None:
    """What SINCE says, from etcd itself."""
    rpc = next(rpc for rpc in METHODS.values() if rpc.label == label)
    if known(label, etcd.version):
        pytest.skip("this version knows it")
    with pytest.raises(grpc.RpcError) as error:
        Client(etcd.address)(rpc.service, rpc.name, rpc.request())
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
