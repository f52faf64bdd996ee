"""Joined replies against a naive etcd that has all keys."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.joins import join_alarms, join_range, join_status, join_time_to_live, part, version_key
from gateway.core.routes import Route, Routes
from gateway.etcdpb import kv_pb2
from gateway.etcdpb import rpc_pb2 as pb

ROUTES = Routes([Route(b"", "main"), Route(b"e/", "events")])
TARGETS = ("key", "version", "create_revision", "mod_revision", "value")

NUMBERS = st.integers(1, 4)
PAIRS = st.builds(
    kv_pb2.KeyValue,
    key=st.sampled_from([b"a", b"b", b"e", b"e/1", b"e/2", b"e/3", b"f", b"g"]),
    value=st.sampled_from([b"", b"x", b"y"]),
    version=NUMBERS,
    create_revision=NUMBERS,
    mod_revision=NUMBERS,
)

def merged(request: pb.RangeRequest, filters: pb.RangeRequest) -> pb.RangeRequest:
    filters.MergeFrom(request)
    return filters


BOUNDS = st.sampled_from([0, 0, 1, 2, 3])
FILTERS = {f"{end}_{what}_revision": BOUNDS for end in ("min", "max") for what in ("mod", "create")}
UNFILTERED = st.builds(
    pb.RangeRequest,
    key=st.just(b"a"),
    range_end=st.sampled_from([b"z", b"\0"]),
    limit=st.sampled_from([0, 0, 1, 2, 3, 5, 1 << 62, (1 << 63) - 1, -1]),
    revision=st.sampled_from([0, -1]),
    sort_order=st.integers(0, 3),
    sort_target=st.integers(0, 4),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False, False, True]),
)
REQUESTS = st.one_of(UNFILTERED, st.builds(merged, UNFILTERED, st.builds(pb.RangeRequest, **FILTERS)))


def etcd(pairs: list[kv_pb2.KeyValue], request: pb.RangeRequest) -> pb.RangeResponse:
    """What etcd does with a range, step by step, as in its apply.go."""
    everything = request.range_end == b"\0"
    found = sorted((kv for kv in pairs if request.key <= kv.key and (everything or kv.key < request.range_end)), key=lambda kv: kv.key)
    count = len(found)
    if request.count_only:
        return pb.RangeResponse(count=count)
    filters = (request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision)
    if request.limit > 0 and request.sort_order == 0 and not any(filters):
        found = found[: request.limit + 1]
    found = [kv for kv in found if within(kv.mod_revision, *filters[:2]) and within(kv.create_revision, *filters[2:])]
    target = TARGETS[request.sort_target]
    order = 1 if request.sort_order == 0 and target != "key" else request.sort_order
    if order in (1, 2):
        found.sort(key=lambda kv: getattr(kv, target), reverse=order == 2)
    more = 0 < request.limit < len(found)
    found = found[: request.limit] if more else found
    return pb.RangeResponse(count=count, more=more, kvs=[without_value(kv) if request.keys_only else kv for kv in found])


def within(number: int, low: int, high: int) -> bool:
    return (not low or number >= low) and (not high or number <= high)


def without_value(kv: kv_pb2.KeyValue) -> kv_pb2.KeyValue:
    return kv_pb2.KeyValue(key=kv.key, version=kv.version, create_revision=kv.create_revision, mod_revision=kv.mod_revision)


@given(st.lists(PAIRS, unique_by=lambda kv: kv.key), REQUESTS)
@example(
    [kv_pb2.KeyValue(key=key, version=9 - at) for at, key in enumerate([b"b", b"e", b"e/1", b"f"])],
    pb.RangeRequest(key=b"a", range_end=b"z", limit=2, sort_target=pb.RangeRequest.VERSION),
)
def test_a_range_over_several_clusters_is_that_of_one_etcd(pairs: list[kv_pb2.KeyValue], request: pb.RangeRequest) -> None:
    spans = ROUTES.spans(request.key, request.range_end)
    replies = [etcd([kv for kv in pairs if ROUTES.cluster_of(kv.key) == span.cluster], part(request, span, 0)) for span in spans]
    header = pb.ResponseHeader(revision=7)
    wanted = etcd(pairs, request)
    wanted.header.revision = 7
    assert join_range(request, replies, header) == wanted


def test_what_does_not_concern_the_join_is_asked_as_it_came() -> None:
    spans = ROUTES.spans(b"a", b"z")
    request = pb.RangeRequest(key=b"a", range_end=b"z", serializable=True, keys_only=True, limit=3, sort_order=2)
    for span in spans:
        wanted = pb.RangeRequest(key=span.key, range_end=span.end, serializable=True, keys_only=True, limit=3, sort_order=2)
        assert part(request, span, 0) == wanted
        wanted.revision, wanted.serializable = 9, False
        assert part(request, span, 9) == wanted


def test_the_smallest_ttl_and_the_keys_of_all() -> None:
    header = pb.ResponseHeader(revision=7)
    home = pb.LeaseTimeToLiveResponse(header=header, ID=5, TTL=20, grantedTTL=60, keys=[b"b"])
    none = pb.LeaseTimeToLiveResponse(ID=5, TTL=-1)
    late = pb.LeaseTimeToLiveResponse(ID=5, TTL=30, grantedTTL=60, keys=[b"a"])
    soon = pb.LeaseTimeToLiveResponse(ID=5, TTL=10, grantedTTL=60, keys=[b"c"])
    assert join_time_to_live(home, [none]) == home
    joined = join_time_to_live(home, [none, late, soon])
    assert joined == pb.LeaseTimeToLiveResponse(header=header, ID=5, TTL=10, grantedTTL=60, keys=[b"b", b"a", b"c"])
    assert home.TTL == 20


def test_a_status_is_homes_with_what_concerns_all() -> None:
    home = pb.StatusResponse(version="3.10.1", dbSize=1, dbSizeInUse=2, dbSizeQuota=3, leader=9, errors=["a"])
    other = pb.StatusResponse(version="3.9.2", dbSize=10, dbSizeInUse=20, dbSizeQuota=30, leader=8, errors=["b"])
    wanted = pb.StatusResponse(version="3.9.2", dbSize=11, dbSizeInUse=22, dbSizeQuota=33, leader=9, errors=["a", "b", "c"])
    assert join_status(home, [other], ["c"]) == wanted
    assert join_status(home, [], []) == home
    assert home.dbSize == 1


def test_versions_compare_by_their_numbers() -> None:
    versions = ["3.4.23", "3.5.1", "3.6.0-rc.1", "3.6.1", "3.10.0", "4.0.x"]
    assert sorted(reversed(versions), key=version_key) == versions


def test_alarms_of_all() -> None:
    home, other = (pb.AlarmResponse(alarms=[pb.AlarmMember(memberID=number, alarm=pb.NOSPACE)]) for number in (1, 2))
    assert [alarm.memberID for alarm in join_alarms(home, [other]).alarms] == [1, 2]
    assert len(home.alarms) == 1
