"""Watch fan-out: a process that opens watchers on one prefix, writes to it, and counts the events that arrive.

    python -m bench.fanout '{"port": 2379, "writes_port": 2379, "watchers": 100, "writes": 2000, "rate": 0, "run": "a"}'

prints one JSON object: calls (events that arrived), seconds, errors, a text of the first error, p50 and p99 of the delay from the
sending of a put to the arrival of its event, in milliseconds. Every watcher has to see every write once; anything else is an error."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import uvloop

from bench.connection import Connection
from bench.percentiles import percentiles
from bench.requests import DATA, END_HEADERS, END_STREAM, HEADERS, PUT, WATCH, constant_blocks, frame, message, put, watch

MARK = b"/bench-fan-"
"""What the key of each event contains once, before the eight digits of the write's number."""
PER_CONNECTION = 100
IN_FLIGHT = 32
SILENCE = 10.0
"""Seconds without an event after which the rest counts as lost."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `rate`: writes a second; 0 is as fast as 32 in flight go. The writes may take another way than the watches."""

    port: int
    writes_port: int
    watchers: int
    writes: int
    rate: float
    run: str

    @property
    def prefix(self) -> str:
        """What is watched: own to the run."""
        return f"/registry/pods/{self.run}/"


@dataclass(slots=True)
class Tally:
    """What arrived, over all watchers."""

    writes: int
    created: int = 0
    events: int = 0
    errors: int = 0
    error: str = ""
    over: bool = False
    last: float = 0.0
    sent: array[float] = field(default_factory=lambda: array("d"))
    delays: array[float] = field(default_factory=lambda: array("d"))

    def failed(self, error: str) -> None:
        """Count something that must not be."""
        if self.over:
            return
        self.errors += 1
        self.error = self.error or error


class Watchers(Connection):
    """One connection with a number of watch streams."""

    def __init__(self, tally: Tally, prefix: str) -> None:
        super().__init__()
        self._tally = tally
        self._prefix = prefix
        self._seen: dict[int, bytearray] = {}
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
        while len(payload) >= 5:
            end = 5 + int.from_bytes(payload[1:5], "big")
            if end > len(payload):
                break
            self._message(stream, payload, end)
            payload = payload[end:]
        if payload:
            self._parts[stream] = payload

    def _message(self, stream: int, payload: bytes, end: int) -> None:
        tally, seen = self._tally, self._seen.get(stream)
        if seen is None:
            self._seen[stream] = bytearray(tally.writes)
            tally.created += 1
            return
        now = time.perf_counter()
        at = payload.find(MARK, 0, end)
        while at >= 0:
            number = int(payload[at + len(MARK) : at + len(MARK) + 8])
            if seen[number]:
                tally.failed(f"write {number} arrived twice")
            seen[number] = 1
            tally.events += 1
            tally.delays.append(now - tally.sent[number])
            at = payload.find(MARK, at + 1, end)
        tally.last = now


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
    connections = []
    for first in range(0, spec.watchers, PER_CONNECTION):
        _, connection = await loop.create_connection(lambda: Watchers(tally, spec.prefix), "127.0.0.1", spec.port)
        connection.open(min(PER_CONNECTION, spec.watchers - first))
        connections.append(connection)
    await until(lambda: tally.created + tally.errors >= spec.watchers, lambda: tally.created)
    return connections


async def until(done: Callable[[], bool], progress: Callable[[], int]) -> None:
    """Wait until it is done, or nothing has changed for SILENCE seconds."""
    seen, since = progress(), time.perf_counter()
    while not done() and time.perf_counter() - since < SILENCE:
        await asyncio.sleep(0.02)
        if progress() != seen:
            seen, since = progress(), time.perf_counter()


async def write(writer: Writer, spec: Spec) -> None:
    """All writes, at the rate of the spec. Raises TimeoutError when no put is answered for SILENCE seconds."""
    began = time.perf_counter()
    for number in range(spec.writes):
        if spec.rate:
            await asyncio.sleep(max(0.0, began + number / spec.rate - time.perf_counter()))
        async with asyncio.timeout(SILENCE):
            await writer.room.acquire()
        writer.put()


async def measure(spec: Spec) -> dict[str, object]:
    """One run; the result as it is printed."""
    tally = Tally(spec.writes)
    connections = await opened(tally, spec)
    _, writer = await asyncio.get_running_loop().create_connection(lambda: Writer(tally, spec.prefix), "127.0.0.1", spec.writes_port)
    due = spec.watchers * spec.writes
    gc.disable()
    cpu = time.process_time()
    began = tally.last = time.perf_counter()
    try:
        await write(writer, spec)
    except TimeoutError:
        tally.failed("puts are not answered")
    await until(lambda: tally.events >= due, lambda: tally.events)
    cpu = time.process_time() - cpu
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
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(Spec(**json.loads(sys.argv[1]))))))
