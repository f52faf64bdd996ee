"""Calls that make sense for one cluster only: which one is meant?"""

from __future__ import annotations

from gateway.core.errors import Code, RpcError
from gateway.services.call import Call
from gateway.services.scope import Scope

CLUSTER = b"shardgate-cluster"
"""Request metadata that names the cluster."""


def to_one(scope: Scope, call: Call, request: bytes) -> None:
    """Forward to the listener's only cluster, or to the one that the metadata names; refuse otherwise."""
    name = call.metadata.get(CLUSTER)
    if scope.single:
        scope.home.forward(call, request)
    elif name is None:
        call.fail(_unsaid(scope, call))
    elif (cluster := scope.clusters.get(name.decode("utf-8", "replace"))) is not None:
        cluster.forward(call, request)
    else:
        text = f"shardgate: there is no cluster {name.decode('utf-8', 'replace')!r}; clusters are {', '.join(scope.clusters)}"
        call.fail(RpcError(Code.INVALID_ARGUMENT, text))


def _unsaid(scope: Scope, call: Call) -> RpcError:
    return RpcError(
        Code.FAILED_PRECONDITION,
        f"shardgate: {call.method.name} concerns one cluster, and this listener has {', '.join(scope.clusters)}; "
        f"use a listener with its own `cluster:`, or send the metadata `{CLUSTER.decode()}: NAME`",
    )
