"""The Cluster service: the members that clients see are the gateway's own addresses."""

from __future__ import annotations

from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import Call
from gateway.services.one import to_one
from gateway.services.scope import Scope


class Members:
    """Changes of membership concern one cluster."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def member_list(self, call: Call, request: bytes) -> None:
        """One member with home's ids and the gateway's advertised URLs, so that clients that sync their endpoints do not go around it."""
        call.run(self._member_list(call, request))

    async def _member_list(self, call: Call, request: bytes) -> bytes:
        home = self._scope.home
        call.cluster = home.name
        message = await home.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)
        reply = pb.MemberListResponse.FromString(message)
        return bytes(advertised(reply, self._scope.advertise_urls).SerializeToString())

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


def advertised(reply: pb.MemberListResponse, urls: tuple[str, ...]) -> pb.MemberListResponse:
    """The member that answered, reached by the gateway's URLs. Learners and members that have not started are left out with the others."""
    answered = [member for member in reply.members if member.ID == reply.header.member_id] or list(reply.members[:1])
    members = [pb.Member(ID=each.ID, name=each.name, peerURLs=each.peerURLs, clientURLs=urls) for each in answered]
    return pb.MemberListResponse(header=reply.header, members=members)


