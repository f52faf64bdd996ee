"""The gateway against etcd itself: the same requests, good and bad, must get the same answers, code and text included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.operations import KEYS, Op, Requests, odd
from tests.e2e.peer import Peer, check_alive, comparable
from tests.etcd import BINARIES, cluster
from tests.gateway_process import GatewayProcess, gateway

EXAMPLES = int(os.environ.get("SHARDGATE_EXAMPLES", "40"))
REQUESTS = Requests(KEYS)


@dataclass
class Pair:
    """An etcd, and the gateway in front of another one that has seen the same."""

    direct: Peer
    through: Peer
    gateway: GatewayProcess

    def reset(self) -> None:
        """Both without keys and leases."""
        self.direct.reset()
        self.through.reset()

    def check(self, operation: Op) -> None:
        """Both answer alike."""
        data = operation.data(self.direct.revision())
        want, got = (comparable(peer.ask(operation.path, data)) for peer in (self.direct, self.through))
        assert got == want, f"{operation}"


@pytest.fixture(scope="module", params=BINARIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with cluster(request.param) as one, cluster(request.param) as two, gateway({"main": two.urls}) as process:
        with Peer(one.address) as direct, Peer(process.address) as through:
            yield Pair(direct, through, process)
        check_alive(one, two)


@settings(max_examples=EXAMPLES)
@given(st.lists(REQUESTS.everything(), min_size=5, max_size=30))
def test_random_requests(pair: Pair, operations: list[Op]) -> None:
    pair.reset()
    for operation in (*REQUESTS.preset(), *operations):
        pair.check(operation)


@pytest.mark.parametrize("operation", odd(), ids=lambda operation: operation.path.rpartition("/")[2])
def test_odd_requests(pair: Pair, operation: Op) -> None:
    pair.check(operation)
