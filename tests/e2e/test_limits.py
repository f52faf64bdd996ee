"""Sizes and metadata at the edge of what etcd takes: through the gateway it is the same."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.e2e.peer import SECONDS, Peer
from tests.etcd import BINARIES, EtcdCluster, cluster
from tests.gateway_process import gateway

MIB = 1 << 20
PUT, RANGE, TXN = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn"


@pytest.fixture(scope="module", params=BINARIES)
def peers(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer]]:
    """One etcd, directly and through a gateway."""
    with cluster(request.param) as etcd, gateway({"main": etcd.urls}) as process:
        with Peer(etcd.address) as direct, Peer(process.address) as through:
            yield direct, through


def test_large_reply(peers: tuple[Peer, Peer]) -> None:
    """A reply may have any size: here 24 MiB, six times what gRPC clients take unless told otherwise."""
    direct, through = peers
    for number in range(24):
        assert through.ask(PUT, pb.PutRequest(key=b"large/%d" % number, value=bytes((number,)) * MIB).SerializeToString())[0] == 0
    request = pb.RangeRequest(key=b"large/", range_end=b"large0").SerializeToString()
    theirs, ours = direct.ask(RANGE, request), through.ask(RANGE, request)
    assert ours == theirs
    assert ours[2][0].ByteSize() > 24 * MIB


@pytest.mark.parametrize(
    "metadata",
    [
        ("token", "wrong"), ("authorization", "wrong"), ("hasleader", "true"), ("hasleader", "no"), ("client-api-version", "3.5"),
        ("client-api-version", "what"), ("x-other-bin", b"\0\xff"), ("x-long", "x" * 6000),
    ],
    ids=lambda pair: f"{pair[0]}-{pair[1][:6]!r}",
)  # fmt: skip
def test_metadata(peers: tuple[Peer, Peer], metadata: tuple[str, str | bytes]) -> None:
    """What etcd looks at reaches it, what it does not look at does no harm."""
    request = pb.RangeRequest(key=b"x").SerializeToString()
    theirs, ours = (_status(peer, request, metadata) for peer in peers)
    assert ours == theirs


def _status(peer: Peer, request: bytes, metadata: tuple[str, str | bytes]) -> tuple[int, str]:
    try:
        peer.channel.unary_unary(RANGE)(request, timeout=SECONDS, metadata=[metadata])
    except grpc.RpcError as error:
        return error.code().value[0], error.details() or ""
    return 0, ""


def nested(depth: int, key: bytes) -> bytes:
    """A Txn in a Txn in a Txn … with a put in the innermost; built by hand, as protobuf for Python refuses deep ones."""
    txn = pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=key))]).SerializeToString()
    for _ in range(depth):
        operation = b"\x22" + _varint(len(txn)) + txn
        txn = b"\x12" + _varint(len(operation)) + operation
    return txn


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


@pytest.mark.parametrize("depth", [10, 40, 63, 90, 110, 1000])
def test_deep_transactions(peers: tuple[Peer, Peer], depth: int) -> None:
    request = nested(depth, b"deep")
    theirs, ours = (_txn_status(peer, request) for peer in peers)
    assert ours == theirs


def _txn_status(peer: Peer, request: bytes) -> tuple[int, str]:
    try:
        peer.channel.unary_unary(TXN)(request, timeout=SECONDS)
    except grpc.RpcError as error:
        return error.code().value[0], error.details() or ""
    return 0, ""


def test_deep_transactions_reach_no_wrong_cluster(main_etcd: EtcdCluster) -> None:
    """However deep the key is, it is written to its own cluster or not at all."""
    with cluster() as other, gateway({"main": main_etcd.urls, "other": other.urls}, {"/o/": "other"}) as process:
        with Peer(process.address) as through, Peer(main_etcd.address) as main, Peer(other.address) as owner:
            for depth in (1, 10, 50, 64, 66, 90, 110, 1000):
                key = b"/o/%d" % depth
                code, text = _txn_status(through, nested(depth, key))
                assert not main.range(key).kvs, depth
                assert bool(owner.range(key).kvs) is (code == 0), text
            assert owner.range(b"/o/10").kvs
