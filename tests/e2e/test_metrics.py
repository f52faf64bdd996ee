"""Metrics and logs of a gateway that real clients use."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.etcdpb import lock_pb2 as lock
from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import ROOT, EtcdCluster, cluster, post, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

SECRET = "pa55w0rd-or-value"


@pytest.fixture(scope="module")
def events_etcd() -> Iterator[EtcdCluster]:
    """A second cluster."""
    with cluster() as running:
        yield running


@pytest.fixture
def front(main_etcd: EtcdCluster, events_etcd: EtcdCluster) -> Iterator[GatewayProcess]:
    """A gateway that nobody has used yet: keys below /events/ live in the cluster events."""
    with gateway({"main": main_etcd.urls, "events": events_etcd.urls}, {"/events/": "events"}) as running:
        yield running


def requests(front: GatewayProcess, cluster: str, method: str, code: str) -> float:
    return front.metric("shardgate_requests_total", cluster=cluster, method=method, code=code)


def idle(front: GatewayProcess) -> None:
    """Nothing is under way, after a moment."""
    for name in ("shardgate_requests_in_flight", "shardgate_streams", "shardgate_watches"):
        wait_for(f"{name} 0", lambda name=name: front.metric(name) == 0, 5)  # type: ignore[misc]


def test_each_call_counts_once(front: GatewayProcess) -> None:
    with Client(front.address) as client:
        for number in range(20):
            client.put(b"/main/metrics", b"x" * number)
        for _ in range(7):
            client.call("kv", "range", pb.RangeRequest(key=b"/events/metrics"))
        for _ in range(5):
            client.call("kv", "range", pb.RangeRequest(key=b"/", range_end=b"0", limit=1))
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                client.call("kv", "range", pb.RangeRequest())
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                client.call("kv", "delete_range", pb.DeleteRangeRequest(key=b"/", range_end=b"0"))
    assert requests(front, "main", "KV/Put", "OK") == 20
    assert requests(front, "events", "KV/Range", "OK") == 7
    assert requests(front, "(several)", "KV/Range", "OK") == 5
    assert front.metric("shardgate_requests_total", method="KV/Range", code="INVALID_ARGUMENT") == 3
    assert front.metric("shardgate_requests_total", method="KV/DeleteRange", cluster="") == 2
    assert front.metric("shardgate_requests_total") == 37
    assert front.metric("shardgate_request_duration_seconds_count") == 37
    assert 0 < front.metric("shardgate_request_duration_seconds_sum") < 10
    wanted = sum(pb.PutRequest(key=b"/main/metrics", value=b"x" * number).ByteSize() for number in range(20))
    assert front.metric("shardgate_request_bytes_total", method="KV/Put") == wanted
    assert front.metric("shardgate_reply_bytes_total", method="KV/Put") > 20 * 10
    idle(front)


def test_json_counts_too(front: GatewayProcess) -> None:
    for _ in range(4):
        assert "header" in post(front.address, "/v3/kv/range", key=b64encode(b"/events/x").decode())
    assert "error" in post(front.address, "/v3/kv/range", key="")
    assert requests(front, "events", "KV/Range", "OK") == 4
    assert front.metric("shardgate_requests_total", code="INVALID_ARGUMENT") == 1
    watch = http.client.HTTPConnection(front.address, timeout=10)
    watch.request("POST", "/v3/watch", json.dumps({"create_request": {"key": b64encode(b"/events/x").decode()}}))
    response = watch.getresponse()
    assert b'"created":true' in response.readline()
    assert front.metric("shardgate_watches", listener="clients", cluster="events") == 1
    assert front.metric("shardgate_requests_in_flight", cluster="events", method="Watch/Watch") == 1
    assert front.metric("shardgate_client_connections", protocol="http") == 1
    response.close()
    watch.close()
    idle(front)
    assert front.metric("shardgate_client_connections") == 0
    assert requests(front, "events", "Watch/Watch", "CANCELLED") == 1


def test_watches_and_streams(front: GatewayProcess) -> None:
    with Client(front.address) as client, client.watching() as one, client.watching() as other:
        one.created(b"/main/w")
        one.created(b"/events/w")
        other.created(b"/", b"0")
        number = one.created(b"/events/v").watch_id
        assert front.metric("shardgate_watches", cluster="main") == 2
        assert front.metric("shardgate_watches", cluster="events") == 3
        assert front.metric("shardgate_streams") == 2
        assert front.metric("shardgate_requests_in_flight", method="Watch/Watch") == 2
        assert front.metric("shardgate_client_connections", listener="clients", protocol="grpc") == 1
        one.cancel(number)
        assert one.next().canceled
        assert front.metric("shardgate_watches", cluster="events") == 2
        before = front.metric("shardgate_reply_bytes_total", method="Watch/Watch")
        client.put(b"/main/w", b"x" * 100_000)
        assert one.next().events[0].kv.value == b"x" * 100_000
        other.next()
        assert front.metric("shardgate_reply_bytes_total", method="Watch/Watch") - before > 200_000
        assert front.metric("shardgate_requests_total", method="Watch/Watch", code="CANCELLED") == 0
    idle(front)
    assert front.metric("shardgate_requests_total", method="Watch/Watch", code="CANCELLED") == 2
    assert front.metric("shardgate_requests_total", method="Watch/Watch") == 2


def test_given_up_calls(front: GatewayProcess, main_etcd: EtcdCluster) -> None:
    with Client(front.address) as client:
        client.put(b"/main/x")
        main_etcd.members[0].stop()
        try:
            futures = [client.channel.unary_unary("/etcdserverpb.KV/Range").future(_range(b"/main/x"), timeout=10) for _ in range(9)]
            wait_for("in flight", lambda: front.metric("shardgate_requests_in_flight", cluster="main", method="KV/Range") == 9, 5)
            for future in futures:
                future.cancel()
            with pytest.raises(grpc.RpcError) as error:
                client.call("kv", "range", pb.RangeRequest(key=b"/main/x"), timeout=0.3)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            idle(front)
        finally:
            main_etcd.members[0].cont()
    assert requests(front, "main", "KV/Range", "CANCELLED") + requests(front, "main", "KV/Range", "DEADLINE_EXCEEDED") == 10
    assert requests(front, "main", "KV/Range", "CANCELLED") >= 9


def _range(key: bytes) -> bytes:
    return pb.RangeRequest(key=key).SerializeToString()


def test_refusals_and_protocol_errors(front: GatewayProcess) -> None:
    with Client(front.address) as client:
        with pytest.raises(grpc.RpcError):
            client.channel.unary_unary("/no.Service/Method")(b"", timeout=5)
    assert front.metric("shardgate_refused_requests_total") == 1
    host, port = front.address.split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\x01\x06\0\0\0\0\0x")
        while sock.recv(1000):
            pass
    wait_for("counted", lambda: front.metric("shardgate_protocol_errors_total") == 1, 5)
    assert front.metric("shardgate_accepted_connections_total", listener="clients") >= 2


def test_a_cluster_that_is_down() -> None:
    with cluster() as main, cluster() as events, gateway({"main": main.urls, "events": events.urls}, {"/events/": "events"}) as front:
        assert front.admin("/readyz?verbose") == "[+]gateway ok\n[+]cluster main ok\n[+]cluster events ok\nreadyz check passed\n"
        assert front.metric("shardgate_upstream_connections", cluster="events") >= 1
        events.kill()
        wait_for("down", lambda: front.metric("shardgate_cluster_available", cluster="events") == 0, 5)
        assert front.metric("shardgate_cluster_available", cluster="main") == 1
        assert front.admin("/readyz") == "ok\n"
        wait_for("a reason", lambda: f"[-]cluster events failed: {events.urls[0]}: " in front.admin("/readyz?verbose"), 5)
        assert "Not reached: events." in front.admin("/")
        with Client(front.address) as client:
            with pytest.raises(grpc.RpcError):
                client.call("kv", "range", pb.RangeRequest(key=b"/events/x"))
            client.put(b"/main/x")
        assert requests(front, "events", "KV/Range", "UNAVAILABLE") == 1
        wait_for("failures", lambda: front.metric("shardgate_upstream_failures_total", cluster="events") > 5, 10)
        events.restart()
        wait_for("up", lambda: front.metric("shardgate_cluster_available", cluster="events") == 1, 10)
        said = [line for line in front.log().splitlines() if "event=endpoint_down" in line]
        assert len(said) == 1 and f"cluster=events endpoint={events.urls[0]} error=" in said[0] and "fix=" in said[0]


def test_slow_requests(main_etcd: EtcdCluster, events_etcd: EtcdCluster) -> None:
    log = {"slow_request_seconds": 0.000001, "format": "json", "level": "debug"}
    with gateway({"main": main_etcd.urls, "events": events_etcd.urls}, {"/events/": "events"}, log=log) as front:
        with Client(front.address) as client:
            client.put(b"/main/slow", SECRET.encode())
            code = "OK"
            try:
                client.call("kv", "range", pb.RangeRequest(key=b"/events/\n", range_end=b"/events0"), authorization=SECRET, token=SECRET)
            except grpc.RpcError as error:  # versions of etcd differ in whether a token matters where auth is off
                code = error.code().name
            compare = pb.Compare(key=b"/main/slow", target=pb.Compare.VALUE, value=SECRET.encode())
            put = pb.RequestOp(request_put=pb.PutRequest(key=b"/main/other", value=SECRET.encode()))
            client.call("kv", "txn", pb.TxnRequest(compare=[compare], success=[put]))
            client.call("kv", "txn", pb.TxnRequest(success=[put]))
            client.call("kv", "range", pb.RangeRequest(key=b"k" * 500))
            with pytest.raises(grpc.RpcError):
                client.call("auth", "authenticate", pb.AuthenticateRequest(name="root", password=SECRET))
            lease = client.call("lease", "lease_grant", pb.LeaseGrantRequest(TTL=60)).ID
            client.call("lock", "lock", lock.LockRequest(name=b"/main/lock", lease=lease))
            client.call("lease", "lease_revoke", pb.LeaseRevokeRequest(ID=lease))
        post(front.address, "/v3/kv/put", key=b64encode(b"/main/json").decode(), value=b64encode(SECRET.encode()).decode())
        text = front.log()
        assert SECRET not in text and b64encode(SECRET.encode()).decode() not in text
        lines = [each for each in map(json.loads, text.splitlines()) if each["event"] == "slow_request"]
        told = [(each["method"], each["cluster"], each.get("key"), each.get("range_end"), each["code"]) for each in lines]
        assert told == [
            ("KV/Put", "main", "'/main/slow'", None, "OK"),
            ("KV/Range", "events", r"'/events/\n'", "'/events0'", code),
            ("KV/Txn", "main", "'/main/slow'", None, "OK"),
            ("KV/Txn", "main", "'/main/other'", None, "OK"),
            ("KV/Range", "main", "'" + "k" * 61 + "...'", None, "OK"),
            ("Auth/Authenticate", "main", None, None, "FAILED_PRECONDITION"),
            ("Lease/LeaseGrant", "main", None, None, "OK"),
            ("Lease/LeaseRevoke", "main", None, None, "OK"),
            ("KV/Put", "main", "'/main/json'", None, "OK"),
        ]
        assert all(0 < each["seconds"] < 10 for each in lines)
        assert front.metric("shardgate_slow_requests_total") == len(lines)


def test_scrapes_disturb_nobody(front: GatewayProcess) -> None:
    """And all that is scraped under load can be read."""
    stop = threading.Event()
    failures: list[Exception] = []

    def load() -> None:
        with Client(front.address) as client:
            while not stop.is_set():
                try:
                    client.put(b"/main/scrape")
                except grpc.RpcError as error:
                    failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert list(text_string_to_metric_families(front.admin("/metrics")))
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not failures
    idle(front)


def test_the_documentation_has_every_metric(front: GatewayProcess) -> None:
    with Client(front.address) as client:
        client.put(b"/main/doc")
    host, port = front.address.split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"PRI * HTTP/1.1 and no more of it is true\r\n\r\n")
        while sock.recv(1000):
            pass
    wait_for("counted", lambda: front.metric("shardgate_protocol_errors_total") == 1, 5)
    told = {}
    for family in text_string_to_metric_families(front.admin("/metrics")):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        told[name] = family.type, labels
    page = Path(ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*)\|", page, re.M)
    written = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert written == told
