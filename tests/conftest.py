"""Fixtures: real etcd clusters, one of each version for a whole run, and what the header of a run tells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.etcd import BINARIES, CHOICE, EtcdCluster, cluster, etcdctl, minor

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # processes are started while channels are open

settings.register_profile(
    "shardgate", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("shardgate")


def pytest_report_header() -> list[str]:
    """Which etcd versions and tools the run has."""
    versions = [f"{version} {'with' if etcdctl(version) else 'without'} etcdctl" for version in BINARIES]
    missing = [each for each in CHOICE.split(",") if each != "all" and each not in map(minor, BINARIES)]
    tools = {name: "yes" if shutil.which(name) else "NO, its tests are skipped" for name in ("h2load", "nghttp")}
    return [
        f"etcd: {', '.join(versions) or 'NONE: run `make setup`'}{''.join(f', NO {each}' for each in missing)}",
        *(f"{name}: {found}" for name, found in tools.items()),
    ]


@pytest.fixture(scope="session", params=BINARIES)
def etcd(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """A one-member cluster of each version; tests share it, so they keep to keys of their own."""
    with cluster(request.param) as running:
        yield running


@pytest.fixture(scope="session")
def main_etcd() -> Iterator[EtcdCluster]:
    """A one-member cluster of the default version; shared likewise."""
    with cluster() as running:
        yield running
