"""Leases through the gateway, over real etcd: on home, with copies where they are attached to keys of other clusters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from tests.etcd import wait_for
from tests.gateway_process import gateway
from tests.services.client import WAIT, Client
from tests.services.site import ROUTES, Site

LOST = 0x7777
"""A lease that nobody has granted."""

NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")


def grant(client: Client, ttl: int = 60, number: int = 0) -> int:
    return int(client.call("lease", "lease_grant", pb.LeaseGrantRequest(TTL=ttl, ID=number)).ID)


def put(client: Client, key: bytes, lease: int, **fields: Any) -> Any:
    return client.call("kv", "put", pb.PutRequest(key=key, lease=lease, **fields))


def revoke(client: Client, number: int) -> Any:
    return client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=number))


def time_to_live(client: Client, number: int, keys: bool = False) -> Any:
    return client.call("lease", "lease_time_to_live", pb.LeaseTimeToLiveRequest(ID=number, keys=keys))


def leases(client: Client) -> list[int]:
    return [each.ID for each in client.call("lease", "lease_leases", pb.LeaseLeasesRequest()).leases]


def there(client: Client, key: bytes) -> bool:
    return bool(client.call("kv", "range", pb.RangeRequest(key=key)).count)


def keep_alive(client: Client, messages: Iterable[Any]) -> Iterator[Any]:
    """The answers to these messages, as they come."""
    rpc = method("lease", "lease_keep_alive")
    stub = client.channel.stream_stream(
        rpc.path.decode(),
        request_serializer=lambda each: each if isinstance(each, bytes) else pb.LeaseKeepAliveRequest(ID=each).SerializeToString(),
        response_deserializer=rpc.reply.FromString,
    )
    return stub(iter(messages), timeout=WAIT)


def failure(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@contextmanager
def second(site: Site) -> Iterator[Client]:
    """A client of another gateway for the same clusters."""
    with gateway({name: each.urls for name, each in site.clusters.items()}, ROUTES) as other, Client(other.address) as client:
        yield client


@contextmanager
def everywhere(site: Site) -> Iterator[dict[str, Client]]:
    """Clients of the etcds themselves."""
    with site.direct("main") as main, site.direct("events") as events, site.direct("cni") as cni:
        yield {"main": main, "events": events, "cni": cni}


def test_a_lease_lives_on_home_until_it_is_used_elsewhere(shared: Site) -> None:
    client = shared.client
    with everywhere(shared) as direct:
        number = grant(client, 77)
        assert [name for name, each in direct.items() if number in leases(each)] == ["main"]
        put(client, b"/l/1", number)
        put(client, b"/events/1", number)
        put(client, b"/events/2", number)
        assert [name for name, each in direct.items() if number in leases(each)] == ["main", "events"]
        assert time_to_live(direct["events"], number).grantedTTL == 77
        assert there(direct["events"], b"/events/1") and not there(direct["main"], b"/events/1")
        assert number in leases(client) and leases(client) == leases(direct["main"])
        reply = time_to_live(client, number, keys=True)
        assert sorted(reply.keys) == [b"/events/1", b"/events/2", b"/l/1"]
        assert reply.grantedTTL == 77 and 70 < reply.TTL <= 77
        assert reply.header.cluster_id == direct["main"].call("kv", "range", pb.RangeRequest(key=b"x")).header.cluster_id
        revoke(client, number)
        assert not [name for name, each in direct.items() if number in leases(each)]
        assert not any(there(client, key) for key in (b"/l/1", b"/events/1", b"/events/2"))
        assert time_to_live(client, number).TTL == -1


def test_a_transaction_attaches_leases_too(shared: Site) -> None:
    one, two = grant(shared.client), grant(shared.client)
    inner = pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=b"/cni/2", lease=two))])
    ops = [pb.RequestOp(request_put=pb.PutRequest(key=b"/cni/1", lease=one)), pb.RequestOp(request_txn=inner)]
    assert shared.client.call("kv", "txn", pb.TxnRequest(success=ops)).succeeded
    for number, key in ((one, b"/cni/1"), (two, b"/cni/2")):
        assert list(time_to_live(shared.client, number, keys=True).keys) == [key]
        revoke(shared.client, number)
        assert not there(shared.client, key)


def test_an_unknown_lease_is_etcds_error(shared: Site) -> None:
    bad = pb.RequestOp(request_put=pb.PutRequest(key=b"/events/1", lease=LOST))
    for key in (b"/l/1", b"/events/1"):
        assert failure(lambda key=key: put(shared.client, key, LOST)) == NOT_FOUND
        assert not there(shared.client, key)
    assert failure(lambda: shared.client.call("kv", "txn", pb.TxnRequest(success=[bad]))) == NOT_FOUND
    assert shared.client.call("kv", "txn", pb.TxnRequest(failure=[bad])).succeeded  # in a branch that is not taken, it is nothing to etcd
    code, text = failure(lambda: put(shared.client, b"/events/1", LOST, ignore_lease=True))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: lease is provided")


def test_what_etcd_says_of_leases(shared: Site) -> None:
    with shared.direct("main") as direct:
        number = grant(shared.client, number=4711)
        assert number == 4711
        for client in (shared.client, direct):
            assert failure(lambda client=client: grant(client, number=4711))[1] == "etcdserver: lease already exists"
            assert failure(lambda client=client: revoke(client, LOST)) == NOT_FOUND
            assert time_to_live(client, LOST).TTL == -1
        revoke(shared.client, number)
        for name in ("lease_grant", "lease_revoke", "lease_time_to_live"):
            ours, theirs = (failure(lambda c=c, name=name: c.call("lease", name, b"\xff")) for c in (shared.client, direct))
            assert ours == theirs


def test_a_copy_that_has_gone_is_made_again(shared: Site) -> None:
    number = grant(shared.client)
    put(shared.client, b"/events/1", number)
    with shared.direct("events") as events:
        revoke(events, number)
        assert not there(shared.client, b"/events/1")
        put(shared.client, b"/events/1", number)
        assert number in leases(events)
    revoke(shared.client, number)


def test_other_gateways_need_no_memory(shared: Site) -> None:
    with second(shared) as other, everywhere(shared) as direct:
        number = grant(other)
        put(shared.client, b"/events/1", number)
        put(other, b"/events/2", number)
        assert sorted(time_to_live(other, number, keys=True).keys) == [b"/events/1", b"/events/2"]
        revoke(other, number)
        assert not any(number in leases(each) for each in direct.values())
        assert failure(lambda: put(shared.client, b"/events/1", number)) == NOT_FOUND


def test_a_lease_that_only_a_copy_is_left_of_can_be_revoked(shared: Site) -> None:
    number = grant(shared.client)
    put(shared.client, b"/events/1", number)
    with shared.direct("main") as main:
        revoke(main, number)
    assert time_to_live(shared.client, number).TTL == -1
    revoke(shared.client, number)
    assert not there(shared.client, b"/events/1")


def test_keepalives_keep_copies_alive_whoever_made_them(shared: Site) -> None:
    with second(shared) as other:
        number = grant(shared.client, 2)
        for key in (b"/l/1", b"/events/1", b"/cni/1"):
            put(other, key, number)

        def messages() -> Iterator[int]:
            for _ in range(6):
                yield number
                time.sleep(0.6)

        assert [reply.TTL for reply in keep_alive(shared.client, messages())] == [2] * 6
        assert all(there(shared.client, key) for key in (b"/l/1", b"/events/1", b"/cni/1"))
        wait_for("gone", lambda: not any(there(shared.client, key) for key in (b"/l/1", b"/events/1", b"/cni/1")), 10)


def test_a_copy_ends_with_its_lease(shared: Site) -> None:
    """A lease that nobody renews, used on another cluster late in its life."""
    started = time.monotonic()
    number = grant(shared.client, 6)
    time.sleep(4)
    put(shared.client, b"/events/1", number)
    with shared.direct("main") as main:
        wait_for("home's end", lambda: number not in leases(main), 10)
    wait_for("the copy's end", lambda: not there(shared.client, b"/events/1"), 10)
    assert time.monotonic() - started < 9.5  # it was granted 6 s after 4


def test_keepalive_is_etcds_conversation(shared: Site) -> None:
    numbers = [grant(shared.client, ttl) for ttl in (50, 60, 70)]
    put(shared.client, b"/events/1", numbers[1])
    asked = [numbers[0], LOST, numbers[2], numbers[1], numbers[1], LOST]
    with shared.direct("main") as direct:
        ours, theirs = (list(keep_alive(client, asked)) for client in (shared.client, direct))
        assert ours == theirs
        assert [(reply.ID, reply.TTL) for reply in ours] == list(zip(asked, (50, 0, 70, 60, 60, 0), strict=True))
        outcomes = []
        for client in (shared.client, direct):
            answers = keep_alive(client, [numbers[0], b"\xff"])
            outcomes.append((next(answers).ID, failure(lambda answers=answers: next(answers))))
        assert outcomes[0] == outcomes[1]
    for number in numbers:
        revoke(shared.client, number)


def test_with_one_cluster_all_is_as_with_etcd(single: Site) -> None:
    number = grant(single.client)
    put(single.client, b"/events/1", number)
    with single.direct("main") as direct:
        assert time_to_live(single.client, number, keys=True) == time_to_live(direct, number, keys=True)
        assert list(keep_alive(single.client, [number, LOST])) == list(keep_alive(direct, [number, LOST]))
    revoke(single.client, number)
    assert failure(lambda: revoke(single.client, number)) == NOT_FOUND
    assert not there(single.client, b"/events/1")


def test_a_cluster_that_is_down_keeps_no_lease_from_the_others(own: Site) -> None:
    client = own.client
    number = grant(client)
    put(client, b"/l/1", number)
    put(client, b"/events/1", number)
    own.clusters["events"].kill()
    wait_for("events is missed", lambda: down(own, b"/events/1"))
    assert [reply.TTL for reply in keep_alive(client, [number])] == [60]
    assert time_to_live(client, number).TTL > 50
    assert failure(lambda: time_to_live(client, number, keys=True))[0] == grpc.StatusCode.UNAVAILABLE  # no list that lacks some
    put(client, b"/cni/1", number)
    revoke(client, number)
    assert not there(client, b"/l/1") and not there(client, b"/cni/1")
    own.clusters["events"].restart()
    own.clusters["events"].wait()
    wait_for("events is back", lambda: not down(own, b"/events/1"))
    assert there(client, b"/events/1")  # until the copy's TTL is over, or ...
    revoke(client, number)
    assert not there(client, b"/events/1")


def test_without_home_there_is_no_new_lease(own: Site) -> None:
    client = own.client
    number = grant(client)
    put(client, b"/events/1", number)
    own.clusters["main"].kill()
    wait_for("main is missed", lambda: down(own, b"/l/1"))
    assert failure(lambda: grant(client))[0] == grpc.StatusCode.UNAVAILABLE
    assert failure(lambda: revoke(client, number))[0] == grpc.StatusCode.UNAVAILABLE
    assert failure(lambda: time_to_live(client, number))[0] == grpc.StatusCode.UNAVAILABLE
    assert failure(lambda: put(client, b"/cni/1", number))[0] == grpc.StatusCode.UNAVAILABLE
    assert failure(lambda: list(keep_alive(client, [number])))[0] == grpc.StatusCode.UNAVAILABLE
    put(client, b"/events/2", number)  # the copy is there: home is not needed
    assert there(client, b"/events/2")
    with own.direct("events") as events:
        assert number in leases(events)


def test_a_cluster_that_hangs_delays_a_second_at_most(own: Site) -> None:
    number = grant(own.client)
    put(own.client, b"/l/1", number)
    own.clusters["events"].members[0].stop()
    started = time.monotonic()
    assert [reply.TTL for reply in keep_alive(own.client, [number] * 3)] == [60] * 3
    assert time.monotonic() - started < 1
    assert time_to_live(own.client, number).TTL > 50
    revoke(own.client, number)
    assert time.monotonic() - started < 6
    own.clusters["events"].members[0].cont()


def test_keepalives_that_nobody_answers_are_bounded(own: Site) -> None:
    own.clusters["main"].members[0].stop()
    code, text = failure(lambda: list(keep_alive(own.client, [LOST] * 1001)))
    assert (code, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "shardgate: more than 1000 keepalives wait for their answers")
    own.clusters["main"].members[0].cont()
    assert [reply.TTL for reply in keep_alive(own.client, [LOST])] == [0]


def down(site: Site, key: bytes) -> bool:
    try:
        there(site.client, key)
    except grpc.RpcError:
        return True
    return False
