"""Linearizable reads from memory: one small read of the cluster confirms a revision for all reads that came before it was sent.

etcd's own linearizable read is a read index: the leader proves that it still leads, and names the revision that every earlier write is
part of. A Range of a key that does not exist does just that, so its reply's header revision is one that any number of waiting reads may
be served at, if they waited before it was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from gateway.core.errors import RpcError
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.upstream.calls import NOTHING
from gateway.upstream.channel import Channel
from gateway.upstream.cluster import Cluster
from gateway.wire.connection import Headers, Stream
from gateway.wire.frames import CANCEL
from gateway.wire.grpc import frame_message, parse_status, whole

RANGE = method("kv", "range")

PATIENCE = 1.0
"""Seconds that a confirmation may take; then those who wait for it ask the cluster themselves."""

HEDGE = 0.25
"""Seconds after which a second confirmation may be sent beside one that has not come back: its endpoint may be gone."""

PROBE = frame_message(pb.RangeRequest(key=b"\0shardgate", limit=1).SerializeToString())


class Reader(Protocol):
    """Who waits for a confirmed revision."""

    def confirmed(self) -> None:
        """The cluster's state of a moment after the question is in the store, and is what it holds now."""

    def unconfirmed(self) -> None:
        """The cluster does not answer, or the feed lags: ask the cluster itself."""


class Confirmation:
    """One such read; implements upstream.calls.Outgoing and wire.connection.Owner. `done` gets the reply's header, None for a failure."""

    __slots__ = ("_channel", "_done", "_reply", "_stream", "readers", "since")

    def __init__(self, readers: Sequence[Reader], since: float, done: Callable[[Confirmation, pb.ResponseHeader | None], None]) -> None:
        self.readers = readers
        self.since = since
        self._done = done
        self._reply = b""
        self._channel: Channel | None = None
        self._stream: Stream | None = None

    def start(self, channel: Channel) -> None:
        self._channel = channel
        self._stream = channel.open(self, RANGE, PROBE, True, NOTHING, None)

    def refuse(self, error: RpcError) -> None:
        self._done(self, None)

    def on_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if end:
            self._done(self, None if parse_status(headers)[0] else self._header())

    def _header(self) -> pb.ResponseHeader | None:
        message = whole(self._reply)
        try:
            return None if message is None else pb.RangeResponse.FromString(message).header
        except DecodeError:
            return None

    def on_data(self, stream: Stream, data: bytes, end: bool) -> None:
        self._reply += data
        if end or len(self._reply) > 4096:
            self.cancel()
            self._done(self, None)

    def on_reset(self, stream: Stream, code: int, text: str) -> None:
        self._done(self, None)

    def on_drained(self, stream: Stream) -> None:
        """It is sent whole."""

    def cancel(self) -> None:
        """Nobody waits for it any longer."""
        if self._channel is not None and self._stream is not None:
            self._channel.conn.reset(self._stream, CANCEL)
            self._channel.touch()


class Confirmations:
    """Those of one cluster: one under way at a time, a second one only when the first takes long. `count` and `readers` only grow."""

    def __init__(self, cluster: Cluster, confirmed: Callable[[pb.ResponseHeader, Sequence[Reader]], None]) -> None:
        """`confirmed` is told the header of the cluster's reply and who waited for it."""
        self.count = 0
        self.readers = 0
        self._cluster = cluster
        self._confirmed = confirmed
        self._clock = asyncio.get_running_loop().time
        self._waiting: list[Reader] = []
        self._under_way: list[Confirmation] = []

    def add(self, reader: Reader) -> None:
        """Queue it for the next one."""
        self._waiting.append(reader)
        if not self._under_way:
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.count += 1
        self.readers += len(waiting)
        confirmation = Confirmation(waiting, self._clock(), self._done)
        self._under_way.append(confirmation)
        self._cluster.dispatch(confirmation)

    def _done(self, confirmation: Confirmation, header: pb.ResponseHeader | None) -> None:
        if confirmation not in self._under_way:
            return
        self._under_way.remove(confirmation)
        if self._waiting and not self._under_way:
            self._send()
        if header is not None:
            self._confirmed(header, confirmation.readers)
        else:
            give_up(confirmation.readers)

    def tick(self, now: float) -> None:
        """Often: what takes too long is given up."""
        for confirmation in tuple(self._under_way):
            if now - confirmation.since > PATIENCE:
                confirmation.cancel()
                self._done(confirmation, None)
        if self._waiting and len(self._under_way) == 1 and now - self._under_way[0].since > HEDGE:
            self._send()

    def close(self) -> None:
        """Give everything up."""
        waiting, self._waiting = self._waiting, []
        give_up(waiting)
        for confirmation in tuple(self._under_way):
            confirmation.cancel()
            self._done(confirmation, None)


class Arrivals:
    """Who waits for the store to reach a revision."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float, Sequence[Reader]]] = []

    def wait(self, revision: int, readers: Sequence[Reader], now: float) -> None:
        """They are served when the revision is reached."""
        self._waiting.append((revision, now, readers))

    def reached(self, revision: int) -> None:
        """The store is there."""
        if self._waiting:
            ready = [readers for awaited, _, readers in self._waiting if awaited <= revision]
            self._waiting = [entry for entry in self._waiting if entry[0] > revision]
            for readers in ready:
                for reader in readers:
                    reader.confirmed()

    def late(self, since: float) -> bool:
        """Somebody waits since before then."""
        return any(entry[1] < since for entry in self._waiting)

    def close(self) -> None:
        """All have to ask the cluster themselves."""
        waiting, self._waiting = self._waiting, []
        for _, _, readers in waiting:
            give_up(readers)


def give_up(readers: Sequence[Reader]) -> None:
    """They have to ask the cluster themselves."""
    for reader in readers:
        reader.unconfirmed()
