"""What is told of the feeds: metrics and /status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.metrics import Reading
from gateway.upstream.feed import Feed

Add = Callable[[str, str, str, tuple[str, ...], Callable[[], Reading]], None]
"""Metrics.read."""


BYPASSES = ("not synced", "unconfirmed", "history", "sort", "error", "identity")
"""Why a read of a cached route goes to the cluster (services/reads.py, core/reads.py)."""


def feed_status(feed: Feed) -> dict[str, Any]:
    """For /status."""
    return {
        "state": feed.state.value,
        "caching": feed.caching,
        "revision": feed.revision,
        "lag": feed.lag,
        "keys": len(feed.store),
        "bytes": feed.store.bytes,
        "history_bytes": feed.store.history_bytes,
        "oldest_revision": feed.store.oldest,
        "hits": feed.hits,
        "bypasses": dict(feed.bypasses),
        "confirmations": feed.confirmations.count,
        "confirmed_reads": feed.confirmations.readers,
        "rebuilds": feed.rebuilds,
        "watches": dict(feed.watches),
        "log_revisions": feed.watchers.history,
        "log_bytes": feed.watchers.bytes,
    }


_GAUGES: tuple[tuple[str, str, Callable[[Feed], float]], ...] = (
    ("live", "1 while the feed follows the cluster.", lambda feed: feed.live),
    ("caching", "1 while reads are answered from memory.", lambda feed: feed.caching),
    ("revision", "The store's revision.", lambda feed: feed.revision),
    ("lag_revisions", "Revisions that the cluster is known to be ahead of the store.", lambda feed: feed.lag),
    ("keys", "Keys in the store.", lambda feed: len(feed.store)),
    ("bytes", "Bytes of keys and values in the store, older versions included.", lambda feed: feed.store.bytes),
    ("history_bytes", "Those of older versions.", lambda feed: feed.store.history_bytes),
    ("log_revisions", "Revisions whose events watchers can be told again.", lambda feed: feed.watchers.history),
    ("log_bytes", "Bytes of these events.", lambda feed: feed.watchers.bytes),
    ("upstream_watches", "Watches that the cluster serves for the gateway.", lambda feed: feed.live + feed.watches["upstream"]),
)

_COUNTERS: tuple[tuple[str, str, Callable[[Feed], float]], ...] = (
    ("hits", "Reads that were answered from memory.", lambda feed: feed.hits),
    ("confirmations", "Reads of the cluster that confirmed a revision for others.", lambda feed: feed.confirmations.count),
    ("confirmed_reads", "Reads and watches that waited for one.", lambda feed: feed.confirmations.readers),
    ("rebuilds", "Times that the store was filled anew.", lambda feed: feed.rebuilds),
)


def cache_readings(add: Add, feeds: Mapping[str, Feed]) -> None:
    """Add the metrics of all feeds."""

    def each(value: Callable[[Feed], float]) -> Callable[[], Reading]:
        return lambda: [((name,), value(feed)) for name, feed in feeds.items()]

    for kind, metrics in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, text, value in metrics:
            add(kind, f"shardgate_cache_{name}", text, ("cluster",), each(value))
    add("counter", "shardgate_cache_bypasses", "Reads that memory could not answer, by reason.", ("cluster", "reason"), lambda: [
        ((name, reason), feed.bypasses[reason]) for name, feed in feeds.items() for reason in BYPASSES
    ])
    add("gauge", "shardgate_cache_watches", "Watches that clients have, by how they are fed.", ("cluster", "state"), lambda: [
        ((name, state), feed.watches[state]) for name, feed in feeds.items() for state in ("synced", "behind", "upstream")
    ])
