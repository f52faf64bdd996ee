"""The watches of one client stream: their ids, their parts in the clusters, what has been delivered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from gateway.core.errors import DUPLICATE_WATCH_ID, Code, Status
from gateway.core.routes import Routes, Span

if TYPE_CHECKING:
    from gateway.etcdpb import rpc_pb2 as pb

NO_ID = -1
SEVERAL_FROM_PAST = Status(Code.INVALID_ARGUMENT, "shardgate: watch from a revision over several clusters; watch each cluster's keys apart")


class PartState(Enum):
    """States."""

    WAITING = "waiting"
    CREATED = "created"
    ENDED = "ended"


@dataclass(eq=False)
class Part:
    """One cluster's share."""

    watch: Watch
    span: Span
    next: int
    state: PartState = PartState.WAITING
    answer: pb.WatchResponse | None = None

    def delivered(self, response: pb.WatchResponse) -> None:
        """Note."""
        if response.created and not self.next:
            self.next = response.header.revision + 1
        if response.events and not response.fragment:
            self.next = max(self.next, response.events[-1].kv.mod_revision + 1)


@dataclass(eq=False)
class Watch:
    """One watch."""

    request: pb.WatchCreateRequest
    id: int | None = None
    parts: list[Part] = field(default_factory=list)
    early: list[pb.WatchResponse] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Several."""
        return len(self.parts) > 1

    @property
    def created(self) -> bool:
        """Every part is."""
        return all(part.state is not PartState.WAITING for part in self.parts)


def plan_watch(routes: Routes, request: pb.WatchCreateRequest) -> Watch | Status:
    """Plan."""
    key = request.key or b"\0"
    spans = routes.spans(key, request.range_end)
    if len(spans) > 1 and request.start_revision > 0:
        return SEVERAL_FROM_PAST
    watch = Watch(request)
    watch.parts = [Part(watch, replace(span), max(0, request.start_revision)) for span in spans]
    return watch


def upstream_request(part: Part, request_type: type[pb.WatchRequest]) -> pb.WatchRequest:
    """Ask."""
    asked = request_type()
    create = asked.create_request
    create.CopyFrom(part.watch.request)
    create.key = part.span.key
    create.range_end = part.span.end
    create.start_revision = part.next
    create.watch_id = 0
    if part.watch.several:
        create.progress_notify = False
    return asked


class Ids:
    """Ids."""

    def __init__(self) -> None:
        self._used: dict[int, Watch] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._used)

    def all(self) -> tuple[Watch, ...]:
        """All."""
        return tuple(self._used.values())

    def get(self, number: int) -> Watch | None:
        """Get."""
        return self._used.get(number)

    def give(self, watch: Watch) -> str:
        """Give."""
        number = watch.request.watch_id
        if number:
            if number in self._used:
                return DUPLICATE_WATCH_ID
        else:
            while self._next in self._used:
                self._next += 1
            number = self._next
            self._next += 1
        watch.id = number
        self._used[number] = watch
        return ""

    def drop(self, watch: Watch) -> None:
        """Free."""
        if watch.id is not None:
            self._used.pop(watch.id, None)
