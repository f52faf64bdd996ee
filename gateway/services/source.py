"""An upstream watch stream, opened anew when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gateway.core.errors import NO_LEADER, Code, RpcError
from gateway.etcdpb.methods import method
from gateway.upstream.calls import Streaming
from gateway.upstream.cluster import Cluster
from gateway.upstream.link import pause_before

WATCH = method("watch", "watch")

PATIENCE = 3.0
"""Seconds that a create may stay unanswered, or that a cluster may be gone, before watches of other clusters stop waiting for it."""

LONGEST_PAUSE = 0.5
"""Seconds between attempts to open a stream to a cluster that is gone."""

PASSING = frozenset((Code.UNAVAILABLE, Code.INTERNAL, Code.CANCELLED))
"""What a stream ends with when its endpoint stops or is lost; other codes are an answer, which the client gets."""


class Owner(Protocol):
    """Whom it serves."""

    @property
    def ended(self) -> bool:
        """Nobody is served any more."""

    def opened(self) -> None:
        """The stream takes messages."""

    def response(self, message: bytes) -> None:
        """A serialised WatchResponse came."""

    def lost(self) -> None:
        """The stream has ended: what was asked for has to be asked for again, after `open`."""

    def fail(self, error: RpcError) -> None:
        """The cluster has refused it."""


class Source:
    """The stream to one cluster; implements upstream.calls.Receiver."""

    def __init__(self, owner: Owner, cluster: Cluster, metadata: Mapping[bytes, bytes]) -> None:
        self._owner = owner
        self._cluster = cluster
        self._metadata = metadata
        self._line: Streaming | None = None
        self._paused = False
        self._failures = 0
        self._down_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Open it when what is being done is done; after a pause if it has just failed."""
        pause = min(LONGEST_PAUSE, pause_before(self._failures)) if self._failures else 0.0
        self._timer = asyncio.get_running_loop().call_later(pause, self._open)

    def _open(self) -> None:
        self._line = self._cluster.stream(WATCH, self, self._metadata)
        if self._paused:
            self._line.pause()
        self._owner.opened()

    def send(self, message: bytes) -> None:
        """Pass a message on; without effect on a stream that has just ended, its watches are asked for again on the next one."""
        if self._line is not None:
            self._line.send(message)

    def read(self, on: bool) -> None:
        """Read from the cluster, or pause."""
        if on is self._paused:
            self._paused = not on
            if self._line is not None:
                (self._line.resume if on else self._line.pause)()

    def patience(self) -> float:
        """Seconds to wait for an answer from here: less for a cluster that is known to be gone."""
        gone = 0.0 if self._down_since is None else asyncio.get_running_loop().time() - self._down_since
        return max(0.0, PATIENCE - gone)

    def on_message(self, data: bytes) -> None:
        """A WatchResponse."""
        self._failures = 0
        self._down_since = None
        self._owner.response(data)

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over. It may be a send that found out, so act when that is done."""
        self._line = None
        asyncio.get_running_loop().call_soon(self._ended, error)

    def _ended(self, error: RpcError | None) -> None:
        if self._owner.ended:
            return
        if error is not None and (error.code not in PASSING or error.text == NO_LEADER.text):
            self._owner.fail(error)  # etcd says "no leader" only to clients that asked to be told, by the metadata `hasleader`
            return
        self._failures += 1
        if self._down_since is None:
            self._down_since = asyncio.get_running_loop().time()
        self._owner.lost()

    def close(self) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.cancel()
