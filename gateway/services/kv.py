"""The KV service: each request goes to the cluster that owns its keys."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.core.errors import Code, RpcError
from gateway.core.joins import join_range, reading
from gateway.core.plan import Decision, Forward, Refuse, Scatter, plan_delete, plan_put, plan_range, plan_range_stream, plan_txn
from gateway.core.routes import Span
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.call import SEVERAL, Call
from gateway.services.copies import Copies
from gateway.services.scope import Scope

TXN = method("kv", "txn")

Request = TypeVar("Request", bound=Message)


class OneCluster:
    """KV where there is one cluster only: nothing is to be decided, so nothing is decoded."""

    def __init__(self, scope: Scope) -> None:
        self._home = scope.home

    def _forward(self, call: Call, request: bytes) -> None:
        self._home.forward(call)

    range = range_stream = put = delete_range = txn = compact = _forward


class KV:
    """Requests that can't be decoded are forwarded to home: etcd says what is wrong with them."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
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
                call.run(self._scatter(call, decoded, decision.parts))
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
        except DecodeError as error:  # etcd decodes deeper nested transactions than we do: their keys could belong to any cluster
            call.fail(RpcError(Code.INTERNAL, f"grpc: error unmarshalling request: {error}"))
        else:
            self._follow(call, request, plan_txn(self._routes, decoded, self._home.name))

    def compact(self, call: Call, request: bytes) -> None:
        """A revision belongs to one cluster: home."""
        self._home.forward(call)

    def _decoded(self, call: Call, kind: type[Request], request: bytes) -> Request | None:
        """None: it can't be decoded, and was forwarded to home."""
        try:
            return kind.FromString(request)
        except DecodeError:
            self._home.forward(call)
            return None

    def _follow(self, call: Call, request: bytes, decision: Decision) -> None:
        if isinstance(decision, Forward):
            cluster = self._clusters[decision.cluster]
            if decision.leases and cluster is not self._home:
                call.run(self._copies.write(call, cluster, request, decision.leases))
            else:
                cluster.forward(call)
        elif isinstance(decision, Refuse):
            call.fail(decision.status.error())

    async def _scatter(self, call: Call, request: pb.RangeRequest, parts: tuple[tuple[Span, ...], ...]) -> bytes:
        """Ask each cluster for its parts, at its own newest revision, and join; the first error fails all. The header is home's if it is
        among them, else that of the cluster with the lowest key."""
        call.cluster = SEVERAL
        asked = [asyncio.ensure_future(self._read(call, spans[0].cluster, reading(request, spans))) for spans in parts]
        try:
            answers = await asyncio.gather(*asked)
        finally:
            for each in asked:
                each.cancel()
        replies = {
            span.key: each.response_range
            for spans, answer in zip(parts, answers, strict=True)
            for span, each in zip(spans, answer.responses, strict=True)
        }
        home = next((at for at, spans in enumerate(parts) if spans[0].cluster == self._home.name), 0)
        return join_range(request, [replies[key] for key in sorted(replies)], answers[home].header).SerializeToString()

    async def _read(self, call: Call, cluster: str, request: pb.TxnRequest) -> pb.TxnResponse:
        data = request.SerializeToString()
        message = await self._clusters[cluster].unary(TXN, data, deadline=call.deadline, metadata=call.metadata)
        return pb.TxnResponse.FromString(message)
