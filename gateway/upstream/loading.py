"""What comes from a cluster, as a store takes it: its cached ranges page by page, all at one revision, and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from gateway.core.keyrange import EVERYTHING_FROM, after
from gateway.core.reads import tagged
from gateway.core.store import Event, Store, Version
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import Event as WatchEvent
from gateway.etcdpb.kv_pb2 import KeyValue
from gateway.etcdpb.methods import method
from gateway.upstream.cluster import Cluster

RANGE = method("kv", "range")

Interval = tuple[bytes, bytes | None]
"""Keys [low, high); high None: to the last key."""

FIRST_PAGE = 100
"""Keys of the first page; the next ones are as long as `PAGE_BYTES` allow, at most `LONGEST_PAGE` keys."""

LONGEST_PAGE = 2_000
PAGE_BYTES = 1 << 20


async def pages(
    cluster: Cluster, intervals: Sequence[Interval], patience: float
) -> AsyncIterator[tuple[pb.ResponseHeader, list[KeyValue]]]:
    """The pages of all intervals in key order, each with the header of its reply; at least one. All are of the revision in the first one's
    header. `patience`: seconds for each. Raises RpcError."""
    limit, revision = FIRST_PAGE, 0
    for low, high in intervals:
        more = True
        while more:
            request = pb.RangeRequest(key=low or b"\0", range_end=EVERYTHING_FROM if high is None else high, limit=limit, revision=revision)
            deadline = asyncio.get_running_loop().time() + patience
            message = await cluster.unary(RANGE, request.SerializeToString(), deadline=deadline)
            reply = pb.RangeResponse.FromString(message)
            revision = revision or reply.header.revision
            kvs = list(reply.kvs)
            yield reply.header, kvs
            more = reply.more
            if kvs:
                low = after(kvs[-1].key)
                limit = max(1, min(LONGEST_PAGE, PAGE_BYTES * len(kvs) // len(message)))


def versions(kvs: Iterable[KeyValue]) -> list[tuple[bytes, Version]]:
    """As a store loads them."""
    return [(kv.key, Version(kv.mod_revision, tagged(kv.SerializeToString()))) for kv in kvs]


def event(change: WatchEvent, store: Store) -> Event:
    """As the store and the watchers take it. What is replaced is in the store already, where the key is cached."""
    key = change.kv.key
    before = None
    if change.HasField("prev_kv"):
        before = store.newest(key) or tagged(change.prev_kv.SerializeToString())
    return Event(key, tagged(change.kv.SerializeToString()), before, change.type == WatchEvent.DELETE)
