"""Copies of a lease on the clusters whose keys it is attached to.

A client's lease lives on the home cluster. A cluster that does not know it refuses a write that names it, before it writes
anything; then it is granted a lease with the same id, and the write is sent once more. So nothing has to be remembered or shared
between gateways: home says whether a lease exists, each cluster whether it has a copy.

A copy gets the TTL as granted, not what is left of it: a keepalive renews a lease to its own TTL, and keepalives go to home and
copies alike, so from the first one on they end together. A lease that nobody renews would be outlived by its copy, up to a whole
TTL; therefore home is looked at when the lease is due, and the copy revoked if the lease is gone. When the gateway ends before
that, the copy ends by its TTL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gateway.core.errors import LEASE_EXISTS, LEASE_NOT_FOUND, Code, RpcError
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.call import Call
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster

GRANT = method("lease", "lease_grant")
REVOKE = method("lease", "lease_revoke")
TIME_TO_LIVE = method("lease", "lease_time_to_live")

MAX_FOLLOWED = 10_000
"""Copies that are looked after at a time; more than these end by their TTL."""

PAUSE = 1.0
"""Seconds until home is asked again about a lease that is due, and how long it may take to answer."""


class Copies:
    """The lease copies on one listener's clusters."""

    def __init__(self, scope: Scope) -> None:
        self._home = scope.home
        self._followed: set[asyncio.Task[None]] = set()

    async def write(self, call: Call, cluster: Cluster, request: bytes, leases: Iterable[int]) -> bytes:
        """The reply to a request that attaches leases of home's to keys. Raises RpcError; etcd's own LEASE_NOT_FOUND when home has none of
        these leases."""
        call.cluster = cluster.name
        try:
            return await cluster.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)
        except RpcError as error:
            if cluster is self._home or error.text != LEASE_NOT_FOUND.text or not await self._copy(call, cluster, leases):
                raise
        return await cluster.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)

    async def _copy(self, call: Call, cluster: Cluster, leases: Iterable[int]) -> bool:
        """Grant to the cluster what home has of these leases; whether that was any."""
        found = False
        for number in leases:
            lease = await self._at_home(number, call.deadline, call.metadata)
            if lease.grantedTTL > 0:
                await self._grant(call, cluster, lease)
                found = True
        return found

    async def _at_home(self, number: int, deadline: float | None, metadata: Mapping[bytes, bytes]) -> pb.LeaseTimeToLiveResponse:
        """`grantedTTL` is 0 when home does not have the lease."""
        request = pb.LeaseTimeToLiveRequest(ID=number).SerializeToString()
        return pb.LeaseTimeToLiveResponse.FromString(await self._home.unary(TIME_TO_LIVE, request, deadline=deadline, metadata=metadata))

    async def _grant(self, call: Call, cluster: Cluster, lease: pb.LeaseTimeToLiveResponse) -> None:
        request = pb.LeaseGrantRequest(ID=lease.ID, TTL=lease.grantedTTL).SerializeToString()
        try:
            await cluster.unary(GRANT, request, deadline=call.deadline, metadata=call.metadata)
        except RpcError as error:
            if error.text != LEASE_EXISTS.text:
                raise
        else:
            self._follow(cluster, lease)

    def _follow(self, cluster: Cluster, lease: pb.LeaseTimeToLiveResponse) -> None:
        if len(self._followed) < MAX_FOLLOWED:
            task = asyncio.get_running_loop().create_task(self._end_with_home(cluster, lease))
            self._followed.add(task)
            task.add_done_callback(self._followed.discard)

    async def _end_with_home(self, cluster: Cluster, lease: pb.LeaseTimeToLiveResponse) -> None:
        """Look at the lease when it is due, until it is known what became of it or the copy has ended by itself."""
        loop = asyncio.get_running_loop()
        end = loop.time() + lease.grantedTTL
        await asyncio.sleep(max(lease.TTL, 0) + PAUSE)
        while loop.time() < end:
            try:
                if await self._settled(cluster, lease.ID):
                    return
            except RpcError as error:
                if error.code not in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
                    return  # the copy is gone, or a token is wanted
            await asyncio.sleep(PAUSE)

    async def _settled(self, cluster: Cluster, number: int) -> bool:
        """Renewed, or gone and the copy with it; False for what etcd has yet to remove."""
        deadline = asyncio.get_running_loop().time() + PAUSE
        lease = await self._at_home(number, deadline, {})
        if lease.grantedTTL <= 0:
            await cluster.unary(REVOKE, pb.LeaseRevokeRequest(ID=number).SerializeToString(), deadline=deadline)
            return True
        return lease.TTL > 0
