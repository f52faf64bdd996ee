"""The routing table against a model that walks over all routes."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keyrange import bounds, prefix_end
from gateway.core.routes import Route, Routes, merged

ALPHABET = st.sampled_from([b"/", b"a", b"b", b"\x00", b"\xff"])
KEYS = st.lists(ALPHABET, max_size=6).map(b"".join)
ROUTES = st.builds(Route, KEYS.filter(bool), st.sampled_from(["main", "c1", "c2"]), raw=st.booleans())
TABLES = st.lists(ROUTES.filter(lambda route: lowest(route) != b"\0"), max_size=6, unique_by=lambda route: route.below)


def lowest(route: Route) -> bytes:
    """The first of its keys."""
    return route.prefix if route.raw else route.prefix.removesuffix(b"/") or b"/"


def owns(route: Route, key: bytes) -> bool:
    """What a route means, in other words than the table's."""
    if route.raw or not route.prefix:
        return key.startswith(route.prefix)
    segment = route.prefix.removesuffix(b"/")
    return key.startswith(segment + b"/") or key == segment != b""


def model(routes: tuple[Route, ...], key: bytes) -> Route:
    return max((route for route in routes if owns(route, key)), key=lambda route: len(route.below))


def table(routes: list[Route]) -> Routes:
    return Routes([*routes, Route(b"", "main")])


def within(key: bytes, low: bytes, range_end: bytes) -> bool:
    start, stop = bounds(low, range_end)
    return key >= start and (stop is None or key < stop)


@given(TABLES, KEYS)
def test_the_longest_prefix_wins(routes: list[Route], key: bytes) -> None:
    built = table(routes)
    for probe in (key, *(probe for route in routes for probe in (lowest(route), route.below, route.below + key))):
        assert built.route_of(probe) == model(built.routes, probe)
        assert built.cluster_of(probe) == model(built.routes, probe).cluster


@given(TABLES, KEYS.filter(bool), KEYS, st.lists(KEYS.filter(bool), min_size=5, max_size=20))
def test_spans_cover_the_range_and_nothing_else(routes: list[Route], key: bytes, end: bytes, probes: list[bytes]) -> None:
    built = table(routes)
    spans = built.spans(key, end)
    assert spans[0].key == key
    assert spans[-1].end == end
    assert all(one.end == two.key and one.cluster != two.cluster for one, two in pairwise(spans))
    for probe in [*probes, key, *(span.key for span in spans)]:
        inside = [span for span in spans if within(probe, span.key, span.end)]
        assert len(inside) == within(probe, key, end)
        for span in inside:
            assert span.cluster == built.cluster_of(probe)


@given(TABLES, KEYS.filter(bool), KEYS)
def test_an_empty_or_reversed_range_belongs_to_the_owner_of_its_key(routes: list[Route], key: bytes, end: bytes) -> None:
    low, high = bounds(key, end)
    if high is not None and high <= low:
        built = table(routes)
        assert [(span.cluster, span.key, span.end) for span in built.spans(key, end)] == [(built.cluster_of(key), key, end)]


@given(TABLES)
def test_the_intervals_are_the_whole_keyspace(routes: list[Route]) -> None:
    intervals = table(routes).intervals()
    assert intervals[0][0] == b""
    assert intervals[-1][1] is None
    assert all(start < end for start, end, _ in intervals if end is not None)
    assert [end for _, end, _ in intervals[:-1]] == [start for start, _, _ in intervals[1:]]


@given(TABLES, st.randoms())
def test_the_order_of_the_routes_does_not_matter(routes: list[Route], random: Random) -> None:
    shuffled = routes.copy()
    random.shuffle(shuffled)
    assert table(shuffled).intervals() == table(routes).intervals()


def test_segments() -> None:
    built = Routes([Route(b"", "main"), Route(b"/registry/events/", "events"), Route(b"/registry/pods", "pods")])
    assert built.cluster_of(b"/registry/events") == "events"
    assert built.cluster_of(b"/registry/events/default/a") == "events"
    assert built.cluster_of(b"/registry/eventsx") == "main"
    assert built.cluster_of(b"/registry/pods") == "pods"
    assert built.cluster_of(b"/registry/pods/a") == "pods"
    assert built.cluster_of(b"/registry/podsecuritypolicy") == "main"
    assert built.clusters() == ("main", "events", "pods")
    assert len(built.spans(b"/registry/", b"/registry0")) == 9
    assert built.intervals()[0][:2] == (b"", b"/registry/events")


def test_raw_prefixes() -> None:
    built = Routes([Route(b"", "main"), Route(b"user:", "users", raw=True), Route(b"\xff", "binary", raw=True), Route(b"user:a", "a")])
    assert built.cluster_of(b"user:") == built.cluster_of(b"user:7") == built.cluster_of(b"user:ab") == "users"
    assert built.cluster_of(b"user:a") == built.cluster_of(b"user:a/b") == "a"
    assert built.cluster_of(b"user") == built.cluster_of(b"user;") == "main"
    assert [span.cluster for span in built.spans(b"v", b"\0")] == ["main", "binary"]
    assert built.spans(prefix := b"user:b", prefix_end(prefix))[0].cluster == "users"


def test_the_root_owns_all_that_begins_with_a_slash() -> None:
    built = Routes([Route(b"", "main"), Route(b"/", "paths")])
    assert built.cluster_of(b"/") == built.cluster_of(b"/a") == built.cluster_of(b"//") == "paths"
    assert built.cluster_of(b".") == built.cluster_of(b"0") == "main"


def test_a_range_that_ends_where_a_route_begins_does_not_touch_it() -> None:
    built = Routes([Route(b"", "main"), Route(b"/b/", "other")])
    assert [span.cluster for span in built.spans(b"/a", b"/b")] == ["main"]
    assert [span.cluster for span in built.spans(b"/a", b"/b\0")] == ["main", "other"]
    assert [span.cluster for span in built.spans(b"/z", b"/a")] == ["main"]


def test_neighbours_of_one_cluster_are_one_span() -> None:
    built = Routes([Route(b"", "main"), Route(b"/b/", "main", source="apart"), Route(b"/c/", "other")])
    assert [span.key for span in built.spans(b"/a", b"/d")] == [b"/a", b"/c", b"/c\0", b"/c/", b"/c0"]
    assert built.route_of(b"/b/x").source == "apart"


def test_everything() -> None:
    assert Routes.everything("x").cluster_of(b"any") == "x"
    assert len(Routes.everything("x").spans(b"\0", b"\0")) == 1


def test_no_default_route() -> None:
    with pytest.raises(ValueError, match="default"):
        Routes([Route(b"/a/", "x")])


@pytest.mark.parametrize("route", [Route(b"\0", "y"), Route(b"\0/", "y"), Route(b"\0", "y", raw=True)])
def test_a_route_that_ranges_cannot_end_at(route: Route) -> None:
    with pytest.raises(ValueError, match="start"):
        Routes([Route(b"", "x"), route])


@given(TABLES, st.sampled_from(["main", "c1", "c2"]), st.sets(st.integers(0, 6)), st.lists(KEYS.filter(bool), min_size=5, max_size=20))
def test_cached_intervals_are_the_keys_of_cached_routes(routes: list[Route], cluster: str, off: set[int], probes: list[bytes]) -> None:
    built = table([replace(route, cache=at not in off) for at, route in enumerate(routes)])
    intervals = built.cached(cluster)
    assert all(one[1] is not None and one[1] < two[0] for one, two in pairwise(intervals)), "sorted, disjoint, joined"
    for probe in [*probes, *(low for low, _, _ in built.intervals())]:
        owner = model(built.routes, probe)
        found = any(low <= probe and (high is None or probe < high) for low, high in intervals)
        assert found == (owner.cluster == cluster and owner.cache)


def test_merged_intervals() -> None:
    assert merged([]) == []
    assert merged([(b"b", b"c"), (b"a", b"b"), (b"d", b"f"), (b"e", None)]) == [(b"a", b"c"), (b"d", None)]
    assert merged([(b"", None), (b"a", b"b")]) == [(b"", None)]
    assert merged([(b"a", b"z"), (b"b", b"c")]) == [(b"a", b"z")]
