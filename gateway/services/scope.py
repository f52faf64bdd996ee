"""What a listener gives its services to work with: its routes, its home cluster and the clusters it may reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gateway.core.routes import Routes
from gateway.upstream.cluster import Cluster
from gateway.upstream.feed import Feed
from gateway.upstream.flights import Flights


@dataclass(frozen=True)
class Scope:
    """One listener's view. `clusters` has every cluster that its routes name, home included, in config order; `feeds` has the feeds of
    those that have one, by the cluster's name; `flights` has the calls to each cluster that equal reads share."""

    listener: str
    routes: Routes
    home: Cluster
    clusters: Mapping[str, Cluster]
    advertise_urls: tuple[str, ...]
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    flights: Mapping[str, Flights] = field(default_factory=dict)

    @cached_property
    def single(self) -> bool:
        """Only one cluster: everything is forwarded."""
        return len(self.clusters) == 1
