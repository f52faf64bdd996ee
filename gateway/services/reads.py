"""Ranges that are answered from memory: the store of the cluster's feed, with etcd's own guarantees.

A linearizable read waits for a confirmation that is asked for after it came; a serializable one is answered at once, but never with less
than a client was told through this gateway; one at a revision that the store's history has needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.listings import Listing, in_pieces
from gateway.core.plan import Forward
from gateway.core.reads import Moved, Reading, obstacle
from gateway.core.routes import Route
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.call import Call
from gateway.services.scope import Scope
from gateway.upstream.feed import Feed

RANGE = method("kv", "range")

ONE = b"\x20\x01"
"""`count: 1` of a RangeResponse."""

SMALL = 16 << 10
"""Bytes of a reply that is not worth remembering."""


def framed(*parts: bytes) -> bytes:
    """A gRPC message of these parts."""
    return b"\x00" + sum(map(len, parts)).to_bytes(4, "big") + b"".join(parts)


def identified(call: Call) -> bool:
    """The call says who asks."""
    metadata = call.metadata
    return bool(metadata) and (b"token" in metadata or b"authorization" in metadata)


class Reads:
    """Where the ranges of one listener are answered: from a feed's store, or by a cluster."""

    def __init__(self, scope: Scope) -> None:
        self._routes = scope.routes
        self._clusters = scope.clusters
        self._feeds = scope.feeds

    def key(self, call: Call, route: Route, key: bytes, serializable: bool) -> None:
        """A request for one key and nothing else."""
        feed = self._feeds.get(route.cluster) if route.cache else None
        if feed is None:
            self.forward(call, route.cluster, route.coalesce)
        elif (reason := self._miss(call, feed)) is not None:
            self.bypass(call, feed, route.coalesce, reason)
        else:
            call.cluster = route.cluster
            read = KeyRead(self, call, feed, key, route.coalesce)
            (feed.current if serializable else feed.confirm)(read)

    def range(self, call: Call, request: pb.RangeRequest, decision: Forward) -> None:
        """Any request of one cluster."""
        feed = self._feeds.get(decision.cluster) if decision.cache else None
        if feed is None:
            self.forward(call, decision.cluster, decision.coalesce)
            return
        reason = self._miss(call, feed) or obstacle(request)
        if reason is not None:
            self.bypass(call, feed, decision.coalesce, reason)
            return
        call.cluster = decision.cluster
        read = RangeRead(self, call, feed, request, decision.coalesce)
        if 0 < request.revision <= feed.revision:
            read.confirmed()
        else:
            (feed.current if request.serializable else feed.confirm)(read)

    def _miss(self, call: Call, feed: Feed) -> str | None:
        """Why the feed can't be asked now."""
        if not feed.caching:
            return "not synced"
        return "identity" if identified(call) else None

    def bypass(self, call: Call, feed: Feed, coalesce: bool, reason: str) -> None:
        feed.bypasses[reason] += 1
        self.forward(call, feed.cluster.name, coalesce)

    async def part(self, call: Call, cluster: str, request: pb.RangeRequest) -> bytes:
        """What one cluster has of a range over several; the message. Raises RpcError."""
        feed = self._feeds.get(cluster)
        if feed is not None and all(route.cache for route in self._routes.owners(request.key, request.range_end)):
            message = await self._from_store(call, feed, request)
            if message is not None:
                return message
        asked = request.SerializeToString()
        return await self._clusters[cluster].unary(RANGE, asked, deadline=call.deadline, metadata=call.metadata)

    async def _from_store(self, call: Call, feed: Feed, request: pb.RangeRequest) -> bytes | None:
        reason = self._miss(call, feed) or obstacle(request)
        if reason is None and not 0 < request.revision <= feed.revision:
            waiting = Waiting()
            (feed.current if request.serializable else feed.confirm)(waiting)
            reason = None if await waiting.answer else "unconfirmed"
        if reason is None:
            try:
                reading, head = Reading(feed.store, request), feed.head
                while not reading.done:
                    reading.step()
                    await asyncio.sleep(0)
                feed.hits += 1
                return b"".join((head, *reading.parts, reading.tail))
            except Moved:
                reason = "history"
        feed.bypasses[reason] += 1
        return None

    def forward(self, call: Call, cluster: str, coalesce: bool) -> None:
        """To the cluster, as it came."""
        self._clusters[cluster].forward(call)


class KeyRead:
    """A read of one key; implements upstream.confirm.Reader."""

    __slots__ = ("_call", "_coalesce", "_feed", "_key", "_reads")

    def __init__(self, reads: Reads, call: Call, feed: Feed, key: bytes, coalesce: bool) -> None:
        self._reads = reads
        self._call = call
        self._feed = feed
        self._key = key
        self._coalesce = coalesce

    def confirmed(self) -> None:
        feed = self._feed
        feed.hits += 1
        entry = feed.store.newest(self._key)
        self._call.reply_raw(framed(feed.head) if entry is None else framed(feed.head, entry, ONE))

    def unconfirmed(self) -> None:
        if not self._call.ended:
            self._reads.bypass(self._call, self._feed, self._coalesce, "unconfirmed")


class Waiting:
    """A read that is awaited; implements upstream.confirm.Reader. `answer`: whether it is confirmed."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def confirmed(self) -> None:
        if not self.answer.done():
            self.answer.set_result(True)

    def unconfirmed(self) -> None:
        if not self.answer.done():
            self.answer.set_result(False)


class RangeRead:
    """A read of a range; implements upstream.confirm.Reader."""

    __slots__ = ("_call", "_coalesce", "_feed", "_reads", "_request")

    def __init__(self, reads: Reads, call: Call, feed: Feed, request: pb.RangeRequest, coalesce: bool) -> None:
        self._reads = reads
        self._call = call
        self._feed = feed
        self._request = request
        self._coalesce = coalesce

    def confirmed(self) -> None:
        """A small answer is given at once, a large one is gathered in steps, so that others have their turns."""
        call, feed = self._call, self._feed
        if call.ended:
            return
        try:
            reading = Reading(feed.store, self._request)
            listing = feed.listings.find(call.framed, reading.revision)
            if listing is None:
                reading.step()
        except Moved:
            self._bypass("history")
            return
        feed.hits += 1
        if listing is not None:
            self._send(feed.head, listing)
        elif reading.done and reading.size < SMALL:
            call.reply_raw(framed(feed.head, *reading.parts, reading.tail))
        elif reading.done:
            self._send(feed.head, self._keep(reading))
        else:
            call.run(self._gather(reading, feed.head))

    def unconfirmed(self) -> None:
        if not self._call.ended:
            self._bypass("unconfirmed")

    def _bypass(self, reason: str) -> None:
        self._reads.bypass(self._call, self._feed, self._coalesce, reason)

    async def _gather(self, reading: Reading, head: bytes) -> None:
        try:
            while not reading.done:
                await asyncio.sleep(0)
                reading.step()
        except Moved:
            self._feed.hits -= 1
            self._bypass("history")
        else:
            self._send(head, self._keep(reading))

    def _keep(self, reading: Reading) -> Listing:
        listing = Listing(reading.revision, reading.size + len(reading.tail), in_pieces(reading.parts, reading.tail))
        self._feed.listings.keep(self._call.framed, listing)
        return listing

    def _send(self, head: bytes, listing: Listing) -> None:
        prefix = b"\x00" + (len(head) + listing.size).to_bytes(4, "big") + head
        Outflow(self._call, prefix, listing.pieces).go_on()


class Outflow:
    """A large reply on its way, no faster than the client reads."""

    __slots__ = ("_at", "_call", "_pieces")

    def __init__(self, call: Call, prefix: bytes, pieces: Sequence[bytes]) -> None:
        self._call = call
        self._pieces = pieces
        self._at = 0
        call.send_raw(prefix)
        call.on_writable = self.go_on

    def go_on(self) -> None:
        """Send what the client takes now."""
        call = self._call
        while self._at < len(self._pieces) and call.writable and not call.ended:
            self._at += 1
            call.send_raw(self._pieces[self._at - 1])
        if self._at == len(self._pieces):
            call.end()
