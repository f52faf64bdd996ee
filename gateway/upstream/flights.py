"""Equal reads share one call to the cluster.

A read that is pinned to a revision may join a flight that is under way. Another may not: a write could have been finished after the flight
was sent and before the read came, or its client may have seen something newer. It joins the flight that is sent next, with all others that
come meanwhile; that one goes when the flight before it has landed, or has been under way for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.upstream.calls import Caller
from gateway.upstream.cluster import Cluster

LONG = 0.1
"""Seconds after which the next flight does not wait for the one before it."""

MOST_KEPT = 1 << 20
"""Bytes of a reply up to which a flight that is under way can still be joined."""


class Flight:
    """One call for several clients; implements upstream.calls.Caller towards the cluster. `sent`: it is under way."""

    cluster = ""
    on_cancel: Callable[[], None] | None = None
    on_writable: Callable[[], None] | None = None

    def __init__(self, flights: Flights, key: Hashable, first: Caller) -> None:
        self._flights = flights
        self.key = key
        self.method: Method = first.method
        self.metadata: Mapping[bytes, bytes] = first.metadata
        self.framed = first.framed
        self.deadline: float | None = None
        self.sent = False
        self.ended = False
        self.members: list[Caller] = []
        self._said: list[bytes] = []
        self._size = 0

    @property
    def joinable(self) -> bool:
        """Who comes now can be told all of the reply."""
        return not self.ended and self._size <= MOST_KEPT

    def join(self, call: Caller, cluster: str) -> None:
        """One client more."""
        call.cluster = cluster
        call.on_cancel = lambda: self._leave(call)
        self.members.append(call)
        for data in self._said:
            call.send_raw(data)
        if self.on_writable is not None:
            self.on_writable()  # a single slow client holds it back, more don't

    def _leave(self, call: Caller) -> None:
        """Its client has given up; the others go on."""
        self.members.remove(call)
        if not self.members and not self.ended:
            self.ended = True
            if self.on_cancel is not None:
                self.on_cancel()
            self._flights.landed(self)

    def leave_for(self, cluster: Cluster) -> None:
        """Send it. Its deadline is the last of theirs."""
        self.sent = True
        deadlines = [call.deadline for call in self.members]
        self.deadline = None if None in deadlines else max(each for each in deadlines if each is not None)
        cluster.forward(self)

    # upstream.calls.Caller

    @property
    def writable(self) -> bool:
        return len(self.members) != 1 or self.members[0].writable

    def reply_raw(self, data: bytes) -> None:
        for call in self._land():
            call.reply_raw(data)

    def send_raw(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MOST_KEPT:
            self._said.append(data)
        for call in tuple(self.members):
            call.send_raw(data)
        if not self.writable:
            self.members[0].on_writable = self._go_on

    def _go_on(self) -> None:
        if self.on_writable is not None:
            self.on_writable()

    def end(self) -> None:
        for call in self._land():
            call.end()

    def fail(self, error: RpcError) -> None:
        """A deadline that passed was that of some of them; who has more time flies again."""
        again = error.code == Code.DEADLINE_EXCEEDED and not self._size
        now = asyncio.get_running_loop().time()
        for call in self._land():
            if again and (call.deadline is None or call.deadline > now + 0.01):
                self._flights.forward(call, False)
            else:
                call.fail(error)

    def _land(self) -> list[Caller]:
        members, self.members = self.members, []
        self.ended = True
        for call in members:
            call.on_cancel = call.on_writable = None
        self._flights.landed(self)
        return members


class Flights:
    """Those to one cluster. `count`: flights so far; `followers`: reads that joined one."""

    def __init__(self, cluster: Cluster) -> None:
        self.count = 0
        self.followers = 0
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Hashable, Flight] = {}  # the last one that was sent
        self._next: dict[Hashable, Flight] = {}

    def forward(self, call: Caller, pinned: bool) -> None:
        """As Cluster.forward, for a read. `pinned`: to a revision, so that an answer which is under way is as good as another."""
        key: Hashable = (call.framed, frozenset(call.metadata.items())) if call.metadata else call.framed
        before = self._under_way.get(key)
        if before is None:
            self._send(Flight(self, key, call), call)
        elif pinned and before.joinable:
            self.followers += 1
            before.join(call, self._cluster.name)
        else:
            self._wait(key, call)

    def _send(self, flight: Flight, call: Caller | None) -> None:
        self.count += 1
        self._under_way[flight.key] = flight
        if call is not None:
            flight.join(call, self._cluster.name)
        flight.leave_for(self._cluster)

    def _wait(self, key: Hashable, call: Caller) -> None:
        following = self._next.get(key)
        if following is None:
            following = self._next[key] = Flight(self, key, call)
            self._loop.call_later(LONG, self._hurry, following)
        else:
            self.followers += 1
        following.join(call, self._cluster.name)

    def _hurry(self, flight: Flight) -> None:
        """The flight before it takes long."""
        if self._next.get(flight.key) is flight:
            del self._next[flight.key]
            self._send(flight, None)

    def landed(self, flight: Flight) -> None:
        """It is over: the next one goes."""
        if self._next.get(flight.key) is flight:
            del self._next[flight.key]
        elif self._under_way.get(flight.key) is flight:
            del self._under_way[flight.key]
            following = self._next.pop(flight.key, None)
            if following is not None:
                self._send(following, None)
