"""The watches that one client stream has in a cluster with a feed.

Towards the stream it is what an upstream watch stream is: it takes watch requests and gives watch responses. A watch is fed by the feed as
soon as the feed's log reaches back to what it has not heard of yet; until then it has an upstream watch of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.core.errors import NO_LEADER, Code, RpcError
from gateway.core.watchers import Group, News
from gateway.core.watches import NO_WATCHER
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.fedwatch import FedWatch, Progress, State, usual
from gateway.services.source import PATIENCE, Source
from gateway.upstream.feed import Feed

PIECE = 256 << 10
"""Bytes of history that a watcher reads at a time."""


class Sink(Protocol):
    """Where the responses go."""

    metadata: Mapping[bytes, bytes]

    @property
    def ended(self) -> bool: ...
    @property
    def writable(self) -> bool: ...
    def opened(self) -> None:
        """Requests may come."""

    def response(self, message: bytes) -> None:
        """A serialised WatchResponse."""

    def news(self, number: int, message: bytes, rest: bool) -> None:
        """One with events for this watch, gRPC-framed; `rest`: a fragment that is not the last."""

    def fail(self, error: RpcError) -> None:
        """The stream can't go on."""


class FedSource:
    """They by id. Implements upstream.feed.Follower, and services.source.Owner of the upstream stream."""

    def __init__(self, feed: Feed, sink: Sink) -> None:
        self._feed = feed
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, FedWatch] = {}
        self._upstream: dict[int, FedWatch] = {}  # by their own ids
        self._expected: deque[FedWatch] = deque()  # those that the cluster has not answered yet
        self._unanswered: deque[FedWatch] = deque()  # those that the client has not been answered: in the order of its requests
        self._last_own = 0
        self._line: Source | None = None
        self._line_open = False
        self._stopped: list[FedWatch] = []  # those that would read on if the client did
        self._partial = False
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None
        feed.follow(self)

    # for the stream

    def open(self) -> None:
        """Requests may come as soon as what is being done is done."""
        self._loop.call_soon(self._sink.opened)

    def send(self, message: bytes) -> None:
        """A WatchRequest; the id in it is the stream's."""
        request = pb.WatchRequest.FromString(message)
        kind = request.WhichOneof("request_union")
        if kind == "create_request":
            self._create(request.create_request)
        elif kind == "cancel_request":
            self._cancel(request.cancel_request.watch_id)
        elif kind == "progress_request":
            self._feed.confirm(Progress(self._progress))

    def read(self, on: bool) -> None:
        """The client reads, or it does not."""
        if on is not self._reading:
            self._reading = on
            if self._line is not None:
                self._line.read(on)
        if on and self._stopped:
            stopped, self._stopped = self._stopped, []
            for watch in stopped:
                self._loop.call_soon(self._catch_up, watch)

    def patience(self) -> float:
        """Seconds to wait for an answer from here."""
        return PATIENCE if self._line is None else self._line.patience()

    def close(self) -> None:
        """The client is gone."""
        self._feed.unfollow(self)
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches.values():
            self._leave(watch)
            self._feed.watches[watch.state.value] -= 1
        self._watches.clear()
        self._upstream.clear()
        if self._line is not None:
            self._line.close()

    # a watch begins and ends

    def _create(self, create: pb.WatchCreateRequest) -> None:
        watch = self._watches[create.watch_id] = FedWatch(self, create)
        self._feed.watches[watch.state.value] += 1
        self._unanswered.append(watch)
        if create.progress_notify and self._timer is None:
            self._timer = self._loop.call_later(self._feed.progress_seconds, self._notify)
        if self._feed.live and usual(create):
            self._feed.confirm(watch)
        else:
            self._go_upstream(watch)

    def confirmed(self, watch: FedWatch) -> None:
        """The log is at a revision that is not older than the request."""
        if self._watches.get(watch.id) is not watch or self._sink.ended:
            return
        self._feed.flush()
        watch.next = watch.next or self._feed.revision + 1
        if watch.next < self._feed.watchers.oldest:
            self._go_upstream(watch)
        else:
            self._move(watch, State.BEHIND)
            self._answer(watch, self._created(watch.id))

    def _created(self, number: int) -> bytes:
        return pb.WatchResponse(header=self._feed.header, watch_id=number, created=True).SerializeToString()

    def _answer(self, watch: FedWatch, reply: bytes) -> None:
        """Clients rely on `created` replies in the order of their requests; only then the watch may be fed."""
        watch.answer = reply
        while self._unanswered and self._unanswered[0].answer:
            first = self._unanswered.popleft()
            first.announced = True
            self._sink.response(first.answer)
            held, first.held = first.held, []
            for message in held:
                self._sink.response(message)
            if self._watches.get(first.id) is not first:
                continue
            if first.state is State.BEHIND:
                self._enter(first)
            elif first.state is State.UPSTREAM:
                self._adopt(first)

    def unconfirmed(self, watch: FedWatch) -> None:
        """The cluster itself has to answer."""
        if self._watches.get(watch.id) is watch:
            self._go_upstream(watch)

    def _cancel(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            self._leave(watch)
            self._feed.watches[watch.state.value] -= 1
            self._loop.call_soon(self._cancelled, watch)

    def _cancelled(self, watch: FedWatch) -> None:
        """It is said after its `created`."""
        reply = pb.WatchResponse(header=self._feed.header, watch_id=watch.id, canceled=True).SerializeToString()
        if watch.announced:
            self._sink.response(reply)
        else:
            watch.held.append(reply)
            self._answer(watch, watch.answer or self._created(watch.id))

    def _move(self, watch: FedWatch, state: State) -> None:
        self._feed.watches[watch.state.value] -= 1
        self._feed.watches[state.value] += 1
        watch.state = state

    def _leave(self, watch: FedWatch) -> None:
        """It is fed no more, by nobody."""
        if watch.group is not None:
            self._feed.watchers.leave(watch, watch.group)
            watch.group = None
        if self._upstream.pop(watch.own, None) is not None and self._line is not None and self._line_open:
            self._line.send(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch.own)).SerializeToString())

    # fed by the feed

    def _enter(self, watch: FedWatch) -> None:
        """The log has all that it has not heard of."""
        if watch.next > self._feed.revision:
            self._move(watch, State.SYNCED)
            watch.group = self._feed.watchers.join(watch, watch.selection)
        else:
            self._move(watch, State.BEHIND)
            self._loop.call_soon(self._catch_up, watch)

    def take(self, watch: FedWatch, news: Sequence[News], group: Group) -> None:
        """What happened is told at once; to a client that does not read, later."""
        within = False
        for at, each in enumerate(news):
            if each.last < watch.next:
                continue  # it wants to hear of later revisions only
            if each.first < watch.next or not (within or (self._reading and self._sink.writable)):
                watch.next = max(watch.next, each.first)
                self._fall_behind(watch)
                return
            self._sink.news(watch.id, group.message(news, at, watch.id), each.rest)
            within = each.rest
            if not within:
                watch.next = each.last + 1
        watch.quiet = False

    def _fall_behind(self, watch: FedWatch) -> None:
        self._leave(watch)
        self._move(watch, State.BEHIND)
        self._loop.call_soon(self._catch_up, watch)

    def _catch_up(self, watch: FedWatch) -> None:
        """Read a piece of the log."""
        if watch.state is not State.BEHIND or self._watches.get(watch.id) is not watch:
            return
        watchers = self._feed.watchers
        if watch.next < watchers.oldest:
            self._go_upstream(watch)
        elif watch.next > watchers.revision:
            self._enter(watch)
        elif self._reading and self._sink.writable:
            news, watch.next = watchers.read(watch.selection, watch.next, PIECE)
            head = self._feed.head
            for each in news:
                self._sink.news(watch.id, each.message(head, watch.id), each.rest)
                watch.quiet = False
            self._loop.call_soon(self._catch_up, watch)
        else:
            self._stopped.append(watch)

    def _progress(self) -> None:
        """It was asked for, and the log has reached what was confirmed since. etcd answers nothing while a watch is not synced."""
        self._feed.flush()
        if all(watch.state is State.SYNCED for watch in self._watches.values()) and not self._sink.ended:
            self._sink.response(pb.WatchResponse(header=self._feed.header, watch_id=NO_WATCHER).SerializeToString())

    def _notify(self) -> None:
        """Progress is due for those who want it and have heard nothing for long."""
        self._timer = self._loop.call_later(self._feed.progress_seconds, self._notify)
        self._feed.flush()
        for watch in tuple(self._watches.values()):
            if watch.create.progress_notify and watch.state is State.SYNCED and self._feed.live:
                if watch.quiet and watch.next <= self._feed.revision + 1:
                    self._sink.response(pb.WatchResponse(header=self._feed.header, watch_id=watch.id).SerializeToString())
                watch.quiet = True

    # upstream.feed.Follower

    def on_live(self) -> None:
        for watch in tuple(self._watches.values()):
            if watch.state is State.UPSTREAM:
                self._adopt(watch)
            elif watch.state is State.SYNCED and watch.next <= self._feed.revision:
                self._fall_behind(watch)  # the log begins later now

    def on_lost(self, no_leader: bool) -> None:
        for watch in self._watches.values():
            if watch.state is State.SYNCED:
                watch.next = max(watch.next, self._feed.revision + 1)
        if no_leader and self._watches and b"hasleader" in self._sink.metadata:
            self._loop.call_soon(self._sink.fail, NO_LEADER.error())

    # fed by the cluster

    def _go_upstream(self, watch: FedWatch) -> None:
        self._move(watch, State.UPSTREAM)
        self._last_own += 1
        watch.own = self._last_own
        self._upstream[watch.own] = watch
        if self._line is None:
            self._line = Source(self, self._feed.cluster, self._sink.metadata)
            self._line.read(self._reading)
            self._line.open()
        elif self._line_open:
            self._ask_for(watch)

    def _ask_for(self, watch: FedWatch) -> None:
        assert self._line is not None
        create = pb.WatchCreateRequest()
        create.CopyFrom(watch.create)
        create.watch_id, create.start_revision, create.fragment = watch.own, watch.next, True
        watch.parts.clear()
        self._expected.append(watch)
        self._line.send(pb.WatchRequest(create_request=create).SerializeToString())

    def _adopt(self, watch: FedWatch) -> None:
        """From now on it is fed by the feed, if the log reaches back far enough."""
        if self._feed.live and watch.announced and watch.next >= self._feed.watchers.oldest and not self._partial:
            self._leave(watch)
            self._enter(watch)

    @property
    def ended(self) -> bool:
        """services.source.Owner"""
        return self._sink.ended

    def opened(self) -> None:
        """services.source.Owner: all upstream watches are asked for."""
        self._line_open = True
        for watch in tuple(self._upstream.values()):
            self._ask_for(watch)

    def lost(self) -> None:
        """services.source.Owner: they are asked for again, or fed by the feed."""
        self._line_open = False
        self._expected.clear()
        if self._partial:
            text = f'shardgate: cluster "{self._feed.cluster.name}" was lost within a watch response'
            self._sink.fail(RpcError(Code.UNAVAILABLE, text))
            return
        for watch in tuple(self._upstream.values()):
            self._adopt(watch)
        if self._upstream and self._line is not None:
            self._line.open()
        else:
            self._line = None

    def fail(self, error: RpcError) -> None:
        """services.source.Owner"""
        self._sink.fail(error)

    def response(self, message: bytes) -> None:
        """services.source.Owner: ids are the stream's towards the client."""
        reply = pb.WatchResponse.FromString(message)
        watch = self._answered(reply) if reply.created else self._upstream.get(reply.watch_id)
        if watch is None or self._upstream.get(watch.own) is not watch:
            return  # it is fed otherwise, or is no more
        if reply.canceled:
            del self._upstream[watch.own]
            del self._watches[watch.id]
            self._feed.watches[watch.state.value] -= 1
        elif reply.created:
            watch.next = watch.next or reply.header.revision + 1
        elif reply.events:
            if not watch.whole(reply):
                return
            self._partial = reply.fragment
            watch.next = reply.events[-1].kv.mod_revision + (not reply.fragment)
        else:
            watch.next = max(watch.next, reply.header.revision + 1)
        if reply.watch_id != NO_WATCHER:
            reply.watch_id = watch.id
        self._pass_on(watch, reply)

    def _pass_on(self, watch: FedWatch, reply: pb.WatchResponse) -> None:
        """What the cluster said of a watch of its own."""
        message = reply.SerializeToString()
        if reply.created and not watch.announced:
            self._answer(watch, message)
        elif not watch.announced:
            watch.held.append(message)
        elif not reply.created:
            self._sink.response(message)
        elif reply.canceled:  # it was asked for again, and now it is refused
            reply.created = False
            reply.watch_id = watch.id
            self._sink.response(reply.SerializeToString())
        if watch.announced and watch.state is State.UPSTREAM and self._watches.get(watch.id) is watch:
            self._adopt(watch)

    def _answered(self, reply: pb.WatchResponse) -> FedWatch | None:
        return self._expected.popleft() if self._expected else None
