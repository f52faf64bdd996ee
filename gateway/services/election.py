"""The Election service: an election lives in the cluster that owns its name."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from gateway.etcdpb import election_pb2 as pb
from gateway.services.call import Call
from gateway.services.copies import Copies
from gateway.services.owner import forward_owned
from gateway.services.scope import Scope


class Election:
    """etcd keeps a candidate at name + "/" + lease id; a leader is known by that key."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._scope = scope
        self._copies = copies

    def campaign(self, call: Call, request: bytes) -> None:
        """Waits until elected; its lease is made known to the owner first."""
        decoded = self._decoded(pb.CampaignRequest, call, request)
        if decoded is not None:
            forward_owned(self._scope, self._copies, call, request, decoded.name + b"/", decoded.lease)

    def proclaim(self, call: Call, request: bytes) -> None:
        """By the leader's key."""
        self._by_leader(pb.ProclaimRequest, call, request)

    def resign(self, call: Call, request: bytes) -> None:
        """By the leader's key."""
        self._by_leader(pb.ResignRequest, call, request)

    def leader(self, call: Call, request: bytes) -> None:
        """By the election's name."""
        self._by_name(pb.LeaderRequest, call, request)

    def observe(self, call: Call, request: bytes) -> None:
        """By the election's name; a stream."""
        self._by_name(pb.LeaderRequest, call, request)

    def _by_name(self, kind: Any, call: Call, request: bytes) -> None:
        decoded = self._decoded(kind, call, request)
        if decoded is not None:
            forward_owned(self._scope, self._copies, call, request, decoded.name + b"/", 0)

    def _by_leader(self, kind: Any, call: Call, request: bytes) -> None:
        decoded = self._decoded(kind, call, request)
        if decoded is not None:
            forward_owned(self._scope, self._copies, call, request, decoded.leader.key, 0)

    def _decoded(self, kind: Any, call: Call, request: bytes) -> Any:
        """None when the message is none: home says so."""
        try:
            return kind.FromString(request)
        except DecodeError:
            self._scope.home.forward(call)
            return None
