"""Promise 2 and 3 under faults: what clients see through two gateways and directly could have been said by one etcd.

`make test` runs each fault for a moment, `make soak` goes through them for SHARDGATE_SOAK_SECONDS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.relay import Relay
from tests.check.workload import Workload
from tests.etcd import BINARIES, EtcdCluster, cluster
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

SOAK = float(os.environ.get("SHARDGATE_SOAK_SECONDS", "600"))


@dataclass
class Stage:
    """An etcd cluster, relays before its members, two gateways behind them."""

    etcd: EtcdCluster
    relays: list[Relay]
    gateways: list[GatewayProcess]

    @property
    def addresses(self) -> dict[str, str]:
        return {f"gateway {at}": each.address for at, each in enumerate(self.gateways)}

    @property
    def direct(self) -> str:
        return self.etcd.members[-1].address


@contextmanager
def stage(version: str | None = None, size: int = 1, module: str = "gateway", cache: bool = True) -> Iterator[Stage]:
    with cluster(version, size) as etcd, ExitStack() as stack:
        relays = [stack.enter_context(Relay(member.address)) for member in etcd.members]
        urls = {"main": [relay.url for relay in relays]}
        yield Stage(etcd, relays, [stack.enter_context(gateway(urls, module=module, cache=cache)) for _ in range(2)])


def cut(stage: Stage) -> None:
    for relay in stage.relays:
        relay.cut()


def swallow(stage: Stage) -> None:
    stage.relays[0].swallow(True)
    time.sleep(1.5)
    stage.relays[0].swallow(False)


def stop(stage: Stage) -> None:
    stage.etcd.members[0].stop()
    time.sleep(0.8)
    stage.etcd.members[0].cont()


def kill(stage: Stage) -> None:
    stage.etcd.members[0].kill()
    time.sleep(0.2)
    stage.etcd.members[0].restart()
    stage.etcd.members[0].wait()


def compact(stage: Stage) -> None:
    """Through a gateway, and past it; a little behind the present, so that nobody who follows is hit."""
    for address in (stage.gateways[0].address, stage.direct):
        with Client(address) as client:
            client.call("kv", "compact", pb.CompactionRequest(revision=client.put(b"/other") - 20))
            time.sleep(0.2)


def defragment(stage: Stage) -> None:
    with Client(stage.direct) as client:
        client.call("maintenance", "defragment", pb.DefragmentRequest())


def calm(stage: Stage) -> None:
    """Nothing happens."""


FAULTS: list[Callable[[Stage], None]] = [calm, cut, swallow, stop, kill, defragment]


def judged(stage: Stage, faults: list[Callable[[Stage], None]], pause: float) -> tuple[Workload, list[str]]:
    with Workload(stage.addresses, stage.direct) as workload:
        for fault in faults:
            time.sleep(pause)
            fault(stage)
        time.sleep(pause)
    return workload, workload.history.violations()


@pytest.mark.parametrize("version", BINARIES)
def test_faults(version: str) -> None:
    with stage(version) as built:
        workload, violations = judged(built, FAULTS, 0.7)
        assert not violations, f"{len(violations)} of {workload.done}: {violations[:3]}"
        assert workload.done > 2000 and len(workload.history.truth) > 200
        assert all(process.metric("shardgate_cache_hits_total") > 200 for process in built.gateways)


def test_three_members_lose_their_leader_and_more() -> None:
    with stage(size=3) as built:
        workload, violations = judged(built, [kill, stop, swallow, cut], 0.7)
        assert not violations, f"{len(violations)} of {workload.done}: {violations[:3]}"
        assert workload.done > 1000


@pytest.mark.parametrize(
    ("module", "cache", "said"),
    [
        ("tests.check.unconfirmed", True, "was known before it began"),
        ("tests.check.eager", False, "was known before it began"),
        ("tests.check.forgetful", True, "heard"),
    ],
)
def test_a_broken_gateway_is_found_out(module: str, cache: bool, said: str) -> None:
    with stage(module=module, cache=cache) as built:
        _, violations = judged(built, [calm], 1.5)
        assert any(said in each for each in violations)


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, 3])
def test_faults_for_long(size: int) -> None:
    with stage(size=size) as built:
        end = time.monotonic() + SOAK / 2
        while time.monotonic() < end:
            workload, violations = judged(built, [*FAULTS, *FAULTS], 2)
            assert not violations, f"{len(violations)} of {workload.done}: {violations[:3]}"
