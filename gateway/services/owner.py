"""Calls that belong to the cluster which owns a key, with a lease of home's."""

from __future__ import annotations

from gateway.services.call import Call
from gateway.services.leases import Copies
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster


def forward_owned(scope: Scope, copies: Copies, call: Call, request: bytes, key: bytes, lease: int) -> None:
    """Forward to the key's cluster; a lease that lives at home is granted there first. An empty key goes to home."""
    cluster = scope.clusters[scope.routes.cluster_of(key)] if key.strip(b"/") else scope.home
    if cluster is scope.home or not lease:
        cluster.forward(call, request)
    else:
        call.cluster = cluster.name
        call.run(_with_lease(copies, call, request, cluster, lease))


async def _with_lease(copies: Copies, call: Call, request: bytes, cluster: Cluster, lease: int) -> None:
    await copies.ensure(cluster, lease, call.deadline)
    cluster.forward(call, request)
