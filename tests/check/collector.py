"""What a cluster did, revision by revision, from the cluster itself and while it happens: a compaction afterwards takes nothing away."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import grpc

from tests.etcd import EtcdCluster
from tests.services.client import Client

IDLE = 5.0
"""Seconds without an event after which another member is asked."""


class Collector:
    """A watch on everything from the first revision on, directly; a context manager. `log`: as history.History.log."""

    def __init__(self, etcd: EtcdCluster) -> None:
        self.log: list[tuple[int, Sequence[Any]]] = []
        self._etcd = etcd
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def revision(self) -> int:
        """Everything up to it is in the log."""
        return self.log[-1][0] if self.log else 1

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        at = 0
        while not self._stop.is_set():
            member = self._etcd.members[at % len(self._etcd.members)]
            at += 1
            with Client(member.address) as client, client.watching() as stream:
                try:
                    stream.create(b"\0", b"\0", start_revision=self.revision + 1)
                    self._follow(stream)
                except (grpc.RpcError, AssertionError):
                    time.sleep(0.05)

    def _follow(self, stream: Any) -> None:
        heard = time.monotonic()
        while not self._stop.is_set() and time.monotonic() - heard < IDLE:
            try:
                reply = stream.next(0.2)
            except queue.Empty:
                continue
            heard = time.monotonic()
            for revision, events in groupby(reply.events, lambda event: int(event.kv.mod_revision)):
                self.log.append((revision, tuple(events)))
