"""The etcd RPCs: each service method decides and acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.etcdpb.methods import METHODS, Method
from gateway.services.auth import Auth
from gateway.services.cluster import Members
from gateway.services.copies import Copies
from gateway.services.election import Election
from gateway.services.kv import KV
from gateway.services.lease import Lease
from gateway.services.lock import Lock
from gateway.services.maintenance import Maintenance
from gateway.services.scope import Scope
from gateway.services.watch import Watch

Handler = Callable[..., Any]
"""`(call, request)` for an RPC with one request, `(call) -> Session` for one with a stream of them."""


def bind(scope: Scope) -> dict[Method, Handler]:
    """Every RPC of etcd and what answers it on this listener."""
    copies = Copies(scope)
    services = {
        "kv": KV(scope, copies),
        "watch": Watch(scope),
        "lease": Lease(scope),
        "cluster": Members(scope),
        "maintenance": Maintenance(scope),
        "auth": Auth(scope),
        "lock": Lock(scope, copies),
        "election": Election(scope, copies),
    }
    return {method: getattr(services[method.service], method.name) for method in METHODS.values()}
