"""A history made by hand: a few writes, right reads of every kind, and a watcher that heard it all."""

from __future__ import annotations

from typing import Any

from gateway.etcdpb import kv_pb2
from gateway.etcdpb import rpc_pb2 as pb
from tests.check.history import History, Leg, Operation, Told, Watcher

A, B, END = b"/a", b"/b", b"/c"
Event = kv_pb2.Event


def header(revision: int) -> Any:
    return pb.ResponseHeader(revision=revision)


def kv(key: bytes, value: bytes, created: int, modified: int, version: int) -> Any:
    return kv_pb2.KeyValue(key=key, value=value, create_revision=created, mod_revision=modified, version=version)


A2, B2, A4, B6 = kv(A, b"1", 2, 2, 1), kv(B, b"2", 2, 2, 1), kv(A, b"3", 2, 4, 2), kv(B, b"5", 6, 6, 1)
PUT_B = pb.RequestOp(request_put=pb.PutRequest(key=B, value=b"2"))


def gone(key: bytes, revision: int) -> Any:
    return Event(type=Event.DELETE, kv=kv_pb2.KeyValue(key=key, mod_revision=revision))


def log() -> list[tuple[int, list[Any]]]:
    """2: a and b are created. 3: b is deleted. 4: a is changed, and nobody is told. 5: a is deleted. 6: b is created again."""
    return [(2, [Event(kv=A2), Event(kv=B2)]), (3, [gone(B, 3)]), (4, [Event(kv=A4)]), (5, [gone(A, 5)]), (6, [Event(kv=B6)])]


def put(key: bytes, value: bytes) -> Any:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def compare(key: bytes, revision: int) -> Any:
    return pb.Compare(target=pb.Compare.MOD, result=pb.Compare.EQUAL, key=key, mod_revision=revision)


def did(*responses: Any) -> list[Any]:
    return [pb.ResponseOp(**each) for each in responses]


def ranged(revision: int, *kvs: Any, count: int = -1, more: bool = False) -> Any:
    return pb.RangeResponse(header=header(revision), kvs=kvs, count=len(kvs) if count < 0 else count, more=more)


def operations() -> dict[str, Operation]:
    """By name."""
    both, list_ = pb.TxnRequest(success=[put(A, b"1"), put(B, b"2")]), pb.RangeRequest(key=A, range_end=END)
    swap = pb.TxnRequest(compare=[compare(B, 2)], success=[put(B, b"4")], failure=[pb.RequestOp(request_range=pb.RangeRequest(key=B))])
    created = [{"response_put": pb.PutResponse(header=header(2))}] * 2
    nothing = [{"response_range": ranged(3)}]
    delete = pb.DeleteRangeRequest(key=B, prev_kv=True)
    return {
        "create": Operation("w", both, 1, 2, pb.TxnResponse(header=header(2), succeeded=True, responses=did(*created))),
        "list": Operation("r", list_, 2.5, 3, ranged(2, A2, B2)),
        "page": Operation("p", pb.RangeRequest(key=A, range_end=END, limit=1), 2.5, 3, ranged(2, A2, count=2, more=True)),
        "delete": Operation("w", delete, 3, 4, pb.DeleteRangeResponse(header=header(3), deleted=1, prev_kvs=[B2])),
        "swap": Operation("w", swap, 5, 6, pb.TxnResponse(header=header(3), responses=did(*nothing))),
        "lost": Operation("w", pb.PutRequest(key=A, value=b"3"), 7, 9, None, ("UNAVAILABLE", "")),
        "never": Operation("x", pb.PutRequest(key=A, value=b"never"), 7, 9, None, ("DEADLINE_EXCEEDED", "")),
        "count": Operation("r", pb.RangeRequest(key=A, range_end=END, count_only=True), 10, 11, ranged(4, count=1)),
        "old": Operation("s", pb.RangeRequest(key=A, serializable=True), 10, 11, ranged(3, A2)),
        "next page": Operation("p", pb.RangeRequest(key=b"/a\0", range_end=END, limit=1, revision=2), 10, 11, ranged(4, B2)),
        "lost delete": Operation("x", pb.DeleteRangeRequest(key=A), 12, 13, None, ("UNAVAILABLE", "")),
        "compaction": Operation("k", pb.CompactionRequest(revision=4), 14, 15, pb.CompactionResponse(header=header(5))),
        "too old": Operation("p", pb.RangeRequest(key=A, revision=3), 14.5, 15, None, ("OUT_OF_RANGE", COMPACTED)),
        "last": Operation("w", pb.PutRequest(key=B, value=b"5"), 16, 17, pb.PutResponse(header=header(6))),
        "keys": Operation("r", pb.RangeRequest(key=A, range_end=END, keys_only=True), 18, 19, ranged(6, kv(B, b"", 6, 6, 1))),
    }


COMPACTED = "etcdserver: mvcc: required revision has been compacted"


def told(at: float, position: int, revision: int, *events: Any, **fields: Any) -> Told:
    return Told(at, position, pb.WatchResponse(header=header(revision), events=events, **fields))


def before(event: Any, kv_before: Any) -> Any:
    """The event with what was before it."""
    return Event(type=event.type, kv=event.kv, prev_kv=kv_before)


def watcher() -> Watcher:
    """Everything from 2 on, with what was before, in two streams; the second response of the first one is cut off in fragments."""
    events = [each for _, happened in log() for each in happened]
    request = pb.WatchCreateRequest(key=A, range_end=END, start_revision=2, prev_kv=True, fragment=True)
    first = [
        told(1, 0, 1, created=True),
        told(3, 1, 2, events[0], fragment=True),
        told(3, 2, 2, events[1]),
        told(4, 3, 3, before(events[2], B2)),
        told(4, 4, 3),
        told(9, 5, 4, before(events[3], A2), fragment=True),
    ]
    second = [
        told(11, 0, 4, created=True),
        told(11, 1, 4, before(events[3], A2)),
        told(17, 2, 6, before(events[4], A4), events[5]),
        told(18, 3, 6),
    ]
    return Watcher("w", request, [Leg("one", 2, first), Leg("two", 4, second)])


def good() -> History:
    """Right in every way."""
    request = pb.WatchCreateRequest(key=B, filters=[pb.WatchCreateRequest.NODELETE])
    now = Watcher("now", request, [Leg("one", 0, [told(5, 0, 3, created=True), told(17, 1, 6, Event(kv=B6))])])
    return History(list(operations().values()), [watcher(), now], log())
