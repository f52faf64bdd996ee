"""A well-behaved client that works beside a test and remembers whatever went wrong for it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import grpc

from gateway.etcdpb import rpc_pb2 as pb
from tests.services.client import Client


@dataclass
class Load:
    """Writes a key and reads it back, over and over, until the context is left. `worst` is the longest round in seconds."""

    address: str
    key: bytes
    pause: float = 0.005
    timeout: float = 5.0
    rounds: int = 0
    worst: float = 0.0
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        with Client(self.address) as client:
            while not self._stop.wait(self.pause):
                self._round(client)

    def _round(self, client: Client) -> None:
        value = b"%d" % self.rounds
        start = time.monotonic()
        try:
            client.call("kv", "put", pb.PutRequest(key=self.key, value=value), self.timeout)
            found = client.call("kv", "range", pb.RangeRequest(key=self.key), self.timeout)
            if found.kvs[0].value != value:
                self.errors.append(f"wrote {value!r}, read {found.kvs[0].value!r}")
        except grpc.RpcError as error:
            self.errors.append(f"{error.code().name}: {error.details()}")
        self.worst = max(self.worst, time.monotonic() - start)
        self.rounds += 1
