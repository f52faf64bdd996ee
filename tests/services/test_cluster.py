"""Members: listed with the gateway's addresses, changed in one cluster."""

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import BINARIES, cluster, free_port
from tests.gateway_process import gateway
from tests.services.client import Client
from tests.services.site import Site

CHANGES = [
    ("member_add", pb.MemberAddRequest(peerURLs=["http://127.0.0.1:1"])),
    ("member_remove", pb.MemberRemoveRequest(ID=7)),
    ("member_update", pb.MemberUpdateRequest(ID=7, peerURLs=["http://127.0.0.1:1"])),
    ("member_promote", pb.MemberPromoteRequest(ID=7)),
]


def listed(client: Client, **metadata: str) -> pb.MemberListResponse:
    return client.call("cluster", "member_list", pb.MemberListRequest(), **metadata)


def test_members_are_homes_at_the_gateways_address(shared: Site) -> None:
    for name, metadata in (("main", {}), ("cni", {"shardgate_cluster": "cni"})):
        with shared.direct(name) as direct:
            theirs = listed(direct)
        ours = listed(shared.client, **metadata)
        assert [list(member.clientURLs) for member in ours.members] == [[shared.gateway.url]]
        theirs.members[0].clientURLs[:] = [shared.gateway.url]
        assert ours == theirs


def test_an_unknown_name_is_refused(shared: Site) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        listed(shared.client, shardgate_cluster="evens")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_advertised_urls() -> None:
    urls = ["http://gate.example:2379", "http://other.example:2379"]
    listeners = [{"name": "clients", "advertise_urls": urls}]
    with cluster(size=3) as etcd, gateway({"main": etcd.urls}, listeners=listeners) as process, Client(process.address) as client:
        with Client(etcd.address) as direct:
            theirs = listed(direct)
        ours = listed(client)
        assert [list(member.clientURLs) for member in ours.members] == [urls] * 3
        assert [(member.ID, member.name) for member in ours.members] == [(member.ID, member.name) for member in theirs.members]


@pytest.mark.parametrize(("name", "request_"), CHANGES)
def test_changes_over_several_clusters_are_refused(shared: Site, name: str, request_: object) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        shared.client.call("cluster", name, request_)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert f"{name} concerns one cluster" in caught.value.details()


@pytest.mark.parametrize("version", BINARIES)
def test_members_come_and_go_through_the_gateway(version: str) -> None:
    """A member that has not started has no client URLs, here as at etcd."""
    with cluster(version) as etcd, gateway({"main": etcd.urls}) as process, Client(process.address) as client:
        peer = f"http://127.0.0.1:{free_port()}"
        added = client.call("cluster", "member_add", pb.MemberAddRequest(peerURLs=[peer], isLearner=True)).member
        found = next(member for member in listed(client).members if member.ID == added.ID)
        assert (list(found.peerURLs), list(found.clientURLs), found.isLearner) == ([peer], [], True)
        client.call("cluster", "member_remove", pb.MemberRemoveRequest(ID=added.ID))
        assert added.ID not in [member.ID for member in listed(client).members]
