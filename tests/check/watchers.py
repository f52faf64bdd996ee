"""Clients that watch, through gateways and directly, go on after the end of a stream where they were, and record what they are told."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import grpc

from gateway.core.keyrange import prefix_end
from gateway.etcdpb import rpc_pb2 as pb
from tests.check.history import Leg, Told, Watcher
from tests.check.watched import next_of
from tests.check.workload import CACHED, FAT, KEYS, UNCACHED
from tests.services.client import Client, WatchStream

NOPUT, NODELETE = pb.WatchCreateRequest.NOPUT, pb.WatchCreateRequest.NODELETE

ASK = 0.15
"""Seconds between two questions for progress."""


def wanted(key: bytes, end: bytes = b"", **fields: Any) -> Any:
    return pb.WatchCreateRequest(key=key, range_end=end, **fields)


def prefix(start: bytes, **fields: Any) -> Any:
    return wanted(start, prefix_end(start), **fields)


def streams() -> list[list[Any]]:
    """What the clients want, one list for each stream: of every kind, several on a stream."""
    return [
        [prefix(CACHED, prev_kv=True), wanted(KEYS[0]), prefix(UNCACHED)],
        [prefix(b"/check/", start_revision=2, prev_kv=True, fragment=True), prefix(CACHED, filters=[NOPUT], prev_kv=True)],
        [prefix(CACHED, filters=[NODELETE], progress_notify=True), wanted(KEYS[0], prev_kv=True), wanted(KEYS[1], KEYS[4])],
        [prefix(FAT, prev_kv=True, fragment=True), prefix(CACHED), wanted(b"\0", b"\0", filters=[NODELETE])],
    ]


class Stream:
    """Watches of one client. `addresses`: where to; each new stream goes to the next one. `lasts`: seconds after which the client ends a
    stream itself, None: never. `asks`: for progress."""

    def __init__(self, name: str, addresses: Sequence[str], requests: Sequence[Any], lasts: float | None, asks: bool) -> None:
        self.watchers = [Watcher(f"{name} {at}", request) for at, request in enumerate(requests)]
        self.broken = 0
        self._addresses = addresses
        self._rnd = Random(name)
        self._lasts = lasts
        self._asks = asks
        self._next = [int(request.start_revision) for request in requests]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """No more."""
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs"

    def _run(self) -> None:
        turn = 0
        while not self._stop.is_set():
            address = self._addresses[turn % len(self._addresses)]
            turn += 1
            legs = [Leg(address, start) for start in self._next]
            for watcher, leg in zip(self.watchers, legs, strict=True):
                watcher.legs.append(leg)
            with Client(address) as client, client.watching() as stream:
                try:
                    self._follow(stream, legs)
                except (grpc.RpcError, AssertionError):  # it broke, or was ended
                    self.broken += 1
                    time.sleep(0.05)
            self._next = [next_of(leg.told, leg.start) for leg in legs]

    def _follow(self, stream: WatchStream, legs: list[Leg]) -> None:
        for watcher, leg in zip(self.watchers, legs, strict=True):
            request = pb.WatchCreateRequest()
            request.CopyFrom(watcher.request)
            request.start_revision = leg.start
            stream.send(pb.WatchRequest(create_request=request))
        until = time.monotonic() + self._rnd.uniform(0.5, 1) * self._lasts if self._lasts else float("inf")
        asked, position, by_id = time.monotonic(), 0, dict[int, Leg]()
        waiting = iter(legs)
        while not self._stop.is_set() and time.monotonic() < until:
            if self._asks and time.monotonic() - asked > ASK:
                asked = time.monotonic()
                stream.ask_progress()
            try:
                reply = stream.next(0.05)
            except queue.Empty:
                continue
            told = Told(time.monotonic(), position, reply)
            position += 1
            if reply.created:
                by_id[reply.watch_id] = next(waiting)
            for leg in by_id.values() if reply.watch_id < 0 else (by_id[reply.watch_id],):
                leg.told.append(told)
            if reply.canceled:
                return  # all of them go on, on a new stream
