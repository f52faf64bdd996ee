"""The routing table against a model that walks over all routes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keyrange import bounds, prefix_end
from gateway.core.routes import Route, Routes

ALPHABET = st.sampled_from([b"/", b"a", b"b", b"\x00", b"\xff"])
KEYS = st.lists(ALPHABET, max_size=6).map(b"".join)
PREFIXES = st.lists(KEYS, max_size=6, unique_by=lambda prefix: prefix.rstrip(b"/")).map(lambda found: [prefix for prefix in found if prefix != b"\0"])


def owns(prefix: bytes, key: bytes) -> bool:
    segment = prefix.rstrip(b"/")
    return not prefix or key == segment != b"" or key.startswith(segment + b"/")


def model(routes: list[Route], key: bytes) -> Route:
    return max((route for route in routes if owns(route.prefix, key)), key=lambda route: len(route.prefix.rstrip(b"/") + b"/" * bool(route.prefix)))


def table(prefixes: list[bytes]) -> tuple[list[Route], Routes]:
    routes = [Route(b"", "main")] + [Route(prefix, f"c{number % 3}") for number, prefix in enumerate(prefixes) if prefix]
    return routes, Routes(routes)


@given(PREFIXES, KEYS)
def test_the_longest_prefix_wins(prefixes: list[bytes], key: bytes) -> None:
    routes, built = table(prefixes)
    assert built.route_of(key) == model(routes, key)
    assert built.cluster_of(key) == model(routes, key).cluster


@given(PREFIXES, KEYS, KEYS, st.lists(KEYS, min_size=5, max_size=20))
def test_spans_cover_the_range_and_nothing_else(prefixes: list[bytes], key: bytes, end: bytes, probes: list[bytes]) -> None:
    _, built = table(prefixes)
    spans = built.spans(key, end)
    assert spans[0].key == key
    assert spans[-1].end == end
    assert all(one.end == two.key and one.cluster != two.cluster for one, two in zip(spans, spans[1:], strict=False))
    for probe in [*probes, key, *(span.key for span in spans)]:
        inside = [span for span in spans if within(probe, span.key, span.end)]
        assert len(inside) == within(probe, key, end)
        for span in inside:
            assert span.cluster == built.cluster_of(probe)


def within(key: bytes, low: bytes, range_end: bytes) -> bool:
    start, stop = bounds(low, range_end)
    return key >= start and (stop is None or key < stop)


@given(KEYS, KEYS)
def test_prefix_end(prefix: bytes, key: bytes) -> None:
    assert within(key, prefix, prefix_end(prefix)) == (key.startswith(prefix)) or not prefix


def test_segments() -> None:
    built = Routes([Route(b"", "main"), Route(b"/registry/events/", "events"), Route(b"/registry/pods", "pods")])
    assert built.cluster_of(b"/registry/events") == "events"
    assert built.cluster_of(b"/registry/events/default/a") == "events"
    assert built.cluster_of(b"/registry/eventsx") == "main"
    assert built.cluster_of(b"/registry/pods/a") == "pods"
    assert built.cluster_of(b"/registry/podsecuritypolicy") == "main"
    assert built.clusters() == ("main", "events", "pods")
    assert len(built.spans(b"/registry/", b"/registry0")) == 9
    assert built.intervals()[0][:2] == (b"", b"/registry/events")


def test_a_range_that_ends_where_a_route_begins_does_not_touch_it() -> None:
    built = Routes([Route(b"", "main"), Route(b"/b/", "other")])
    assert [span.cluster for span in built.spans(b"/a", b"/b")] == ["main"]
    assert [span.cluster for span in built.spans(b"/a", b"/b\0")] == ["main", "other"]
    assert [span.cluster for span in built.spans(b"/z", b"/a")] == ["main"]


def test_everything() -> None:
    assert Routes.everything("x").cluster_of(b"any") == "x"


def test_no_default_route() -> None:
    with pytest.raises(ValueError, match="default"):
        Routes([Route(b"/a/", "x")])


def test_a_prefix_that_ranges_cannot_end_at() -> None:
    with pytest.raises(ValueError, match="prefix"):
        Routes([Route(b"", "x"), Route(b"\0", "y")])
