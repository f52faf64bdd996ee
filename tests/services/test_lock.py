"""Locks and elections: in the cluster that owns the name, with leases of home's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from gateway.etcdpb import election_pb2, lock_pb2
from gateway.etcdpb import rpc_pb2 as pb
from tests.services.client import Client
from tests.services.site import Site

NAMES = (b"/events/name", b"/name", b"name", b"")


def grant(client: Client, ttl: int = 60) -> int:
    return int(client.call("lease", "lease_grant", pb.LeaseGrantRequest(TTL=ttl)).ID)


def keys(client: Client, prefix: bytes) -> list[bytes]:
    end = prefix[:-1] + bytes((prefix[-1] + 1,))
    return [kv.key for kv in client.call("kv", "range", pb.RangeRequest(key=prefix, range_end=end)).kvs]


class Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.reply = self._call()
        except grpc.RpcError as error:
            self.reply = error

    def waits(self) -> bool:
        """Not answered for a while."""
        self._thread.join(0.3)
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_lies_with_its_name_and_is_had_by_one(shared: Site, name: bytes) -> None:
    client = shared.client
    first, second = grant(client), grant(client)

    def lock(lease: int) -> Any:
        return client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=lease))

    held = lock(first)
    assert held.key == name + b"/%x" % first
    with shared.direct("events" if name.startswith(b"/events") else "main") as owner:
        assert keys(owner, name + b"/") == [held.key]
        assert keys(client, name + b"/") == [held.key]
        status = owner.call("maintenance", "status", pb.StatusRequest())
    assert held.header.cluster_id == status.header.cluster_id
    waiting = Waiting(lambda: lock(second))
    assert waiting.waits()
    client.call("lock", "unlock", lock_pb2.UnlockRequest(key=held.key))
    assert waiting.result().key == name + b"/%x" % second
    for lease in (first, second):
        client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=lease))
    assert keys(client, name + b"/") == []


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_lock_ends_with_its_lease(shared: Site, name: bytes) -> None:
    first, second = grant(shared.client), grant(shared.client)
    shared.client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=first))
    waiting = Waiting(lambda: shared.client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=second)))
    assert waiting.waits()
    shared.client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=first))
    assert waiting.result().key
    shared.client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=second))


def test_a_lock_without_a_lease_gets_one_of_its_cluster(shared: Site) -> None:
    held = shared.client.call("lock", "lock", lock_pb2.LockRequest(name=b"/events/own"))
    assert held.key.startswith(b"/events/own/")
    shared.client.call("lock", "unlock", lock_pb2.UnlockRequest(key=held.key))


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_client_that_stops_waiting_leaves_the_queue(shared: Site, name: bytes) -> None:
    first, second = grant(shared.client), grant(shared.client)
    held = shared.client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=first))
    with pytest.raises(grpc.RpcError) as caught:
        shared.client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=second), timeout=1.0)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    end = time.monotonic() + 5
    while keys(shared.client, name + b"/") != [held.key] and time.monotonic() < end:
        time.sleep(0.05)
    assert keys(shared.client, name + b"/") == [held.key]
    for lease in (first, second):
        shared.client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=lease))


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_lease_that_nobody_granted_is_refused_as_by_etcd(shared: Site, name: bytes) -> None:
    outcomes = []
    with shared.direct("main") as direct:
        for client in (shared.client, direct):
            with pytest.raises(grpc.RpcError) as caught:
                client.call("lock", "lock", lock_pb2.LockRequest(name=name, lease=0x7777))
            outcomes.append((caught.value.code(), caught.value.details()))
    assert outcomes[0] == outcomes[1]
    assert "requested lease not found" in outcomes[0][1]


@pytest.mark.parametrize("name", NAMES)
def test_an_election(shared: Site, name: bytes) -> None:
    client = shared.client
    first, second = grant(client), grant(client)

    def election(rpc: str, request: Any) -> Any:
        return client.call("election", rpc, request)

    with pytest.raises(grpc.RpcError) as caught:
        election("leader", election_pb2.LeaderRequest(name=name))
    assert caught.value.details() == "election: no leader"
    won = election("campaign", election_pb2.CampaignRequest(name=name, lease=first, value=b"one")).leader
    assert (won.name, won.key, won.lease) == (name, name + b"/%x" % first, first)
    with shared.direct("events" if name.startswith(b"/events") else "main") as owner:
        assert keys(owner, name + b"/") == [won.key]
    observed = client.replies("election", "observe", election_pb2.LeaderRequest(name=name))
    assert next(observed).kv.value == b"one"
    waiting = Waiting(lambda: election("campaign", election_pb2.CampaignRequest(name=name, lease=second, value=b"two")))
    assert waiting.waits()
    election("proclaim", election_pb2.ProclaimRequest(leader=won, value=b"one again"))
    assert next(observed).kv.value == b"one again"
    assert election("leader", election_pb2.LeaderRequest(name=name)).kv.value == b"one again"
    election("resign", election_pb2.ResignRequest(leader=won))
    assert waiting.result().leader.lease == second
    assert next(observed).kv.value == b"two"
    observed.cancel()
    for lease in (first, second):
        client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=lease))


@pytest.mark.parametrize(
    ("service", "rpc", "request_"),
    [
        ("election", "proclaim", election_pb2.ProclaimRequest()),
        ("election", "resign", election_pb2.ResignRequest()),
        ("election", "campaign", b"\xff"),
        ("election", "leader", b"\xff"),
        ("lock", "lock", b"\xff"),
        ("lock", "unlock", b"\xff"),
        ("lock", "unlock", lock_pb2.UnlockRequest()),
    ],
)
def test_bad_requests_are_answered_as_by_etcd(shared: Site, service: str, rpc: str, request_: Any) -> None:
    outcomes = []
    with shared.direct("main") as direct:
        for client in (shared.client, direct):
            with pytest.raises(grpc.RpcError) as caught:
                client.call(service, rpc, request_)
            outcomes.append((caught.value.code(), caught.value.details()))
    assert outcomes[0] == outcomes[1]
