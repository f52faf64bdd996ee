"""The KV service: each request goes to the cluster that owns its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.core.errors import Code, RpcError
from gateway.core.joins import join_range, part
from gateway.core.plan import (
    Decision,
    Forward,
    Refuse,
    Scatter,
    forward,
    only_key,
    plan_delete,
    plan_put,
    plan_range,
    plan_range_stream,
    plan_txn,
)
from gateway.core.routes import Span
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.call import SEVERAL, Call, Read
from gateway.services.copies import Copies
from gateway.services.reads import Reads
from gateway.services.scope import Scope

COMPACT = method("kv", "compact")

Request = TypeVar("Request", bound=Message)


class KV:
    """Requests that can't be decoded are forwarded to home: etcd says what is wrong with them."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._routes = scope.routes
        self._clusters = scope.clusters
        self._home = scope.home
        self._feeds = scope.feeds
        self._single = scope.single
        self._copies = copies
        self._reads = Reads(scope)

    def range(self, call: Call, request: bytes) -> None:
        """From one cluster or its store, or over several joined."""
        key = only_key(request)
        if key is not None:
            self._reads.key(call, self._routes.route_of(key), key, len(request) > 2 + len(key))
            return
        decoded = self._decoded(call, pb.RangeRequest, request)
        if decoded is None:
            return
        decision = plan_range(self._routes, decoded)
        if isinstance(decision, Forward):
            plain = decoded.SerializeToString() == request  # else it has what we don't know, or what etcd refuses: etcd shall judge
            self._reads.range(call, decoded, decision if plain else forward(decision.cluster))
        elif isinstance(decision, Scatter):
            call.run(self._scatter(call, decoded, decision.parts))
        else:
            call.fail(decision.status.error())

    def instant(self, request: bytes, metadata: Mapping[bytes, bytes]) -> Read | None:
        """services.call.Instant for `range`."""
        key = only_key(request)
        if key is None:
            return None
        return self._reads.instant(self._routes.route_of(key), key, len(request) > 2 + len(key), metadata)

    def range_stream(self, call: Call, request: bytes) -> None:
        """Forwarded to one cluster."""
        decoded = self._decoded(call, pb.RangeRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_range_stream(self._routes, decoded))

    def put(self, call: Call, request: bytes) -> None:
        """To the key's cluster."""
        if self._single:
            self._home.forward(call)
            return
        decoded = self._decoded(call, pb.PutRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_put(self._routes, decoded))

    def delete_range(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused."""
        if self._single:
            self._home.forward(call)
            return
        decoded = self._decoded(call, pb.DeleteRangeRequest, request)
        if decoded is not None:
            self._follow(call, request, plan_delete(self._routes, decoded))

    def txn(self, call: Call, request: bytes) -> None:
        """To one cluster, or refused."""
        if self._single:
            self._home.forward(call)
            return
        try:
            decoded = pb.TxnRequest.FromString(request)
        except DecodeError as error:  # etcd decodes deeper nested transactions than we do: their keys could belong to any cluster
            call.fail(RpcError(Code.INTERNAL, f"grpc: error unmarshalling request: {error}"))
        else:
            self._follow(call, request, plan_txn(self._routes, decoded, self._home.name))

    def compact(self, call: Call, request: bytes) -> None:
        """A revision belongs to one cluster: home. Its feed must know, as older revisions are an error from then on."""
        decoded = self._decoded(call, pb.CompactionRequest, request)
        if decoded is not None:
            call.run(self._compact(call, request, decoded.revision))

    async def _compact(self, call: Call, request: bytes, revision: int) -> bytes:
        call.cluster = self._home.name
        reply = await self._home.unary(COMPACT, request, deadline=call.deadline, metadata=call.metadata)
        feed = self._feeds.get(self._home.name)
        if feed is not None:
            feed.compacted(revision)
        return reply

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
        asked = [asyncio.ensure_future(self._read(call, request, spans)) for spans in parts]
        try:
            answers = await asyncio.gather(*asked)
        finally:
            for each in asked:
                each.cancel()
        replies = {
            span.key: reply for spans, answer in zip(parts, answers, strict=True) for span, reply in zip(spans, answer, strict=True)
        }
        home = next((at for at, spans in enumerate(parts) if spans[0].cluster == self._home.name), 0)
        return join_range(request, [replies[key] for key in sorted(replies)], answers[home][0].header).SerializeToString()

    async def _read(self, call: Call, request: pb.RangeRequest, spans: tuple[Span, ...]) -> list[pb.RangeResponse]:
        """One cluster's parts, all at the revision of the first. One transaction would do that too, but etcd 3.5.0 to 3.5.4 dies when a
        client gives up a transaction that reads."""
        first = await self._part(call, request, spans[0], 0)
        rest = await asyncio.gather(*(self._part(call, request, span, first.header.revision) for span in spans[1:]))
        return [first, *rest]

    async def _part(self, call: Call, request: pb.RangeRequest, span: Span, revision: int) -> pb.RangeResponse:
        asked = part(request, span, revision)
        return pb.RangeResponse.FromString(await self._reads.part(call, span.cluster, asked))
