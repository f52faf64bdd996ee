"""The Watch service: a client's watch stream, fed by one upstream stream per cluster that its watches touch.

What is said to whom is decided in core/watches.py; this file opens the streams, again after they broke, and keeps the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gateway.core.branches import Watcher
from gateway.core.errors import RpcError
from gateway.core.watches import Action, Ask, Fail, Open, Tell, Watches
from gateway.services.call import Call
from gateway.services.fed import FedSource
from gateway.services.reads import identified
from gateway.services.scope import Scope
from gateway.services.source import Source


class Watch:
    """etcd's Watch service."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def watch(self, call: Call) -> WatchStream:
        """One client stream."""
        return WatchStream(self._scope, call)


class Direct:
    """What one cluster says goes to the stream's watches; implements services.source.Owner and services.fed.Sink."""

    def __init__(self, stream: WatchStream, cluster: str) -> None:
        self._stream = stream
        self._cluster = cluster
        self.metadata = stream.call.metadata

    @property
    def ended(self) -> bool:
        return self._stream.call.ended

    @property
    def writable(self) -> bool:
        return self._stream.call.writable

    def opened(self) -> None:
        if not self.ended:
            self._stream.do(self._stream.watches.opened(self._cluster))

    def response(self, message: bytes) -> None:
        if not self.ended:
            self._stream.do(self._stream.watches.response(self._cluster, message))

    def news(self, number: int, message: bytes, rest: bool) -> None:
        """The short way where nothing has to be joined or put in order."""
        if not rest and self._stream.watches.direct(number):
            self._stream.call.send_raw(message)
        else:
            self.response(message[5:])

    def lost(self) -> None:
        self._stream.do(self._stream.watches.lost(self._cluster))

    def fail(self, error: RpcError) -> None:
        self._stream.fail(error)


class WatchStream:
    """One client stream; implements services.call.Session."""

    def __init__(self, scope: Scope, call: Call) -> None:
        self.call = call
        self.watches = Watches(scope.routes, scope.home.name)
        self._scope = scope
        self._sources: dict[str, Source | FedSource] = {}
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

    def _source(self, name: str) -> Source | FedSource:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = self._made(name)
            self.call.cluster = self.call.cluster or name
        return source

    def _made(self, name: str) -> Source | FedSource:
        """Who says who it is gets a stream of its own: the feed may hear more than it may."""
        sink, feed = Direct(self, name), self._scope.feeds.get(name)
        if feed is None or identified(self.call.metadata):
            return Source(sink, self._scope.clusters[name], self.call.metadata)
        return FedSource(feed, sink)

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
