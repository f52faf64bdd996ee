"""The short way for reads that are answered from memory: no more is made of them than the answer needs.

A request that came whole is shown to the service's `instant`. What can be answered at once is; reads that wait for the same thing, and came
in the same bytes, wait as one batch; all else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.errors import Code
from gateway.etcdpb.methods import Method
from gateway.listeners.call import DEADLINE, REPLY_HEADERS, REPLY_TRAILERS, GrpcCall
from gateway.services.call import Instant, Source
from gateway.wire.connection import Headers, Stream
from gateway.wire.grpc import NO_METADATA, RequestHead, frame_message, request_head, seconds, trailers_only

if TYPE_CHECKING:
    from gateway.listeners.grpc import GrpcConnection


class Taker:
    """Offered every request of a connection that came whole (wire.streams.Taker)."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self._headers: Headers | None = None  # of the request before: the decoder gives equal ones as the same object
        self._head: RequestHead | None = None  # theirs, if such requests can be taken
        self._method: Method
        self._instant: Instant
        self._batches: dict[Source, Batch] = {}

    def __call__(self, number: int, headers: Headers, timeout: bytes | None, data: bytes) -> bool:
        """True: it was taken."""
        if headers is not self._headers:
            self._look_at(headers)
        head = self._head
        if head is None or (head.length >= 0 and head.length != len(data)):
            return False
        connection = self._connection
        size = len(data) - 5
        if size < 0 or data[0] or int.from_bytes(data[1:5], "big") != size or size > connection.port.max_request_bytes:
            return False
        left = None
        if timeout is not None and (left := seconds(timeout)) is None:
            return False
        message = data[5:]
        answer = self._instant(message, head.metadata)
        if answer is None:
            return False
        source, key, reply = answer
        if reply is not None:
            connection.conn.answer(number, REPLY_HEADERS, reply, REPLY_TRAILERS)
            connection.port.metrics.calls(source.name, self._method).at_once(size, len(reply))
            return True
        batch = self._batches.get(source)
        if batch is None or batch.head is not head:
            batch = self._batches[source] = Batch(connection, source, self._method, head)
            source.confirm(batch)
        batch.add(connection.conn.adopt(number, batch), key, message, left)
        return True

    def _look_at(self, headers: Headers) -> None:
        self._headers = headers
        head = request_head(headers)
        found = self._connection.port.instants.get(head.path)
        usable = found is not None and not head.malformed and head.refusal is None and not head.compressed
        self._head = head if usable else None
        if found is not None:
            self._method, self._instant = found

    def end(self) -> None:
        """What comes from now on came later: it waits for something else."""
        if self._batches:
            self._batches.clear()


class Waiting(NamedTuple):
    """One read of a batch. `deadline` in loop time."""

    key: bytes
    message: bytes
    deadline: float | None


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
    """Reads that wait for one confirmation; implements services.call.Reader, and wire.connection.Owner of their streams. `deadline`: of the
    first of them."""

    __slots__ = ("_connection", "_method", "_reads", "_source", "_started", "deadline", "head")

    def __init__(self, connection: GrpcConnection, source: Source, method: Method, head: RequestHead) -> None:
        self._connection = connection
        self._source = source
        self._method = method
        self._reads: dict[Stream, Waiting] = {}
        self._started = perf_counter()
        self.head = head
        self.deadline: float | None = None
        connection.batches.add(self)

    def add(self, stream: Stream, key: bytes, message: bytes, left: float | None) -> None:
        """One read more; `left`: seconds until its deadline."""
        deadline = None
        if left is not None:
            deadline = self._connection.loop.time() + left
            self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        self._reads[stream] = Waiting(key, message, deadline)

    def open(self) -> Iterator[OpenRead]:
        """Those that wait."""
        return map(self._told, self._reads.values())

    def _told(self, read: Waiting) -> OpenRead:
        return OpenRead(self._source.name, self._method, len(read.message), frame_message(read.message))

    def confirmed(self) -> None:
        """All answers at once."""
        connection, source = self._connection, self._source
        respond = connection.conn.respond
        received = sent = 0
        reads, self._reads = self._reads, {}
        for stream, (key, message, _) in reads.items():
            reply = source.reply(key)
            respond(stream, REPLY_HEADERS, reply, REPLY_TRAILERS)
            received += len(message)
            sent += len(reply)
        connection.batches.discard(self)
        if not connection.flush_due:
            connection.touch()
        passed = perf_counter() - self._started
        connection.port.metrics.calls(source.name, self._method).many(len(reads), passed, received, sent)
        if passed >= connection.port.observer.slow:
            for read in reads.values():
                connection.port.observer.slow_request(self._told(read), 0, passed)

    def unconfirmed(self) -> None:
        """They go the usual way."""
        connection = self._connection
        connection.batches.discard(self)
        reads, self._reads = self._reads, {}
        for stream, read in reads.items():
            call = GrpcCall(connection, stream, self._method, self.head, None, None)
            call.take_over(read.message, read.deadline)
            stream.owner = call
            self._source.decline(call, read.key)

    def expire(self, now: float) -> None:
        """Answer those whose deadline has passed."""
        for stream, read in tuple(self._reads.items()):
            if read.deadline is not None and read.deadline <= now:
                self._connection.conn.send_headers(stream, trailers_only(DEADLINE.code, DEADLINE.text), True)
                self._drop(stream, Code.DEADLINE_EXCEEDED)
        self._connection.touch()

    def _drop(self, stream: Stream, code: int) -> None:
        read = self._reads.pop(stream, None)
        if read is not None:
            self._connection.port.observer.record(self._told(read), code, perf_counter() - self._started)

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self._drop(stream, Code.CANCELLED)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Nothing comes after the end of a request."""

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """The same."""

    def on_drained(self, stream: Stream) -> None:
        """An answer is one piece."""
