"""The Cluster service: the members that clients see have the gateway's own addresses."""

from __future__ import annotations

from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import Call
from gateway.services.one import named, to_one
from gateway.services.scope import Scope


class Members:
    """Membership is one cluster's own; the list is home's where none is named."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def member_list(self, call: Call, request: bytes) -> None:
        """The members as their cluster lists them, but for the client URLs."""
        call.run(self._member_list(call, request))

    async def _member_list(self, call: Call, request: bytes) -> bytes:
        cluster = named(self._scope, call) or self._scope.home
        call.cluster = cluster.name
        reply = await cluster.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)
        return advertised(reply, self._scope.advertise_urls)

    def member_add(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def member_remove(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def member_update(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    def member_promote(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)


def advertised(message: bytes, urls: tuple[str, ...]) -> bytes:
    """A MemberListResponse in which every member that serves clients is reached by the gateway's URLs: clients that sync their endpoints
    with this list must not go around the gateway."""
    reply = pb.MemberListResponse.FromString(message)
    for member in reply.members:
        if member.clientURLs:
            member.clientURLs[:] = urls
    return reply.SerializeToString()
