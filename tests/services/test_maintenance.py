"""Maintenance over one cluster and over several."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import BINARIES, cluster
from tests.gateway_process import gateway
from tests.services.client import Client
from tests.services.site import Site

NO_SPACE = pb.AlarmType.NOSPACE
ONE_CLUSTER = [
    ("defragment", pb.DefragmentRequest()),
    ("hash", pb.HashRequest()),
    ("hash_kv", pb.HashKVRequest()),
    ("move_leader", pb.MoveLeaderRequest(targetID=1)),
    ("downgrade", pb.DowngradeRequest(version="3.0.0")),
]


def outcome(client: Client, name: str, request: object, **metadata: str) -> object:
    """The reply, or code and text."""
    try:
        return client.call("maintenance", name, request, **metadata)
    except grpc.RpcError as error:
        return error.code(), error.details()


def refused(client: Client, name: str, request: object, **metadata: str) -> str:
    """The text."""
    with pytest.raises(grpc.RpcError) as caught:
        client.call("maintenance", name, request, **metadata)
    assert caught.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
    return str(caught.value.details())


@pytest.mark.parametrize(("name", "request_"), ONE_CLUSTER)
def test_one_cluster_answers_for_itself(single: Site, name: str, request_: object) -> None:
    with single.direct("main") as direct:
        assert outcome(single.client, name, request_) == outcome(direct, name, request_)


@pytest.mark.parametrize(("name", "request_"), ONE_CLUSTER)
def test_with_several_the_metadata_says_which(shared: Site, name: str, request_: object) -> None:
    text = refused(shared.client, name, request_)
    assert name in text and "main, events, cni" in text and "shardgate-cluster" in text
    with shared.direct("events") as direct:
        assert outcome(shared.client, name, request_, shardgate_cluster="events") == outcome(direct, name, request_)
    assert "no cluster 'evens' here; clusters are main, events, cni" in refused(shared.client, name, request_, shardgate_cluster="evens")


def test_a_name_that_is_not_there_is_refused_with_one_cluster_too(single: Site) -> None:
    assert "clusters are main" in refused(single.client, "defragment", pb.DefragmentRequest(), shardgate_cluster="events")


def test_snapshot(shared: Site) -> None:
    """It opens with a database page, ends with its hash, and is as long as it said."""
    replies = list(shared.client.replies("maintenance", "snapshot", pb.SnapshotRequest(), shardgate_cluster="cni"))
    blob = b"".join(reply.blob for reply in replies)
    assert blob[16:20] == b"\xed\xda\x0c\xed"
    assert len(blob) == len(replies[0].blob) + replies[0].remaining_bytes + 32
    with pytest.raises(grpc.RpcError) as caught:
        list(shared.client.replies("maintenance", "snapshot", pb.SnapshotRequest()))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


STATUS = ("maintenance", "status", pb.StatusRequest())


def statuses(site: Site) -> dict[str, pb.StatusResponse]:
    """What each cluster says of itself."""
    found = {}
    for name in site.clusters:
        with site.direct(name) as direct:
            found[name] = direct.call(*STATUS)
    return found


def beside(site: Site, ask: Callable[[], Any]) -> tuple[dict[str, pb.StatusResponse], Any]:
    """The clusters' own statuses and what `ask` gives, of a moment in which none of them changed: sizes and the raft index move after
    a write, and when a lease of another test ends."""
    for _ in range(50):
        before, answer, after = statuses(site), ask(), statuses(site)
        if before == after:
            return before, answer
        time.sleep(0.2)
    raise AssertionError("the clusters do not come to rest")


def test_status_of_one_cluster_is_its_own(single: Site) -> None:
    each, answer = beside(single, lambda: single.client.call(*STATUS))
    assert answer == each["main"]


def test_status_of_several_is_homes_with_summed_sizes(shared: Site) -> None:
    shared.client.put(b"/events/large", bytes(1 << 20))
    each, joined = beside(shared, lambda: shared.client.call(*STATUS))
    for field in ("dbSize", "dbSizeInUse", "dbSizeQuota"):
        assert getattr(joined, field) == sum(getattr(status, field) for status in each.values())
        setattr(joined, field, getattr(each["main"], field))
    assert joined == each["main"]
    each, named = beside(shared, lambda: shared.client.call(*STATUS, shardgate_cluster="events"))
    assert named == each["events"]


def test_status_has_the_lowest_version_also_of_a_cluster_that_is_gone() -> None:
    oldest, *_, newest = (*BINARIES, *BINARIES)
    if len(BINARIES) < 2:
        pytest.skip("needs two versions of etcd")
    with ExitStack() as stack:
        main, events = stack.enter_context(cluster(newest)), stack.enter_context(cluster(oldest))
        process = stack.enter_context(gateway({"main": main.urls, "events": events.urls}, {"/events/": "events"}))
        client = stack.enter_context(Client(process.address))
        status = client.call("maintenance", "status", pb.StatusRequest())
        assert (status.version, list(status.errors)) == (oldest, [])
        events.kill()
        status = client.call("maintenance", "status", pb.StatusRequest())
        assert status.version == oldest
        assert 'cluster "events" does not answer' in status.errors[0]


def test_status_waits_for_no_cluster_that_hangs(own: Site) -> None:
    own.clusters["events"].members[0].stop()
    try:
        began = time.monotonic()
        status = own.client.call("maintenance", "status", pb.StatusRequest(), timeout=2.0)
        assert time.monotonic() - began < 1.8
        assert 'cluster "events" does not answer' in status.errors[0]
    finally:
        own.clusters["events"].members[0].cont()


def test_home_answers_for_itself(own: Site) -> None:
    own.clusters["main"].kill()
    for name, request in (("status", pb.StatusRequest()), ("alarm", pb.AlarmRequest())):
        with pytest.raises(grpc.RpcError) as caught:
            own.client.call("maintenance", name, request)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert own.client.put(b"/events/a") == 2


def alarms(client: Client, **fields: object) -> list[tuple[int, int]]:
    reply = client.call("maintenance", "alarm", pb.AlarmRequest(**fields))
    return sorted((alarm.memberID, alarm.alarm) for alarm in reply.alarms)


def test_alarms_are_joined_and_disarmed_where_they_are(own: Site) -> None:
    raised = []
    for name in ("main", "events"):
        with own.direct(name) as direct:
            member = direct.call("maintenance", "status", pb.StatusRequest()).header.member_id
            alarms(direct, action=pb.AlarmRequest.ACTIVATE, memberID=member, alarm=NO_SPACE)
            raised.append((member, NO_SPACE))
    assert alarms(own.client) == sorted(raised)
    with pytest.raises(grpc.RpcError) as caught:
        own.client.put(b"/events/a")
    assert caught.value.details() == "etcdserver: mvcc: database space exceeded"
    assert alarms(own.client, action=pb.AlarmRequest.DEACTIVATE, memberID=raised[1][0], alarm=NO_SPACE) == raised[1:]
    assert alarms(own.client) == raised[:1]
    own.client.put(b"/events/a")
    assert alarms(own.client, action=pb.AlarmRequest.DEACTIVATE, memberID=raised[1][0], alarm=NO_SPACE) == []
    assert "alarm concerns one cluster" in refused(own.client, "alarm", pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE))


def test_alarms_while_a_cluster_is_gone(own: Site) -> None:
    """They are listed without it; a disarm succeeds only if it is known to have hit."""
    with own.direct("main") as main:
        member = main.call("maintenance", "status", pb.StatusRequest()).header.member_id
        alarms(main, action=pb.AlarmRequest.ACTIVATE, memberID=member, alarm=NO_SPACE)
    own.clusters["events"].kill()
    assert alarms(own.client) == [(member, NO_SPACE)]
    assert alarms(own.client, action=pb.AlarmRequest.DEACTIVATE, memberID=member, alarm=NO_SPACE) == [(member, NO_SPACE)]
    with pytest.raises(grpc.RpcError) as caught:
        alarms(own.client, action=pb.AlarmRequest.DEACTIVATE, memberID=7, alarm=NO_SPACE)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_what_is_no_message_is_answered_by_etcd(shared: Site) -> None:
    with shared.direct("main") as direct:
        assert outcome(shared.client, "alarm", b"\xff") == outcome(direct, "alarm", b"\xff")


def test_a_listener_of_one_cluster_needs_no_name() -> None:
    with cluster() as main, cluster() as events:
        listeners = [{"name": "clients"}, {"name": "events-only", "cluster": "events"}]
        with gateway({"main": main.urls, "events": events.urls}, {"/events/": "events"}, listeners=listeners) as process:
            with Client(process.addresses["events-only"]) as client, Client(events.address) as direct:
                assert outcome(client, "hash_kv", pb.HashKVRequest()) == outcome(direct, "hash_kv", pb.HashKVRequest())
