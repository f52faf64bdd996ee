"""The Lease service: leases live on the home cluster, with copies where they are attached to keys of other clusters."""

from __future__ import annotations

import asyncio

from gateway.core.errors import LEASE_NOT_FOUND, Code, RpcError
from gateway.core.joins import join_time_to_live
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import Call, Session
from gateway.services.scope import Scope
from gateway.upstream.calls import Streaming
from gateway.upstream.cluster import Cluster

PATIENCE = 1.0
"""Seconds that an answer of home's waits for what the other clusters add to it."""

MAX_PENDING = 1_000
"""Keepalives of one stream that may wait for their answers."""


class Lease:
    """Home is asked first and decides; the other clusters follow. One that is down keeps its copy until the TTL is over: nothing
    renews it."""

    def __init__(self, scope: Scope) -> None:
        self._home = scope.home
        self._others = [cluster for cluster in scope.clusters.values() if cluster is not scope.home]

    def lease_grant(self, call: Call, request: bytes) -> None:
        """On the home cluster."""
        self._home.forward(call)

    def lease_leases(self, call: Call, request: bytes) -> None:
        """Home's list: every lease is there."""
        self._home.forward(call)

    def lease_revoke(self, call: Call, request: bytes) -> None:
        """At home, then every copy. A lease that only a copy was left of counts as revoked."""
        if self._others:
            call.run(self._revoke(call, request))
        else:
            self._home.forward(call)

    async def _revoke(self, call: Call, request: bytes) -> bytes:
        reply, missing = b"", None
        try:
            reply = await self._at_home(call, request)
        except RpcError as error:
            if error.text != LEASE_NOT_FOUND.text:
                raise
            missing = error
        revoked = [other for other in await self._at_others(call, request, _soon()) if isinstance(other, bytes)]
        if missing is None:
            return reply
        if revoked:
            return revoked[0]
        raise missing

    def lease_time_to_live(self, call: Call, request: bytes) -> None:
        """Home's answer with the smallest TTL, and the keys of all clusters."""
        if self._others:
            call.run(self._time_to_live(call, request))
        else:
            self._home.forward(call)

    async def _time_to_live(self, call: Call, request: bytes) -> bytes:
        """A list of keys is complete or an error; without keys, home's answer does not need the others."""
        message = await self._at_home(call, request)
        reply = pb.LeaseTimeToLiveResponse.FromString(message)
        if reply.grantedTTL <= 0:
            return message
        keys = pb.LeaseTimeToLiveRequest.FromString(request).keys
        others = await self._at_others(call, request, call.deadline if keys else _soon())
        failures = [other for other in others if isinstance(other, BaseException)]
        if keys and failures:
            raise failures[0]
        copies = [pb.LeaseTimeToLiveResponse.FromString(other) for other in others if isinstance(other, bytes)]
        return join_time_to_live(reply, copies).SerializeToString()

    async def _at_home(self, call: Call, request: bytes) -> bytes:
        call.cluster = self._home.name
        return await self._home.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)

    async def _at_others(self, call: Call, request: bytes, deadline: float | None) -> list[bytes | BaseException]:
        asked = (cluster.unary(call.method, request, deadline=deadline, metadata=call.metadata) for cluster in self._others)
        return await asyncio.gather(*asked, return_exceptions=True)

    def lease_keep_alive(self, call: Call) -> Session:
        """One answer for each message, in their order."""
        return KeepAlive(call, self._home, self._others)


class KeepAlive:
    """One client's keepalive stream. The answers are home's, as they come; each that says the lease lives is sent on to all other clusters,
    so that copies live as long, whichever gateway made them. Nobody waits for those: a copy's TTL is home's."""

    def __init__(self, call: Call, home: Cluster, others: list[Cluster]) -> None:
        call.cluster = home.name
        call.on_cancel = self._close
        self._call = call
        self._pending = 0
        self._copies = [Renewals(call, cluster) for cluster in others]
        self._home = home.stream(call.method, self, call.metadata)

    def message(self, data: bytes) -> None:
        self._pending += 1
        if self._pending <= MAX_PENDING:
            self._home.send(data)
        else:
            self._close()
            self._call.fail(RpcError(Code.RESOURCE_EXHAUSTED, f"shardgate: more than {MAX_PENDING} keepalives wait for their answers"))

    def half_close(self) -> None:
        """Home ends its stream after its last answer."""
        self._home.half_close()

    def on_message(self, data: bytes) -> None:
        """Home's answer."""
        self._pending -= 1
        if self._copies:
            self._renew(data)
        self._call.send(data)
        if not self._call.writable:
            self._home.pause()
            self._call.on_writable = self._home.resume

    def _renew(self, answer: bytes) -> None:
        reply = pb.LeaseKeepAliveResponse.FromString(answer)
        if reply.TTL > 0:
            request = pb.LeaseKeepAliveRequest(ID=reply.ID).SerializeToString()
            for copies in self._copies:
                copies.send(request)

    def on_end(self, error: RpcError | None) -> None:
        """Home ended its stream."""
        self._end_copies()
        if error is not None:
            self._call.fail(error)
        else:
            self._call.end()

    def _close(self) -> None:
        self._home.cancel()
        self._end_copies()

    def _end_copies(self) -> None:
        for copies in self._copies:
            copies.half_close()


class Renewals:
    """Keepalives of copies in one cluster, without anybody who waits for an answer. A stream that broke is opened again by the next one."""

    def __init__(self, call: Call, cluster: Cluster) -> None:
        self._call = call
        self._cluster = cluster
        self._stream: Streaming | None = None
        self._pending = 0

    def send(self, message: bytes) -> None:
        """Left out while the cluster does not answer: it does not let leases expire then either."""
        if self._stream is None:
            self._pending = 0
            self._stream = self._cluster.stream(self._call.method, self, self._call.metadata)
        if self._pending < MAX_PENDING:
            self._pending += 1
            self._stream.send(message)

    def half_close(self) -> None:
        """What was sent still counts."""
        if self._stream is not None:
            self._stream.half_close()

    def on_message(self, data: bytes) -> None:
        """A copy was renewed, or there is none (TTL 0)."""
        self._pending -= 1

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over."""
        self._stream = None


def _soon() -> float:
    return asyncio.get_running_loop().time() + PATIENCE
