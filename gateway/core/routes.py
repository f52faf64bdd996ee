"""Which cluster a key, or each part of a range, belongs to.

Routes are prefixes, the longest wins. They are flattened once into a sorted table of disjoint intervals, so that a look-up is one bisect.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.keyrange import EVERYTHING_FROM, after, bounds, prefix_end


@dataclass(frozen=True, slots=True)
class Route:
    """Keys that belong to a cluster. `prefix` b"" is the default route. A prefix means whole path segments: b"/a/b" and b"/a/b/" both own
    the key /a/b and all keys below /a/b/, but not /a/bc (kube-apiserver reads a resource's revision at the key without the slash).
    A `raw` one means the keys that begin with these bytes, no more and no less. `source` is what the config said, for messages."""

    prefix: bytes
    cluster: str
    cache: bool = True
    coalesce: bool = True
    source: str = ""
    raw: bool = False

    @property
    def below(self) -> bytes:
        """What all keys of the route begin with, but for the one that ends before the slash. The same of two routes: the same keys."""
        return self.prefix if self.raw or not self.prefix else self.prefix.removesuffix(b"/") + b"/"

    def owned(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """The intervals [start, end) of its keys, as long as no longer prefix takes some; end None: to the last key."""
        end = prefix_end(self.below)
        tail = self.below, None if end == EVERYTHING_FROM else end
        segment = b"" if self.raw else self.below[:-1]
        return ((segment, after(segment)), tail) if segment else (tail,)


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a range that lies in one cluster, as etcd writes ranges: end b"" is the single key, b"\\0" is to the last key."""

    cluster: str
    key: bytes
    end: bytes


class Routes:
    """The routing table; immutable."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """One of the routes is the default (prefix b""). ValueError without it, and for a route that starts at the key b"\\0", which as
        the end of a range means the last key."""
        self.routes = tuple(routes)
        if not any(not route.prefix for route in self.routes):
            raise ValueError('no default route (prefix "")')
        if any(start == EVERYTHING_FROM for route in self.routes for start, _ in route.owned()):
            raise ValueError("a route can't start at the key \\0")
        self._starts, self._owners = _flatten(self.routes)

    @classmethod
    def everything(cls, cluster: str) -> Routes:
        """Every key to one cluster."""
        return cls((Route(b"", cluster, source="the listener's cluster"),))

    def route_of(self, key: bytes) -> Route:
        """The route that owns the key."""
        return self._owners[bisect_right(self._starts, key) - 1]

    def cluster_of(self, key: bytes) -> str:
        """The cluster that owns the key."""
        return self._owners[bisect_right(self._starts, key) - 1].cluster

    def spans(self, key: bytes, range_end: bytes) -> tuple[Span, ...]:
        """The parts of a range by cluster, in key order, neighbours of one cluster joined. An empty or reversed range belongs to the
        owner of its key. Never empty."""
        owners = self.owners(key, range_end)
        cluster = owners[0].cluster
        if all(owner.cluster == cluster for owner in owners):
            return (Span(cluster, key, range_end),)
        first = bisect_right(self._starts, key) - 1
        return _join(owners, [key, *self._starts[first + 1 : first + len(owners)]], range_end)

    def owners(self, key: bytes, range_end: bytes) -> tuple[Route, ...]:
        """The routes whose keys a range touches, in key order. Never empty."""
        low, high = bounds(key, range_end)
        first = bisect_right(self._starts, low) - 1
        last = len(self._starts) if high is None else max(first + 1, bisect_left(self._starts, high))
        return tuple(self._owners[first:last])

    def intervals(self) -> tuple[tuple[bytes, bytes | None, Route], ...]:
        """The flattened table: [start, end) and the route; end None: to the last key."""
        ends: list[bytes | None] = [*self._starts[1:], None]
        return tuple(zip(self._starts, ends, self._owners, strict=True))

    def cached(self, cluster: str) -> list[tuple[bytes, bytes | None]]:
        """The intervals [low, high) of a cluster's keys that are to be cached, sorted, neighbours joined; high None: to the end."""
        return merged((low, high) for low, high, route in self.intervals() if route.cluster == cluster and route.cache)

    def owned(self, cluster: str) -> list[tuple[bytes, bytes | None]]:
        """The same of all its keys."""
        return merged((low, high) for low, high, route in self.intervals() if route.cluster == cluster)

    def clusters(self) -> tuple[str, ...]:
        """The names of all clusters in the table, each once, in the order of the routes."""
        return tuple(dict.fromkeys(route.cluster for route in self.routes))


def merged(intervals: Iterable[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The same keys in disjoint intervals, sorted."""
    joined: list[tuple[bytes, bytes | None]] = []
    for low, high in sorted(intervals, key=lambda interval: interval[0]):
        if joined and (joined[-1][1] is None or low <= joined[-1][1]):
            before = joined.pop()
            low, high = before[0], None if before[1] is None or high is None else max(before[1], high)
        joined.append((low, high))
    return joined


def _join(owners: tuple[Route, ...], starts: list[bytes], range_end: bytes) -> tuple[Span, ...]:
    spans: list[Span] = []
    for at, (owner, start) in enumerate(zip(owners, starts, strict=True)):
        end = starts[at + 1] if at + 1 < len(starts) else range_end
        if spans and spans[-1].cluster == owner.cluster:
            spans[-1] = Span(owner.cluster, spans[-1].key, end)
        else:
            spans.append(Span(owner.cluster, start, end))
    return tuple(spans)


def _flatten(routes: tuple[Route, ...]) -> tuple[list[bytes], list[Route]]:
    """Sorted starts of intervals and the route that owns each: shorter prefixes are painted first, longer ones over them."""
    starts: list[bytes] = [b""]
    owners: list[Route] = [next(route for route in routes if not route.prefix)]
    for route in sorted(routes, key=lambda route: len(route.below)):
        for start, end in route.owned():
            _paint(starts, owners, start, end, route)
    return starts, owners


def _paint(starts: list[bytes], owners: list[Route], start: bytes, end: bytes | None, route: Route) -> None:
    if end is not None:
        _split(starts, owners, end)
    low = _split(starts, owners, start)
    high = len(starts) if end is None else bisect_right(starts, end) - 1
    starts[low:high] = [start]
    owners[low:high] = [route]


def _split(starts: list[bytes], owners: list[Route], at: bytes) -> int:
    """Make an interval begin at this key; its place in the table."""
    place = bisect_right(starts, at) - 1
    if starts[place] == at:
        return place
    starts.insert(place + 1, at)
    owners.insert(place + 1, owners[place])
    return place + 1
