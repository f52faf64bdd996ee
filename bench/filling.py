"""What many keys cost the gateway: memory, and the time until they are loaded. Each case has an etcd of its own, filled once."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.client import call
from bench.connection import Connection
from bench.procfs import rss_bytes
from bench.report import Runs
from bench.requests import DATA, END_HEADERS, END_STREAM, HEADERS, RANGE, TXN, constant_blocks, frame, key, message, puts
from bench.targets import etcd_command, free_port, server
from gateway.etcdpb import rpc_pb2

PREFIX = "/registry/pods/bench-fill/"
IN_FLIGHT = 16
MESSAGE = 14 << 10
"""Bytes of a txn at most: it has to fit into one frame of HTTP/2's default size."""

PAGE = 2_000
PATIENCE = 300.0


@dataclass(frozen=True)
class Filling:
    """A case: so many keys with values of so many bytes."""

    series: str
    size: int
    value: int
    measure: Callable[[Filling, str, int, Path], Runs]

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.series}/{self.size}"

    @property
    def raw(self) -> int:
        """Bytes of keys and values."""
        return self.size * (len(key(PREFIX, 0)) + self.value)


class Filler(Connection):
    """Writes all keys, IN_FLIGHT transactions at a time."""

    def __init__(self, filling: Filling) -> None:
        super().__init__()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._size = filling.size
        self._value = b"o" * filling.value
        self._batch = max(1, min(128, MESSAGE // (filling.value + 100)))
        self._blocks = constant_blocks(TXN)
        self._stream = 1
        self._next = 0
        self._under_way = 0
        self.on_end = self._ended
        self.on_lost = self._failed

    def start(self) -> None:
        """Send the first ones."""
        for _ in range(IN_FLIGHT):
            self._send()

    def _send(self) -> None:
        if self._next >= self._size:
            return
        names = [key(PREFIX, number) for number in range(self._next, min(self._next + self._batch, self._size))]
        self._next += self._batch
        body = message(puts(names, self._value))
        self.transport.write(
            frame(HEADERS, END_HEADERS, self._stream, next(self._blocks)) + frame(DATA, END_STREAM, self._stream, body)
        )
        self._stream += 2
        self._under_way += 1

    def _ended(self, stream: int, error: str | None) -> None:
        if error is not None:
            self._failed(error)
            return
        self._under_way -= 1
        self._send()
        if not self._under_way and not self.done.done():
            self.done.set_result(None)

    def _failed(self, error: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(error))


async def fill(port: int, filling: Filling) -> None:
    """Write all keys."""
    _, filler = await asyncio.get_running_loop().create_connection(lambda: Filler(filling), "127.0.0.1", port)
    filler.start()
    await filler.done
    filler.on_lost = lambda error: None
    filler.transport.abort()


class Loaded:
    """A gateway whose feed is watched; `log` has what it says."""

    def __init__(self, process: subprocess.Popen[bytes], admin: int, log: Path) -> None:
        self._admin = admin
        self._log = log
        self.pid = process.pid

    def wait(self, keys: int) -> None:
        """Until so many keys are in memory. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            cache = self.cache()
            if cache and cache["caching"] and cache["keys"] >= keys:
                return
            time.sleep(0.2)
        raise TimeoutError(f"not loaded within {PATIENCE:g} s: {self.cache()}")

    def cache(self) -> dict[str, Any]:
        """What /status says of it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin}/status", timeout=30) as page:
            found: dict[str, Any] = json.loads(page.read())["clusters"][0]["cache"]
        return found

    def settled(self) -> int:
        """Its memory when that does not become less any more."""
        least = rss_bytes(self.pid)
        for _ in range(10):
            time.sleep(1)
            now = rss_bytes(self.pid)
            if now > least * 0.99:
                break
            least = now
        return min(least, rss_bytes(self.pid))

    def seconds(self) -> float:
        """From the connection to the cluster to the feed that is live, by the log."""
        times = {
            event: datetime.fromisoformat(time)
            for time, event in re.findall(r"time=(\S+) .*?event=(endpoint_connected|feed_live)\b", self._log.read_text())
        }
        return (times["feed_live"] - times["endpoint_connected"]).total_seconds()


@contextmanager
def gateway(etcd: int, folder: Path, name: str) -> Iterator[Loaded]:
    """The gateway with its defaults and an admin port."""
    port, admin = free_port(), free_port()
    config = {
        "listeners": [{"name": "bench", "address": f"127.0.0.1:{port}"}],
        "admin": {"address": f"127.0.0.1:{admin}"},
        "clusters": [{"name": "main", "endpoints": [f"http://127.0.0.1:{etcd}"]}],
        "routes": [{"prefix": "", "cluster": "main"}],
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))
    with server(name, [sys.executable, "-m", "gateway", "serve", "--config", str(path)], port, folder) as process:
        yield Loaded(process, admin, folder / f"{name}.log")


def memory(filling: Filling, binary: str, repeat: int, folder: Path) -> Runs:
    """What the process needs more when it has loaded the keys, and when it has followed their writing, by their bytes."""
    port = free_port()
    with server("etcd-memory", etcd_command(binary, port, folder / "memory.etcd"), port, folder):
        with gateway(port, folder, "followed") as followed:
            followed.wait(0)
            empty = followed.settled()
            asyncio.run(fill(port, filling))
            followed.wait(filling.size)
            after = followed.settled()
        runs = []
        for number in range(repeat):
            with gateway(port, folder, f"loaded-{number}") as loaded:
                loaded.wait(filling.size)
                needs = loaded.settled()
            runs.append(
                {
                    "by_raw_size": (needs - empty) / filling.raw,
                    "by_raw_size_followed": (after - empty) / filling.raw,
                    "empty_bytes": empty,
                    "rss_bytes": needs,
                    "errors": 0,
                }
            )
    return {"gateway": runs}


def loading(filling: Filling, binary: str, repeat: int, folder: Path) -> Runs:
    """Keys a second: that etcd hands out in pages, one after the other, and that the gateway has in memory."""
    port = free_port()
    runs: Runs = {"etcd": [], "gateway": []}
    with server("etcd-loading", etcd_command(binary, port, folder / "loading.etcd"), port, folder):
        asyncio.run(fill(port, filling))
        for number in range(repeat):
            runs["etcd"].append({"rate": filling.size / asyncio.run(read(port, filling.size)), "errors": 0})
            with gateway(port, folder, f"loading-{number}") as loaded:
                loaded.wait(filling.size)
                runs["gateway"].append({"rate": filling.size / loaded.seconds(), "errors": 0, "rss_bytes": rss_bytes(loaded.pid)})
    return runs


class PageReader(Connection):
    """Reads pages and looks at nothing but their last key."""

    def __init__(self) -> None:
        super().__init__()
        self.page: asyncio.Future[bytes]
        self._parts: list[bytes] = []
        self._blocks = constant_blocks(RANGE)
        self._stream = 1
        self.on_data = lambda stream, payload: self._parts.append(payload)
        self.on_end = self._ended

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """The next one."""
        self.page = asyncio.get_running_loop().create_future()
        self.transport.write(
            frame(HEADERS, END_HEADERS, self._stream, next(self._blocks)) + frame(DATA, END_STREAM, self._stream, message(request))
        )
        self._stream += 2
        return self.page

    def _ended(self, stream: int, error: str | None) -> None:
        data, self._parts = b"".join(self._parts), []
        if error is None:
            self.page.set_result(data)
        else:
            self.page.set_exception(ConnectionError(error))


async def read(port: int, size: int) -> float:
    """All keys in pages of one revision; the seconds. The keys are known, so that nothing has to be decoded to go on."""
    first = rpc_pb2.RangeResponse.FromString(await call(port, RANGE, rpc_pb2.RangeRequest(key=b"x").SerializeToString()))
    _, reader = await asyncio.get_running_loop().create_connection(PageReader, "127.0.0.1", port)
    began = time.perf_counter()
    for at in range(0, size, PAGE):
        begin = key(PREFIX, at - 1) + b"\0" if at else b"\0"
        request = rpc_pb2.RangeRequest(key=begin, range_end=b"\0", limit=PAGE, revision=first.header.revision)
        data = await reader.ask(request.SerializeToString())
        if data.count(PREFIX.encode()) < min(PAGE, size - at):
            raise ConnectionError(f"a page has only {data.count(PREFIX.encode())} keys")
    seconds = time.perf_counter() - began
    reader.transport.abort()
    return seconds


FILLINGS = (Filling("memory", 200_000, 1_024, memory), Filling("loading", 1_000_000, 100, loading))
