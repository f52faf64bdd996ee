"""Copies of a lease on the clusters whose keys it is attached to.

A client's lease lives on the home cluster. The first time it is attached to a key of another cluster, that cluster is granted a lease with the
same id and the same TTL; keepalives and revocation go to every copy. A copy is given the TTL as granted, not what is left of it: a keepalive
renews a lease to its own TTL, so a copy with less would expire between two keepalives. So that it does not outlive the lease by a whole
TTL, `follow` looks at home when the lease should have expired, and revokes the copies if it did.
"""

from __future__ import annotations

import asyncio

from gateway.core.errors import LEASE_EXISTS, LEASE_NOT_FOUND, RpcError
from gateway.core.leases import LeaseBook
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster

GRANT = method("lease", "lease_grant")
REVOKE = method("lease", "lease_revoke")
TIME_TO_LIVE = method("lease", "lease_time_to_live")

PATIENCE = 5.0
"""Seconds for a call of the gateway's own whose client has set no deadline."""

MAX_FOLLOWED = 10_000


class Copies:
    """The lease copies of one listener's clusters."""

    def __init__(self, scope: Scope) -> None:
        self.book = LeaseBook()
        self._scope = scope
        self._followers: dict[int, asyncio.Task[None]] = {}

    async def ensure(self, cluster: Cluster, number: int, deadline: float | None) -> None:
        """Make sure that the cluster has the lease. Raises RpcError: etcd's own LEASE_NOT_FOUND when home has it no more."""
        if cluster is self._scope.home or not number:
            return
        known = self.book.get(number)
        if known is not None and cluster.name in known.copies:
            return
        ttl, left = await self._at_home(number, deadline)
        lease = self.book.remember(number, ttl)
        try:
            await cluster.unary(GRANT, pb.LeaseGrantRequest(ID=number, TTL=ttl).SerializeToString(), deadline=_by(deadline))
        except RpcError as error:
            if error.text != LEASE_EXISTS.text:
                raise
        lease.copies.add(cluster.name)
        self._follow(number, left)

    async def _at_home(self, number: int, deadline: float | None) -> tuple[int, int]:
        """Granted TTL and what is left of it, in seconds."""
        request = pb.LeaseTimeToLiveRequest(ID=number).SerializeToString()
        reply = pb.LeaseTimeToLiveResponse.FromString(await self._scope.home.unary(TIME_TO_LIVE, request, deadline=_by(deadline)))
        if reply.TTL <= 0:
            self.book.forget(number)
            raise LEASE_NOT_FOUND.error()
        return reply.grantedTTL, reply.TTL

    def lapsed(self, cluster: Cluster, number: int) -> None:
        """The cluster says that it has no such lease: what the book says of it is wrong."""
        known = self.book.get(number)
        if known is not None:
            known.copies.discard(cluster.name)

    def holders(self, number: int) -> list[Cluster]:
        """Clusters beside home that may have a copy: those that are known to, all where nothing is known (another gateway made it, or this
        one before it was restarted)."""
        known = self.book.get(number)
        others = [cluster for cluster in self._scope.clusters.values() if cluster is not self._scope.home]
        return others if known is None else [cluster for cluster in others if cluster.name in known.copies]

    async def revoke(self, number: int) -> int:
        """Revoke all copies; how many there were. A cluster that can't be reached keeps its copy until the TTL is over."""
        holders = self.holders(number)
        self.book.forget(number)
        follower = self._followers.pop(number, None)
        if follower is not None and follower is not asyncio.current_task():
            follower.cancel()
        request = pb.LeaseRevokeRequest(ID=number).SerializeToString()
        calls = (cluster.unary(REVOKE, request, deadline=_by(None)) for cluster in holders)
        results = await asyncio.gather(*calls, return_exceptions=True)
        return sum(not isinstance(result, BaseException) for result in results)

    def _follow(self, number: int, left: int) -> None:
        if number not in self._followers and len(self._followers) < MAX_FOLLOWED:
            self._followers[number] = asyncio.get_running_loop().create_task(self._watch_over(number, left))

    async def _watch_over(self, number: int, left: int) -> None:
        try:
            while True:
                await asyncio.sleep(left + 1)
                try:
                    _, left = await self._at_home(number, None)
                except RpcError as error:
                    if error.text == LEASE_NOT_FOUND.text:
                        await self._revoke_forgotten(number)
                        return
                    left = 1  # home can't be asked: once more in a moment
        finally:
            self._followers.pop(number, None)

    async def _revoke_forgotten(self, number: int) -> None:
        await self.revoke(number)


def _by(deadline: float | None) -> float:
    return asyncio.get_running_loop().time() + PATIENCE if deadline is None else deadline
