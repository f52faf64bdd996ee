"""Decisions about KV requests, against a model that looks at single keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import DUPLICATE_KEY, EMPTY_KEY, INVALID_SORT, TOO_MANY_OPS, Code, Status
from gateway.core.plan import (
    Decision,
    Forward,
    Refuse,
    Scatter,
    only_key,
    plan_delete,
    plan_put,
    plan_range,
    plan_range_stream,
    plan_txn,
    quoted,
)
from gateway.core.routes import Route, Routes, Span
from gateway.etcdpb import rpc_pb2 as pb

ROUTES = Routes([Route(b"", "main"), Route(b"/e/", "events", cache=False), Route(b"/n/", "cni", coalesce=False)])

KEYS = st.sampled_from([b"/a", b"/d", b"/e", b"/e/", b"/e/1", b"/e/2", b"/e0", b"/f", b"/n/1", b"/n/2", b"z"])
ENDS = st.sampled_from([b"", b"", b"\0", b"/a", b"/e/3", b"/e0", b"/n", b"/n/9"])
RANGES = st.builds(pb.RangeRequest, key=KEYS, range_end=ENDS)
PUTS = st.builds(pb.PutRequest, key=KEYS, lease=st.integers(0, 3))
DELETES = st.builds(pb.DeleteRangeRequest, key=KEYS, range_end=ENDS)
SIMPLE = st.one_of(
    st.builds(pb.RequestOp, request_range=RANGES),
    st.builds(pb.RequestOp, request_put=PUTS),
    st.builds(pb.RequestOp, request_delete_range=DELETES),
    st.just(pb.RequestOp()),
)
COMPARES = st.lists(st.builds(pb.Compare, key=KEYS, range_end=ENDS), max_size=2)


def txns(ops: st.SearchStrategy[pb.RequestOp]) -> st.SearchStrategy[pb.TxnRequest]:
    return st.builds(pb.TxnRequest, compare=COMPARES, success=st.lists(ops, max_size=2), failure=st.lists(ops, max_size=2))


TXNS = txns(st.recursive(SIMPLE, lambda inner: st.builds(pb.RequestOp, request_txn=txns(inner)), max_leaves=4))


def cluster(key: bytes) -> str:
    return "events" if key == b"/e" or key.startswith(b"/e/") else "cni" if key == b"/n" or key.startswith(b"/n/") else "main"


def clusters(key: bytes, end: bytes) -> set[str]:
    """By looking at all keys where the owner changes."""
    borders = [key] if not end else [key, *(b for b in (b"/e", b"/e\0", b"/e/", b"/e0", b"/n", b"/n\0", b"/n/", b"/n0") if key < b)]
    return {cluster(b) for b in borders if b == key or end == b"\0" or b < end}


def read_of(name: str) -> Forward:
    """A read of one cluster, with what its routes allow."""
    return Forward(name, cache=name != "events", coalesce=name != "cni")


def touched(request: pb.TxnRequest) -> set[str]:
    found: set[str] = set().union(*(clusters(compare.key, compare.range_end) for compare in request.compare))
    for op in (*request.success, *request.failure):
        kind = op.WhichOneof("request")
        if kind == "request_txn":
            found |= touched(op.request_txn)
        elif kind is not None:
            part = getattr(op, kind)
            found |= clusters(part.key, getattr(part, "range_end", b""))
    return found


def leases(request: pb.TxnRequest) -> set[int]:
    found: set[int] = set()
    for op in (*request.success, *request.failure):
        found |= leases(op.request_txn) if op.HasField("request_txn") else {op.request_put.lease}
    return found - {0}


def refusal(decision: Decision) -> Status:
    assert isinstance(decision, Refuse)
    return decision.status


@given(st.binary(min_size=1, max_size=140), st.booleans(), st.binary(max_size=3), st.integers(-2, 2))
def test_only_key_sees_what_protobuf_sees(key: bytes, serializable: bool, end: bytes, limit: int) -> None:
    request = pb.RangeRequest(key=key, range_end=end, limit=limit, serializable=serializable)
    found = only_key(request.SerializeToString())
    assert found == (key if len(key) < 128 and not end and not limit else None)


@given(st.binary(max_size=8))
def test_only_key_of_any_bytes(data: bytes) -> None:
    found = only_key(data)
    if found is not None:
        assert pb.RangeRequest.FromString(data) in (pb.RangeRequest(key=found), pb.RangeRequest(key=found, serializable=True))


@given(RANGES)
def test_a_range_goes_to_the_clusters_of_its_keys(request: pb.RangeRequest) -> None:
    names = clusters(request.key, request.range_end)
    decision = plan_range(ROUTES, request)
    if len(names) == 1:
        assert decision == read_of(names.pop())
        return
    assert isinstance(decision, Scatter)
    assert {spans[0].cluster for spans in decision.parts} == names and len(decision.parts) == len(names)
    assert all(span.cluster == spans[0].cluster for spans in decision.parts for span in spans)
    every = sorted((span for spans in decision.parts for span in spans), key=lambda span: span.key)
    assert tuple(every) == ROUTES.spans(request.key, request.range_end)
    assert decision.parts[0][0].key == request.key


def test_a_range_over_all_clusters() -> None:
    borders = ((b"/a", b"/e"), (b"/e\0", b"/e/"), (b"/e0", b"/n"), (b"/n\0", b"/n/"), (b"/n0", b"z"))
    main = tuple(Span("main", *each) for each in borders)
    events = (Span("events", b"/e", b"/e\0"), Span("events", b"/e/", b"/e0"))
    cni = (Span("cni", b"/n", b"/n\0"), Span("cni", b"/n/", b"/n0"))
    assert plan_range(ROUTES, pb.RangeRequest(key=b"/a", range_end=b"z")) == Scatter((main, events, cni))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"key": b"", "range_end": b"\0"}, Forward("main")),
        ({"key": b"", "range_end": b"\0", "sort_target": 9}, Forward("main")),
        ({"key": b"", "revision": 7, "range_end": b"\0"}, Forward("main")),
        ({"key": b"/e/1", "revision": 7}, read_of("events")),
        ({"key": b"/e/1", "range_end": b"/e/2", "revision": 7}, read_of("events")),
        ({"key": b"/e/1", "sort_target": 9}, Refuse(INVALID_SORT)),
        ({"key": b"/a", "range_end": b"z", "sort_target": -1}, Refuse(INVALID_SORT)),
        ({"key": b"/a", "sort_order": 9}, read_of("main")),
    ],
)
def test_ranges_that_are_special(fields: dict[str, object], wanted: Decision) -> None:
    assert plan_range(ROUTES, pb.RangeRequest(**fields)) == wanted


def test_a_range_over_routes_of_one_cluster_is_cached_where_all_are() -> None:
    routes = Routes([Route(b"", "main"), Route(b"/e/", "main", cache=False), Route(b"/n/", "main", coalesce=False)])
    assert plan_range(routes, pb.RangeRequest(key=b"/a", range_end=b"/e")) == Forward("main", cache=True, coalesce=True)
    assert plan_range(routes, pb.RangeRequest(key=b"/a", range_end=b"/e/")) == Forward("main", cache=False, coalesce=True)
    assert plan_range(routes, pb.RangeRequest(key=b"/f", range_end=b"\0")) == Forward("main", cache=True, coalesce=False)
    assert plan_range(routes, pb.RangeRequest(key=b"/e/1", range_end=b"/o")) == Forward("main", cache=False, coalesce=False)


def test_a_revision_belongs_to_one_cluster() -> None:
    assert isinstance(plan_range(ROUTES, pb.RangeRequest(key=b"/e", range_end=b"/f", revision=-1)), Scatter)
    assert refusal(plan_range(ROUTES, pb.RangeRequest(key=b"/e", range_end=b"/f", revision=7))) == Status(
        Code.INVALID_ARGUMENT,
        "shardgate: range at a revision over several clusters: '/e' to '/e\\x00' is in events, '/e\\x00' to '/e/' is in main; "
        "read each cluster's keys apart",
    )


@given(RANGES)
def test_a_stream_or_a_deletion_is_for_one_cluster(request: pb.RangeRequest) -> None:
    names = clusters(request.key, request.range_end)
    stream = plan_range_stream(ROUTES, request)
    deletion = plan_delete(ROUTES, pb.DeleteRangeRequest(key=request.key, range_end=request.range_end))
    if len(names) == 1:
        assert stream == deletion == Forward(names.pop())
    else:
        assert refusal(stream).code is Code.UNIMPLEMENTED
        assert refusal(deletion).code is Code.INVALID_ARGUMENT
        assert all(name in refusal(deletion).text and name in refusal(stream).text for name in names)


def test_an_empty_key_is_for_etcd_to_refuse() -> None:
    assert plan_range_stream(ROUTES, pb.RangeRequest(range_end=b"\0")) == Forward("main")
    assert plan_delete(ROUTES, pb.DeleteRangeRequest(range_end=b"\0")) == Forward("main")
    assert plan_put(ROUTES, pb.PutRequest()) == Forward("main")


def test_a_put_names_its_lease() -> None:
    assert plan_put(ROUTES, pb.PutRequest(key=b"/e/1")) == Forward("events")
    assert plan_put(ROUTES, pb.PutRequest(key=b"/e/1", lease=7)) == Forward("events", (7,))


@given(TXNS)
def test_a_transaction_goes_to_one_cluster(request: pb.TxnRequest) -> None:
    names = touched(request)
    decision = plan_txn(ROUTES, request, "home")
    if len(names) <= 1:
        assert isinstance(decision, Forward)
        assert decision.cluster == (names.pop() if names else "home")
        assert set(decision.leases) == leases(request) and len(set(decision.leases)) == len(decision.leases)
    elif not refusal(decision).text.startswith("etcdserver: "):
        assert refusal(decision).code is Code.INVALID_ARGUMENT
        assert all(f" is in {name}" in refusal(decision).text for name in names)


def op(**fields: object) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(**fields))


def put(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key))


@pytest.mark.parametrize(
    ("success", "wanted"),
    [
        ([put(b"/e/1"), put(b"")], EMPTY_KEY),
        ([put(b"/e/1"), put(b"/e/1"), put(b"/a")], DUPLICATE_KEY),
        ([put(b"/%03d" % at) for at in range(128)] + [put(b"/e/1")], TOO_MANY_OPS),
        ([op(key=b"/a", sort_target=5)], INVALID_SORT),
        ([op(key=b"/a", sort_target=5), put(b"")], INVALID_SORT),
        ([put(b""), op(key=b"/a", sort_target=5)], EMPTY_KEY),
    ],
)
def test_etcds_own_errors_come_first(success: list[pb.RequestOp], wanted: Status) -> None:
    assert refusal(plan_txn(ROUTES, pb.TxnRequest(success=success), "main")) == wanted


def test_an_unknown_sort_target_is_found_however_deep_it_is() -> None:
    inner = pb.RequestOp(request_txn=pb.TxnRequest(failure=[op(key=b"/a", sort_target=5)]))
    assert refusal(plan_txn(ROUTES, pb.TxnRequest(success=[op(key=b"/a"), inner, op(key=b"/b")]), "main")) == INVALID_SORT


def test_a_refusal_names_few_clusters_and_the_keys_first_bytes() -> None:
    routes = Routes([Route(b"", "main"), *(Route(b"/%d/" % at, f"c{at}") for at in range(6))])
    ops = [put(b"/%d/" % at + b"\xff\n" * 1000) for at in range(6)]
    text = refusal(plan_txn(routes, pb.TxnRequest(success=ops), "main")).text
    assert text.endswith("is in c3 and 2 clusters more; keep a transaction's keys in one cluster")
    assert len(text) < 1500 and text.isprintable()


@given(st.binary(max_size=100))
def test_a_quoted_key_is_short_and_printable(key: bytes) -> None:
    assert quoted(key).isprintable() and quoted(key).isascii()
    assert len(quoted(key)) <= 4 * 64 + 2
