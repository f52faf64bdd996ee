"""Ranges that are answered from memory: the store of the cluster's feed, with etcd's own guarantees.

A linearizable read waits for a confirmation that is asked for after it came; a serializable one is answered at once, but never with less
than a client was told through this gateway; one at a revision that the store's history has needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gateway.core.listings import Listing, in_pieces
from gateway.core.plan import Forward
from gateway.core.reads import Moved, Reading, obstacle
from gateway.core.routes import Route
from gateway.core.store import Store
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.services.call import Call, Read
from gateway.services.scope import Scope
from gateway.upstream.feed import Feed

RANGE = method("kv", "range")

ONE = b"\x20\x01"
"""`count: 1` of a RangeResponse."""

REMEMBERED = 4 << 20
"""Bytes of replies about single keys that are kept for those who ask the same, until the store changes."""

OVERHEAD = 200
"""Bytes that remembering a reply takes beside the reply and the key."""

SMALL = 16 << 10
"""Bytes of a reply that is not worth remembering."""


def framed(*parts: bytes) -> bytes:
    """A gRPC message of these parts."""
    return b"\x00" + sum(map(len, parts)).to_bytes(4, "big") + b"".join(parts)


def identified(metadata: Mapping[bytes, bytes]) -> bool:
    """It says who asks: the store has what the gateway may read, and that may be more."""
    return bool(metadata) and (b"token" in metadata or b"authorization" in metadata)


class Reads:
    """Where the ranges of one listener are answered: from a feed's store, or by a cluster."""

    def __init__(self, scope: Scope) -> None:
        self._routes = scope.routes
        self._clusters = scope.clusters
        self._feeds = scope.feeds
        self._flights = scope.flights
        self._memories = {  # by identity: the hash of a route takes longer than all the rest
            id(route): Memory(self, scope.feeds[route.cluster], route.coalesce)
            for route in scope.routes.routes
            if route.cache and route.cluster in scope.feeds
        }

    def key(self, call: Call, route: Route, key: bytes, serializable: bool) -> None:
        """A request for one key and nothing else."""
        memory = self._memories.get(id(route))
        if memory is None:
            self.forward(call, route.cluster, route.coalesce)
        elif (reason := self._miss(call, memory.feed)) is not None:
            self.bypass(call, memory.feed, route.coalesce, reason)
        else:
            call.cluster = route.cluster
            read = KeyRead(memory, call, key)
            (memory.feed.current if serializable else memory.feed.confirm)(read)

    def instant(self, route: Route, key: bytes, serializable: bool, metadata: Mapping[bytes, bytes]) -> Read | None:
        """services.call.Instant for a key."""
        memory = self._memories.get(id(route))
        return None if memory is None or identified(metadata) else Read(memory, key, not serializable)

    def range(self, call: Call, request: pb.RangeRequest, decision: Forward) -> None:
        """Any request of one cluster."""
        feed = self._feeds.get(decision.cluster) if decision.cache else None
        if feed is None:
            self.forward(call, decision.cluster, decision.coalesce, request.revision > 0)
            return
        reason = self._miss(call, feed) or obstacle(request)
        if reason is not None:
            self.bypass(call, feed, decision.coalesce, reason, request.revision > 0)
            return
        call.cluster = decision.cluster
        read = RangeRead(self, call, feed, request, decision.coalesce)
        needs_no_proof = request.serializable or 0 < request.revision <= feed.revision
        (feed.current if needs_no_proof else feed.confirm)(read)

    def _miss(self, call: Call, feed: Feed) -> str | None:
        """Why the feed can't be asked now."""
        if not feed.caching:
            return "not synced"
        return "identity" if identified(call.metadata) else None

    def bypass(self, call: Call, feed: Feed, coalesce: bool, reason: str, pinned: bool = False) -> None:
        """Memory can't answer it."""
        feed.bypasses[reason] += 1
        self.forward(call, feed.cluster.name, coalesce, pinned)

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
            reason = None if await waiting.answer and feed.caching else "unconfirmed"
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

    def forward(self, call: Call, cluster: str, coalesce: bool, pinned: bool = False) -> None:
        """To the cluster, as it came; with others that ask the same, if that is allowed."""
        flights = self._flights.get(cluster) if coalesce else None
        if flights is None:
            self._clusters[cluster].forward(call)
        else:
            flights.forward(call, pinned)


class Replies(dict[bytes, bytes]):
    """The gRPC-framed reply about each key, as the store is while it has this head. Remembers what it was asked."""

    def __init__(self, head: bytes, store: Store) -> None:
        self.head = head
        self._store = store
        self._room = REMEMBERED

    def __missing__(self, key: bytes) -> bytes:
        head, entry = self.head, self._store.newest(key)
        if entry is None:
            reply = b"\x00" + len(head).to_bytes(4, "big") + head
        else:
            reply = b"".join((b"\x00", (len(head) + len(entry) + 2).to_bytes(4, "big"), head, entry, ONE))
        self._room -= len(reply) + len(key) + OVERHEAD
        if self._room > 0:
            self[key] = reply
        return reply


class Memory:
    """The keys of a route in memory; implements services.call.Source."""

    def __init__(self, reads: Reads, feed: Feed, coalesce: bool) -> None:
        self.name = feed.cluster.name
        self.feed = feed
        self.confirm = feed.confirm
        self._reads = reads
        self._coalesce = coalesce
        self._replies = Replies(b"", feed.store)

    def replies(self) -> Replies | None:
        """services.call.Source. The feed makes another head of whatever it hears, so the same one means that nothing has changed."""
        feed = self.feed
        if not feed.caching:
            return None
        head = feed.head
        if head is not self._replies.head:
            self._replies = Replies(head, feed.store)
        return self._replies

    def current(self) -> Replies | None:
        """services.call.Source"""
        return self.replies() if self.feed.revision >= self.feed.known else None

    def answered(self, count: int) -> None:
        """services.call.Source"""
        self.feed.hits += count

    def decline(self, call: Call, key: bytes) -> None:
        """services.call.Source"""
        self._reads.bypass(call, self.feed, self._coalesce, "unconfirmed")


class KeyRead:
    """A read of one key; implements services.call.Reader."""

    __slots__ = ("_call", "_key", "_memory")

    def __init__(self, memory: Memory, call: Call, key: bytes) -> None:
        self._memory = memory
        self._call = call
        self._key = key

    def confirmed(self) -> None:
        replies = self._memory.replies()
        if replies is None:
            self.unconfirmed()
        elif not self._call.ended:
            self._memory.answered(1)
            self._call.reply_raw(replies[self._key])

    def unconfirmed(self) -> None:
        if not self._call.ended:
            self._memory.decline(self._call, self._key)


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
        if not feed.caching:  # the store was given up while it waited
            self._bypass("unconfirmed")
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
        self._reads.bypass(self._call, self._feed, self._coalesce, reason, self._request.revision > 0)

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
