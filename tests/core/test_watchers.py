"""Watchers of one feed against an oracle: each hears exactly what it asked for, in order, once, whole revisions together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import watchers as module
from gateway.core.reads import tagged, varint
from gateway.core.store import Event, Window
from gateway.core.watchers import Group, Index, News, Selection, Watchers
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import KeyValue

KEYS = [b"a", b"a/1", b"a/2", b"b", b"b/1", b"c"]
EDGES = [b"", b"\0", b"a", b"a/", b"a/2", b"a0", b"b", b"b0", b"c\0", b"z"]
CREATES = st.builds(
    pb.WatchCreateRequest,
    key=st.sampled_from([*KEYS, b"", b"\0"]),
    range_end=st.sampled_from(EDGES),
    filters=st.sampled_from([[], [], [0], [1], [0, 1]]),
    prev_kv=st.booleans(),
    fragment=st.booleans(),
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.tuples(st.booleans(), st.integers(0, 60), st.booleans()), min_size=1, max_size=4)


def event(revision: int, key: bytes, deleted: bool, size: int, known: bool) -> Event:
    kv = KeyValue(key=key, mod_revision=revision, value=b"" if deleted else bytes(size))
    before = tagged(KeyValue(key=key, mod_revision=revision - 1, value=b"before").SerializeToString()) if known else None
    return Event(key, tagged(kv.SerializeToString()), before, deleted)


class Watcher:
    """Hears what its group is told."""

    def __init__(self, create: pb.WatchCreateRequest, number: int, start: int) -> None:
        self.create = create
        self.selection = Selection.of(create)
        self.number = number
        self.next = start
        self.heard: list[pb.WatchResponse] = []
        self.joined_at = start

    def take(self, news: Sequence[News], group: Group) -> None:
        for at, each in enumerate(news):
            assert each.last >= self.next
            self.hear(group.message(news, at, self.number))
            if not each.rest:
                self.next = each.last + 1

    def hear(self, message: bytes) -> None:
        assert message[0] == 0 and int.from_bytes(message[1:5], "big") == len(message) - 5
        reply = pb.WatchResponse.FromString(message[5:])
        assert reply.watch_id == self.number and reply.events
        assert reply.header.revision >= reply.events[-1].kv.mod_revision
        self.heard.append(reply)

    def told(self) -> list[tuple[int, bytes, int, bool]]:
        """Checks that no revision is torn but by fragments."""
        for reply, after in zip(self.heard, self.heard[1:], strict=False):
            assert reply.fragment == (reply.events[-1].kv.mod_revision == after.events[0].kv.mod_revision)
        assert not self.heard or not self.heard[-1].fragment
        events = [each for reply in self.heard for each in reply.events]
        return [(each.kv.mod_revision, each.kv.key, each.type, each.HasField("prev_kv")) for each in events]


def wanted(watcher: Watcher, history: dict[int, list[Event]], first: int, last: int) -> list[tuple[int, bytes, int, bool]]:
    low, high = watcher.create.key or b"\0", watcher.create.range_end
    found = []
    for revision in range(first, last + 1):
        for key, _, before, deleted in history.get(revision, []):
            inside = key == low if not high else key >= low and (high == b"\0" or key < high)
            if inside and int(deleted) not in watcher.create.filters:
                found.append((revision, key, int(deleted), watcher.create.prev_kv and before is not None))
    return found


def header(revision: int) -> bytes:
    body = pb.ResponseHeader(cluster_id=7, revision=revision).SerializeToString()
    return b"\x0a" + varint(len(body)) + body


@contextmanager
def sizes(piece: int, fragment: int) -> Iterator[None]:
    before = module.PIECE, module.FRAGMENT
    module.PIECE, module.FRAGMENT = piece, fragment
    try:
        yield
    finally:
        module.PIECE, module.FRAGMENT = before


STEPS = st.lists(
    st.one_of(CHANGES, CHANGES, CHANGES, st.just("deliver"), st.tuples(st.just("join"), CREATES, st.integers(-3, 3)), st.just("leave")),
    max_size=30,
)


@settings(max_examples=300)
@given(STEPS, st.sampled_from([(1 << 20, 2 << 20), (60, 90), (1, 1)]))
def test_everybody_hears_what_it_asked_for(steps: list[object], limits: tuple[int, int]) -> None:
    log, history = Watchers(Window()), dict[int, list[Event]]()
    log.start(100)
    revision, delivered = 100, 100
    present: list[tuple[Watcher, Group]] = []
    gone: list[tuple[Watcher, int]] = []
    with sizes(*limits):
        for step in steps:
            if isinstance(step, dict):
                revision += 1
                history[revision] = [event(revision, key, *change) for key, change in step.items()]
                log.append(revision, history[revision])
            elif step == "deliver":
                log.deliver(header(revision))
                delivered = revision
            elif step == "leave" and present:
                watcher, group = present.pop(0)
                log.leave(watcher, group)
                gone.append((watcher, delivered))
            elif isinstance(step, tuple):
                log.deliver(header(revision))
                delivered = revision
                watcher = Watcher(step[1], step[2], revision + 1)
                present.append((watcher, log.join(watcher, watcher.selection)))
        log.deliver(header(revision))
        assert len(log) == len(present) and log.revision == revision
        for watcher, last in [*((watcher, revision) for watcher, _ in present), *gone]:
            assert watcher.told() == wanted(watcher, history, watcher.joined_at, last)
        for create in [watcher.create for watcher, _ in present]:
            late = Watcher(create, 3, 101)
            while late.next <= revision:
                news, late.next = log.read(late.selection, late.next, limits[0])
                for each in news:
                    late.hear(each.message(header(revision), 3))
            assert late.told() == wanted(late, history, 101, revision)


@given(st.lists(CREATES, max_size=12), st.lists(st.sampled_from([*KEYS, b"", b"\0", b"a\xff", b"zz"]), max_size=10))
def test_the_index_finds_the_groups_of_a_key(creates: list[pb.WatchCreateRequest], probes: list[bytes]) -> None:
    groups = [Group(selection) for selection in {Selection.of(create) for create in creates}]
    index = Index(groups)
    for probe in probes:
        high = [group.selection.high for group in groups]
        inside = [g for g, end in zip(groups, high, strict=True) if g.selection.low <= probe and (end is None or probe < end)]
        assert set(index.at(probe)) == set(inside) and len(index.at(probe)) == len(inside)


def test_what_a_compaction_took_is_not_told() -> None:
    """etcd reads what an event replaced at the revision before it, when it tells of the event (v3rpc/watch.go)."""
    log = Watchers(Window())
    log.start(1)
    for revision in (2, 3, 4):
        log.append(revision, [event(revision, b"a", False, 5, True)])
    log.compact(3)
    news, _ = log.read(Selection(b"a", None, prev_kv=True), 3, 1000)
    replies = [pb.WatchResponse.FromString(each.message(header(4), 0)[5:]) for each in news]
    assert [(each.kv.mod_revision, each.HasField("prev_kv")) for reply in replies for each in reply.events] == [(3, False), (4, True)]


def test_equal_watchers_get_the_same_bytes() -> None:
    log = Watchers(Window())
    log.start(1)
    got: list[bytes] = []

    class One(Watcher):
        def hear(self, message: bytes) -> None:
            got.append(message)

    for _ in range(3):
        watcher = One(pb.WatchCreateRequest(key=b"a"), 0, 2)
        log.join(watcher, watcher.selection)
    log.append(2, [event(2, b"a", False, 5, True)])
    log.deliver(header(2))
    assert len(got) == 3 and got[0] is got[1] is got[2]


def test_the_log_has_bounds() -> None:
    log = Watchers(Window(revisions=5, bytes=10_000))
    log.start(10)
    for revision in range(11, 31):
        log.append(revision, [event(revision, b"a", False, 10, False)])
    assert (log.history, log.oldest) == (5, 26)
    for revision in range(31, 40):
        log.append(revision, [event(revision, b"a", False, 4000, False)])
    assert log.bytes <= 10_000 and log.history == 2 and log.oldest == 38
    log.append(40, [])
    assert log.revision == 40 and log.read(Selection(b"a", None), 40, 100) == ([], 41)
    log.compact(39)
    assert log.oldest == 39 and log.history == 1
    log.compact(1000)
    assert log.oldest == 41 and log.history == 0 and log.bytes == 0
    log.start(500)
    assert (log.revision, log.oldest) == (500, 501)


@pytest.mark.parametrize("number", [0, 1, 300, -5, -(1 << 63), (1 << 63) - 1])
def test_any_watch_id(number: int) -> None:
    message = News(1, 1, b"").message(header(1), number)
    assert pb.WatchResponse.FromString(message[5:]).watch_id == number
