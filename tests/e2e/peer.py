"""A server under test, etcd or the gateway: calls with raw bytes, and replies made comparable."""

from __future__ import annotations

from typing import Any

import grpc

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import METHODS
from tests.e2e.operations import PATHS
from tests.etcd import EtcdCluster

SECONDS = 20.0

Answer = tuple[int, str, list[Any]]
"""Code, text, replies."""

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Peer:
    """One connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=OPTIONS)

    def __enter__(self) -> Peer:
        grpc.channel_ready_future(self.channel).result(SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def ask(self, path: str, data: bytes) -> Answer:
        """One request, all its replies."""
        method = METHODS.get(path.encode())
        replies: list[Any] = []
        try:
            if method is None or not (method.client_streaming or method.server_streaming):
                replies.append(self.channel.unary_unary(path)(data, timeout=SECONDS))
            else:
                replies.extend(self.channel.stream_stream(path)(iter((data,)), timeout=SECONDS))
        except grpc.RpcError as error:
            return error.code().value[0], error.details(), []
        return 0, "", replies if method is None else [method.reply.FromString(reply) for reply in replies]

    def revision(self) -> int:
        """The current one."""
        return int(self.range(b"nothing").header.revision)

    def must(self, request: Any) -> Any:
        """The reply to a request of operations.PATHS that has to succeed."""
        code, text, replies = self.ask(PATHS[type(request)], request.SerializeToString())
        assert code == 0, f"{self.address}: {text}"
        return replies[0]

    def reset(self) -> None:
        """Remove all keys and leases; the revision goes on."""
        for lease in self.must(pb.LeaseLeasesRequest()).leases:
            self.must(pb.LeaseRevokeRequest(ID=lease.ID))
        self.must(pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))

    def range(self, key: bytes, end: bytes = b"") -> Any:
        """All keys of a range."""
        return self.must(pb.RangeRequest(key=key, range_end=end))


def check_alive(*clusters: EtcdCluster) -> None:
    """None of the etcds has died of what it was asked."""
    for member in (member for each in clusters for member in each.members):
        assert member.process is not None
        code = member.process.poll()
        assert code is None, f"etcd {member.version} ended with {code}:\n{member.log.read_text(errors='replace')[-6000:]}"


def comparable(answer: Answer) -> tuple[int, str, list[bytes]]:
    """Without what must differ between two etcds: ids and raft terms, the order of a Go map, the seconds that passed."""
    code, text, replies = answer
    return code, text, [reply if isinstance(reply, bytes) else _comparable(reply) for reply in _whole(replies)]


def _whole(replies: list[Any]) -> list[Any]:
    """RangeStream's chunks made one: where etcd cuts depends on sizes."""
    if not replies or not isinstance(replies[0], pb.RangeStreamResponse):
        return replies
    joined = pb.RangeStreamResponse()
    for reply in replies:
        joined.MergeFrom(reply)
    return [joined]


def _comparable(reply: Any) -> bytes:
    header = reply.range_response.header if isinstance(reply, pb.RangeStreamResponse) else reply.header
    header.cluster_id = header.member_id = header.raft_term = 0
    if isinstance(reply, pb.LeaseTimeToLiveResponse | pb.LeaseKeepAliveResponse):
        reply.TTL = round(reply.TTL, -1)
    if isinstance(reply, pb.LeaseTimeToLiveResponse):
        reply.keys[:] = sorted(reply.keys)
    if isinstance(reply, pb.LeaseLeasesResponse):
        reply.leases.sort(key=lambda lease: lease.ID)
    return bytes(reply.SerializeToString(deterministic=True))
