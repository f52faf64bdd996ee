"""Unary calls that differ from one to the next: a process that keeps a number of them in flight and counts the replies.

    python -m bench.load '{"port": 2379, "work": "put", "connections": 4, "lanes": 8, "seconds": 2, "timeouts": false, "run": "a"}'

prints one JSON object: calls, seconds, errors, a text of the first error, p50 and p99 in milliseconds."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from typing import Any

import uvloop

from bench.client import REVISIONS
from bench.connection import Connection
from bench.percentiles import percentiles
from bench.requests import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OBJECT,
    PAGE,
    PUT,
    RANGE,
    READS,
    TXN,
    constant_blocks,
    key,
    message,
    pages,
    put,
    replace,
    timeout_ring,
)
from gateway.etcdpb import rpc_pb2


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `lanes`: calls in flight on each connection. `run` makes its keys differ from those of other runs.
    `revision`: the latest one, for pages."""

    port: int
    work: str
    connections: int
    lanes: int
    seconds: float
    timeouts: bool
    run: str
    revision: int = 0


class Fixed:
    """Calls whose replies need no look: the same requests again and again. `least`: bytes that each reply has on average."""

    wants_reply = False

    def __init__(self, path: bytes, requests: list[bytes], least: int = 0) -> None:
        self.path = path
        self.least = least
        self._bodies = cycle([message(request) for request in requests])

    def request(self, call: int) -> bytes:
        return next(self._bodies)

    def reply(self, call: int, data: bytes) -> str | None:
        return None


class Creates:
    """kube-apiserver's create: a txn that puts a key that must not exist."""

    path = TXN
    wants_reply = True
    least = 0
    KEY = 99_999_999

    def __init__(self, spec: Spec) -> None:
        self._numbers = count()
        name = key(f"/registry/configmaps/bench-create/{spec.run}-", self.KEY)
        self._pieces = message(replace(name, 0)).split(b"%08d" % self.KEY)

    def request(self, call: int) -> bytes:
        return (b"%08d" % next(self._numbers)).join(self._pieces)

    def reply(self, call: int, data: bytes) -> str | None:
        return None if rpc_pb2.TxnResponse.FromString(data[5:]).succeeded else "the key existed"


class Updates:
    """kube-apiserver's update: a txn that puts a key at the revision that the writer knows. A key has one writer at a time."""

    path = TXN
    wants_reply = True
    least = 0

    def __init__(self, spec: Spec) -> None:
        prefix = f"/registry/configmaps/bench-update/{spec.run}-"
        self._free = deque((key(prefix, number), 0) for number in range(spec.connections * spec.lanes * 2))
        self._busy: dict[int, bytes] = {}

    def request(self, call: int) -> bytes:
        name, revision = self._free.popleft()
        self._busy[call] = name
        return message(replace(name, revision))

    def reply(self, call: int, data: bytes) -> str | None:
        reply = rpc_pb2.TxnResponse.FromString(data[5:])
        self._free.append((self._busy.pop(call), reply.header.revision))
        return None if reply.succeeded else "the key was at another revision"


def puts(spec: Spec) -> Fixed:
    """Puts over 10,000 keys."""
    return Fixed(PUT, [put(key("/registry/configmaps/bench-put/", number)) for number in range(10_000)])


def all_pages(spec: Spec) -> Fixed:
    """Lists in pages, each list at another revision."""
    return Fixed(RANGE, [page for back in range(REVISIONS) for page in pages(spec.revision - back)], PAGE * len(OBJECT))


WORKS: dict[str, Callable[[Spec], Fixed | Creates | Updates]] = {
    **{name: partial(lambda request, spec: Fixed(RANGE, [request]), request) for name, request in READS.items()},
    "put": puts,
    "pages-10000": all_pages,
    "create": Creates,
    "update": Updates,
}


class Lanes(Connection):
    """One connection with a fixed number of calls in flight: each reply sends the next call. What is in flight at once has to fit into the
    64 KiB that HTTP/2 lets a client send unasked: 64 calls of 1,000 bytes do."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._base = len(run.lanes) << 32
        self._blocks = run.blocks()
        self._started = array("d")
        self._parts: dict[int, bytes] = {}
        self._due = 0
        self.on_end = self._ended
        self.on_batch = self._send
        self.on_lost = run.lost
        if run.work.wants_reply:
            self.on_data = self._collect

    def start(self, lanes: int) -> None:
        """Send the first calls."""
        self._due = lanes
        self._send()

    def _send(self) -> None:
        out: list[bytes] = []
        started, now = self._started, time.perf_counter()
        for _ in range(self._due):
            call = len(started)
            stream = (call * 2 + 1).to_bytes(4, "big")
            started.append(now)
            block, body = next(self._blocks), self._run.work.request(self._base | call)
            out += (len(block).to_bytes(3, "big"), CALL_HEADERS, stream, block, len(body).to_bytes(3, "big"), CALL_DATA, stream, body)
        self._due = 0
        if out and self._run.running:
            self.transport.write(b"".join(out))

    def _collect(self, stream: int, payload: bytes) -> None:
        parts = self._parts
        parts[stream] = parts[stream] + payload if stream in parts else payload

    def _ended(self, stream: int, error: str | None) -> None:
        run, call = self._run, stream >> 1
        if run.work.wants_reply:
            data = self._parts.pop(stream, b"")
            error = error or run.work.reply(self._base | call, data)
        if not run.running:
            return
        run.latencies.append(time.perf_counter() - self._started[call])
        if error is not None:
            run.failed(error)
        self._due += 1


CALL_HEADERS = bytes((HEADERS, END_HEADERS))
CALL_DATA = bytes((DATA, END_STREAM))


class Run:
    """What the connections of one run share."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.work = WORKS[spec.work](spec)
        self.latencies = array("d")
        self.errors = 0
        self.error = ""
        self.running = True
        self.lanes: list[Lanes] = []
        self._ring = timeout_ring(self.work.path) if spec.timeouts else []
        self._over = asyncio.Event()

    def blocks(self) -> Iterator[bytes]:
        """The header blocks of a new connection's calls."""
        return cycle(self._ring) if self._ring else constant_blocks(self.work.path)

    def failed(self, error: str) -> None:
        """Count a call that did not succeed."""
        self.errors += 1
        self.error = self.error or error

    def lost(self, error: str) -> None:
        """A connection ended: no result counts any more."""
        if self.running:
            self.failed(error)
            self._over.set()

    async def measure(self) -> dict[str, Any]:
        """Run for the time of the spec; the result as it is printed."""
        loop = asyncio.get_running_loop()
        for _ in range(self.spec.connections):
            _, lanes = await loop.create_connection(lambda: Lanes(self), "127.0.0.1", self.spec.port)
            self.lanes.append(lanes)
        gc.disable()
        cpu = time.process_time()
        began = time.perf_counter()
        for lanes in self.lanes:
            lanes.start(self.spec.lanes)
        loop.call_later(self.spec.seconds, self._over.set)
        await self._over.wait()
        seconds = time.perf_counter() - began
        cpu = time.process_time() - cpu
        self.running = False
        for lanes in self.lanes:
            lanes.transport.abort()
        received = sum(lanes.data_bytes for lanes in self.lanes)
        if received < len(self.latencies) * self.work.least:
            self.failed(f"{len(self.latencies)} replies have {received} bytes, {self.work.least} each are due")
        p50, p99 = percentiles(self.latencies, 0.50, 0.99)
        return {
            "calls": len(self.latencies),
            "seconds": seconds,
            "errors": self.errors,
            "error": self.error,
            "p50_ms": p50 * 1000,
            "p99_ms": p99 * 1000,
            "load_cpu": cpu,
        }


async def main(spec: Spec) -> dict[str, Any]:
    """One run."""
    return await Run(spec).measure()


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(Spec(**json.loads(sys.argv[1]))))))
