"""The port that clients connect to: the first bytes decide between HTTP/2 (gRPC) and HTTP/1.1 (JSON)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from aiohttp.web import Server

from gateway.etcdpb.methods import Method
from gateway.listeners.call import Recorder
from gateway.listeners.grpc import GrpcConnection, Handler
from gateway.listeners.quick import Shelf
from gateway.metrics import Metrics
from gateway.services.call import Instant
from gateway.wire.connection import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SILENCE = 30.0
"""Seconds within which a new connection has to say which protocol it speaks."""


@dataclass(eq=False)
class ClientPort:
    """What every connection of one listener shares, and which connections there are."""

    name: str
    handlers: Mapping[bytes, tuple[Method, Handler]]
    instants: Mapping[bytes, tuple[Method, Instant]]
    web: Server
    metrics: Metrics
    observer: Recorder
    limits: Limits
    max_connections: int
    max_request_bytes: int
    shelf: Shelf = field(init=False)
    connections: set[GrpcConnection] = field(default_factory=set)
    waiting: set[Sniffer] = field(default_factory=set)
    accepted: int = 0
    refused: int = 0
    closing: bool = False
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.instants, self.max_request_bytes)

    @property
    def full(self) -> bool:
        """No more connections: gRPC, JSON and those that have said nothing yet count alike."""
        return len(self.connections) + len(self.waiting) + len(self.web.connections) >= self.max_connections

    def accept(self) -> asyncio.Protocol:
        """The protocol factory of the listening socket."""
        return Sniffer(self)

    def tick(self, now: float) -> None:
        """About once a second: deadlines, keepalive, silent connections."""
        for connection in tuple(self.connections):
            connection.tick(now)
        for sniffer in tuple(self.waiting):
            sniffer.tick(now)

    async def closed(self) -> None:
        """Returns when the last connection has ended."""
        await self._empty.wait()

    def left(self, connection: GrpcConnection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if self.closing and not self.connections:
            self._empty.set()

    def abort(self) -> None:
        """Close what is still open, at once."""
        for connection in tuple(self.connections):
            connection.abort()

    def close(self) -> None:
        """Say GOAWAY on every connection; each closes when its calls have ended."""
        self.closing = True
        if not self.connections:
            self._empty.set()
        for connection in tuple(self.connections):
            connection.close("the gateway is shutting down")
        for sniffer in tuple(self.waiting):
            sniffer.close()


class Sniffer(asyncio.Protocol):
    """Reads until the protocol is known, then hands the transport over."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self._seen = b""
        self._transport: asyncio.Transport | None = None
        self._since = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        port = self._port
        port.accepted += 1
        if port.full:
            port.refused += 1
            self._transport.abort()
            return
        port.waiting.add(self)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._seen.startswith(PREFACE[:4]):
            self._become(GrpcConnection(self._port))
        elif not PREFACE.startswith(self._seen):
            self._become(self._port.web())

    def _become(self, protocol: asyncio.Protocol) -> None:
        transport = self._transport
        assert transport is not None
        self._port.waiting.discard(self)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._seen)

    def tick(self, now: float) -> None:
        """Close a connection that stays silent."""
        if now - self._since > SILENCE:
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._port.waiting.discard(self)
