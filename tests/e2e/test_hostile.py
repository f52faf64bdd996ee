"""Hostile bytes cost nothing that stays, and a well-behaved client beside them does not notice."""

from __future__ import annotations

import os
import time

import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.e2e.hostile import Hostile
from tests.e2e.load import Load
from tests.etcd import EtcdCluster, cluster, wait_for
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

SHORT = 8.0
SOAK = float(os.environ.get("SHARDGATE_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SHARDGATE_SEED", "1"))
SLOWEST = 2.0
"""Seconds that one write and read may take beside the attack, on a machine that the attackers keep busy too."""


def normal(process: GatewayProcess) -> int:
    """Some traffic as usual; the memory after it."""
    with Client(process.address) as client, client.watching() as watch:
        watch.created(b"normal/", b"normal0")
        for number in range(300):
            client.put(b"normal/%d" % (number % 20), bytes(1000))
            client.call("kv", "range", pb.RangeRequest(key=b"normal/", range_end=b"normal0"))
        assert len(list(watch.events(300))) == 300
    return process.rss()


def attack(etcds: tuple[EtcdCluster, EtcdCluster], seconds: float) -> None:
    one, two = etcds
    with gateway({"main": one.urls, "a": two.urls}, {"a": "a"}) as process:
        with Hostile(process.address, SEED):
            time.sleep(1)  # so that what is made once is made
        before = normal(process)
        files = len(os.listdir(f"/proc/{process.process.pid}/fd"))
        with Load(process.address, b"beside", timeout=10) as load, Hostile(process.address, SEED) as hostile:
            time.sleep(seconds)
        assert load.errors == []
        assert load.worst < SLOWEST, load
        assert hostile.attacks > 5 * seconds
        wait_for("connections gone", lambda: process.metric("shardgate_client_connections") == 0, 40)
        wait_for("memory back", lambda: normal(process) < before * 1.1, 60, pause=5)
        assert len(os.listdir(f"/proc/{process.process.pid}/fd")) <= files + 2
        print(f"{hostile.attacks} attacks; {load.rounds} rounds beside them, the longest {load.worst:.2f} s")
        print(f"{before >> 20} MiB before, {process.rss() >> 20} MiB after")


def test_hostile_bytes() -> None:
    with cluster() as one, cluster() as two:
        attack((one, two), SHORT)


@pytest.mark.soak
def test_hostile_bytes_for_long() -> None:
    with cluster() as one, cluster() as two:
        attack((one, two), SOAK)
