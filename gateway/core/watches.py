"""The state of one client's watch stream: which watchers it has, in which clusters, and what to say to whom next.

The stream has a branch per cluster: one upstream watch stream, opened at the first watcher there. The gateway numbers watchers as etcd
does and asks every cluster for that same number, so that what a cluster says about a watcher of its own passes on as the bytes that came.
When a branch breaks, its watchers are asked for again from the revision after the last one that was passed on; the client notices nothing.

etcd answers requests in their order, and clients rely on it for `created` replies. Here a request waits in line while creates before it
are unanswered by another cluster; those to the same cluster follow each other at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from google.protobuf.message import DecodeError

from gateway.core.branches import Branch, Line, Part, Turns, Watcher, by_cluster, cancel, canceled
from gateway.core.errors import DUPLICATE_WATCH_ID, EMPTY_WATCH_RANGE, Code, RpcError
from gateway.core.keyrange import bounds
from gateway.core.routes import Routes, Span
from gateway.etcdpb import rpc_pb2 as pb

NO_WATCHER = -1
"""The watch_id of a refused watch, and of a progress reply that is for all watchers of a stream."""

PROGRESS = pb.WatchRequest(progress_request=pb.WatchProgressRequest()).SerializeToString()

MAX_PENDING = 10_000
"""Requests of one stream that may be unanswered."""


class Tell(NamedTuple):
    """Send a message to the client."""

    message: bytes


class Ask(NamedTuple):
    """Send a message on the cluster's stream."""

    cluster: str
    message: bytes


class Open(NamedTuple):
    """Open a stream to the cluster, then call `opened`."""

    cluster: str


class Fail(NamedTuple):
    """End the client's stream; nothing more is said."""

    error: RpcError


Action = Tell | Ask | Open | Fail


class Watches:
    """Every method returns what is to be done, in this order. `branches` by cluster."""

    def __init__(self, routes: Routes, home: str) -> None:
        self._routes = routes
        self._home = home
        self._watchers: dict[int, Watcher] = {}
        self._next_id = 0
        self._waiting: deque[pb.WatchRequest] = deque()
        self._unanswered: deque[Watcher] = deque()
        self._own = Branch("")  # what the gateway says itself
        self.branches: dict[str, Branch] = {}
        self._turns = Turns()
        self._actions: list[Action] = []

    def __len__(self) -> int:
        return len(self._watchers)

    def request(self, data: bytes) -> list[Action]:
        """The client sent a message."""
        try:
            self._waiting.append(pb.WatchRequest.FromString(data))
        except DecodeError:
            return [Fail(RpcError(Code.INTERNAL, "grpc: failed to unmarshal the received message"))]
        if len(self._waiting) + len(self._unanswered) > MAX_PENDING:
            return [_failure(Code.RESOURCE_EXHAUSTED, f"more than {MAX_PENDING} unanswered watch requests")]
        return self._take()

    def opened(self, cluster: str) -> list[Action]:
        """The stream that was asked for with Open takes messages."""
        branch = self.branches[cluster]
        branch.line = Line.OPEN
        for part in branch.parts.values():
            self._ask_for(branch, part)
        return self._take()

    def response(self, cluster: str, data: bytes) -> list[Action]:
        """The cluster sent a message."""
        branch = self.branches[cluster]
        try:
            reply = pb.WatchResponse.FromString(data)
        except DecodeError:
            return [_failure(Code.INTERNAL, f'cluster "{cluster}" sent what is no watch response')]
        branch.header.revision = reply.header.revision
        if reply.created:
            self._created(branch, reply, data)
        elif reply.canceled:
            self._canceled(branch, reply, data)
        else:
            self._news(branch, reply, data)
        return self._take()

    def lost(self, cluster: str) -> list[Action]:
        """The cluster's stream has ended. Half a response can't be taken back, nor can the other half be asked for: then only the client
        can start again."""
        branch = self.branches[cluster]
        branch.line = Line.IDLE
        branch.expected.clear()
        if branch.partial is not None:
            return [_failure(Code.UNAVAILABLE, f'cluster "{cluster}" was lost within a watch response')]
        for part in tuple(branch.parts.values()):
            part.live = False
            if part.watcher.closing:
                self._closed(branch, part, self._own, canceled(branch.header, part.watcher.id))
        if branch.parts:
            self._open(branch)
        return self._take()

    def give_up(self) -> list[Action]:
        """The clusters that have yet to answer a create were waited for long enough; others must not wait for them. A watcher with a start
        revision loses nothing by being created already and fed later; one "from now" would, so it is refused."""
        while self._unanswered:
            watcher = self._unanswered.popleft()
            if watcher.start > 0:
                watcher.announced = True
                reply = pb.WatchResponse(header=self._header(watcher.parts), watch_id=watcher.id, created=True)
                self._tell(self._own, reply.SerializeToString())
            else:
                reason = f"shardgate: no answer from cluster {', '.join(watcher.silent)}"
                self._tell(self._own, _refused(self._header(watcher.parts), reason))
                self._drop(watcher)
        return self._take()

    def direct(self, number: int) -> bool:
        """What its cluster says about this watch may go to the client as it is, now."""
        watcher = self._watchers.get(number)
        return watcher is not None and watcher.announced and len(watcher.parts) == 1 and self._turns.free

    def reading(self, cluster: str) -> bool:
        """False while so much of the cluster's is held back that its stream should be paused."""
        return not self.branches[cluster].crowded

    @property
    def unanswered(self) -> Watcher | None:
        """The watcher whose clusters the client waits for."""
        return self._unanswered[0] if self._unanswered else None

    def _take(self) -> list[Action]:
        while self._waiting and self._handle(self._waiting[0]):
            self._waiting.popleft()
        actions, self._actions = self._actions, []
        return actions

    def _tell(self, speaker: Branch, message: bytes, fragment: bool = False) -> None:
        self._actions += map(Tell, self._turns.say(speaker, message, fragment))

    # what the client asks

    def _handle(self, request: pb.WatchRequest) -> bool:
        """False: it is not its turn yet."""
        kind = request.WhichOneof("request_union")
        if kind == "create_request":
            return self._create(request.create_request)
        if kind == "cancel_request":
            return self._cancel(request.cancel_request.watch_id)
        if kind == "progress_request":
            self._ask_progress()
        return True  # etcd ignores an empty request too

    def _create(self, create: pb.WatchCreateRequest) -> bool:
        spans = by_cluster(self._routes.spans(create.key or b"\0", create.range_end))
        namesake = self._watchers.get(create.watch_id) if create.watch_id else None
        reason = _refusal(create, spans, namesake)
        if namesake is not None and namesake.closing:
            return False
        if self._unanswered and (reason or len(spans) > 1 or self._unanswered[0].parts.keys() != spans.keys()):
            return False
        if reason:
            self._tell(self._own, _refused(self._header(spans), reason))
        else:
            self._place(Watcher(self._number(create.watch_id), create), create, spans)
        return True

    def _number(self, asked: int) -> int:
        if asked:
            return asked
        number = next(number for number in count(self._next_id) if number not in self._watchers)
        self._next_id = number + 1
        return number

    def _first(self, clusters: Iterable[str]) -> str:
        """The cluster whose header a watcher of several gets: home if it is one of them."""
        names = tuple(clusters)
        return self._home if self._home in names else names[0]

    def _header(self, clusters: Iterable[str]) -> pb.ResponseHeader:
        """For what the gateway says itself: the cluster's last header, an empty one if it has said nothing on this stream."""
        return self.branches.get(self._first(clusters), self._own).header

    def _place(self, watcher: Watcher, create: pb.WatchCreateRequest, spans: dict[str, Span]) -> None:
        self._watchers[watcher.id] = watcher
        self._unanswered.append(watcher)
        for cluster, span in spans.items():
            part = watcher.parts[cluster] = Part(watcher, create, span)
            branch = self.branches.setdefault(cluster, Branch(cluster))
            branch.parts[watcher.id] = part
            if branch.line is Line.OPEN:
                self._ask_for(branch, part)
            else:
                self._open(branch)

    def _open(self, branch: Branch) -> None:
        if branch.line is Line.IDLE:
            branch.line = Line.OPENING
            self._actions.append(Open(branch.cluster))

    def _ask_for(self, branch: Branch, part: Part) -> None:
        branch.expected.append(part)
        self._actions.append(Ask(branch.cluster, part.request()))

    def _cancel(self, number: int) -> bool:
        watcher = self._watchers.get(number)
        if watcher is None or watcher.closing:
            return True
        if not watcher.announced:
            return False
        watcher.closing = True
        for branch, part in self._parts(watcher):
            if branch.line is Line.OPEN:
                self._actions.append(Ask(branch.cluster, cancel(number)))
            else:
                self._closed(branch, part, self._own, canceled(branch.header, number))
        return True

    def _ask_progress(self) -> None:
        """Clients take the reply as true for every watcher of the stream, so it is only for streams that live in one cluster."""
        for branch in self.branches.values():
            if branch.parts and branch.line is Line.OPEN and self._alone(branch):
                self._actions.append(Ask(branch.cluster, PROGRESS))

    def _alone(self, branch: Branch) -> bool:
        return not any(other.parts for other in self.branches.values() if other is not branch)

    # what the clusters say

    def _created(self, branch: Branch, reply: pb.WatchResponse, data: bytes) -> None:
        branch.header.CopyFrom(reply.header)
        part = branch.expected.popleft() if branch.expected else None
        if part is None or not branch.has(part):
            return  # the client has been told that it is no more, its cancel is under way
        watcher = part.watcher
        if reply.canceled:
            self._refused(branch, part, reply)
        elif reply.watch_id != watcher.id:
            text = f'cluster "{branch.cluster}" does not keep watch ids ({reply.watch_id} for {watcher.id}); etcd does since 3.4'
            self._actions.append(_failure(Code.INTERNAL, text))
        else:
            part.live = True
            if not part.next:
                # Since 3.6 the header may be one revision ahead of where the watcher starts, for microseconds. A start at the header's own
                # revision would show the client an event from before its watch after each reconnect.
                part.next = reply.header.revision + 1
            if not watcher.announced:
                self._answered(branch, watcher, data)

    def _answered(self, branch: Branch, watcher: Watcher, data: bytes) -> None:
        watcher.replies[branch.cluster] = data
        if watcher.silent:
            return
        self._unanswered.popleft()
        watcher.announced = True
        self._tell(self.branches[first := self._first(watcher.parts)], watcher.replies[first])
        for holder, message, fragment in watcher.held:
            holder.held -= len(message)
            self._tell(holder, message, fragment)
        watcher.replies, watcher.held = {}, []

    def _refused(self, branch: Branch, part: Part, reply: pb.WatchResponse) -> None:
        """The cluster does not create the watch. Where permission lacks, etcd 3.5 answers with the request's id, others with -1."""
        watcher = part.watcher
        del branch.parts[watcher.id]
        if watcher.announced:
            reply.created = False
            reply.watch_id = watcher.id
        else:
            self._unanswered.popleft()
            if reply.watch_id != NO_WATCHER:
                reply.watch_id = watcher.asked
            if self._next_id == watcher.id + 1 and not watcher.asked:
                self._next_id = watcher.id
        self._tell(branch, reply.SerializeToString())
        self._drop(watcher)

    def _canceled(self, branch: Branch, reply: pb.WatchResponse, data: bytes) -> None:
        part = branch.parts.get(reply.watch_id)
        if part is None or not part.live:
            return
        watcher = part.watcher
        if watcher.closing:
            self._closed(branch, part, branch, data)
        elif watcher.announced:
            del branch.parts[watcher.id]
            self._tell(branch, data)
            self._drop(watcher)
        else:
            reply.created = True
            reply.watch_id = NO_WATCHER
            self._refused(branch, part, reply)

    def _closed(self, branch: Branch, part: Part, speaker: Branch, message: bytes) -> None:
        """The cluster feeds this part no more; with the last one the watcher ends."""
        watcher = part.watcher
        del branch.parts[watcher.id]
        if not self._parts(watcher):
            del self._watchers[watcher.id]
            self._tell(speaker, message)

    def _news(self, branch: Branch, reply: pb.WatchResponse, data: bytes) -> None:
        """Events, or progress."""
        part = branch.partial or branch.parts.get(reply.watch_id)
        if part is None:
            if reply.watch_id == NO_WATCHER and self._alone(branch):
                self._tell(branch, data)
        elif part.live or branch.partial:
            within, branch.partial = branch.partial, part if reply.fragment else None
            if reply.events:
                part.reached(reply.events[-1].kv.mod_revision)
            elif not within:
                part.reached(reply.header.revision)
            if part.watcher.joined:
                self._joined_news(branch, part, reply, within is not None)
            else:
                self._tell(branch, data, reply.fragment)

    def _joined_news(self, branch: Branch, part: Part, reply: pb.WatchResponse, within: bool) -> None:
        """A part covers all from its cluster's first key to the last, with keys of other clusters between: those are taken out. A cluster's
        progress says nothing about the watcher, so what has no events is not passed on."""
        own = [event for event in reply.events if self._routes.cluster_of(event.kv.key) == branch.cluster]
        del reply.events[:]
        reply.events.extend(own)
        if not (reply.events or reply.fragment or within):
            return
        message = reply.SerializeToString()
        if part.watcher.announced:
            self._tell(branch, message, reply.fragment)
        else:
            part.watcher.held.append((branch, message, reply.fragment))
            branch.held += len(message)

    # the end of a watcher

    def _parts(self, watcher: Watcher) -> list[tuple[Branch, Part]]:
        """Those that its clusters still feed."""
        pairs = ((self.branches[cluster], part) for cluster, part in watcher.parts.items())
        return [(branch, part) for branch, part in pairs if branch.has(part)]

    def _drop(self, watcher: Watcher) -> None:
        """The client has been told that the watcher is no more: what the clusters still say about it is ignored."""
        del self._watchers[watcher.id]
        for branch, part in self._parts(watcher):
            del branch.parts[watcher.id]
            if branch.partial is part and not watcher.announced:
                branch.partial = None
            if branch.line is Line.OPEN:
                self._actions.append(Ask(branch.cluster, cancel(watcher.id)))
        for holder, message, _ in watcher.held:
            holder.held -= len(message)


def _refusal(create: pb.WatchCreateRequest, spans: dict[str, Span], namesake: Watcher | None) -> str:
    """Why the gateway itself refuses the watch; "" if it does not."""
    if namesake is not None:  # etcd looks at the range first
        low, high = bounds(create.key or b"\0", create.range_end)
        return DUPLICATE_WATCH_ID if high is None or low < high else EMPTY_WATCH_RANGE
    if len(spans) > 1 and create.start_revision:
        return f"shardgate: a watch over several clusters ({', '.join(spans)}) can't start at a revision: each cluster counts its own"
    return ""


def _failure(code: Code, text: str) -> Fail:
    return Fail(RpcError(code, f"shardgate: {text}"))


def _refused(header: pb.ResponseHeader, reason: str) -> bytes:
    return pb.WatchResponse(header=header, watch_id=NO_WATCHER, created=True, canceled=True, cancel_reason=reason).SerializeToString()
