"""The KV service: each request goes to the cluster that owns its keys."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.core.errors import Code, RpcError
from gateway.core.joins import join_range, part
from gateway.core.plan import Decision, Forward, Refuse, Scatter, plan_delete, plan_put, plan_range, plan_range_stream, plan_txn
from gateway.core.routes import Span
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import SEVERAL, Call
from gateway.services.copies import Copies
from gateway.services.scope import Scope

Request = TypeVar("Request", bound=Message)


class KV:
    """Requests that can't be decoded are forwarded to home: etcd says what is wrong with them."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._scope = scope
        self._routes = scope.routes
        self._clusters = scope.clusters
        self._home = scope.home
        self._copies = copies

    def range(self, call: Call, request: bytes) -> None:
        """Forwarded to one cluster, or over several joined."""
        decoded = self._decoded(call, pb.RangeRequest, request)
        if decoded is not None:
            decision = plan_range(self._routes, decoded)
            if isinstance(decision, Scatter):
                call.run(self._scatter(call, decoded, decision.spans))
            else:
                self._follow(call, request, decision)

    def range_stream(self, call: Call, request: bytes) -> None:
        """Forwarded to one cluster."""
        decoded = self._decoded(call, pb.RangeRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_range_stream(self._routes, decoded))

    def put(self, call: Call, request: bytes) -> None:
        """To the key's cluster."""
        decoded = self._decoded(call, pb.PutRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_put(self._routes, decoded))

    def delete_range(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused."""
        decoded = self._decoded(call, pb.DeleteRangeRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_delete(self._routes, decoded))

    def txn(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused."""
        try:
            decoded = pb.TxnRequest.FromString(request)
        except DecodeError as error:
            self._unread_txn(call, request, error)
        else:
            self._follow(call, request, plan_txn(self._routes, decoded, self._home.name))

    def compact(self, call: Call, request: bytes) -> None:
        """A revision belongs to one cluster: home."""
        self._home.forward(call, request)

    def _decoded(self, call: Call, kind: type[Request], request: bytes) -> Request | None:
        """None: it can't be decoded, and was forwarded to home."""
        try:
            return kind.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return None

    def _unread_txn(self, call: Call, request: bytes, error: DecodeError) -> None:
        """etcd decodes deeper nested transactions than we do: with several clusters their keys could belong to any."""
        if self._scope.single:
            self._home.forward(call, request)
        else:
            call.fail(RpcError(Code.INTERNAL, f"grpc: error unmarshalling request: {error}"))

    def _follow(self, call: Call, request: bytes, decision: Decision) -> None:
        if isinstance(decision, Forward):
            cluster = self._clusters[decision.cluster]
            if decision.leases and cluster is not self._home:
                call.run(self._copies.write(call, cluster, request, decision.leases))
            else:
                cluster.forward(call, request)
        elif isinstance(decision, Refuse):
            call.fail(decision.status.error())

    async def _scatter(self, call: Call, request: pb.RangeRequest, spans: tuple[Span, ...]) -> bytes:
        """Ask each span, at each cluster's own newest revision, and join; the first error fails all. The header is home's if it is among
        them, else the first one's."""
        call.cluster = SEVERAL
        asked = [asyncio.ensure_future(self._ask(call, part(request, span), span.cluster)) for span in spans]
        try:
            replies = await asyncio.gather(*asked)
        finally:
            for each in asked:
                each.cancel()
        home = next((at for at, span in enumerate(spans) if span.cluster == self._home.name), 0)
        return join_range(request, replies, replies[home].header).SerializeToString()

    async def _ask(self, call: Call, request: pb.RangeRequest, cluster: str) -> pb.RangeResponse:
        data = request.SerializeToString()
        message = await self._clusters[cluster].unary(call.method, data, deadline=call.deadline, metadata=call.metadata)
        return pb.RangeResponse.FromString(message)
