"""The upstream watch of a feed: one stream, whole revisions out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from gateway.core.errors import Code, RpcError
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import Event
from gateway.etcdpb.methods import method
from gateway.upstream.calls import Streaming
from gateway.upstream.cluster import Cluster

WATCH = method("watch", "watch")

WITH_LEADER = {b"hasleader": b"true"}
"""etcd ends the watch when its member has lost the leader: what it would bring then is old."""


class Rebuild(Exception):
    """What the cluster says does not fit to what is known of it; the reason."""


Take = Callable[[pb.ResponseHeader, Iterable[Event]], None]
"""Gets the events of whole revisions; may raise Rebuild."""


class Watching:
    """The upstream stream of a feed; implements upstream.calls.Receiver. What comes before `read_by` is kept."""

    def __init__(self, cluster: Cluster, start: int) -> None:
        loop = asyncio.get_running_loop()
        self.created: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._take: Take | None = None
        self._held: list[pb.WatchResponse] = []
        self._fragments: list[Event] = []
        self._stream: Streaming = cluster.stream(WATCH, self, WITH_LEADER)
        create = pb.WatchCreateRequest(key=b"\0", range_end=b"\0", start_revision=start, prev_kv=True, fragment=True)
        self._stream.send(pb.WatchRequest(create_request=create).SerializeToString())

    def read_by(self, take: Take) -> None:
        """Give it the events from now on."""
        self._take = take
        held, self._held = self._held, []
        for reply in held:
            self._read(reply)
        self._stream.resume()

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
            if not self.created.done():
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
        events: Iterable[Event] = reply.events
        if reply.fragment or self._fragments:
            self._fragments.extend(events)
            if reply.fragment:
                return
            events, self._fragments = self._fragments, []
        try:
            self._take(reply.header, events)
        except Rebuild as reason:
            self.fail(reason)

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over."""
        self.fail(error or RpcError(Code.UNAVAILABLE, "the endpoint ended the watch"))

    def fail(self, reason: Exception) -> None:
        """It is of no more use."""
        for future in (self.created, self.ended):
            if not future.done():
                future.set_exception(reason)
                future.exception()  # asked for, or nobody's concern
        self._stream.cancel()

    def close(self) -> None:
        """No more."""
        self.fail(RpcError(Code.CANCELLED, "the feed has ended"))
