"""etcd processes that are killed, stopped or missing: a cluster that is down takes down its own keys only, and comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from tests.e2e.load import Load
from tests.etcd import BINARIES, EtcdCluster, cluster, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

ROUTES = {"/events/": "events"}
EVENTS = b"/events/", b"/events0"
BACK_SECONDS = 2.0
"""How soon after etcd's return its keys must work."""


@dataclass
class Site:
    """Two clusters, a gateway and a client of it."""

    main: EtcdCluster
    events: EtcdCluster
    process: GatewayProcess
    client: Client

    def put(self, key: bytes, timeout: float = 1.0) -> str:
        """"" or the code's name."""
        try:
            self.client.call("kv", "put", pb.PutRequest(key=key), timeout)
        except grpc.RpcError as error:
            return str(error.code().name)
        return ""

    def back(self, key: bytes) -> float:
        """Seconds until a put works."""
        start = time.monotonic()
        wait_for("a put", lambda: self.put(key, 0.5) == "", 20)
        return time.monotonic() - start


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    version = getattr(request, "param", None)
    with cluster(version) as main, cluster(version) as events, gateway({"main": main.urls, "events": events.urls}, ROUTES) as process:
        with Client(process.address) as client:
            yield Site(main, events, process, client)


def history(etcd: EtcdCluster, last: bytes) -> list[tuple[bytes, int]]:
    """Key and revision of all events of /events/ up to a last key, as etcd itself tells them."""
    with Client(etcd.address) as direct, direct.watching() as stream:
        stream.created(*EVENTS, start_revision=1)
        told: list[tuple[bytes, int]] = []
        for event in stream.events(1_000_000):
            told.append(event)
            if event[0] == last:
                return told
    return told


@pytest.mark.parametrize("site", BINARIES, indirect=True)
def test_a_killed_cluster(site: Site) -> None:
    """Others go on without an error; its own keys fail in time, work again at once, and watches lose and double nothing."""
    with site.client.watching() as watch, site.client.watching() as both, Load(site.process.address, b"/main") as others:
        watch.created(*EVENTS)
        both.created(b"/", b"0")
        with Load(site.process.address, b"/events/busy", timeout=1.0):  # writes are under way when it dies
            time.sleep(0.3)
            site.events.kill()
            time.sleep(0.3)
        for _ in range(3):
            start = time.monotonic()
            assert site.put(b"/events/x", 0.7) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            assert time.monotonic() - start < 1.2
        assert "events failed" in site.process.admin("/readyz?verbose")
        site.events.restart()
        site.events.wait()
        with Client(site.events.address) as direct:
            direct.put(b"/events/direct")
        assert site.back(b"/events/back") < BACK_SECONDS
        for number in range(50):
            site.client.put(b"/events/%d" % number)
        site.client.put(b"/events/last")
        expected = history(site.events, b"/events/last")
        assert list(watch.events(len(expected))) == expected
        assert watch.silent()
        told = [(key, revision) for key, revision in _until(both, b"/events/last") if key.startswith(b"/events/")]
        assert told == expected
    assert others.errors == []
    assert others.rounds > 30 and others.worst < 2, others


def _until(stream: object, last: bytes) -> Iterator[tuple[bytes, int]]:
    for key, revision in stream.events(1_000_000):  # type: ignore[attr-defined]
        yield key, revision
        if key == last:
            return


def test_a_killed_cluster_fails_fast_with_unavailable(site: Site) -> None:
    site.events.kill()
    wait_for("seen", lambda: "events failed" in site.process.admin("/readyz?verbose"), 5)
    with pytest.raises(grpc.RpcError) as error:
        site.client.call("kv", "put", pb.PutRequest(key=b"/events/x"), 30)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as error:
        site.client.call("kv", "range", pb.RangeRequest(key=b"/", range_end=b"0"), 30)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as error:
        site.client.call("kv", "range", pb.RangeRequest(key=b"/events/x"), 0.5)
    assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_stopped_process(site: Site) -> None:
    """It keeps its connections and answers nothing: the client's deadline ends the call; afterwards all is well."""
    with site.client.watching() as watch, Load(site.process.address, b"/main") as others:
        watch.created(*EVENTS)
        member = site.events.members[0]
        member.stop()
        start = time.monotonic()
        assert site.put(b"/events/stopped", 0.5) == "DEADLINE_EXCEEDED"
        assert time.monotonic() - start < 1
        time.sleep(2)
        member.cont()
        assert site.back(b"/events/back") < BACK_SECONDS
        site.client.put(b"/events/last")
        expected = history(site.events, b"/events/last")
        assert list(watch.events(len(expected))) == expected
    assert others.errors == []


def test_killed_again_and_again(site: Site) -> None:
    """Five times within seconds, with a watch and leases that have to last."""
    site.client.call("lease", "lease_grant", pb.LeaseGrantRequest(TTL=600, ID=5))
    site.client.call("kv", "put", pb.PutRequest(key=b"/events/leased", lease=5))
    with site.client.watching() as watch:
        watch.created(*EVENTS, start_revision=1)
        for number in range(5):
            site.events.kill()
            site.events.restart()
            site.events.wait()
            assert site.back(b"/events/%d" % number) < BACK_SECONDS
        site.client.put(b"/events/last")
        expected = history(site.events, b"/events/last")
        assert list(watch.events(len(expected))) == expected
    reply = site.client.call("lease", "lease_time_to_live", pb.LeaseTimeToLiveRequest(ID=5, keys=True))
    assert list(reply.keys) == [b"/events/leased"] and 0 < reply.TTL <= 600


def test_a_gateway_that_starts_without_a_cluster() -> None:
    with cluster() as main, cluster() as events:
        events.kill()
        start = time.monotonic()
        with gateway({"main": main.urls, "events": events.urls}, ROUTES) as process, Client(process.address) as client:
            assert time.monotonic() - start < 10
            site = Site(main, events, process, client)
            assert site.put(b"/main", 5) == ""
            assert site.put(b"/events/x") == "UNAVAILABLE"
            assert "events failed" in process.admin("/readyz?verbose")
            with client.watching() as watch:
                watch.create(*EVENTS)
                events.restart()
                events.wait()
                assert site.back(b"/events/x") < BACK_SECONDS
                assert process.log().count("endpoint_down") == 1, "one line per change, not one per attempt"


def test_a_member_of_three_is_killed() -> None:
    """With a quorum left, the errors of calls that were under way are all that a client sees."""
    with cluster(size=3) as three, gateway({"main": three.urls}) as process, Client(process.address) as client:
        site = Site(three, three, process, client)
        for member in three.members:
            assert site.back(b"x") < BACK_SECONDS
            member.kill()
            wait_for("a put", lambda: site.put(b"x", 3) == "", 15)  # the killed one may have been the leader
            time.sleep(0.3)
            with Load(process.address, b"y", timeout=3.0) as load:
                time.sleep(1)
            assert load.errors == []
            assert load.rounds > 20
            member.restart()
            member.wait()


def test_an_endpoint_that_never_answers() -> None:
    """One of two endpoints does not exist: no call is sent to it."""
    with cluster() as main, gateway({"main": [main.urls[0], "http://127.0.0.1:9"]}) as process, Load(process.address, b"x") as load:
        time.sleep(1.5)
    assert load.errors == []


def test_cancelled_lists_harm_no_etcd(site: Site) -> None:
    """Lists over several clusters that clients give up while etcd works on them. (etcd 3.5.1 itself dies of a read-only transaction that is
    cancelled under way.)"""
    for number in range(200):
        for key in (b"/main/%d" % number, b"/events/%d" % number):
            site.client.call("kv", "put", pb.PutRequest(key=key, value=bytes(10_000)))
    everything = pb.RangeRequest(key=b"\0", range_end=b"\0")
    path = method("kv", "range").path.decode()
    for number in range(400):
        call = site.client.channel.unary_unary(path).future(everything.SerializeToString())
        time.sleep(number % 20 / 2000)
        call.cancel()
    assert site.put(b"/main/x", 5) == "" and site.put(b"/events/x", 5) == ""
    assert all(member.process is not None and member.process.poll() is None for each in (site.main, site.events) for member in each.members)
