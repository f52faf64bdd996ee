"""Clients that write and read the same few keys at once, through gateways and directly, and remember what they were told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from random import Random

import grpc

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.history import History, Read, Write
from tests.services.client import Client

KEYS = tuple(b"/check/%d" % number for number in range(5))
BELOW = (b"/check/", b"/check0")
TIMEOUT = 3.0


class Workload:
    """A context manager: clients run until it is left. `done`: operations that were answered; `failed`: those that were not."""

    def __init__(self, addresses: dict[str, str], direct: str) -> None:
        self.history = History()
        self.done = 0
        self.failed = 0
        self._direct = direct
        self._stop = threading.Event()
        self._values = count(1)
        self._threads: list[threading.Thread] = []
        everybody = {**addresses, "direct": direct}
        for name, address in everybody.items():
            self._add(self._write, name, address)
            self._add(self._read, f"{name} one", address)
            for number in range(3):  # they ask the same at the same time
                self._add(self._list, f"{name} list {number}", address)
        for name, address in addresses.items():
            self._add(self._serializable, f"{name} serializable", address)
            self._add(self._watch, name, address)

    def _add(self, work: Callable[[Client, str, Random], None], name: str, address: str) -> None:
        def run() -> None:
            rnd = Random(name)
            with Client(address) as client:
                while not self._stop.is_set():
                    try:
                        work(client, name, rnd)
                        self.done += 1
                    except grpc.RpcError:
                        self.failed += 1
                        time.sleep(0.02)

        self._threads.append(threading.Thread(target=run, daemon=True))

    def __enter__(self) -> Workload:
        with Client(self._direct) as client:
            self._first = client.put(b"/check/begin", b"begin") + 1
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        time.sleep(0.3)
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        self.history.truth = self._changes(self._first)

    def _changes(self, first: int) -> list[tuple[int, bytes, bytes | None]]:
        """All of them, from the cluster itself."""
        with Client(self._direct) as client:
            last = client.put(b"/check/end", b"end")
            found: list[tuple[int, bytes, bytes | None]] = []
            with client.watching() as stream:
                stream.created(*BELOW, start_revision=first)
                while not found or found[-1][0] < last:
                    found += changes(stream.next())
        return found

    # what clients do

    def _write(self, client: Client, name: str, rnd: Random) -> None:
        key, value = rnd.choice(KEYS), b"%d by %s" % (next(self._values), name.encode())
        start = time.monotonic()
        revision = 0
        try:
            if rnd.random() < 0.1:
                value_or_none = None
                request = pb.DeleteRangeRequest(key=key)
                revision = int(client.call("kv", "delete_range", request, TIMEOUT).header.revision)
            else:
                value_or_none = value
                revision = int(client.call("kv", "put", pb.PutRequest(key=key, value=value), TIMEOUT).header.revision)
        finally:
            self.history.writes.append(Write(key, value_or_none, start, time.monotonic(), revision))

    def _get(self, client: Client, name: str, keys: tuple[bytes, ...], request: pb.RangeRequest) -> None:
        start = time.monotonic()
        reply = client.call("kv", "range", request, TIMEOUT)
        found = {kv.key: kv.value for kv in reply.kvs if kv.key in KEYS}
        self.history.reads.append(Read(keys, found, reply.header.revision, start, time.monotonic(), name, request.serializable))

    def _read(self, client: Client, name: str, rnd: Random) -> None:
        key = rnd.choice(KEYS)
        self._get(client, name, (key,), pb.RangeRequest(key=key))

    def _list(self, client: Client, name: str, rnd: Random) -> None:
        self._get(client, name, KEYS, pb.RangeRequest(key=BELOW[0], range_end=BELOW[1]))

    def _serializable(self, client: Client, name: str, rnd: Random) -> None:
        key = rnd.choice(KEYS)
        self._get(client, name, (key,), pb.RangeRequest(key=key, serializable=True))

    def _watch(self, client: Client, name: str, rnd: Random) -> None:
        """Until the end; a stream that breaks is asked for again from the revision after the last one heard of."""
        heard = self.history.watched.setdefault(name, [])
        with client.watching() as stream:
            stream.created(*BELOW, start_revision=heard[-1][0] + 1 if heard else 0)
            while not self._stop.is_set():
                try:
                    heard += changes(stream.next(0.5))
                except Exception as error:
                    if isinstance(error, grpc.RpcError):
                        raise


def changes(reply: pb.WatchResponse) -> list[tuple[int, bytes, bytes | None]]:
    """As history.truth."""
    assert not reply.canceled, reply
    return [(event.kv.mod_revision, event.kv.key, event.kv.value if event.type == 0 else None) for event in reply.events]
