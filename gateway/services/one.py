"""Calls that make sense for one cluster only: which one is meant?"""

from __future__ import annotations

from gateway.core.errors import Code, RpcError
from gateway.services.call import Call
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster

CLUSTER = b"shardgate-cluster"
"""Request metadata that names the cluster."""


def named(scope: Scope, call: Call) -> Cluster | None:
    """The cluster that the call's metadata names, None if it names none. Raises RpcError for a name that this listener does not have."""
    name = call.metadata.get(CLUSTER)
    if name is None:
        return None
    cluster = scope.clusters.get(name.decode("utf-8", "replace"))
    if cluster is None:
        text = f"shardgate: there is no cluster {name.decode('utf-8', 'replace')!r} here; clusters are {', '.join(scope.clusters)}"
        raise RpcError(Code.INVALID_ARGUMENT, text)
    return cluster


def meant(scope: Scope, call: Call) -> Cluster:
    """The cluster that the metadata names, or the listener's only one. Raises RpcError when that is none."""
    cluster = named(scope, call)
    if cluster is not None:
        return cluster
    if scope.single:
        return scope.home
    raise RpcError(
        Code.FAILED_PRECONDITION,
        f"shardgate: {call.method.name} concerns one cluster, and this listener has {', '.join(scope.clusters)}; "
        f"use a listener with its own `cluster:`, or send the metadata `{CLUSTER.decode()}: NAME`",
    )


def to_one(scope: Scope, call: Call, request: bytes) -> None:
    """Forward to the cluster that is meant, or refuse."""
    try:
        cluster = meant(scope, call)
    except RpcError as error:
        call.fail(error)
    else:
        cluster.forward(call)
