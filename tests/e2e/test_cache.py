"""Reads from memory, through a gateway as a process: as fresh as etcd's own, and where that can't be, etcd's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import EtcdCluster, cluster, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

Pair = tuple[GatewayProcess, EtcdCluster]


@pytest.fixture(scope="module")
def pair(etcd: EtcdCluster) -> Iterator[Pair]:
    with gateway({"main": etcd.urls}) as process:
        synced(process)
        yield process, etcd


@pytest.fixture
def clients(pair: Pair) -> Iterator[tuple[Client, Client]]:
    """Through the gateway, and directly."""
    with Client(pair[0].address) as through, Client(pair[1].address) as direct:
        yield through, direct


def cache(process: GatewayProcess, name: str = "main") -> dict[str, Any]:
    found: dict[str, Any] = next(each["cache"] for each in process.status()["clusters"] if each["name"] == name)
    return found


def synced(process: GatewayProcess) -> None:
    wait_for("the feed", lambda: cache(process)["caching"])


def read(client: Client, key: bytes, end: bytes = b"", timeout: float = 15.0, **fields: Any) -> Any:
    return client.call("kv", "range", pb.RangeRequest(key=key, range_end=end, **fields), timeout)


def answer(client: Client, request: Any, **metadata: str) -> Any:
    """The reply, or the error's text."""
    try:
        return client.call("kv", "range", request, **metadata)
    except grpc.RpcError as error:
        return error.details()


def test_reads_are_answered_from_memory(pair: Pair, clients: tuple[Client, Client]) -> None:
    through, direct = clients
    revision = direct.put(b"hit/a", b"1")
    direct.put(b"hit/b", b"2")
    before = cache(pair[0])
    for fields in ({}, {"serializable": True}, {"revision": revision}, {"limit": 1}, {"keys_only": True}, {"count_only": True}):
        assert read(through, b"hit/", b"hit0", **fields) == read(direct, b"hit/", b"hit0", **fields)
        assert read(through, b"hit/a", **fields) == read(direct, b"hit/a", **fields)
    after = cache(pair[0])
    assert after["hits"] - before["hits"] == 12
    assert after["bypasses"] == before["bypasses"]


def test_a_linearizable_read_sees_what_was_written_past_the_gateway(pair: Pair, clients: tuple[Client, Client]) -> None:
    through, direct = clients
    before = cache(pair[0])["hits"]
    for number in range(300):
        revision = direct.put(b"fresh", b"%d" % number)
        found = read(through, b"fresh")
        assert found.kvs[0].value == b"%d" % number
        assert found.header.revision >= revision
    assert cache(pair[0])["hits"] - before == 300


def test_a_serializable_read_sees_what_its_client_wrote(pair: Pair, clients: tuple[Client, Client]) -> None:
    through, _ = clients
    for number in range(300):
        revision = through.put(b"own", b"%d" % number)
        found = read(through, b"own", serializable=True)
        assert found.kvs[0].value == b"%d" % number
        assert found.header.revision >= revision


def test_who_says_who_it_is_is_not_answered_from_memory(pair: Pair, clients: tuple[Client, Client]) -> None:
    through, direct = clients
    direct.put(b"whose", b"1")
    before = cache(pair[0])
    for name in ("token", "authorization"):
        for request in (pb.RangeRequest(key=b"whose"), pb.RangeRequest(key=b"whose", limit=3)):
            assert answer(through, request, **{name: "x"}) == answer(direct, request, **{name: "x"})  # an error before 3.7
    after = cache(pair[0])
    assert after["hits"] == before["hits"]
    assert after["bypasses"]["identity"] - before["bypasses"].get("identity", 0) == 4


def test_compacted_revisions_are_an_error(pair: Pair, clients: tuple[Client, Client]) -> None:
    through, _ = clients
    first = through.put(b"old", b"1")
    last = through.put(b"old", b"2")
    assert read(through, b"old", revision=first).kvs[0].value == b"1"
    through.call("kv", "compact", pb.CompactionRequest(revision=last))
    for client in clients:
        with pytest.raises(grpc.RpcError) as caught:
            read(client, b"old", revision=first)
        assert caught.value.details() == "etcdserver: mvcc: required revision has been compacted"
        assert read(client, b"old", revision=last).kvs[0].value == b"2"


def test_a_future_revision_is_an_error(clients: tuple[Client, Client]) -> None:
    for client in clients:
        with pytest.raises(grpc.RpcError) as caught:
            read(client, b"old", revision=1 << 40)
        assert caught.value.details() == "etcdserver: mvcc: required revision is a future revision"


def test_a_large_list_is_of_one_revision(pair: Pair, clients: tuple[Client, Client]) -> None:
    """It is gathered in steps, between which keys are written; each round changes all counters in one transaction."""
    through, direct = clients
    rnd = random.Random(1)
    for number in range(0, 9_000, 100):
        txn = pb.TxnRequest()
        for each in range(number, number + 100):
            put = txn.success.add().request_put
            put.key, put.value = b"large/%06d" % each, rnd.randbytes(200)
        direct.call("kv", "txn", txn)
    marks = [b"large/%06d" % number for number in (5, 3_000, 6_000, 8_999)]
    for turn in range(20):
        txn = pb.TxnRequest()
        for mark in marks:
            put = txn.success.add().request_put
            put.key, put.value = mark, b"%d" % turn
        if not turn:
            direct.call("kv", "txn", txn)
        lists = [_later(through) for _ in range(4)]
        direct.call("kv", "txn", txn)
        for found in lists:
            reply = pb.RangeResponse.FromString(found.result(15))
            assert len(reply.kvs) == reply.count == 9_000
            assert len({kv.value for kv in reply.kvs if kv.key in marks}) == 1
            assert reply.header.revision >= max(kv.mod_revision for kv in reply.kvs)
        wanted = read(direct, b"large/", b"large0")
        assert read(through, b"large/", b"large0") == wanted
    assert cache(pair[0])["hits"]
    direct.call("kv", "delete_range", pb.DeleteRangeRequest(key=b"large/", range_end=b"large0"))


def _later(client: Client) -> Any:
    request = pb.RangeRequest(key=b"large/", range_end=b"large0").SerializeToString()
    return client.channel.unary_unary("/etcdserverpb.KV/Range").future(request, timeout=15)


def test_a_stopped_cluster_confirms_nothing() -> None:
    """A linearizable read is not answered from memory while etcd is stopped; when it goes on, so do the reads."""
    with cluster() as own, gateway({"main": own.urls}) as process, Client(process.address) as client:
        synced(process)
        client.put(b"a", b"1")
        assert read(client, b"a").kvs[0].value == b"1"
        own.members[0].stop()
        try:
            assert read(client, b"a", serializable=True).kvs[0].value == b"1"
            with pytest.raises(grpc.RpcError) as caught:
                read(client, b"a", timeout=2.5)
            assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        finally:
            own.members[0].cont()
        assert read(client, b"a").kvs[0].value == b"1"
        wait_for("the feed", lambda: cache(process)["caching"])
        hits = cache(process)["hits"]
        assert read(client, b"a").kvs[0].value == b"1"
        assert cache(process)["hits"] == hits + 1


def test_a_killed_cluster_takes_its_cache_along() -> None:
    with cluster() as own, cluster() as other, gateway({"main": own.urls, "other": other.urls}, {"/o/": "other"}) as process:
        with Client(process.address) as client:
            synced(process)
            client.put(b"a", b"1")
            client.put(b"/o/a", b"1")
            own.kill()
            wait_for("the loss", lambda: not cache(process)["caching"])
            for fields in ({}, {"serializable": True}):
                with pytest.raises(grpc.RpcError) as caught:
                    read(client, b"a", timeout=2, **fields)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert read(client, b"/o/a", **fields).kvs[0].value == b"1"
            own.restart()
            own.wait()
            with Client(own.address) as direct:
                direct.put(b"a", b"2")
            wait_for("the answer", lambda: _value(client, b"a") == b"2", 5)
            synced(process)
            assert read(client, b"a", serializable=True).kvs[0].value == b"2"


def _value(client: Client, key: bytes) -> bytes:
    try:
        return bytes(read(client, key, timeout=1).kvs[0].value)
    except grpc.RpcError:
        return b""
