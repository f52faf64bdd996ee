"""Whole revisions from any interleaving of watch responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.assembly import ALL, Patchwork, Stretch, proves_progress
from gateway.etcdpb.kv_pb2 import Event
from gateway.etcdpb.rpc_pb2 import WatchResponse


def response(revision: int, *changed: tuple[int, int], watch: int = 0, fragment: bool = False) -> WatchResponse:
    """Events as (revision, number of the key)."""
    made = WatchResponse(watch_id=watch, fragment=fragment)
    made.header.revision = revision
    for at, key in changed:
        event = made.events.add()
        event.kv.mod_revision, event.kv.key = at, b"%d" % key
    return made


def told(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.kv.mod_revision, int(event.kv.key)) for event in events]


def test_fragments_become_one() -> None:
    stretch = Stretch()
    assert stretch.take(response(9, (8, 1), fragment=True)) is None
    assert stretch.take(response(9, (8, 2), (9, 1), fragment=True)) is None
    whole = stretch.take(response(9, (9, 2)))
    assert whole is not None and told(list(whole[1])) == [(8, 1), (8, 2), (9, 1), (9, 2)]
    whole = stretch.take(response(10, (10, 3)))
    assert whole is not None and told(list(whole[1])) == [(10, 3)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True), max_size=12), st.data())
def test_several_watches_make_whole_revisions(history: list[list[int]], data: st.DataObject) -> None:
    """history: for each revision the watches that have an event. Each watch brings its own in order, mixed with the others' in any way;
    progress at a revision comes after all events up to it."""
    streams = [[revision for revision, keys in enumerate(history, 1) if watch in keys] for watch in range(3)]
    patchwork, heard, proven = Patchwork(), [], 0
    while any(streams) or proven < len(history):
        ready = [watch for watch, left in enumerate(streams) if left]
        complete = min((left[0] - 1 for left in streams if left), default=len(history))
        if ready and (complete <= proven or data.draw(st.booleans())):
            watch = data.draw(st.sampled_from(ready))
            revision = streams[watch].pop(0)
            assert patchwork.take(response(revision, (revision, watch), watch=watch)) is None
            assert patchwork.waiting
            continue
        proven = data.draw(st.integers(proven, complete)) if ready else complete
        whole = patchwork.take(response(proven, watch=ALL))
        assert whole is not None and whole[0].revision == proven
        heard += told(list(whole[1]))
        assert sorted(heard) == sorted((at, key) for at, keys in enumerate(history[:proven], 1) for key in keys), "complete"
        assert [at for at, _ in heard] == sorted(at for at, _ in heard), "in order"
    assert not patchwork.waiting


def test_progress_of_one_watch_proves_nothing() -> None:
    patchwork = Patchwork()
    patchwork.take(response(5, (5, 1), watch=1))
    assert patchwork.take(response(7, watch=1)) is None
    assert patchwork.waiting


@pytest.mark.parametrize("version", ["3.4.31", "3.5.13", "3.6.0", "3.7.3"])
def test_versions_with_right_progress(version: str) -> None:
    assert proves_progress(tuple(map(int, version.split("."))))


@pytest.mark.parametrize("version", ["3.4.23", "3.4.30", "3.5.0", "3.5.12"])
def test_versions_with_wrong_progress(version: str) -> None:
    assert not proves_progress(tuple(map(int, version.split("."))))
