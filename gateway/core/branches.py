"""What a client's watch stream consists of: watchers, the clusters that feed them, and whose turn it is to speak."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from gateway.core.routes import Span
from gateway.etcdpb.rpc_pb2 import ResponseHeader, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse

MAX_HELD = 256 << 10
"""Bytes that are held back for one branch before it is to be paused."""


class Watcher:
    """One watch of the client. `asked`: the id in its request, 0 is the server's choice. `start`: its first revision, 0 is from now.
    `replies`: the clusters' `created` replies, and `held` what else they said, until the client itself has been told `created`
    (`announced`). `closing`: the client has cancelled it."""

    __slots__ = ("announced", "asked", "closing", "held", "id", "parts", "replies", "start")

    def __init__(self, number: int, create: WatchCreateRequest) -> None:
        self.id = number
        self.asked = create.watch_id
        self.start = create.start_revision
        self.parts: dict[str, Part] = {}
        self.replies: dict[str, bytes] = {}
        self.held: list[tuple[Branch, bytes, bool]] = []
        self.announced = False
        self.closing = False

    @property
    def joined(self) -> bool:
        """It is fed by several clusters."""
        return len(self.parts) > 1

    @property
    def silent(self) -> list[str]:
        """The clusters that have not answered it yet, while it is unanswered."""
        return [cluster for cluster in self.parts if cluster not in self.replies]


class Part:
    """What a watcher has in one cluster. `next`: the revision to watch from if it has to be asked for again. `live`: the cluster has
    created it on the stream that is open now."""

    __slots__ = ("_create", "live", "next", "watcher")

    def __init__(self, watcher: Watcher, create: WatchCreateRequest, span: Span) -> None:
        mine = WatchCreateRequest()
        mine.CopyFrom(create)
        mine.watch_id = watcher.id  # etcd takes 0 for its first automatic id, which is 0: watcher 0 is the first on every stream
        mine.key, mine.range_end = span.key, span.end
        self._create = mine.SerializeToString()
        self.watcher = watcher
        self.next = create.start_revision
        self.live = False

    def request(self) -> bytes:
        """The WatchRequest that creates it, from `next` on."""
        create = WatchCreateRequest.FromString(self._create)
        create.start_revision = self.next
        return WatchRequest(create_request=create).SerializeToString()

    def reached(self, revision: int) -> None:
        """Everything up to this revision has come."""
        self.next = max(self.next, revision + 1)


class Line(Enum):
    """The state of a branch's upstream stream."""

    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"


class Branch:
    """What the client's stream has in one cluster. `parts` by watch id; `expected`: parts whose `created` is to come, in the order asked;
    `header`: the last one seen; `partial`: the part of which a fragmented response is under way; `held`: bytes that wait to be told."""

    __slots__ = ("cluster", "expected", "header", "held", "line", "partial", "parts")

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.line = Line.IDLE
        self.parts: dict[int, Part] = {}
        self.expected: deque[Part] = deque()
        self.header = ResponseHeader()
        self.partial: Part | None = None
        self.held = 0

    def has(self, part: Part) -> bool:
        """The part has not been given up meanwhile."""
        return self.parts.get(part.watcher.id) is part

    @property
    def crowded(self) -> bool:
        """So much is held back that the cluster's stream should be paused."""
        return self.held > MAX_HELD


class Turns:
    """Who may speak to the client. Clients drop what comes between the fragments of one response, so the other branches' messages wait for
    the last fragment."""

    def __init__(self) -> None:
        self._speaking: Branch | None = None
        self._held: list[tuple[Branch, bytes, bool]] = []

    @property
    def free(self) -> bool:
        """Nobody is within a message."""
        return self._speaking is None

    def say(self, speaker: Branch, message: bytes, fragment: bool) -> Iterator[bytes]:
        """The messages that can be sent now: none, this one, or this one and what waited for it. `fragment`: more of it follows."""
        if self._speaking is not None and self._speaking is not speaker:
            self._held.append((speaker, message, fragment))
            speaker.held += len(message)
            return
        yield self._let(speaker, message, fragment)
        while (at := self._allowed()) is not None:
            speaker, message, fragment = self._held.pop(at)
            speaker.held -= len(message)
            yield self._let(speaker, message, fragment)

    def _let(self, speaker: Branch, message: bytes, fragment: bool) -> bytes:
        self._speaking = speaker if fragment else None
        return message

    def _allowed(self) -> int | None:
        """The place of the first held message whose turn it is."""
        mine = (at for at, (speaker, _, _) in enumerate(self._held) if self._speaking in (None, speaker))
        return next(mine, None)


def by_cluster(spans: Iterable[Span]) -> dict[str, Span]:
    """One span per cluster: from the first of its keys in the range to the last, whatever lies between."""
    joined: dict[str, Span] = {}
    for span in spans:
        first = joined.get(span.cluster, span)
        joined[span.cluster] = Span(span.cluster, first.key, span.end)
    return joined


def canceled(header: ResponseHeader, number: int) -> bytes:
    """The response that ends a watch."""
    return WatchResponse(header=header, watch_id=number, canceled=True).SerializeToString()


def cancel(number: int) -> bytes:
    """The request for it."""
    return WatchRequest(cancel_request=WatchCancelRequest(watch_id=number)).SerializeToString()
