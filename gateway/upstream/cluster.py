"""INTERFACE SKETCH, being implemented: one etcd cluster as the services see it: endpoints, balancing, calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.core.errors import RpcError
from gateway.etcdpb.methods import Method
from gateway.services.call import Call   # (will be a Protocol on the upstream side; services pass their Call)


class Receiver(Protocol):
    """Takes what an upstream stream brings; called on the event loop."""

    def on_message(self, data: bytes) -> None:
        """One whole serialised protobuf message."""

    def on_end(self, error: RpcError | None) -> None:
        """The stream is over: None for OK. Called exactly once, unless the stream was cancelled from this side."""


class UpstreamStream(Protocol):
    def send(self, message: bytes) -> None: ...
    def half_close(self) -> None: ...
    def cancel(self) -> None: ...
    def pause(self) -> None:
        """Stop reading (the client is slow): at most the stream's window of bytes is still delivered."""
    def resume(self) -> None: ...


class Cluster:
    """`name`, `available` (at least one endpoint connected)."""

    name: str
    available: bool

    def forward(self, call: Call, message: bytes, method: Method | None = None) -> None:
        """Relay: send the request's own bytes to an endpoint, pass the reply's bytes (any number of messages) and its status on to the
        client as they come. Sets call.cluster, honours call.deadline, call.metadata, cancel. No endpoint: fails with Unavailable."""

    async def unary(self, method: Method, message: bytes, *, deadline: float | None = None,
                    metadata: Mapping[bytes, bytes] = {}) -> bytes:
        """One call for the gateway's own use; the reply's serialised message. Raises RpcError (etcd's own code and text)."""
        raise NotImplementedError

    def stream(self, method: Method, receiver: Receiver, metadata: Mapping[bytes, bytes]) -> UpstreamStream:
        """Open a bidirectional stream (Watch, LeaseKeepAlive). Failure to open arrives as receiver.on_end(Unavailable), never raised
        and never before this returns."""
        raise NotImplementedError
