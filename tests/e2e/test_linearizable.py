"""Promise 2 under faults: what clients are answered through two gateways and directly could have been answered by one etcd.

`make test` has some seconds of each fault, `make soak` goes on for SHARDGATE_SOAK_SECONDS.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.check import watched
from tests.check.linearizable import violations
from tests.check.relay import Relays
from tests.check.runs import SOAK, Record, Run, each_run, recorded, soaked
from tests.etcd import cluster, default_version
from tests.gateway_process import gateway
from tests.services.client import Client


def said(found: list[str]) -> str:
    return "\n".join((f"{len(found)} violations:", *(each[:1000] for each in found[:5])))


def judged(record: Record) -> None:
    found = violations(record.history, record.run.size)
    assert not found, f"{record.run}, seed {record.run.seed}: {said(found)}"


@each_run
def test_clients_see_one_etcd(run: Run) -> None:
    record = recorded(run)
    judged(record)
    kinds = Counter(type(each.request) for each in record.history.operations if each.reply is not None)
    pages = [each for each in record.history.operations if isinstance(each.request, pb.RangeRequest) and each.request.revision]
    assert kinds[pb.RangeRequest] > 500 and len(record.history.log) > 150 and len(pages) > 20, kinds
    assert min(kinds[pb.PutRequest], kinds[pb.DeleteRangeRequest], kinds[pb.TxnRequest]) > 10, kinds
    assert min(record.hits) > 50 and sum(record.followers) > 5, (record.hits, record.followers)


def test_a_gateway_that_does_not_confirm_is_found_out() -> None:
    found = violations(recorded(Run(default_version(), 1, "lag", module="tests.check.unconfirmed")).history)
    assert sum("was known" in each for each in found) > 10, said(found)


def test_a_gateway_that_joins_what_was_sent_is_found_out() -> None:
    found = violations(recorded(Run(default_version(), 1, "slow", module="tests.check.eager")).history)
    assert any("was known" in each for each in found), said(found)


@pytest.mark.xfail(reason="a serializable read that is forwarded goes to any member, whatever its client has seen of another one")
def test_serializable_reads_of_three_members_do_not_go_back() -> None:
    """Not cached. Several clients at once, as one alone has all of its calls sent to the same member."""
    with cluster(size=3) as three, gateway({"main": three.urls}, cache=False) as process, ThreadPoolExecutor(8) as clients:
        steps = list(clients.map(_backward_steps, [process.address] * 8, [b"%d" % number for number in range(8)]))
    assert sum(steps) == 0, f"{steps} of 150 each"


def test_the_headers_of_pages_do_not_go_back() -> None:
    """The feed is behind what the client was told through the same gateway."""
    with cluster() as main, Relays([main.address]) as relays, gateway({"main": relays.urls}) as process, Client(process.address) as client:
        first = client.put(b"a")
        assert client.call("kv", "range", pb.RangeRequest(key=b"a")).header.revision == first
        relays.do(0, "hold", "feed")
        wrote = client.put(b"a")
        assert client.call("kv", "range", pb.RangeRequest(key=b"a", revision=first)).header.revision >= wrote


def _backward_steps(address: str, key: bytes) -> int:
    """How often a client of one connection reads an older revision than it has written at."""
    request = pb.RangeRequest(key=key, serializable=True)
    with Client(address) as client:
        return sum(client.put(key) > client.call("kv", "range", request).header.revision for _ in range(150))


@pytest.mark.soak
def test_clients_see_one_etcd_for_long() -> None:
    """Watches are judged here too: they are in the same records."""
    for record in soaked(SOAK):
        judged(record)
        found = watched.violations(record.history)
        assert not found, f"{record.run}, seed {record.run.seed}: {said(found)}"
