"""Ranges that are answered from memory: the store of the cluster's feed, with etcd's own guarantees.

A linearizable read waits for a confirmation that is asked for after it came; a serializable one is answered at once, but never with less
than a client was told through this gateway; one at a revision that the store's history has needs neither.
"""

from __future__ import annotations

import asyncio

from gateway.core.plan import Forward
from gateway.core.reads import Moved, Reading, obstacle
from gateway.core.routes import Route
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import Call
from gateway.services.scope import Scope
from gateway.upstream.feed import Feed

ONE = b"\x20\x01"
"""`count: 1` of a RangeResponse."""

SMALL = 1 << 20
"""Bytes of a reply that is written at once."""

PIECE = 256 << 10
"""Bytes of a larger one that are written at a time."""


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
        self._call.cluster = feed.cluster.name
        entry = feed.store.newest(self._key)
        self._call.reply_raw(framed(feed.head) if entry is None else framed(feed.head, entry, ONE))

    def unconfirmed(self) -> None:
        if not self._call.ended:
            self._reads.bypass(self._call, self._feed, self._coalesce, "unconfirmed")


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
            reading.step()
        except Moved:
            self._bypass("history")
            return
        feed.hits += 1
        call.cluster = feed.cluster.name
        head = feed.head
        if reading.done and reading.size < SMALL:
            call.reply_raw(framed(head, *reading.parts, reading.tail))
        else:
            call.run(self._gather(reading, head))

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
            await send_slowly(self._call, head, reading)


async def send_slowly(call: Call, head: bytes, reading: Reading) -> None:
    """A large reply, no faster than the client reads."""
    size = len(head) + reading.size + len(reading.tail)
    batch, waiting = [b"\x00" + size.to_bytes(4, "big"), head], 0
    for part in reading.parts:
        batch.append(part)
        waiting += len(part)
        if waiting >= PIECE:
            call.send_raw(b"".join(batch))
            batch, waiting = [], 0
            await writable(call)
    call.send_raw(b"".join((*batch, reading.tail)))
    call.end()


async def writable(call: Call) -> None:
    """Let others have their turn; if the client reads slowly, until it has read."""
    await asyncio.sleep(0)
    if not call.writable and not call.ended:
        ready = asyncio.Event()
        call.on_writable = ready.set
        await ready.wait()
