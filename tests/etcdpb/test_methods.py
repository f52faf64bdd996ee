"""The table of RPCs."""

import subprocess
import sys

import pytest

from gateway.etcdpb import lock_pb2, rpc_pb2
from gateway.etcdpb.methods import METHODS, method, snake


def test_a_method_by_path_and_by_name() -> None:
    found = METHODS[b"/etcdserverpb.KV/DeleteRange"]
    assert found is method("kv", "delete_range")
    assert found.label == "KV/DeleteRange"
    assert (found.request, found.reply) == (rpc_pb2.DeleteRangeRequest, rpc_pb2.DeleteRangeResponse)
    assert METHODS[b"/v3lockpb.Lock/Lock"].request is lock_pb2.LockRequest


def test_names_are_unique_and_unknown_ones_an_error() -> None:
    assert len({(rpc.service, rpc.name) for rpc in METHODS.values()}) == len(METHODS) == 49
    with pytest.raises(KeyError):
        method("kv", "Range")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Range", "range"), ("LeaseTimeToLive", "lease_time_to_live"), ("HashKV", "hash_kv"), ("MoveLeader", "move_leader")],
)
def test_snake_case(name: str, expected: str) -> None:
    assert snake(name) == expected


def test_which_methods_stream() -> None:
    both = {rpc.label for rpc in METHODS.values() if rpc.client_streaming}
    assert both == {"Watch/Watch", "Lease/LeaseKeepAlive"}
    replies = {rpc.label for rpc in METHODS.values() if rpc.server_streaming}
    assert replies == both | {"Maintenance/Snapshot", "Election/Observe", "KV/RangeStream"}


FOREIGN = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb", syntax="proto3")
file.message_type.add(name="RangeRequest")
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
from gateway.etcdpb.methods import method
assert method("kv", "range").request(key=b"k").SerializeToString() == b"\\n\\x01k"
"""


def test_another_client_in_the_same_process() -> None:
    """It registers etcd's messages in protobuf's default pool."""
    env = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-W", "error", "-c", FOREIGN], env=env, check=True)
