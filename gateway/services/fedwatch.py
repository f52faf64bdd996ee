"""One watch of a client in a cluster with a feed: what is known of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from gateway.core.keyrange import EVERYTHING_FROM
from gateway.core.watchers import Group, News, Selection
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.kv_pb2 import Event


class State(Enum):
    """CONFIRMING: it begins at what the cluster will have confirmed. SYNCED: in a group, told of everything at once. BEHIND: it reads the
    log. UPSTREAM: it has a watch of its own at the cluster."""

    CONFIRMING = "confirming"
    SYNCED = "synced"
    BEHIND = "behind"
    UPSTREAM = "upstream"


class Keeper(Protocol):
    """Who feeds it: services.fed.FedSource."""

    def take(self, watch: FedWatch, news: Sequence[News], group: Group) -> None: ...
    def confirmed(self, watch: FedWatch) -> None: ...
    def unconfirmed(self, watch: FedWatch) -> None: ...


class FedWatch:
    """One watch; implements core.watchers.Member. `next`: the first revision that the client may not have heard of, 0 while that is not
    known. `own`: the id of its upstream watch, `parts`: the events of a revision of which that has brought a part. `quiet`: it has heard
    nothing since progress was last due. `answer`: its `created` reply, and `held` what is to be said after it, until that is said
    (`announced`)."""

    __slots__ = ("_source", "announced", "answer", "create", "group", "held", "id", "next", "own", "parts", "quiet", "selection", "state")

    def __init__(self, source: Keeper, create: pb.WatchCreateRequest) -> None:
        self._source = source
        self.id = create.watch_id
        self.create = create
        self.selection = Selection.of(create)
        self.next = create.start_revision
        self.state = State.CONFIRMING
        self.group: Group | None = None
        self.own = 0
        self.parts: list[Event] = []
        self.answer = b""
        self.held: list[bytes] = []
        self.announced = False
        self.quiet = True

    def take(self, news: Sequence[News], group: Group) -> None:
        self._source.take(self, news, group)

    def confirmed(self) -> None:
        self._source.confirmed(self)

    def unconfirmed(self) -> None:
        self._source.unconfirmed(self)

    def whole(self, reply: pb.WatchResponse) -> bool:
        """Leave in a response only the revisions that are whole, for a client that takes no fragments; whether any are. The cluster is
        always asked for fragments: else it may send all that a watch has missed in one message of any size."""
        if self.create.fragment or not (reply.fragment or self.parts):
            return True
        events, self.parts = [*self.parts, *reply.events], []
        if reply.fragment:
            last = events[-1].kv.mod_revision
            cut = bisect_left(events, last, key=_revision)
            events, self.parts = events[:cut], events[cut:]
        del reply.events[:]
        reply.events.extend(events)
        reply.fragment = False
        return bool(events)


class Progress:
    """Who asked for progress waits for a confirmation; implements services.call.Reader. Without one nothing is said."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def confirmed(self) -> None:
        self._then()

    def unconfirmed(self) -> None:
        """The cluster does not answer: no progress."""


def usual(create: pb.WatchCreateRequest) -> bool:
    """Not one of those that etcd refuses or treats in ways of its own."""
    key, end = create.key or b"\0", create.range_end
    return create.start_revision >= 0 and (end in (b"", EVERYTHING_FROM) or key < end)


def _revision(event: Event) -> int:
    return event.kv.mod_revision
