"""Users and roles: read at home, changed in one cluster."""

from typing import Any

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import METHODS
from tests.services.client import Client
from tests.services.site import Site

READS: dict[str, Any] = {
    "auth_status": pb.AuthStatusRequest(),
    "user_list": pb.AuthUserListRequest(),
    "user_get": pb.AuthUserGetRequest(name="nobody"),
    "role_list": pb.AuthRoleListRequest(),
    "role_get": pb.AuthRoleGetRequest(role="none"),
    "authenticate": pb.AuthenticateRequest(name="nobody", password="secret"),
}
CHANGES = sorted(method.name for method in METHODS.values() if method.service == "auth" and method.name not in READS)


def outcome(client: Client, name: str, request: Any, **metadata: str) -> Any:
    """The reply, or code and text."""
    try:
        return client.call("auth", name, request, **metadata)
    except grpc.RpcError as error:
        return error.code(), error.details()


@pytest.mark.parametrize("name", READS)
def test_reads_go_home(shared: Site, name: str) -> None:
    with shared.direct("events") as events, shared.direct("main") as main:
        outcome(events, "role_add", pb.AuthRoleAddRequest(name="events-only"))
        assert outcome(shared.client, name, READS[name]) == outcome(main, name, READS[name])
        assert outcome(shared.client, name, READS[name], shardgate_cluster="events") == outcome(events, name, READS[name])


def test_a_read_of_an_unknown_cluster_is_refused(shared: Site) -> None:
    code, text = outcome(shared.client, "role_list", pb.AuthRoleListRequest(), shardgate_cluster="evens")
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "clusters are main, events, cni" in text


@pytest.mark.parametrize("name", CHANGES)
def test_changes_over_several_clusters_are_refused(shared: Site, name: str) -> None:
    code, text = outcome(shared.client, name, b"")
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert text.startswith(f"shardgate: {name} concerns one cluster, and this listener has main, events, cni; ")


def test_auth_of_one_cluster_works_through_the_gateway(single: Site) -> None:
    def call(name: str, request: Any, **metadata: str) -> Any:
        return single.client.call("auth", name, request, **metadata)

    call("user_add", pb.AuthUserAddRequest(name="root", password="secret"))
    call("user_grant_role", pb.AuthUserGrantRoleRequest(user="root", role="root"))
    call("auth_enable", pb.AuthEnableRequest())
    try:
        with pytest.raises(grpc.RpcError) as caught:
            single.client.put(b"/a")
        assert caught.value.details() == "etcdserver: user name is empty"
        with pytest.raises(grpc.RpcError) as caught:
            call("authenticate", pb.AuthenticateRequest(name="root", password="wrong"))
        assert caught.value.details() == "etcdserver: authentication failed, invalid user ID or password"
        token = call("authenticate", pb.AuthenticateRequest(name="root", password="secret")).token
        assert list(call("user_list", pb.AuthUserListRequest(), token=token).users) == ["root"]
        assert list(call("user_list", pb.AuthUserListRequest(), authorization=token).users) == ["root"]
    finally:
        token = call("authenticate", pb.AuthenticateRequest(name="root", password="secret")).token
        call("auth_disable", pb.AuthDisableRequest(), token=token)
    single.client.put(b"/a")
