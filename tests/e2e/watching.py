"""Watch streams of the tests: random watches, and a stream that is read to the point that a test waits for."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import grpc
from hypothesis import strategies as st

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from tests.e2e.operations import NOW, Requests, weighted
from tests.e2e.peer import Peer

WATCH = method("watch", "watch").path.decode()
SECONDS = 15.0
NOPUT, NODELETE = pb.WatchCreateRequest.NOPUT, pb.WatchCreateRequest.NODELETE


class Stream:
    """A watch stream, read to the point that a test waits for."""

    def __init__(self, peer: Peer) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = peer.channel.stream_stream(WATCH)(iter(self._requests.get, None))
        threading.Thread(target=self._read, daemon=True).start()
        self.created: list[Any] = []
        self.canceled: dict[int, Any] = {}
        self.progress: list[Any] = []
        self.events: dict[int, list[Any]] = defaultdict(list)
        self.shapes: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        """Of each response with events: how many, and whether more of it follows."""

    def _read(self) -> None:
        try:
            for data in self._call:
                self._replies.put(pb.WatchResponse.FromString(data))
        except grpc.RpcError as error:
            self._replies.put(error)

    def send(self, **request: Any) -> None:
        self._requests.put(pb.WatchRequest(**request).SerializeToString())

    def wait(self, what: str, condition: Callable[[Stream], bool]) -> None:
        """Read on until it holds. Raises TimeoutError after SECONDS without a message, the stream's error if it ends."""
        while not condition(self):
            try:
                reply = self._replies.get(timeout=SECONDS)
            except queue.Empty:
                events = "; ".join(f"{watch}: {told(event)}" for watch, events in self.events.items() for event in events[-3:])
                raise TimeoutError(f"{what}; canceled {list(self.canceled)}, events {events}") from None
            if isinstance(reply, Exception):
                raise reply
            self._sort_in(reply)

    def rest(self, seconds: float) -> None:
        """What still comes."""
        try:
            while True:
                self._sort_in(self._replies.get(timeout=seconds))
        except queue.Empty:
            pass

    def _sort_in(self, reply: Any) -> None:
        if reply.created:
            self.created.append(reply)
        elif reply.canceled:
            self.canceled[reply.watch_id] = reply
        elif reply.events:
            self.events[reply.watch_id].extend(reply.events)
            self.shapes[reply.watch_id].append((len(reply.events), reply.fragment))
        else:
            self.progress.append(reply)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()


def creates(requests: Requests, usual_start: int = 3) -> st.SearchStrategy[Any]:
    """Watches of every kind but those from a negative revision: etcd reads no history then, for no watch that catches up at that time."""
    starts = weighted((usual_start, st.just(0)), (4, st.integers(NOW - 12, NOW + 1)), (1, st.sampled_from((1, NOW + 3, NOW + 5))))
    return st.builds(
        pb.WatchCreateRequest,
        key=requests.any_key, range_end=requests.end, start_revision=starts, prev_kv=st.booleans(), fragment=st.booleans(),
        filters=st.sampled_from(([], [], [], [NOPUT], [NODELETE], [NOPUT, NODELETE], [NOPUT, NOPUT])),
        watch_id=st.sampled_from((0, 0, 0, 0, 1, 3, 50, 50, -5)), progress_notify=st.booleans(),
    ).map(_from_now)  # fmt: skip


def _from_now(request: Any) -> Any:
    """An id that could be automatic stays taken in etcd after a start at what is compacted was refused, until the client cancels it; the
    gateway gives it out again."""
    if request.watch_id in (1, 3):
        request.start_revision = 0
    return request


def told(event: Any) -> str:
    """On one line."""
    return " ".join(str(event).split())
