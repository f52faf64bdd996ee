"""The short way for reads that are answered from memory: no more is made of them than the answer needs.

A request that came whole (wire/lane.py) is looked up by its bytes: what it asks of which source is the same each time. What can be answered
at once is; reads that wait for the same source, and came in the same bytes, wait as one batch; all else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.errors import Code
from gateway.etcdpb.methods import Method
from gateway.listeners.call import DEADLINE, GrpcCall
from gateway.services.call import Instant, Source
from gateway.wire.connection import Headers, Stream
from gateway.wire.grpc import NO_METADATA, RequestHead, request_head, seconds, trailers_only, whole
from gateway.wire.lane import HELD

if TYPE_CHECKING:
    from gateway.listeners.grpc import GrpcConnection

MOST_HEADS = 64
"""Different heads that a listener remembers: there is about one for each sort of client."""

MOST_REQUESTS = 16_384
LONGEST_REQUEST = 256
"""Requests of all heads that a listener remembers, and bytes of each."""


class Asked(NamedTuple):
    """What a request wants to know, and the request: gRPC-framed, and its head."""

    source: Source
    key: bytes
    linearizable: bool
    framed: bytes
    head: RequestHead


class Requests(dict[bytes, Asked | None]):
    """What the requests of one head ask, by their DATA; None for those that are not for memory to answer. Remembers what it was asked."""

    def __init__(self, shelf: Shelf, head: RequestHead, method: Method, instant: Instant) -> None:
        self.method = method
        self._shelf = shelf
        self._head = head
        self._instant = instant

    def __missing__(self, data: bytes) -> Asked | None:
        asked = self._look(data)
        if len(data) <= LONGEST_REQUEST:
            self._shelf.make_room()
            self[data] = asked
        return asked

    def _look(self, data: bytes) -> Asked | None:
        head, message = self._head, whole(data)
        if message is None or len(message) > self._shelf.max_size or head.length not in (-1, len(data)):
            return None
        read = self._instant(message, head.metadata)
        return None if read is None else Asked(*read, data, head)


class Shelf(dict[Headers, Requests | None]):
    """The Requests of a listener, by their heads; None for a head that no answer from memory is for. Remembers what it was asked."""

    def __init__(self, instants: Mapping[bytes, tuple[Method, Instant]], max_size: int) -> None:
        self.max_size = max_size
        self._instants = instants
        self._requests = 0

    def make_room(self) -> None:
        """One more request will be remembered."""
        self._requests += 1
        if self._requests > MOST_REQUESTS:
            self._requests = 1
            for requests in self.values():
                if requests is not None:
                    requests.clear()

    def __missing__(self, headers: Headers) -> Requests | None:
        if len(self) >= MOST_HEADS:
            self.clear()
        requests = self[headers] = self._read(headers)
        return requests

    def _read(self, headers: Headers) -> Requests | None:
        head = request_head(headers)
        found = self._instants.get(head.path)
        if found is None or head.malformed or head.refusal is not None or head.compressed:
            return None
        return Requests(self, head, *found)


class Taker:
    """Shown all whole requests of a connection; implements wire.lane.Taker. `now`: loop time of the bytes that are being read."""

    def __init__(self, connection: GrpcConnection) -> None:
        self.now = 0.0
        self._connection = connection
        self._headers: Headers | None = None  # of the request before: the decoder gives equal ones as the same object
        self._requests: Requests | None = None  # theirs
        self._source: Source | None = None  # of the request before; what follows is of it, too
        self._replies: Mapping[bytes, bytes] | None = None
        self._batch: Batch | None = None
        self._batches: dict[tuple[Source, Method], Batch] = {}
        self._count = self._received = self._sent = 0

    def wants(self, headers: Headers) -> bool:
        if headers is not self._headers:
            self._leave()
            self._headers = headers
            self._requests = self._connection.port.shelf[headers]
        return self._requests is not None

    def __call__(self, name: bytes, headers: Headers, timeout: bytes | None, data: bytes) -> bytes | None:
        if headers is not self._headers:
            self.wants(headers)
        requests = self._requests
        if requests is None or (asked := requests[data]) is None:
            return None
        left = None
        if timeout is not None and (left := seconds(timeout)) is None:
            return None
        source, key, linearizable, _, _ = asked
        if source is not self._source:
            self._turn_to(source)
        if linearizable:
            batch = self._batch or self._new_batch(source, requests.method)
            if batch is None:
                return None
            batch.held[name] = asked
            if left is not None:
                batch.deadlines[name] = self.now + left
            return HELD
        replies = self._replies
        if replies is None:
            return None
        reply = replies[key]
        self._count += 1
        self._received += len(data)
        self._sent += len(reply)
        return reply

    def _turn_to(self, source: Source) -> None:
        if self._source is not None:
            self._leave()
        self._source = source
        self._replies = source.current()

    def _new_batch(self, source: Source, method: Method) -> Batch | None:
        """The one of this source, made anew if there is none yet and the source can be read."""
        batch = self._batches.get((source, method))
        if batch is None and source.replies() is not None:
            batch = self._batches[source, method] = Batch(self._connection, source, method)
        self._batch = batch
        return batch

    def _leave(self) -> None:
        """Something else than before may come: count what was answered."""
        if self._count:
            assert self._source is not None and self._requests is not None
            self._source.answered(self._count)
            stats = self._connection.port.metrics.calls(self._source.name, self._requests.method)
            stats.many(self._count, 0.0, self._received - 5 * self._count, self._sent)
            self._count = self._received = self._sent = 0
        self._source = self._batch = self._replies = None

    def end(self) -> None:
        """All has been read: what comes later waits for something else."""
        if self._source is not None:
            self._leave()
        if self._batches:
            batches, self._batches = self._batches, {}
            for batch in batches.values():
                batch.start()


class OpenRead(NamedTuple):
    """A read under way, for the metrics and the log."""

    cluster: str
    method: Method
    bytes_in: int
    framed: bytes
    bytes_out: int = 0
    session: None = None
    metadata: Mapping[bytes, bytes] = NO_METADATA


class Batch:
    """Reads that wait for one confirmation; implements services.call.Reader, wire.lane.Holder, and wire.connection.Owner of those that have
    a stream. `deadlines` in loop time, of those that have one."""

    __slots__ = ("_connection", "_method", "_source", "_started", "_streams", "deadlines", "held")

    def __init__(self, connection: GrpcConnection, source: Source, method: Method) -> None:
        self.held: dict[bytes, Asked] = {}
        self.deadlines: dict[bytes, float] = {}
        self._connection = connection
        self._source = source
        self._method = method
        self._streams: dict[Stream, Asked] = {}
        self._started = perf_counter()
        connection.lane.holders.add(self)

    def start(self) -> None:
        """No more will be added."""
        self._connection.batches.add(self)
        self._source.confirm(self)

    def part(self, name: bytes, stream: Stream) -> None:
        self._streams[stream] = self.held.pop(name)
        stream.owner = self

    def open(self) -> Iterator[OpenRead]:
        """Those that wait."""
        return map(self._told, (*self.held.values(), *self._streams.values()))

    def _told(self, asked: Asked) -> OpenRead:
        return OpenRead(self._source.name, self._method, len(asked.framed) - 5, asked.framed)

    def _release(self) -> tuple[dict[bytes, Asked], dict[Stream, Asked]]:
        """It waits for nothing any more; what it held."""
        self._connection.batches.discard(self)
        self._connection.lane.holders.discard(self)
        held, self.held = self.held, {}
        streams, self._streams = self._streams, {}
        return held, streams

    def confirmed(self) -> None:
        """All answers at once."""
        connection, source = self._connection, self._source
        replies = source.replies()
        if replies is None:
            self.unconfirmed()
            return
        held, streams = self._release()
        asked = [*held.values(), *streams.values()]
        if not asked:
            return
        answers = [replies[each[1]] for each in asked]
        if held:
            connection.lane.answer(list(zip(held, answers, strict=False)))
        for stream, reply in zip(streams, answers[len(held) :], strict=True):
            connection.lane.respond(stream, reply)
        if not connection.flush_due:
            connection.touch()
        source.answered(len(asked))
        passed = perf_counter() - self._started
        port = connection.port
        received = sum([len(each[3]) for each in asked]) - 5 * len(asked)
        port.metrics.calls(source.name, self._method).many(len(asked), passed, received, sum(map(len, answers)))
        if passed >= port.observer.slow:
            for each in asked:
                port.observer.slow_request(self._told(each), 0, passed)

    def unconfirmed(self) -> None:
        """They go the usual way."""
        connection = self._connection
        for name in tuple(self.held):
            self.part(name, connection.lane.adopt(name))
        for stream, asked in self._release()[1].items():
            call = GrpcCall(connection, stream, self._method, asked.head, None, None)
            call.take_over(asked.framed, self.deadlines.get(stream.id.to_bytes(4, "big")))
            stream.owner = call
            self._source.decline(call, asked.key)

    def expire(self, now: float) -> None:
        """Answer those whose deadline has passed."""
        connection = self._connection
        for name in [name for name, deadline in self.deadlines.items() if deadline <= now]:
            del self.deadlines[name]
            if name in self.held:
                self.part(name, connection.lane.adopt(name))
            stream = connection.conn.streams.get(int.from_bytes(name, "big"))
            if stream in self._streams:
                connection.conn.send_headers(stream, trailers_only(DEADLINE.code, DEADLINE.text), True)
                self._drop(stream, Code.DEADLINE_EXCEEDED)

    def _drop(self, stream: Stream, code: int) -> None:
        asked = self._streams.pop(stream, None)
        if asked is not None:
            self._connection.port.observer.record(self._told(asked), code, perf_counter() - self._started)

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self._drop(stream, Code.CANCELLED)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Nothing comes after the end of a request."""

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """The same."""

    def on_drained(self, stream: Stream) -> None:
        """An answer is one piece."""
