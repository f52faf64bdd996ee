"""etcd's keys at one revision, and what etcd answers at it: a model of the requests that the workload makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sortedcontainers import SortedDict

from gateway.core.keyrange import bounds
from gateway.etcdpb import kv_pb2
from gateway.etcdpb import rpc_pb2 as pb


class Unsound(Exception):
    """The log is not what one etcd can have done; the text says why."""


class Keyspace:
    """All keys, with their latest KeyValue."""

    def __init__(self) -> None:
        self.revision = 1
        self._keys: SortedDict[bytes, Any] = SortedDict()

    def get(self, key: bytes) -> Any:
        """None if it does not exist."""
        return self._keys.get(key)

    def apply(self, revision: int, events: Sequence[Any]) -> None:
        """Go on to the next revision. Raises Unsound."""
        if revision != self.revision + 1:
            raise Unsound(f"revision {revision} comes after {self.revision}")
        for event in events:
            before = self._keys.get(event.kv.key)
            if event.type == event.DELETE:
                if before is None:
                    raise Unsound(f"at {revision} {event.kv.key!r} was deleted, which did not exist")
                del self._keys[event.kv.key]
            elif event.kv != following(before, event.kv, revision):
                raise Unsound(f"at {revision} {event.kv} came after {before}")
            else:
                self._keys[event.kv.key] = event.kv
        self.revision = revision

    def _within(self, key: bytes, range_end: bytes) -> list[Any]:
        low, high = bounds(key, range_end)
        return [self._keys[each] for each in self._keys.irange(low, high, (True, False))]

    def range(self, request: Any) -> Any:
        """The reply, without a header."""
        found = self._within(request.key, request.range_end)
        reply = pb.RangeResponse(count=len(found))
        if request.count_only:
            return reply
        if request.limit and len(found) > request.limit:
            found = found[: request.limit]
            reply.more = True
        for kv in found:
            added = reply.kvs.add()
            added.CopyFrom(kv)
            if request.keys_only:
                added.ClearField("value")
        return reply

    def write(self, request: Any, revision: int) -> tuple[Any, list[Any]]:
        """The reply without a header, and the events, if this is done at a revision. The keys stay as they are."""
        if isinstance(request, pb.PutRequest):
            return self._put(request, revision)
        if isinstance(request, pb.DeleteRangeRequest):
            return self._delete(request, revision)
        return self._txn(request, revision)

    def _put(self, request: Any, revision: int) -> tuple[Any, list[Any]]:
        before = self._keys.get(request.key)
        kv = following(before, kv_pb2.KeyValue(key=request.key, value=request.value), revision)
        reply = pb.PutResponse(prev_kv=before if request.prev_kv else None)
        return reply, [kv_pb2.Event(kv=kv)]

    def _delete(self, request: Any, revision: int) -> tuple[Any, list[Any]]:
        found = self._within(request.key, request.range_end)
        reply = pb.DeleteRangeResponse(deleted=len(found), prev_kvs=found if request.prev_kv else [])
        gone = [kv_pb2.KeyValue(key=kv.key, mod_revision=revision) for kv in found]
        return reply, [kv_pb2.Event(type=kv_pb2.Event.DELETE, kv=kv) for kv in gone]

    def _txn(self, request: Any, revision: int) -> tuple[Any, list[Any]]:
        """Compares are of a key's mod_revision, which must be equal; the operations are about different keys."""
        holds = all(self._mod_revision(each.key) == each.mod_revision for each in request.compare)
        reply = pb.TxnResponse(succeeded=holds)
        events: list[Any] = []
        for operation in request.success if holds else request.failure:
            kind = operation.WhichOneof("request")
            inner = getattr(operation, kind)
            answer, caused = (self.range(inner), []) if kind == "request_range" else self.write(inner, revision)
            getattr(reply.responses.add(), kind.replace("request", "response")).CopyFrom(answer)
            events += caused
        return reply, events

    def _mod_revision(self, key: bytes) -> int:
        kv = self._keys.get(key)
        return 0 if kv is None else int(kv.mod_revision)


def following(before: Any, kv: Any, revision: int) -> Any:
    """The KeyValue that a put of this key and value makes of the one before it."""
    return kv_pb2.KeyValue(
        key=kv.key,
        value=kv.value,
        lease=kv.lease,
        mod_revision=revision,
        create_revision=before.create_revision if before is not None else revision,
        version=before.version + 1 if before is not None else 1,
    )


def without_headers(reply: Any) -> Any:
    """A copy in which only what was found is left."""
    copy = type(reply)()
    copy.CopyFrom(reply)
    copy.ClearField("header")
    for each in getattr(copy, "responses", ()):
        getattr(each, each.WhichOneof("response")).ClearField("header")
    return copy


def wrote(operation: Any) -> bool:
    """Whether a call that was answered has made a revision."""
    reply = operation.reply
    if isinstance(reply, pb.TxnResponse):
        return any(
            each.HasField("response_put") or (each.HasField("response_delete_range") and each.response_delete_range.deleted)
            for each in reply.responses
        )
    return isinstance(reply, pb.PutResponse) or (isinstance(reply, pb.DeleteRangeResponse) and reply.deleted > 0)
