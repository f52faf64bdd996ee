"""A gateway in front of several real clusters, for the tests of its services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.etcd import EtcdCluster, cluster
from tests.gateway_process import GatewayProcess, gateway
from tests.services.client import Client

ROUTES = {"/events/": "events", "/cni/": "cni"}


@dataclass
class Site:
    """Its clusters by name, main is home; and a client of the gateway."""

    clusters: dict[str, EtcdCluster]
    gateway: GatewayProcess
    client: Client

    @contextmanager
    def direct(self, name: str) -> Iterator[Client]:
        """A client of the etcd itself."""
        with Client(self.clusters[name].address) as client:
            yield client


@contextmanager
def site(version: str | None = None, names: tuple[str, ...] = ("main", "events", "cni")) -> Iterator[Site]:
    """One etcd of this version per cluster; with the one name "main" the gateway has one cluster."""
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(cluster(version)) for name in names}
        routes = {prefix: name for prefix, name in ROUTES.items() if name in names}
        process = stack.enter_context(gateway({name: each.urls for name, each in clusters.items()}, routes))
        yield Site(clusters, process, stack.enter_context(Client(process.address)))
