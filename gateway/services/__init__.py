"""The etcd RPCs: each service method decides and acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.etcdpb.methods import METHODS, Method, method
from gateway.services.auth import Auth
from gateway.services.call import Instant
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


def bind(scope: Scope) -> tuple[dict[Method, Handler], dict[Method, Instant]]:
    """Every RPC of etcd and what answers it on this listener; and what may answer some of them in a shorter way."""
    copies = Copies(scope)
    kv = KV(scope, copies)
    services = {
        "kv": kv,
        "watch": Watch(scope),
        "lease": Lease(scope),
        "cluster": Members(scope),
        "maintenance": Maintenance(scope),
        "auth": Auth(scope),
        "lock": Lock(scope, copies),
        "election": Election(scope, copies),
    }
    handlers = {each: getattr(services[each.service], each.name) for each in METHODS.values()}
    return handlers, {method("kv", "range"): kv.instant} if scope.feeds else {}
