"""The Maintenance service: what concerns one cluster goes to the one that is meant, the rest is joined."""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError

from gateway.core.joins import join_alarms, join_status, version_key
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import SEVERAL, Call
from gateway.services.one import CLUSTER, to_one
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster

PATIENCE = 2.0
"""Seconds that a cluster other than home gets to answer; a client's deadline may leave less."""

Answer = bytes | BaseException


class Maintenance:
    """With one cluster everything is forwarded."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._versions: dict[str, str] = {}

    def status(self, call: Call, request: bytes) -> None:
        """Home's, with the lowest version of all clusters (clients switch features by it) and the summed sizes. A cluster that does not
        answer is named in `errors`, and counts with the version that it had last."""
        if self._one(call):
            to_one(self._scope, call, request)
        else:
            call.run(self._status(call, request))

    async def _status(self, call: Call, request: bytes) -> bytes:
        home, others = await self._ask(call, request)
        replies = {cluster.name: pb.StatusResponse.FromString(answer) for cluster, answer in others if isinstance(answer, bytes)}
        errors = [f'cluster "{cluster.name}" does not answer: {answer}' for cluster, answer in others if isinstance(answer, BaseException)]
        joined = join_status(pb.StatusResponse.FromString(_answered(home)), list(replies.values()), errors)
        self._versions |= {name: reply.version for name, reply in replies.items()}
        joined.version = min(joined.version, *self._versions.values(), key=version_key) if self._versions else joined.version
        return joined.SerializeToString()

    def alarm(self, call: Call, request: bytes) -> None:
        """Listed and disarmed in all clusters; an alarm can only be raised in one."""
        if self._one(call):
            to_one(self._scope, call, request)
            return
        try:
            action = pb.AlarmRequest.FromString(request).action
        except DecodeError:
            self._scope.home.forward(call)
            return
        if action == pb.AlarmRequest.ACTIVATE:
            to_one(self._scope, call, request)
        elif action == pb.AlarmRequest.DEACTIVATE:
            call.run(self._disarm(call, request))
        else:
            call.run(self._alarms(call, request))

    async def _alarms(self, call: Call, request: bytes) -> bytes:
        """A cluster that is down is left out: alarms are asked for by health checks, which are about the rest."""
        home, others = await self._ask(call, request)
        replies = [pb.AlarmResponse.FromString(answer) for _, answer in others if isinstance(answer, bytes)]
        return join_alarms(pb.AlarmResponse.FromString(_answered(home)), replies).SerializeToString()

    async def _disarm(self, call: Call, request: bytes) -> bytes:
        """An alarm belongs to a member, hence to one cluster: there it is disarmed, the others answer with no alarms. If nobody has
        disarmed one, it may be one of a cluster that did not answer."""
        home, others = await self._ask(call, request)
        answers = [home, *(answer for _, answer in others)]
        replies = [pb.AlarmResponse.FromString(answer) for answer in answers if isinstance(answer, bytes)]
        done = [reply for reply in replies if reply.alarms]
        if not done and len(replies) < len(answers):
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        first, *rest = done or replies
        return join_alarms(first, rest).SerializeToString()

    def _one(self, call: Call) -> bool:
        return self._scope.single or CLUSTER in call.metadata

    async def _ask(self, call: Call, request: bytes) -> tuple[Answer, list[tuple[Cluster, Answer]]]:
        """What home and the others answer, or why they don't."""
        call.cluster = SEVERAL
        now = asyncio.get_running_loop().time()
        soon = now + PATIENCE if call.deadline is None else min(now + PATIENCE, (now + call.deadline) / 2)
        home = self._scope.home
        others = [cluster for cluster in self._scope.clusters.values() if cluster is not home]
        asked = [cluster.unary(call.method, request, deadline=soon, metadata=call.metadata) for cluster in others]
        asked.append(home.unary(call.method, request, deadline=call.deadline, metadata=call.metadata))
        *rest, first = await asyncio.gather(*asked, return_exceptions=True)
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


def _answered(answer: Answer) -> bytes:
    """Raises what it is if it is no answer."""
    if isinstance(answer, BaseException):
        raise answer
    return answer
