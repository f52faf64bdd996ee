"""The checker finds each kind of wrong answer in a history made by hand, and nothing in a right one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.check.history import History, Read, Write

A, B = b"a", b"b"
WRITES = [Write(A, b"1", 0, 1, 2), Write(B, b"2", 1, 2, 3), Write(A, None, 2, 3, 4), Write(A, b"3", 3, 9, 0), Write(B, b"lost", 3, 9, 0)]
TRUTH = [(2, A, b"1"), (3, B, b"2"), (4, A, None), (5, A, b"3")]
READS = [
    Read((A,), {A: b"1"}, 2, 0.5, 0.9, "x"),
    Read((A, B), {A: b"1", B: b"2"}, 3, 1.5, 2.5, "x"),
    Read((A,), {}, 4, 3.5, 4, "x"),
    Read((A, B), {A: b"3", B: b"2"}, 5, 5, 6, "x"),
    Read((A,), {A: b"1"}, 3, 7, 8, "y", serializable=True),
]


def good() -> History:
    return History(list(WRITES), list(READS), list(TRUTH), {"w": TRUTH[1:]})


def test_a_right_history() -> None:
    assert good().violations() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h: h.truth.pop(0), "acknowledged at 2"),
        (lambda h: h.writes.append(replace(WRITES[1], revision=9)), "acknowledged at 9"),
        (lambda h: h.truth.append((6, A, b"3")), "written more than once"),
        (lambda h: h.reads.append(replace(READS[3], found={A: b"3"})), "at 5 the cluster had"),
        (lambda h: h.reads.append(replace(READS[2], found={A: b"1"})), "at 4 the cluster had"),
        (lambda h: h.reads.append(replace(READS[1], start=3.5, end=4, connection="z")), "revision 4 was known"),
        (lambda h: h.reads.append(replace(READS[2], start=7, end=8, connection="z")), "revision 5 was known"),
        (lambda h: h.reads.append(replace(READS[4], revision=2, start=8.5, end=9)), "went back from 3"),
        (lambda h: h.watched["w"].pop(1), "w heard 2 changes of 3"),
        (lambda h: h.watched["w"].append(TRUTH[3]), "w heard 4 changes of 3"),
        (lambda h: h.watched["w"].reverse(), "w heard"),
        (lambda h: h.watched.update(v=[]), "v heard nothing"),
    ],
)
def test_a_wrong_history(change: object, said: str) -> None:
    history = good()
    change(history)  # type: ignore[operator]
    found = history.violations()
    assert len(found) >= 1 and said in found[0], found
