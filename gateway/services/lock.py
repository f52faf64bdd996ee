"""The Lock service: a lock lives in the cluster that owns its name."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from gateway.etcdpb import lock_pb2 as pb
from gateway.services.call import Call
from gateway.services.copies import Copies
from gateway.services.owner import forward_owned
from gateway.services.scope import Scope


class Lock:
    """etcd keeps a lock at name + "/" + lease id."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._scope = scope
        self._copies = copies

    def lock(self, call: Call, request: bytes) -> None:
        """Waits until the lock is had; its lease is made known to the owner first."""
        decoded = _decoded(pb.LockRequest, request)
        if decoded is None:
            self._scope.home.forward(call)
        else:
            forward_owned(self._scope, self._copies, call, request, decoded.name + b"/", decoded.lease)

    def unlock(self, call: Call, request: bytes) -> None:
        """By the key that `lock` gave."""
        decoded = _decoded(pb.UnlockRequest, request)
        if decoded is None:
            self._scope.home.forward(call)
        else:
            forward_owned(self._scope, self._copies, call, request, decoded.key, 0)


def _decoded(kind: Any, request: bytes) -> Any:
    try:
        return kind.FromString(request)
    except DecodeError:
        return None
