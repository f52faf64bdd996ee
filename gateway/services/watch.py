"""The Watch service: a client's watch stream, fed by one upstream stream per cluster that its watches touch.

What is said to whom is decided in core/watches.py; this file opens the streams, again after they broke, and keeps the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gateway.core.branches import Watcher
from gateway.core.errors import NO_LEADER, Code, RpcError
from gateway.core.watches import Action, Ask, Fail, Open, Tell, Watches
from gateway.etcdpb.methods import method
from gateway.services.call import Call
from gateway.services.scope import Scope
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


class Watch:
    """etcd's Watch service."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def watch(self, call: Call) -> WatchStream:
        """One client stream."""
        return WatchStream(self._scope, call)


class Source:
    """The upstream watch stream of one cluster; implements upstream.calls.Receiver. It is opened anew when it breaks."""

    def __init__(self, stream: WatchStream, cluster: Cluster) -> None:
        self.cluster = cluster
        self._stream = stream
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
        self._line = self.cluster.stream(WATCH, self, self._stream.call.metadata)
        if self._paused:
            self._line.pause()
        self._stream.do(self._stream.watches.opened(self.cluster.name))

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
        self._stream.do(self._stream.watches.response(self.cluster.name, data))

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over. It may be a send that found out, so act when that is done."""
        self._line = None
        asyncio.get_running_loop().call_soon(self._ended, error)

    def _ended(self, error: RpcError | None) -> None:
        if self._stream.call.ended:
            return
        if error is not None and (error.code not in PASSING or error.text == NO_LEADER.text):
            self._stream.fail(error)  # etcd says "no leader" only to clients that asked to be told, by the metadata `hasleader`
            return
        self._failures += 1
        if self._down_since is None:
            self._down_since = asyncio.get_running_loop().time()
        self._stream.do(self._stream.watches.lost(self.cluster.name))

    def close(self) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.cancel()


class WatchStream:
    """One client stream; implements services.call.Session."""

    def __init__(self, scope: Scope, call: Call) -> None:
        self.call = call
        self.watches = Watches(scope.routes, scope.home.name)
        self._scope = scope
        self._sources: dict[str, Source] = {}
        self._awaited: Watcher | None = None
        self._timer: asyncio.TimerHandle | None = None
        call.on_cancel = self._close
        call.on_writable = self._pace

    def counts(self) -> Mapping[str, int]:
        """Open watches by cluster, for the metrics. One over several clusters counts in each."""
        return {name: len(branch.parts) for name, branch in self.watches.branches.items()}

    def message(self, data: bytes) -> None:
        """A WatchRequest."""
        self.do(self.watches.request(data))

    def half_close(self) -> None:
        """The watches go on."""

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out what was decided."""
        for action in actions:
            match action:
                case Tell(message):
                    self.call.send(message)
                case Ask(cluster, message):
                    self._sources[cluster].send(message)
                case Open(cluster):
                    self._source(cluster).open()
                case Fail(error):
                    self.fail(error)
                    return
        self._pace()
        self._keep_time()

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(self, self._scope.clusters[name])
            self.call.cluster = self.call.cluster or name
        return source

    def _pace(self) -> None:
        """A client that reads slowly slows its own sources down, nobody else's."""
        writable = self.call.writable
        for name, source in self._sources.items():
            source.read(writable and self.watches.reading(name))

    def _keep_time(self) -> None:
        """One timer, for the create that the client waits for."""
        awaited = self.watches.unanswered
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
        if awaited is not None:
            patience = min(self._sources[name].patience() for name in awaited.silent)
            self._timer = asyncio.get_running_loop().call_later(patience, self._give_up)

    def _give_up(self) -> None:
        self.do(self.watches.give_up())

    def fail(self, error: RpcError) -> None:
        """End the client's stream."""
        self.call.fail(error)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for source in self._sources.values():
            source.close()
