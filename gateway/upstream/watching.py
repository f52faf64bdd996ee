"""The upstream watch of a feed: one stream, whole revisions out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from gateway.core.assembly import Patchwork, Stretch
from gateway.core.errors import Code, RpcError
from gateway.core.keyrange import EVERYTHING_FROM
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import Event
from gateway.etcdpb.methods import method
from gateway.upstream.calls import Streaming
from gateway.upstream.cluster import Cluster
from gateway.upstream.loading import Interval

WATCH = method("watch", "watch")

WITH_LEADER = {b"hasleader": b"true"}
"""etcd ends the watch when its member has lost the leader: what it would bring then is old."""

PROGRESS = pb.WatchRequest(progress_request=pb.WatchProgressRequest()).SerializeToString()

ASK_AGAIN = 0.05
"""Seconds after which progress is asked for again: etcd does not answer while a watch is not synced."""


class Rebuild(Exception):
    """What the cluster says does not fit to what is known of it; the reason."""


Take = Callable[[pb.ResponseHeader, Sequence[Event]], None]
"""Gets the events of whole revisions; may raise Rebuild."""


class Watching:
    """The upstream stream of a feed; implements upstream.calls.Receiver. What comes before `read_by` is kept."""

    def __init__(self, cluster: Cluster, start: int, parts: Sequence[Interval]) -> None:
        """`parts`: what is watched; none: everything, by one watch."""
        self._loop = asyncio.get_running_loop()
        self.created: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._assembly: Stretch | Patchwork = Patchwork() if parts else Stretch()
        self._take: Take | None = None
        self._held: list[pb.WatchResponse] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = 0
        self._stream: Streaming = cluster.stream(WATCH, self, WITH_LEADER)
        watches = [(low or b"\0", EVERYTHING_FROM if high is None else high) for low, high in parts] or [(b"\0", EVERYTHING_FROM)]
        self._uncreated = len(watches)
        for key, end in watches:
            create = pb.WatchCreateRequest(key=key, range_end=end, start_revision=start, prev_kv=True, fragment=True)
            self._stream.send(pb.WatchRequest(create_request=create).SerializeToString())

    def read_by(self, take: Take) -> None:
        """Give it the events from now on."""
        self._take = take
        held, self._held = self._held, []
        for reply in held:
            self._read(reply)
        self._stream.resume()

    def prove(self, revision: int) -> None:
        """Somebody waits for this revision. A watch on everything brings it by itself."""
        if isinstance(self._assembly, Patchwork):
            self._wanted = max(self._wanted, revision)
            self._ask()

    def _ask(self) -> None:
        if self._timer is None and not self.ended.done():
            self._stream.send(PROGRESS)
            self._timer = self._loop.call_later(ASK_AGAIN, self._ask_again)

    def _ask_again(self) -> None:
        self._timer = None
        self._ask()

    def on_message(self, data: bytes) -> None:
        """A WatchResponse."""
        try:
            reply = pb.WatchResponse.FromString(data)
        except DecodeError:
            self.fail(Rebuild("the cluster sent what is no watch response"))
            return
        if reply.canceled:
            at = f" at {reply.compact_revision}" if reply.compact_revision else ""
            self.fail(Rebuild(f"the watch was cancelled{at}: {reply.cancel_reason or 'compacted'}"))
        elif reply.created:
            self._uncreated -= 1
            if not self._uncreated and not self.created.done():
                self.created.set_result(None)
                self._stream.pause()
        elif self._take is None:
            self._held.append(reply)
        else:
            self._read(reply)

    def _read(self, reply: pb.WatchResponse) -> None:
        assert self._take is not None
        if self.ended.done():
            return
        whole = self._assembly.take(reply)
        if whole is not None:
            try:
                self._take(*whole)
            except Rebuild as reason:
                self.fail(reason)
        if isinstance(self._assembly, Patchwork):
            self._go_on(None if whole is None else whole[0].revision)

    def _go_on(self, proven: int | None) -> None:
        """Ask for progress while somebody needs it."""
        if proven is not None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self._assembly, Patchwork) and (self._assembly.waiting or (proven is not None and proven < self._wanted)):
            self._ask()

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over."""
        self.fail(error or RpcError(Code.UNAVAILABLE, "the endpoint ended the watch"))

    def fail(self, reason: Exception) -> None:
        """It is of no more use."""
        if self._timer is not None:
            self._timer.cancel()
        for future in (self.created, self.ended):
            if not future.done():
                future.set_exception(reason)
                future.exception()  # asked for, or nobody's concern
        self._stream.cancel()

    def close(self) -> None:
        """No more."""
        self.fail(RpcError(Code.CANCELLED, "the feed has ended"))
