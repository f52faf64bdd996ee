"""What a peer may do in a second, and how its death is noticed. Plain counters: a guard costs nothing until it speaks."""

from __future__ import annotations

from gateway.wire.frames import ENHANCE_YOUR_CALM, ProtocolError
from gateway.wire.streams import Limits

_MAX_STRIKES = 2


class Guards:
    """Counts what a peer does for nothing. The methods raise ProtocolError when it was too much within one second."""

    __slots__ = ("_limits", "_nothings", "_old", "_resets", "_second", "_updates")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._second = now
        self._old = 0
        self._resets = self._nothings = self._updates = 0

    def turn(self, now: float, last_stream: int) -> None:
        """Call with each chunk: a new second begins when the last one is over."""
        if now - self._second >= 1.0:
            self._second = now
            self._old = last_stream
            self._resets = self._nothings = self._updates = 0

    def nothing(self, weight: int = 1) -> None:
        """A frame that brings nothing on: PING, SETTINGS, PRIORITY, empty DATA, an unknown one … `weight`: what it costs."""
        self._nothings += weight
        if self._nothings > self._limits.max_nothings:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"more than {self._limits.max_nothings} idle frames in a second")

    def reset(self, stream: int) -> None:
        """The peer reset a stream, or its breach of the rules did. Streams from before this second cost it nothing: a deadline that
        passes for a thousand calls at once is no attack, to open and reset within a second is (CVE-2023-44487)."""
        if stream <= self._old:
            self.nothing()
            return
        self._resets += 1
        if self._resets > self._limits.max_resets:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"more than {self._limits.max_resets} stream resets in a second")

    def update(self) -> None:
        """A WINDOW_UPDATE. `paid` tells that DATA went out, which deserves them."""
        self._updates += 1
        if self._updates > self._limits.max_nothings:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"more than {self._limits.max_nothings} window updates without need in a second")

    def paid(self) -> None:
        """DATA went to the peer."""
        self._updates = 0


class Strikes:
    """Whether a client pings too often, by grpc-go's rule as etcd sets it: three pings that come too early, with no DATA and no HEADERS
    sent between them, end the connection."""

    __slots__ = ("_forgiven", "_last", "_limits", "_strikes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last = float("-inf")
        self._strikes = 0
        self._forgiven = False

    def forgive(self) -> None:
        """DATA or HEADERS went out: clients measure the line with pings when they receive."""
        self._forgiven = True

    def ping(self, now: float, active: bool) -> None:
        """A PING came; `active`: streams are open. Raises ProtocolError."""
        early = now - self._last < (self._limits.min_ping_interval if active else self._limits.min_idle_ping_interval)
        self._last = now
        if self._forgiven:
            self._forgiven = False
            self._strikes = 0
        elif early:
            self._strikes += 1
            if self._strikes > _MAX_STRIKES:
                raise ProtocolError(ENHANCE_YOUR_CALM, "too_many_pings")


class Keepalive:
    """When to ask the peer for a sign of life, and when it is dead. `heard`: when its last bytes came."""

    __slots__ = ("_asked", "_limits", "heard")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._asked: float | None = None
        self.heard = now

    def dead(self, now: float) -> bool:
        """It was asked, and nothing came for the time allowed."""
        asked = self._asked
        return asked is not None and self.heard < asked and now - asked > self._limits.ping_timeout

    def ask(self, now: float) -> bool:
        """Whether to send a PING now."""
        asked = self._asked
        if now - self.heard <= self._limits.ping_interval or (asked is not None and self.heard < asked):
            return False
        self._asked = now
        return True
