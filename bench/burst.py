"""The same list, asked for by many at the same moment: a process that counts how often etcd was asked for it.

    python -m bench.burst '{"port": 2379, "etcd_port": 2379, "calls": 1000, "seconds": 2}'

prints one JSON object: calls, seconds, errors, a text of the first error, p50 and p99 in milliseconds, and the most calls that one burst
made to etcd."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from dataclasses import dataclass

import uvloop

from bench.connection import Connection
from bench.percentiles import percentiles
from bench.requests import DATA, END_HEADERS, END_STREAM, HEADERS, OBJECT, RANGE, READS, constant_blocks, frame, message
from bench.scrape import reading

CONNECTIONS = 10
SILENCE = 20.0
"""Seconds after which what is not answered counts as lost."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run: bursts of so many calls, one after the other, for about so long."""

    port: int
    etcd_port: int
    calls: int
    seconds: float


class Caller(Connection):
    """One connection."""

    def __init__(self, burst: Burst) -> None:
        super().__init__()
        self._burst = burst
        self._blocks = constant_blocks(RANGE)
        self._next = 1
        self.on_end = burst.ended
        self.on_lost = burst.lost

    def call(self, count: int) -> None:
        """Send so many calls in one write."""
        body = message(READS["list-uncached"])
        streams = range(self._next, self._next + 2 * count, 2)
        self._next += 2 * count
        frames = (frame(HEADERS, END_HEADERS, at, next(self._blocks)) + frame(DATA, END_STREAM, at, body) for at in streams)
        self.transport.write(b"".join(frames))


class Burst:
    """What came of it, over all bursts."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.latencies = array("d")
        self.seconds = 0.0
        self.upstream = 0
        self.errors = 0
        self.error = ""
        self._began = 0.0
        self._due = 0
        self._all = asyncio.Event()
        self._over = False

    def ended(self, stream: int, error: str | None) -> None:
        """A call."""
        self.latencies.append(time.perf_counter() - self._began)
        if error is not None:
            self._fail(error)
        self._due -= 1
        if not self._due:
            self._all.set()

    def lost(self, error: str) -> None:
        """A connection."""
        if not self._over:
            self._fail(error)
            self._all.set()

    def _fail(self, error: str) -> None:
        self.errors += 1
        self.error = self.error or error

    def _asked(self) -> int:
        return int(reading(self.spec.etcd_port, "grpc_server_handled_total", 'grpc_method="Range"'))

    async def measure(self) -> dict[str, object]:
        """The result as it is printed."""
        loop = asyncio.get_running_loop()
        callers = [(await loop.create_connection(lambda: Caller(self), "127.0.0.1", self.spec.port))[1] for _ in range(CONNECTIONS)]
        cpu = time.process_time()
        until = time.perf_counter() + self.spec.seconds
        while not self.errors and (not self.latencies or time.perf_counter() < until):
            await self._once(callers)
        cpu = time.process_time() - cpu
        received = sum(caller.data_bytes for caller in callers)
        if received < len(self.latencies) * 200 * len(OBJECT):
            self._fail(f"{len(self.latencies)} replies have only {received} bytes")
        self._over = True
        for caller in callers:
            caller.transport.abort()
        p50, p99 = percentiles(self.latencies, 0.50, 0.99)
        return {
            "calls": len(self.latencies),
            "seconds": self.seconds,
            "errors": self.errors,
            "error": self.error,
            "p50_ms": p50 * 1000,
            "p99_ms": p99 * 1000,
            "load_cpu": cpu,
            "upstream_calls": self.upstream,
        }

    async def _once(self, callers: list[Caller]) -> None:
        before = self._asked()
        self._due = self.spec.calls
        self._all.clear()
        self._began = time.perf_counter()
        for caller in callers:
            caller.call(self.spec.calls // len(callers))
        try:
            await asyncio.wait_for(self._all.wait(), SILENCE)
        except TimeoutError:
            self._fail(f"{self._due} calls are not answered")
        self.seconds += time.perf_counter() - self._began
        self.upstream = max(self.upstream, self._asked() - before)


async def main(spec: Spec) -> dict[str, object]:
    """One run."""
    return await Burst(spec).measure()


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(Spec(**json.loads(sys.argv[1]))))))
