"""Clients that write, read and watch the same few keys at once, through gateways and directly, and record what they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import grpc

from gateway.core.keyrange import prefix_end
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import Method, method
from tests.check.history import Operation
from tests.services.client import Client

CACHED, UNCACHED, FAT = b"/check/c/", b"/check/u/", b"/check/f/"
"""Prefixes: kept in memory by the gateways, not kept, and kept with values of which two make a watch response of several fragments."""

KEYS = tuple(b"%b%d" % (prefix, number) for prefix, size in ((CACHED, 6), (UNCACHED, 3)) for number in range(size))
FAT_KEYS = FAT + b"0", FAT + b"1"
FAT_BYTES = 700_000
TIMEOUT = 2.0

METHODS: dict[type, Method] = {
    pb.RangeRequest: method("kv", "range"),
    pb.PutRequest: method("kv", "put"),
    pb.DeleteRangeRequest: method("kv", "delete_range"),
    pb.TxnRequest: method("kv", "txn"),
    pb.CompactionRequest: method("kv", "compact"),
}

Work = Callable[["Caller"], None]


class Caller:
    """One client on one connection; a call after the other, each recorded. `failed` is raised by those that were not answered."""

    def __init__(self, name: str, address: str, workload: Workload) -> None:
        self.name = name
        self.rnd = Random(f"{workload.seed} {name}")
        self.workload = workload
        self._client = Client(address)
        self._seen: dict[bytes, int] = {}

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.channel.close()

    def ask(self, request: Any, timeout: float = TIMEOUT) -> Any:
        """The reply; None for an error."""
        reply, error = None, ("", "")
        rpc = METHODS[type(request)]
        stub = self._client.channel.unary_unary(
            rpc.path.decode(), request_serializer=rpc.request.SerializeToString, response_deserializer=rpc.reply.FromString
        )
        began = time.monotonic()
        try:
            reply = stub(request, timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as failure:
            error = failure.code().name, str(failure.details())
        ended = time.monotonic()
        self.workload.operations.append(Operation(self.name, request, began, ended, reply, error))
        return reply

    def range(self, key: bytes, end: bytes = b"", **fields: Any) -> Any:
        return self.ask(pb.RangeRequest(key=key, range_end=end, **fields))

    def list(self, prefix: bytes, **fields: Any) -> Any:
        return self.range(prefix, prefix_end(prefix), **fields)

    def put(self, key: bytes, **fields: Any) -> Any:
        return pb.PutRequest(key=key, value=self.workload.value(self.name), **fields)

    # what clients do, again and again

    def write(self) -> None:
        """Puts, most of all; deletions of one key and of many, and transactions of several keys, on a condition or without."""
        rnd, key = self.rnd, self.rnd.choice(KEYS)
        kind = rnd.random()
        with self.workload.writing:
            if kind < 0.5:
                self.ask(self.put(key, prev_kv=rnd.random() < 0.3))
            elif kind < 0.6:
                self.ask(pb.DeleteRangeRequest(key=key, prev_kv=rnd.random() < 0.3))
            elif kind < 0.63:
                self.ask(pb.DeleteRangeRequest(key=CACHED, range_end=prefix_end(CACHED)))
            elif kind < 0.8:
                self._compare_and_swap(key)
            else:
                puts = [pb.RequestOp(request_put=self.put(each)) for each in rnd.sample(KEYS, 3)]
                self.ask(pb.TxnRequest(success=puts))

    def _compare_and_swap(self, key: bytes) -> None:
        """kube-apiserver's update. What its client knows of the key is from the last time, so it fails now and then."""
        got = pb.RequestOp(request_range=pb.RangeRequest(key=key))
        compare = pb.Compare(target=pb.Compare.MOD, result=pb.Compare.EQUAL, key=key, mod_revision=self._seen.get(key, 0))
        reply = self.ask(pb.TxnRequest(compare=[compare], success=[pb.RequestOp(request_put=self.put(key))], failure=[got]))
        if reply is not None and reply.succeeded:
            self._seen[key] = reply.header.revision
        elif reply is not None:
            kvs = reply.responses[0].response_range.kvs
            self._seen[key] = kvs[0].mod_revision if kvs else 0

    def write_fat(self) -> None:
        puts = [pb.PutRequest(key=key, value=self.workload.value(self.name).ljust(FAT_BYTES)) for key in FAT_KEYS]
        with self.workload.writing:
            self.ask(pb.TxnRequest(success=[pb.RequestOp(request_put=put) for put in puts]))
        time.sleep(0.7)

    def read(self) -> None:
        """Linearizable, of every shape."""
        prefix = self.rnd.choice((CACHED, CACHED, UNCACHED, b"/check/"))
        kind = self.rnd.random()
        if kind < 0.6:
            self.range(self.rnd.choice(KEYS))
        elif kind < 0.75 and prefix != b"/check/":
            self.list(prefix)
        elif kind < 0.85:
            self.list(prefix, keys_only=True)
        elif kind < 0.95:
            self.list(prefix, count_only=True)
        else:
            self.list(prefix, limit=2, keys_only=True)

    def read_the_same(self) -> None:
        """What others ask at the same time; not in step with them, as those who are answered together would be."""
        if self.rnd.random() < 0.5:
            time.sleep(self.rnd.uniform(0, 0.02))
        self.list(UNCACHED)

    def read_serializable(self) -> None:
        if self.rnd.random() < 0.7:
            self.range(self.rnd.choice(KEYS), serializable=True)
        else:
            self.list(CACHED, serializable=True)

    def read_pages(self) -> None:
        """All keys at the revision of the first page, two at a time."""
        prefix = self.rnd.choice((CACHED, UNCACHED))
        page = self.list(prefix, limit=2)
        revision = page.header.revision if page is not None else 0
        while page is not None and page.more:
            page = self.range(page.kvs[-1].key + b"\0", prefix_end(prefix), limit=2, revision=revision)


class Workload:
    """A context manager: clients run until it is left. `operations`: what they did, all of it in the end. `writing`: to be held by who
    writes; `no_writes` waits until nobody does."""

    def __init__(self, gateways: Sequence[str], direct: Sequence[str], seed: int = 0) -> None:
        self.seed = seed
        self.operations: list[Operation] = []
        self.direct = direct
        self.writing = Shared()
        self._numbers = count(1)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        for at, address in enumerate(gateways):
            shared = (Caller.write, Caller.read, *[Caller.read_the_same] * 3, Caller.read_serializable, Caller.read_pages)
            for number, work in enumerate(shared):
                self._add(f"gateway {at} {work.__name__} {number}", address, work)
        for at, address in enumerate(direct):
            for work in (Caller.write, Caller.read, Caller.read_serializable)[: 3 if not at else 1]:
                self._add(f"etcd {at} {work.__name__}", address, work)
        self._add("gateway 0 fat", gateways[0], Caller.write_fat)

    def value(self, writer: str) -> bytes:
        """One that nobody else writes."""
        return b"%d by %b" % (next(self._numbers), writer.encode())

    def _add(self, name: str, address: str, work: Work) -> None:
        def run() -> None:
            with Caller(name, address, self) as caller:
                while not self._stop.is_set():
                    before = len(self.operations)
                    work(caller)
                    if any(each.error[0] for each in self.operations[before:] if each.client == name):
                        time.sleep(0.02)

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))

    def __enter__(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def mark(self) -> None:
        """Write what every watcher hears of, puts and deletions, at the end."""
        with Caller("the end", self.direct[0], self) as caller:
            for key in (KEYS[0], UNCACHED + b"0", *FAT_KEYS):
                assert caller.ask(caller.put(key), 10) is not None
                assert caller.ask(pb.DeleteRangeRequest(key=key), 10) is not None


class Shared:
    """A lock that many may hold at once, and one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._holders += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._holders -= 1
            self._changed.notify_all()

    @contextmanager
    def alone(self) -> Any:
        """Nobody holds it within, and nobody gets it."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._holders)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
