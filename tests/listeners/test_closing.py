"""A connection that is being closed ends, whatever its peer does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from gateway.listeners.grpc import LINGER, GrpcConnection
from gateway.wire.connection import Limits


class Deaf:
    """A transport whose peer reads nothing: close never finishes."""

    def __init__(self) -> None:
        self.aborted = False

    def set_write_buffer_limits(self, high: int) -> None: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async def work() -> None:
        port: Any = SimpleNamespace(instants={}, limits=Limits(), connections=set(), metrics=None, closing=False)
        connection = GrpcConnection(port)
        transport: Any = Deaf()
        connection.connection_made(transport)
        connection.data_received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))  # DATA where SETTINGS must come
        assert connection.conn.closing
        now = connection.loop.time()
        connection.tick(now)
        connection.tick(now + LINGER - 1)
        assert not transport.aborted
        connection.tick(now + LINGER + 1)
        assert transport.aborted

    asyncio.run(work())
