"""The Maintenance service: what concerns one cluster goes to the one that is meant, the rest is joined."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from gateway.core.joins import join_alarms, join_status
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import SEVERAL, Call
from gateway.services.one import to_one
from gateway.services.scope import Scope

if TYPE_CHECKING:
    from gateway.upstream.cluster import Cluster


class Maintenance:
    """With one cluster everything is forwarded."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def status(self, call: Call, request: bytes) -> None:
        """Home's, with the lowest version of all clusters (clients switch features by it) and the summed sizes."""
        if self._scope.single or b"shardgate-cluster" in call.metadata:
            to_one(self._scope, call, request)
        else:
            call.run(self._status(call, request))

    async def _status(self, call: Call, request: bytes) -> bytes:
        call.cluster = SEVERAL
        home, others = await self._ask(call, request)
        replies = [pb.StatusResponse.FromString(reply) for _, reply in others if isinstance(reply, bytes)]
        down = [f"cluster {cluster.name}: {reply}" for cluster, reply in others if isinstance(reply, BaseException)]
        return join_status(pb.StatusResponse.FromString(home), replies, down).SerializeToString()

    def alarm(self, call: Call, request: bytes) -> None:
        """Listed or disarmed in all clusters: a member id that a cluster does not know changes nothing there."""
        if self._scope.single or b"shardgate-cluster" in call.metadata:
            to_one(self._scope, call, request)
            return
        try:
            activates = pb.AlarmRequest.FromString(request).action == pb.AlarmRequest.ACTIVATE
        except DecodeError:
            self._scope.home.forward(call, request)
            return
        if activates:
            to_one(self._scope, call, request)
        else:
            call.run(self._alarm(call, request))

    async def _alarm(self, call: Call, request: bytes) -> bytes:
        call.cluster = SEVERAL
        home, others = await self._ask(call, request)
        replies = [pb.AlarmResponse.FromString(reply) for _, reply in others if isinstance(reply, bytes)]
        return join_alarms(pb.AlarmResponse.FromString(home), replies).SerializeToString()

    async def _ask(self, call: Call, request: bytes) -> tuple[bytes, list[tuple[Cluster, bytes | BaseException]]]:
        """Home's reply, and those of the others or why there is none: a cluster that is down does not fail the call. Raises home's error."""
        others = [cluster for cluster in self._scope.clusters.values() if cluster is not self._scope.home]
        deadline = call.deadline or asyncio.get_running_loop().time() + 5.0
        asked = (cluster.unary(call.method, request, deadline=deadline, metadata=call.metadata) for cluster in (self._scope.home, *others))
        first, *rest = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        return first, list(zip(others, rest, strict=True))

    def defragment(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def hash(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def hash_kv(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def snapshot(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def move_leader(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def downgrade(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)
