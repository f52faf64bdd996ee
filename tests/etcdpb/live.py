"""A real etcd of each version for one module's tests: these change what others rely on (auth, alarms, compaction)."""

from collections.abc import Iterator

import pytest

from tests.etcd import BINARIES, cluster
from tests.etcd import EtcdCluster as Etcd

__all__ = ["BINARIES", "Etcd", "etcd", "running"]

running = cluster


@pytest.fixture(scope="module", params=BINARIES)
def etcd(request: pytest.FixtureRequest) -> Iterator[Etcd]:
    with running(request.param) as process:
        yield process
