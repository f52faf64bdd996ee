"""The store and what is read from it, against a naive model: one dict per revision."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import reads
from gateway.core.listings import MOST, MOST_BYTES, PIECE, Listing, Listings, in_pieces
from gateway.core.reads import Moved, Reading, obstacle, tagged, untagged, varint
from gateway.core.store import Event, Store, Version, Window
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import KeyValue

KEYS = [b"a", b"a/1", b"a/2", b"b", b"b/1", b"c"]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=4)), max_size=3)
HISTORIES = st.lists(CHANGES, max_size=25)
STATES = dict[bytes, KeyValue]


class Model:
    """`states` by revision."""

    def __init__(self, first: dict[bytes, bytes], window: Window) -> None:
        self.revision = 10
        self.store = Store(window)
        state = {
            key: KeyValue(key=key, create_revision=at, mod_revision=at, version=1, value=value)
            for at, (key, value) in enumerate(sorted(first.items()), 1)
        }
        self.states: dict[int, STATES] = {self.revision: state}
        self.store.load((key, Version(kv.mod_revision, entry(kv))) for key, kv in state.items())
        self.store.start(self.revision)

    def apply(self, changes: dict[bytes, bytes | None]) -> None:
        self.revision += 1
        state = dict(self.states[self.revision - 1])
        events = []
        for key, value in changes.items():
            before = state.get(key)
            if value is None:
                if before is None:
                    continue
                del state[key]
                gone = KeyValue(key=key, mod_revision=self.revision)
                events.append(Event(key, entry(gone), entry(before), True))
            else:
                created = before.create_revision if before else self.revision
                version = before.version + 1 if before else 1
                state[key] = KeyValue(key=key, create_revision=created, mod_revision=self.revision, version=version, value=value)
                events.append(Event(key, entry(state[key]), entry(before) if before else None, False))
        self.states[self.revision] = state
        self.store.apply(self.revision, events)


def entry(kv: KeyValue) -> bytes:
    return tagged(kv.SerializeToString())


def within(key: bytes, low: bytes, end: bytes) -> bool:
    return key == low if not end else key >= low and (end == b"\0" or key < end)


def naive(state: STATES, request: pb.RangeRequest) -> pb.RangeResponse:
    """As etcd's `Range` does it: everything, prune, sort, cut."""
    found = [kv for key, kv in sorted(state.items()) if within(key, request.key, request.range_end)]
    reply = pb.RangeResponse(count=len(found))
    if request.count_only:
        return reply
    for low, high, field in (
        (request.min_mod_revision, request.max_mod_revision, "mod_revision"),
        (request.min_create_revision, request.max_create_revision, "create_revision"),
    ):
        found = [kv for kv in found if (not low or getattr(kv, field) >= low) and (not high or getattr(kv, field) <= high)]
    if request.sort_order == pb.RangeRequest.DESCEND:
        found.reverse()
    if 0 < request.limit < len(found):
        found = found[: request.limit]
        reply.more = True
    for kv in found:
        added = reply.kvs.add()
        added.CopyFrom(kv)
        if request.keys_only:
            added.ClearField("value")
    return reply


def read(store: Store, request: pb.RangeRequest) -> bytes:
    reading = Reading(store, request)
    while not reading.done:
        reading.step()
    assert reading.size == sum(map(len, reading.parts))
    return b"".join((*reading.parts, reading.tail))


REQUESTS = st.builds(
    pb.RangeRequest,
    key=st.sampled_from([*KEYS, b"\0"]),
    range_end=st.sampled_from([b"", b"\0", b"a", b"a0", b"b", b"z"]),
    limit=st.sampled_from([0, 0, 1, 2, 3, 100, -1]),
    sort_order=st.sampled_from([0, 0, 1, 2]),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False, False, True]),
    min_mod_revision=st.sampled_from([0, 0, 0, 3, 7]),
    max_mod_revision=st.sampled_from([0, 0, 0, 3, 7]),
    min_create_revision=st.sampled_from([0, 0, 0, 2, 6]),
    max_create_revision=st.sampled_from([0, 0, 0, 2, 6]),
)
FIRSTS = st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=4))


@settings(max_examples=300)
@given(FIRSTS, HISTORIES, REQUESTS, st.sampled_from([Window(), Window(revisions=4), Window(bytes=40)]), st.integers(0, 30))
def test_every_revision_of_the_window_reads_as_it_was(
    first: dict[bytes, bytes], history: list[dict[bytes, bytes | None]], request: pb.RangeRequest, window: Window, compacted: int
) -> None:
    model = Model(first, window)
    for changes in history:
        model.apply(changes)
    store = model.store
    if compacted % 2:
        store.compact(compacted)
    assert store.revision == model.revision
    assert store.history_bytes <= window.bytes and store.revision - store.oldest <= window.revisions
    for revision, state in model.states.items():
        request.revision = revision
        if revision < store.oldest:
            with pytest.raises(Moved):
                Reading(store, request)
        else:
            assert read(store, request) == naive(state, request).SerializeToString()
            for key in KEYS:
                assert store.get(key, revision) == (entry(state[key]) if key in state else None)
    request.revision = 0
    assert read(store, request) == naive(model.states[model.revision], request).SerializeToString()
    request.revision = model.revision + 1
    with pytest.raises(Moved):
        Reading(store, request)
    newest = model.states[model.revision]
    assert len(store) == len(newest) and {key: store.newest(key) for key in newest} == {key: entry(kv) for key, kv in newest.items()}
    assert store.newest(b"none") is None


@given(FIRSTS, HISTORIES, st.data())
def test_a_reading_in_steps_is_of_one_revision(
    first: dict[bytes, bytes], history: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    model = Model(first, Window())
    request = data.draw(REQUESTS)
    reading = Reading(model.store, request)
    wanted = naive(model.states[model.revision], request).SerializeToString()
    step, decoded = reads.STEP, reads.DECODED_STEP
    reads.STEP = reads.DECODED_STEP = 1
    try:
        for changes in [*history, *[{}] * 10]:
            if not reading.done:
                reading.step()
            model.apply(changes)
    finally:
        reads.STEP, reads.DECODED_STEP = step, decoded
    assert reading.done
    assert b"".join((*reading.parts, reading.tail)) == wanted


def test_a_reading_ends_when_the_window_has_moved_past_it() -> None:
    model = Model({key: b"" for key in KEYS}, Window(revisions=2))
    reading = Reading(model.store, pb.RangeRequest(key=b"\0", range_end=b"\0"))
    for _ in range(4):
        model.apply({b"a": b"x"})
    with pytest.raises(Moved):
        reading.step()


def test_keys_without_values_but_with_a_lease_are_left_to_etcd() -> None:
    store = Store(Window())
    store.load([(b"a", Version(3, entry(KeyValue(key=b"a", mod_revision=3, version=1, lease=7))))])
    store.start(5)
    assert read(store, pb.RangeRequest(key=b"a"))
    with pytest.raises(Moved):
        read(store, pb.RangeRequest(key=b"a", keys_only=True))


def test_memory_is_counted_and_given_back() -> None:
    model = Model({}, Window(revisions=3))
    empty = model.store.bytes
    for number in range(50):
        model.apply({key: bytes(100) for key in KEYS} if number % 2 else dict.fromkeys(KEYS))
    for _ in range(2):
        model.apply(dict.fromkeys(KEYS))
    for _ in range(5):
        model.apply({})
        model.store.apply(model.revision + 1, [Event(b"other", entry(KeyValue(key=b"other", mod_revision=1)), None, True)])
        model.revision += 1
        model.states[model.revision] = {}
    assert model.store.bytes - empty < 100
    assert len(model.store) == 0


def test_revisions_only_grow() -> None:
    model = Model({}, Window())
    with pytest.raises(ValueError, match="revision 10 after 10"):
        model.store.apply(10, [])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"key": b"a"}, None),
        ({"key": b"a", "range_end": b"b", "sort_order": 2}, None),
        ({"range_end": b"b"}, "error"),
        ({"key": b"a", "sort_target": 1}, "sort"),
        ({"key": b"a", "sort_target": 99}, "sort"),
        ({"key": b"a", "sort_order": 3}, "sort"),
    ],
)
def test_what_is_left_to_etcd(fields: dict[str, object], reason: str | None) -> None:
    assert obstacle(pb.RangeRequest(**fields)) == reason


@given(st.integers(0, (1 << 64) - 1))
def test_varints(number: int) -> None:
    assert pb.ResponseHeader.FromString(b"\x08" + varint(number)).cluster_id == number


@given(st.sampled_from([0, 1, 100, 127, 128, 200, 16_383, 16_384, 70_000]))
def test_tags(size: int) -> None:
    kv = KeyValue(key=b"k", value=bytes(size)).SerializeToString()
    assert untagged(tagged(kv)) == kv
    assert pb.RangeResponse.FromString(tagged(kv)).kvs[0].value == bytes(size)


def test_listings_are_of_a_revision_and_bounded() -> None:
    kept = Listings()
    kept.keep(b"r", Listing(5, 10, [b"x"]))
    assert kept.find(b"r", 5) == Listing(5, 10, [b"x"])
    assert kept.find(b"r", 6) is None and kept.find(b"q", 5) is None
    kept.keep(b"r", Listing(6, 20, [b"y"]))
    assert kept.bytes == 20
    for number in range(MOST + 5):
        kept.keep(b"%d" % number, Listing(6, 1, [b"z"]))
    assert kept.find(b"r", 6) is None and kept.bytes == MOST
    kept.keep(b"large", Listing(6, MOST_BYTES + 1, []))
    assert kept.find(b"large", 6) is None and kept.bytes == 0


def test_listings_that_nobody_asks_for_are_forgotten() -> None:
    kept = Listings()
    kept.keep(b"a", Listing(5, 10, []))
    kept.keep(b"b", Listing(5, 10, []))
    kept.age()
    assert kept.find(b"a", 5)
    kept.age()
    assert kept.find(b"b", 5) is None and kept.find(b"a", 5) and kept.bytes == 10
    kept.clear()
    assert kept.bytes == 0 and kept.find(b"a", 5) is None


@given(st.lists(st.integers(0, PIECE * 2), max_size=6))
def test_pieces_are_the_parts(sizes: list[int]) -> None:
    parts = [bytes((at,)) * size for at, size in enumerate(sizes)]
    made = in_pieces(parts, b"tail")
    assert b"".join(made) == b"".join(parts) + b"tail"
    assert all(len(piece) >= PIECE for piece in made[:-1])
