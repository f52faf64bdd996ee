"""Python clients as they are do their whole API over three clusters: etcd3-py and etcd3gw (JSON), python-etcd3 and grpcio (gRPC)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.etcdpb import election_pb2
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from tests.e2e.peer import Peer
from tests.e2e.watching import Stream
from tests.etcd import ROOT, EtcdCluster, cluster
from tests.gateway_process import gateway

KEYS = ("/a/1", "/b/1", "m")
PYTHON_ETCD3 = ROOT / ".cache" / "python-etcd3"


@dataclass
class Site:
    """`address`: three clusters; `one`: a listener with the cluster "one" only."""

    address: str
    one: str
    clusters: dict[str, EtcdCluster]

    @property
    def where(self) -> tuple[str, int]:
        """Host and port."""
        return _split(self.address)

    @property
    def where_one(self) -> tuple[str, int]:
        return _split(self.one)

    def homes(self) -> dict[str, list[bytes]]:
        """The keys of each cluster."""
        found = {}
        for name, each in self.clusters.items():
            with Peer(each.address) as peer:
                found[name] = [kv.key for kv in peer.range(b"\0", b"\0").kvs]
        return found


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with cluster() as main, cluster() as one, cluster() as two:
        clusters = {"main": main, "one": one, "two": two}
        urls = {name: each.urls for name, each in clusters.items()}
        listeners = [{"name": "clients"}, {"name": "only-one", "cluster": "one"}]
        with gateway(urls, {"/a/": "one", "/b/": "two"}, listeners=listeners) as process:
            yield Site(process.address, process.addresses["only-one"], clusters)


@pytest.fixture(autouse=True)
def clean(site: Site) -> None:
    for each in site.clusters.values():
        with Peer(each.address) as peer:
            peer.reset()


def refused(call: Callable[[], Any], text: str) -> None:
    """It must fail and say this."""
    with pytest.raises(Exception) as error:
        call()
    told = error.value.details() if isinstance(error.value, grpc.Call) else str(getattr(error.value, "detail_text", error.value))
    assert text in told


def test_python_etcd3(site: Site) -> None:
    if not PYTHON_ETCD3.is_dir():
        pytest.skip("no .cache/python-etcd3: run `make setup`")
    script = Path(__file__).with_name("python_etcd3_script.py")
    env = {**os.environ, "PYTHONPATH": str(PYTHON_ETCD3), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    ended = subprocess.run([sys.executable, script, site.address, site.one], env=env, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr[-3000:]


class TestEtcd3Py:
    """etcd3-py."""

    @pytest.fixture
    def client(self, site: Site) -> Iterator[Any]:
        from etcd3 import Client

        client = Client(*site.where, timeout=15)
        yield client
        client.close()

    def test_keys(self, client: Any, site: Site) -> None:
        for key in KEYS:
            client.put(key, f"of {key}")
            (kv,) = client.range(key).kvs
            assert (kv.key, kv.value, kv.version) == (key.encode(), f"of {key}".encode(), 1)
            assert client.put(key, "new", prev_kv=True).prev_kv.value == f"of {key}".encode()
        assert site.homes() == {"main": [b"m"], "one": [b"/a/1"], "two": [b"/b/1"]}
        assert [kv.key for kv in client.range(all=True).kvs] == [b"/a/1", b"/b/1", b"m"]
        found = client.range("/", prefix=True, limit=1, sort_order="DESCEND")
        assert ([kv.key for kv in found.kvs], found.count, found.more) == ([b"/b/1"], 2, True)
        assert client.range("/", prefix=True, count_only=True).count == 2
        refused(lambda: client.delete_range("/", prefix=True), "shardgate: delete_range over several clusters")
        for key in KEYS:
            assert client.delete_range(key, prev_kv=True).prev_kvs[0].value == b"new"

    def test_transactions(self, client: Any) -> None:
        for key in KEYS:
            txn = client.Txn()
            txn.If(txn.key(key).version == 0)
            txn.Then(txn.put(key, "1"))
            txn.Then(txn.range(key))
            txn.Else(txn.delete(key))
            done = txn.commit()
            assert done.succeeded and done.responses[1].response_range.kvs[0].value == b"1"
            other = client.Txn()
            other.If(other.key(key).value == "2")
            other.Else(other.delete(key))
            assert not other.commit().succeeded
            assert client.range(key).count == 0
        both = client.Txn()
        both.Then(both.put("/a/1", "x"))
        both.Then(both.put("m", "x"))
        refused(both.commit, "shardgate: txn over several clusters")

    def test_leases(self, client: Any) -> None:
        with client.Lease(ttl=100) as lease:
            for key in KEYS:
                client.put(key, "leased", lease=lease.ID)
            told = lease.time_to_live(keys=True)
            assert sorted(told.keys) == sorted(key.encode() for key in KEYS) and told.grantedTTL == 100
            assert client.lease_keep_alive_once(lease.ID).TTL == 100
            lease.cancel_keepalive()
            kept = threading.Event()
            lease.keepalive(keep_cb=kept.set)
            assert kept.wait(15)
            assert lease.alive()
        assert client.range(all=True).count == 0
        refused(lambda: client.lease_revoke(lease.ID), "etcdserver: requested lease not found")
        assert client.lease_grant(100, 4711).ID == 4711
        client.lease_revoke(4711)

    def test_watches(self, client: Any) -> None:
        seen = []
        with client.Watcher(all=True, prev_kv=True) as watcher:
            for key in KEYS:
                client.put(key, "1")
                client.delete_range(key)
            for event in watcher:
                seen.append((event.type.value, event.key))
                if len(seen) == 6:
                    break
        for key in KEYS:
            assert [kind for kind, seen_key in seen if seen_key == key.encode()] == ["PUT", "DELETE"]
            revision = client.put(key, "2").header.revision
            assert client.Watcher(key=key, start_revision=revision).watch_once(timeout=15).value == b"2"

    def test_locks(self, client: Any) -> None:
        for prefix in ("/a/", "/b/", "locks"):
            with client.Lock("name", lock_ttl=20, lock_prefix=prefix) as lock:
                assert lock.is_acquired
                assert not client.Lock("name", lock_ttl=20, lock_prefix=prefix).acquire(block=False)
            assert client.range(prefix, prefix=True).kvs is None
        for name in ("/a/lock", "/b/lock", "lock"):
            lease = client.lease_grant(100).ID
            key = client.lock(name, lease=lease).key
            assert key.startswith(name.encode() + b"/")
            client.unlock(key)
            client.lease_revoke(lease)

    def test_maintenance(self, client: Any, site: Site) -> None:
        assert client.version().etcdserver.startswith("3.")
        assert client.health() == "true"
        assert "process_" in client.metrics_raw()
        assert client.status().dbSize > 0
        assert client.member_list().members[0].clientURLs == [f"http://{site.address}"]
        assert client.alarm_get(0, "NONE").alarms is None
        client.compact(client.put("m", "1").header.revision)
        assert client.user_list().users is None and client.role_list().roles is None
        for call, name in (
            (client.defragment, "defragment"), (client.hash, "hash"), (client.auth_enable, "auth_enable"),
            (lambda: client.role_add("r"), "role_add"), (lambda: client.user_add("u", "p"), "user_add"),
            (lambda: client.member_add(["http://127.0.0.1:1"]), "member_add"), (lambda: client.member_remove(1), "member_remove"),
        ):  # fmt: skip
            refused(call, f"shardgate: {name} concerns one cluster")

    def test_one_cluster(self, site: Site) -> None:
        from etcd3 import Client

        client = Client(*site.where_one, timeout=15)
        assert client.hash().hash > 0
        client.defragment()
        with client.snapshot() as parts:
            assert len(next(iter(parts)).blob) > 1000
        client.role_add("r")
        client.role_grant_permission("r", key="a", prefix=True)
        assert client.role_get("r").perm[0].key == b"a"
        client.user_add("root", "secret")
        client.user_grant_role("root", "root")
        client.auth_enable()
        try:
            refused(lambda: client.range("a"), "etcdserver: user name is empty")
            client.auth("root", "secret")
            client.range("a")
            client.user_change_password("root", "other")
        finally:
            client.auth("root", "other") if client.token else client.auth("root", "secret")
            client.auth_disable()
        client.user_delete("root")
        client.role_delete("r")
        client.close()


class TestEtcd3gw:
    """etcd3gw."""

    @pytest.fixture
    def client(self, site: Site) -> Any:
        import etcd3gw

        host, port = site.where
        return etcd3gw.client(host=host, port=port, timeout=15)

    def test_keys(self, client: Any, site: Site) -> None:
        for key in KEYS:
            assert client.put(key, f"of {key}")
            ((value, meta),) = client.get(key, metadata=True)
            assert (value, meta["key"]) == (f"of {key}".encode(), key.encode())
            assert client.replace(key, f"of {key}", "new") and not client.replace(key, "x", "y")
            assert not client.create(key, "x") and client.create(key + "/more", "x")
            assert client.delete(key + "/more")
        assert site.homes() == {"main": [b"m"], "one": [b"/a/1"], "two": [b"/b/1"]}
        assert [meta["key"] for _, meta in client.get_all()] == [b"/a/1", b"/b/1", b"m"]
        assert [meta["key"] for _, meta in client.get_prefix("/", sort_order="descend")] == [b"/b/1", b"/a/1"]
        refused(lambda: client.delete_prefix("/"), "shardgate: delete_range over several clusters")
        for prefix in ("/a/", "/b/", "m"):
            assert client.delete_prefix(prefix)
        assert client.get_all() == []

    def test_leases(self, client: Any) -> None:
        lease = client.lease(100)
        for key in KEYS:
            client.put(key, "leased", lease=lease)
        assert sorted(lease.keys()) == sorted(key.encode() for key in KEYS)
        assert 90 < lease.ttl() <= 100 and lease.refresh() == 100
        assert lease.revoke()
        assert client.get_all() == []

    def test_locks(self, client: Any) -> None:
        with client.lock("name", ttl=20) as lock:
            assert lock.is_acquired() and lock.refresh() == 20
            assert not client.lock("name", ttl=20).acquire()
        assert not lock.is_acquired()

    def test_watches(self, client: Any) -> None:
        events, cancel = client.watch("\0", range_end="\0")
        for key in KEYS:
            client.put(key, "1")
            client.delete(key)
        seen = [next(events) for _ in range(6)]
        cancel()
        for key in KEYS:
            assert [event.get("type", "PUT") for event in seen if event["kv"]["key"] == key.encode()] == ["PUT", "DELETE"]
        client.put("/a/1", "1")
        (_, meta), *_ = client.get("/a/1", metadata=True)
        revision = int(meta["mod_revision"])
        assert client.watch_once("/a/1", timeout=15, start_revision=revision)["kv"]["value"] == b"1"
        events, cancel = client.watch_prefix("/a/", start_revision=revision)
        assert next(events)["kv"]["value"] == b"1"
        cancel()
        later = threading.Timer(0.5, client.put, ("/a/1", "2"))
        later.start()
        assert client.watch_prefix_once("/a/", timeout=15)["kv"]["value"] == b"2"

    def test_status(self, client: Any, site: Site) -> None:
        assert client.status()["version"].startswith("3.")
        assert client.members()[0]["clientURLs"] == [f"http://{site.address}"]


class TestGrpcio:
    """grpcio, with what the others do not use: Lock and Election, metadata that names a cluster, several keepalives on one stream."""

    @pytest.fixture
    def peer(self, site: Site) -> Iterator[Peer]:
        with Peer(site.address) as peer:
            yield peer

    def test_locks_and_elections(self, peer: Peer) -> None:
        for name in (b"/a/x", b"/b/x", b"x"):
            lease = ask(peer, "lease", "lease_grant", TTL=100).ID
            key = ask(peer, "lock", "lock", name=name, lease=lease).key
            assert key.startswith(name + b"/")
            ask(peer, "lock", "unlock", key=key)
            leader = ask(peer, "election", "campaign", name=name, lease=lease, value=b"me").leader
            assert ask(peer, "election", "leader", name=name).kv.value == b"me"
            ask(peer, "election", "proclaim", leader=leader, value=b"still me")
            observe = peer.channel.unary_stream("/v3electionpb.Election/Observe")
            replies = observe(election_pb2.LeaderRequest(name=name).SerializeToString(), timeout=15)
            assert election_pb2.LeaderResponse.FromString(next(replies)).kv.value == b"still me"
            replies.cancel()
            ask(peer, "election", "resign", leader=leader)
            refused(lambda name=name: ask(peer, "election", "leader", name=name), "election: no leader")

    def test_named_cluster(self, peer: Peer, site: Site) -> None:
        hashes = {}
        for name in site.clusters:
            hashes[name] = ask(peer, "maintenance", "hash_kv", metadata=[("shardgate-cluster", name)]).header.cluster_id
        assert len(set(hashes.values())) == 3
        wrong = [("shardgate-cluster", "none")]
        refused(lambda: ask(peer, "maintenance", "hash_kv", metadata=wrong), "no cluster 'none' here; clusters are main, one, two")

    def test_keepalives(self, peer: Peer) -> None:
        """In order, unknown ones with a TTL of 0."""
        for number in (5, 6):
            ask(peer, "lease", "lease_grant", ID=number, TTL=100 + number)
        ids = [5, 999, 6, 5]
        call = peer.channel.stream_stream(method("lease", "lease_keep_alive").path.decode())
        replies = call(iter([pb.LeaseKeepAliveRequest(ID=each).SerializeToString() for each in ids]), timeout=15)
        answers = [pb.LeaseKeepAliveResponse.FromString(each) for each in replies]
        assert [(each.ID, each.TTL) for each in answers] == [(5, 105), (999, 0), (6, 106), (5, 105)]

    def test_watches(self, peer: Peer) -> None:
        stream = Stream(peer)
        stream.send(create_request=pb.WatchCreateRequest(key=b"\0", range_end=b"\0"))
        stream.send(create_request=pb.WatchCreateRequest(key=b"/a/1"))
        stream.wait("created", lambda stream: len(stream.created) == 2)
        for key in KEYS:
            peer.must(pb.PutRequest(key=key.encode()))
        stream.wait("events", lambda stream: [len(stream.events[watch]) for watch in (0, 1)] == [3, 1])
        assert sorted(event.kv.key for event in stream.events[0]) == sorted(key.encode() for key in KEYS)
        stream.close()


def ask(peer: Peer, service: str, rpc_name: str, metadata: Any = (), **fields: Any) -> Any:
    """A call that has to succeed. Raises grpc.RpcError."""
    rpc = method(service, rpc_name)
    request = rpc.request(**fields).SerializeToString()
    return rpc.reply.FromString(peer.channel.unary_unary(rpc.path.decode())(request, timeout=15, metadata=metadata))


