"""What clients did and were told, as it is recorded: what the rules in `linearizable` and `watched` judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.keyrange import bounds
from gateway.etcdpb import rpc_pb2 as pb


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one connection. Times are of one monotonic clock, in seconds. `reply` is None where the client has none; then `error` has
    the code's name and the text."""

    client: str
    request: Any
    began: float
    ended: float
    reply: Any = None
    error: tuple[str, str] = ("", "")

    @property
    def revision(self) -> int:
        """What the reply's header says; 0 without one."""
        return int(self.reply.header.revision) if self.reply is not None else 0

    def __str__(self) -> str:
        asked = f"{type(self.request).__name__.removesuffix('Request')}({_short(self.request)})"
        told = f"revision {self.revision}: {_short(self.reply)}" if self.reply is not None else f"{self.error[0]} {self.error[1]}"
        return f"[{self.client} {self.began:.4f}-{self.ended:.4f}] {asked} -> {told}"


@dataclass(frozen=True, slots=True)
class Told:
    """A WatchResponse about a watch. `position`: which message of the stream it was."""

    at: float
    position: int
    reply: Any


@dataclass(slots=True)
class Leg:
    """A watch as long as its stream lasted. `start`: the revision that was asked for, 0: from now on."""

    where: str
    start: int
    told: list[Told] = field(default_factory=list)


@dataclass(slots=True)
class Watcher:
    """A watch that a client goes on with when its stream ends, from what it was told last. `request`: what it wanted at first."""

    name: str
    request: Any
    legs: list[Leg] = field(default_factory=list)

    def wants(self, event: Any) -> bool:
        """Whether an event is for this watch."""
        low, high = bounds(self.request.key, self.request.range_end)
        unwanted = pb.WatchCreateRequest.NODELETE if event.type == event.DELETE else pb.WatchCreateRequest.NOPUT
        return bool(event.kv.key >= low and (high is None or event.kv.key < high) and unwanted not in self.request.filters)


@dataclass(slots=True)
class History:
    """`log`: the events of each revision of the cluster from 2 on, as the cluster itself told them while it happened."""

    operations: list[Operation] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    log: list[tuple[int, Sequence[Any]]] = field(default_factory=list)

    def compactions(self) -> list[Operation]:
        """Those that may have happened, in the order of their beginnings."""
        return sorted((each for each in self.operations if isinstance(each.request, pb.CompactionRequest)), key=lambda each: each.began)


def compacted(compactions: Sequence[Operation], before: float) -> int:
    """The highest revision that may have been compacted then."""
    return max((int(each.request.revision) for each in compactions if each.began < before), default=0)


def _short(message: Any) -> str:
    text = " ".join(str(message).split())
    return text if len(text) < 300 else f"{text[:300]}…"
