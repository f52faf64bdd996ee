"""Calls that belong to the cluster which owns a key, with a lease of home's."""

from __future__ import annotations

from gateway.services.call import Call
from gateway.services.copies import Copies
from gateway.services.scope import Scope


def forward_owned(scope: Scope, copies: Copies, call: Call, request: bytes, key: bytes, lease: int) -> None:
    """Forward to the key's cluster; a lease that lives at home gets a copy there."""
    cluster = scope.clusters[scope.routes.cluster_of(key)]
    if cluster is scope.home or not lease:
        cluster.forward(call)
    else:
        call.run(copies.write(call, cluster, request, (lease,)))
