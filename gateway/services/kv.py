"""The KV service: each request goes to the cluster that owns its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from gateway.core.errors import LEASE_NOT_FOUND, Code, RpcError
from gateway.core.joins import join_range
from gateway.core.plan import Decision, Forward, Refuse, Scatter, plan_delete, plan_range, plan_txn, txn_leases
from gateway.core.routes import Span
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import SEVERAL, Call
from gateway.services.leases import Copies
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster


class KV:
    """Requests that can't be decoded are forwarded to home: etcd says what is wrong with them."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._scope = scope
        self._routes = scope.routes
        self._clusters = scope.clusters
        self._home = scope.home
        self._single = scope.single
        self._copies = copies

    def range(self, call: Call, request: bytes) -> None:
        """Forwarded to one cluster, or over several joined."""
        if self._single:
            self._home.forward(call, request)
            return
        try:
            decoded = pb.RangeRequest.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return
        decision = plan_range(self._routes, decoded)
        if isinstance(decision, Scatter):
            call.run(self._scatter(call, decoded, decision.spans))
        else:
            self._follow(call, request, decision)

    def range_stream(self, call: Call, request: bytes) -> None:
        """Forwarded to one cluster; clients fall back to `range` from Unimplemented."""
        try:
            decoded = pb.RangeRequest.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return
        spans = self._routes.spans(decoded.key, decoded.range_end)
        if len(spans) == 1:
            self._clusters[spans[0].cluster].forward(call, request)
        else:
            call.fail(RpcError(Code.UNIMPLEMENTED, "shardgate: range_stream over several clusters; use range"))

    def put(self, call: Call, request: bytes) -> None:
        """To the key's cluster; a lease is made known there first."""
        if self._single:
            self._home.forward(call, request)
            return
        try:
            decoded = pb.PutRequest.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return
        cluster = self._clusters[self._routes.cluster_of(decoded.key)]
        if decoded.lease:
            self._leased(call, request, cluster, (decoded.lease,))
        else:
            cluster.forward(call, request)

    def delete_range(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused."""
        try:
            decoded = pb.DeleteRangeRequest.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return
        self._follow(call, request, plan_delete(self._routes, decoded))

    def txn(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused; leases are made known there first."""
        if self._single:
            self._home.forward(call, request)
            return
        try:
            decoded = pb.TxnRequest.FromString(request)
        except DecodeError:
            self._home.forward(call, request)
            return
        decision = plan_txn(self._routes, decoded, self._home.name)
        leases = tuple(dict.fromkeys(txn_leases(decoded)))
        if leases and isinstance(decision, Forward):
            self._leased(call, request, self._clusters[decision.cluster], leases)
        else:
            self._follow(call, request, decision)

    def compact(self, call: Call, request: bytes) -> None:
        """A revision belongs to one cluster: home."""
        self._home.forward(call, request)

    def _follow(self, call: Call, request: bytes, decision: Decision) -> None:
        if isinstance(decision, Forward):
            self._clusters[decision.cluster].forward(call, request)
        elif isinstance(decision, Refuse):
            call.fail(decision.status.error())

    def _leased(self, call: Call, request: bytes, cluster: Cluster, leases: Iterable[int]) -> None:
        if cluster is self._home:
            cluster.forward(call, request)
        else:
            call.cluster = cluster.name
            call.run(self._write_leased(call, request, cluster, leases))

    async def _write_leased(self, call: Call, request: bytes, cluster: Cluster, leases: Iterable[int]) -> bytes:
        """LEASE_NOT_FOUND proves that nothing was written: the copy has gone (expired, or revoked by another gateway), so it is made once more."""
        await self._ensure(call, cluster, leases)
        try:
            return await cluster.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)
        except RpcError as error:
            if error.text != LEASE_NOT_FOUND.text:
                raise
        for number in leases:
            self._copies.lapsed(cluster, number)
        await self._ensure(call, cluster, leases)
        return await cluster.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)

    async def _ensure(self, call: Call, cluster: Cluster, leases: Iterable[int]) -> None:
        for number in leases:
            await self._copies.ensure(cluster, number, call.deadline)

    async def _scatter(self, call: Call, request: pb.RangeRequest, spans: tuple[Span, ...]) -> bytes:
        """Ask each span, at each cluster's own newest revision, and join. The header is home's if it is among them, else the first one's."""
        call.cluster = SEVERAL
        replies = await asyncio.gather(*(self._span(call, request, span) for span in spans))
        home = next((at for at, span in enumerate(spans) if span.cluster == self._home.name), 0)
        return join_range(request, replies, replies[home].header).SerializeToString()

    async def _span(self, call: Call, request: pb.RangeRequest, span: Span) -> pb.RangeResponse:
        part = pb.RangeRequest()
        part.CopyFrom(request)
        part.key = span.key
        part.range_end = span.end
        cluster = self._clusters[span.cluster]
        message = await cluster.unary(call.method, part.SerializeToString(), deadline=call.deadline, metadata=call.metadata)
        return pb.RangeResponse.FromString(message)
