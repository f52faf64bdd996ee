"""Equal reads of an uncached route share calls to the cluster, and nobody can tell but by the cluster's counters."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import EtcdCluster, cluster, get, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

Pair = tuple[GatewayProcess, EtcdCluster, Client, Client]
LIST = pb.RangeRequest(key=b"/f/", range_end=b"/f0").SerializeToString()


@pytest.fixture(scope="module")
def pair(etcd: EtcdCluster) -> Iterator[Pair]:
    """Routes other than the default one are not cached."""
    with cluster() as main, gateway({"main": main.urls, "f": etcd.urls}, {"/f/": "f"}) as process:
        with Client(process.address) as through, Client(etcd.address) as direct:
            yield process, etcd, through, direct


def ranges(etcd: EtcdCluster) -> int:
    """Range calls that etcd has served."""
    found = re.search(r'grpc_server_handled_total\{grpc_code="OK",grpc_method="Range".*\} (\S+)', get(etcd.address, "/metrics")[1])
    return int(float(found.group(1))) if found else 0


def later(client: Client, request: bytes, timeout: float = 15) -> Any:
    return client.channel.unary_unary("/etcdserverpb.KV/Range").future(request, timeout=timeout)


def test_a_thousand_equal_lists_are_a_few_calls(pair: Pair) -> None:
    _, etcd, through, direct = pair
    for number in range(300):
        direct.put(b"/f/%03d" % number, bytes(1000))
    wanted = direct.call("kv", "range", pb.RangeRequest.FromString(LIST))
    before = ranges(etcd)
    etcd.members[0].stop()  # so that all have come before the first is answered
    try:
        lists = [later(through, LIST) for _ in range(1000)]
        wait_for("all to wait", lambda: pair[0].metric("shardgate_requests_in_flight", cluster="f", method="KV/Range") == 1000, 10)
    finally:
        etcd.members[0].cont()
    assert all(pb.RangeResponse.FromString(each.result()) == wanted for each in lists)
    assert 1 <= ranges(etcd) - before <= 3
    assert pair[0].metric("shardgate_flight_followers_total", cluster="f") >= 990


def test_a_read_sees_every_write_before_it_under_equal_load(pair: Pair) -> None:
    """The others read the same key all the time, so there is always a flight that was sent too early."""
    process, _, _, direct = pair
    stop, wrong = threading.Event(), []

    def read() -> None:
        with Client(process.address) as client:
            while not stop.is_set():
                floor = written[0]
                found = int(client.call("kv", "range", pb.RangeRequest(key=b"/f/fresh")).kvs[0].value)
                if found < floor:
                    wrong.append((found, floor))

    written = [0]
    direct.put(b"/f/fresh", b"0")
    before = process.metric("shardgate_flight_followers_total", cluster="f")
    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for number in range(1, 400):
        direct.put(b"/f/fresh", b"%d" % number)
        written[0] = number
    stop.set()
    for reader in readers:
        reader.join(20)
    assert not wrong
    assert process.metric("shardgate_flight_followers_total", cluster="f") > before, "they did share"


def test_a_cancel_or_a_deadline_is_for_one_alone(pair: Pair) -> None:
    process, etcd, through, direct = pair
    direct.put(b"/f/x", b"1")
    request = pb.RangeRequest(key=b"/f/x").SerializeToString()
    etcd.members[0].stop()
    try:
        first = later(through, request)
        wait_for("the first", lambda: process.metric("shardgate_requests_in_flight", cluster="f", method="KV/Range") == 1, 5)
        rest = [later(through, request) for _ in range(5)]
        brief = later(through, request, timeout=0.4)
        wait_for("the rest", lambda: process.metric("shardgate_requests_in_flight", cluster="f", method="KV/Range") == 7, 5)
        first.cancel()
        rest[0].cancel()
        assert brief.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        etcd.members[0].cont()
    assert all(pb.RangeResponse.FromString(each.result()).kvs[0].value == b"1" for each in rest[1:])
    wait_for("nothing to be left", lambda: process.metric("shardgate_requests_in_flight", cluster="f", method="KV/Range") == 0, 5)


def test_errors_are_for_all(pair: Pair) -> None:
    _, etcd, through, direct = pair
    future = pb.RangeRequest(key=b"/f/x", revision=direct.put(b"/f/x") + 1000).SerializeToString()
    etcd.members[0].stop()
    try:
        calls = [later(through, future) for _ in range(5)]
    finally:
        etcd.members[0].cont()
    assert {each.exception().details() for each in calls} == {"etcdserver: mvcc: required revision is a future revision"}


def test_who_asks_matters(pair: Pair) -> None:
    """Calls with a token don't share with those that have another."""
    process, etcd, through, _ = pair
    stub = through.channel.unary_unary("/etcdserverpb.KV/Range")
    before = process.metric("shardgate_flights_total", cluster="f")
    etcd.members[0].stop()
    try:
        calls = [stub.future(LIST, metadata=[("token", name)], timeout=10) for name in ("a", "b", "c")]
        wait_for("three flights", lambda: process.metric("shardgate_flights_total", cluster="f") - before == 3, 5)
    finally:
        etcd.members[0].cont()
    for each in calls:
        each.exception()


def test_a_large_reply_for_many(pair: Pair) -> None:
    _, _, through, direct = pair
    for number in range(12):
        direct.put(b"/f/large/%d" % number, bytes(1_000_000))
    request = pb.RangeRequest(key=b"/f/large/", range_end=b"/f/large0")
    wanted = direct.call("kv", "range", request)
    lists = [later(through, request.SerializeToString()) for _ in range(12)]
    assert all(pb.RangeResponse.FromString(each.result()) == wanted for each in lists)
    direct.call("kv", "delete_range", pb.DeleteRangeRequest(key=b"/f/", range_end=b"/f0"))


def test_a_lost_flight_is_lost_for_all() -> None:
    with cluster() as main, cluster() as other, gateway({"main": main.urls, "f": other.urls}, {"/f/": "f"}) as process:
        with Client(process.address) as client:
            client.put(b"/f/x", b"1")
            other.members[0].stop()
            calls = [later(client, LIST, 5) for _ in range(20)]
            wait_for("all to wait", lambda: process.metric("shardgate_requests_in_flight", cluster="f", method="KV/Range") == 20, 5)
            other.kill()
            assert {each.code() for each in calls} == {grpc.StatusCode.UNAVAILABLE}
            other.restart()
            other.wait()
            wait_for("the answer", lambda: _answers(client), 5)


def _answers(client: Client) -> bool:
    try:
        return bool(later(client, LIST, 1).result())
    except grpc.RpcError:
        return False
