"""Watch fan-out: a process that opens watchers on one prefix, writes to it, and counts the events that arrive.

    python -m bench.fanout '{"port": 2379, "writes_port": 2379, "watchers": 100, "writes": 2000, "rate": 0, "run": "a",
                             "per_connection": 100, "pid": 1, "metrics_port": 2379}'

prints one JSON object: calls (events that arrived), seconds, errors, a text of the first error, p50 and p99 of the delay from the
sending of a put to the arrival of its event, in milliseconds; how many watches etcd had, and how much the memory of process `pid` grew
after the first fifth of the writes. Every watcher has to see every write once, all in the same order; anything else is an error."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import uvloop

from bench.connection import Connection
from bench.percentiles import percentiles
from bench.procfs import rss_bytes
from bench.requests import DATA, END_HEADERS, END_STREAM, HEADERS, PUT, WATCH, constant_blocks, frame, message, put, watch
from bench.scrape import reading

MARK = b"/bench-fan-"
"""What the key of each event contains once, before the eight digits of the write's number."""
NUMBER = re.compile(MARK + rb"(\d{8})")
SAMPLES = 100
"""Watchers whose events are timed: all take turns in being the first and the last to be told."""
PER_CONNECTION = 100
AT_ONCE = 100
"""Connections that are made at a time."""
IN_FLIGHT = 32
SILENCE = 10.0
"""Seconds without an event after which the rest counts as lost."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `rate`: writes a second; 0 is as fast as 32 in flight go. The writes may take another way than the watches.
    `pid`: whose memory is looked at, 0: this process's. `metrics_port`: etcd's, 0: there is none."""

    port: int
    writes_port: int
    watchers: int
    writes: int
    rate: float
    run: str
    per_connection: int = PER_CONNECTION
    pid: int = 0
    metrics_port: int = 0

    @property
    def prefix(self) -> str:
        """What is watched: own to the run."""
        return f"/registry/pods/{self.run}/"


@dataclass(slots=True)
class Tally:
    """What arrived, over all watchers. `order`: the numbers of the writes as the watchers are told of them."""

    writes: int
    created: int = 0
    events: int = 0
    errors: int = 0
    error: str = ""
    over: bool = False
    last: float = 0.0
    sent: array[float] = field(default_factory=lambda: array("d"))
    delays: array[float] = field(default_factory=lambda: array("d"))
    order: list[bytes] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)

    def failed(self, error: str) -> None:
        """Count something that must not be."""
        if self.over:
            return
        self.errors += 1
        self.error = self.error or error

    def heard(self, at: int, numbers: list[bytes], timed: bool) -> None:
        """A watcher that had been told of `at` writes before was told of these."""
        due = self.order[at : at + len(numbers)]
        if numbers != due:
            if numbers[: len(due)] != due:
                self.failed(f"event {at} or a later one is not the one that others were told of")
                return
            for number in numbers[len(due) :]:
                if number in self.known:
                    self.failed(f"write {int(number)} arrived twice")
                self.known.add(number)
                self.order.append(number)
        self.events += len(numbers)
        self.last = time.perf_counter()
        if timed:
            self.delays.extend([self.last - self.sent[int(number)] for number in numbers])


class Watchers(Connection):
    """One connection with a number of watch streams, whose watchers are the ones from `first` on; each `stride`th of all is timed."""

    def __init__(self, tally: Tally, prefix: str, first: int = 0, stride: int = 1) -> None:
        super().__init__()
        self._tally = tally
        self._prefix = prefix
        self._first = first
        self._stride = stride
        self._heard: dict[int, int] = {}
        self._parts: dict[int, bytes] = {}
        self.on_data = self._received
        self.on_end = lambda stream, error: tally.failed(error or "a watch ended")
        self.on_lost = tally.failed

    def open(self, watchers: int) -> None:
        """Start the watches."""
        blocks, body = constant_blocks(WATCH), message(watch(self._prefix))
        frames = (frame(HEADERS, END_HEADERS, stream, next(blocks)) + frame(DATA, 0, stream, body) for stream in range(1, watchers * 2, 2))
        self.transport.write(b"".join(frames))

    def _received(self, stream: int, payload: bytes) -> None:
        if self._parts and stream in self._parts:
            payload = self._parts.pop(stream) + payload
        at, size = 0, len(payload)
        while size - at >= 5:
            end = at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")
            if end > size:
                break
            if stream not in self._heard:
                self._heard[stream] = 0
                self._tally.created += 1
            at = end
        if at < size:
            self._parts[stream] = payload[at:]
        numbers = NUMBER.findall(payload, 0, at)
        if numbers:
            heard = self._heard[stream]
            self._heard[stream] = heard + len(numbers)
            self._tally.heard(heard, numbers, (self._first + stream // 2) % self._stride == 0)


class Writer(Connection):
    """The connection that writes, each time another key."""

    def __init__(self, tally: Tally, prefix: str) -> None:
        super().__init__()
        self._tally = tally
        self._blocks = constant_blocks(PUT)
        self._prefix = prefix.encode() + MARK[1:]
        self.room = asyncio.Semaphore(IN_FLIGHT)
        self.on_end = self._ended
        self.on_lost = tally.failed

    def put(self) -> None:
        """Send the next write."""
        number = len(self._tally.sent)
        body = message(put(self._prefix + b"%08d" % number, b"v" * 256))
        stream = number * 2 + 1
        self._tally.sent.append(time.perf_counter())
        self.transport.write(frame(HEADERS, END_HEADERS, stream, next(self._blocks)) + frame(DATA, END_STREAM, stream, body))

    def _ended(self, stream: int, error: str | None) -> None:
        if error is not None:
            self._tally.failed(error)
        self.room.release()


async def opened(tally: Tally, spec: Spec) -> list[Watchers]:
    """All watchers, once the server says that they are there."""
    loop = asyncio.get_running_loop()
    stride = max(1, spec.watchers // SAMPLES)

    async def connect(first: int) -> Watchers:
        _, connection = await loop.create_connection(lambda: Watchers(tally, spec.prefix, first, stride), "127.0.0.1", spec.port)
        connection.open(min(spec.per_connection, spec.watchers - first))
        return connection

    connections: list[Watchers] = []
    firsts = range(0, spec.watchers, spec.per_connection)
    for at in range(0, len(firsts), AT_ONCE):
        connections += await asyncio.gather(*map(connect, firsts[at : at + AT_ONCE]))
    await until(lambda: tally.created + tally.errors >= spec.watchers, lambda: tally.created)
    return connections


async def until(done: Callable[[], bool], progress: Callable[[], int]) -> None:
    """Wait until it is done, or nothing has changed for SILENCE seconds."""
    seen, since = progress(), time.perf_counter()
    while not done() and time.perf_counter() - since < SILENCE:
        await asyncio.sleep(0.02)
        if progress() != seen:
            seen, since = progress(), time.perf_counter()


async def write(writer: Writer, spec: Spec) -> int:
    """All writes, at the rate of the spec; the memory of the process after a fifth of them. Raises TimeoutError when no put is answered for
    SILENCE seconds."""
    began = time.perf_counter()
    memory = 0
    for number in range(spec.writes):
        if number == spec.writes // 5:
            memory = rss_bytes(spec.pid or os.getpid())
        if spec.rate:
            await asyncio.sleep(max(0.0, began + number / spec.rate - time.perf_counter()))
        async with asyncio.timeout(SILENCE):
            await writer.room.acquire()
        writer.put()
    return memory


async def measure(spec: Spec) -> dict[str, object]:
    """One run; the result as it is printed."""
    tally = Tally(spec.writes)
    connections = await opened(tally, spec)
    watches = int(reading(spec.metrics_port, "etcd_debugging_mvcc_watcher_total")) if spec.metrics_port else 0
    _, writer = await asyncio.get_running_loop().create_connection(lambda: Writer(tally, spec.prefix), "127.0.0.1", spec.writes_port)
    due = spec.watchers * spec.writes
    gc.disable()
    cpu = time.process_time()
    began = tally.last = time.perf_counter()
    memory = rss_bytes(spec.pid or os.getpid())
    try:
        memory = await write(writer, spec)
    except TimeoutError:
        tally.failed("puts are not answered")
    await until(lambda: tally.events >= due, lambda: tally.events)
    cpu = time.process_time() - cpu
    growth = rss_bytes(spec.pid or os.getpid()) / memory - 1
    lost = due - tally.events
    if lost:
        tally.failed(f"{lost} events did not arrive")
    tally.over = True
    for connection in (*connections, writer):
        connection.transport.abort()
    p50, p99 = percentiles(tally.delays, 0.50, 0.99)
    return {
        "calls": tally.events,
        "seconds": tally.last - began,
        "errors": tally.errors,
        "error": tally.error,
        "p50_ms": p50 * 1000,
        "p99_ms": p99 * 1000,
        "load_cpu": cpu,
        "etcd_watches": watches,
        "growth": growth,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(Spec(**json.loads(sys.argv[1]))))))
