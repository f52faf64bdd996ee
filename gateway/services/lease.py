"""The Lease service: leases live on the home cluster, with copies where they are attached to keys of other clusters."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from google.protobuf.message import DecodeError

from gateway.core.errors import LEASE_NOT_FOUND, Code, RpcError
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.call import Call, Session
from gateway.services.leases import REVOKE, TIME_TO_LIVE, Copies
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster

COPY_PATIENCE = 1.0
"""Seconds that a keepalive waits for the copies once home has answered."""

MAX_PENDING = 1_000
"""Keepalives of one stream that may wait for their answers."""


class Lease:
    """With one cluster everything is forwarded."""

    def __init__(self, scope: Scope, copies: Copies) -> None:
        self._scope = scope
        self._home = scope.home
        self._copies = copies

    def lease_grant(self, call: Call, request: bytes) -> None:
        """On the home cluster; id and TTL are remembered."""
        if self._scope.single:
            self._home.forward(call, request)
        else:
            call.cluster = self._home.name
            call.run(self._grant(call, request))

    async def _grant(self, call: Call, request: bytes) -> bytes:
        message = await self._home.unary(call.method, request, deadline=call.deadline, metadata=call.metadata)
        granted = pb.LeaseGrantResponse.FromString(message)
        self._copies.book.remember(granted.ID, granted.TTL)
        return message

    def lease_revoke(self, call: Call, request: bytes) -> None:
        """At home, then every copy. Home decides; a lease that only copies still had counts as revoked."""
        if self._scope.single:
            self._home.forward(call, request)
        else:
            call.cluster = self._home.name
            call.run(self._revoke(call, request))

    async def _revoke(self, call: Call, request: bytes) -> bytes:
        number = _decoded(pb.LeaseRevokeRequest, request).ID
        try:
            message = await self._home.unary(REVOKE, request, deadline=call.deadline, metadata=call.metadata)
        except RpcError as error:
            if error.text != LEASE_NOT_FOUND.text or not await self._copies.revoke(number):
                raise
            return bytes(pb.LeaseRevokeResponse().SerializeToString())
        await self._copies.revoke(number)
        return message

    def lease_time_to_live(self, call: Call, request: bytes) -> None:
        """Home's answer, with the keys of every copy and the smallest TTL."""
        if self._scope.single:
            self._home.forward(call, request)
        else:
            call.cluster = self._home.name
            call.run(self._time_to_live(call, request))

    async def _time_to_live(self, call: Call, request: bytes) -> bytes:
        number = _decoded(pb.LeaseTimeToLiveRequest, request).ID
        asked = [self._home, *self._copies.holders(number)]
        calls = (cluster.unary(TIME_TO_LIVE, request, deadline=call.deadline, metadata=call.metadata) for cluster in asked)
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        reply = pb.LeaseTimeToLiveResponse.FromString(first)
        if reply.TTL > 0:
            copies = [pb.LeaseTimeToLiveResponse.FromString(other) for other in others if isinstance(other, bytes)]
            held = [copy for copy in copies if copy.TTL > 0]
            keys = sorted([*reply.keys, *(key for copy in held for key in copy.keys)])
            reply = pb.LeaseTimeToLiveResponse(
                header=reply.header, ID=reply.ID, grantedTTL=reply.grantedTTL, keys=keys, TTL=min([reply.TTL, *(copy.TTL for copy in held)])
            )
        return bytes(reply.SerializeToString())

    def lease_leases(self, call: Call, request: bytes) -> None:
        """Home's list: every lease is there."""
        self._home.forward(call, request)

    def lease_keep_alive(self, call: Call) -> Session:
        """One answer for each message, in their order."""
        call.cluster = self._home.name
        return KeepAlives(call, self._scope, self._copies)


class KeepAlives:
    """One client's keepalive stream: each message goes to home and to every copy; home's answer counts, the TTL is the smallest."""

    def __init__(self, call: Call, scope: Scope, copies: Copies) -> None:
        self._call = call
        self._copies = copies
        self._home = Lane(call, scope.home)
        self._lanes: dict[str, Lane] = {}
        self._single = scope.single
        self._pending: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_PENDING)
        call.on_cancel = self._close
        call.run(self._work())

    def message(self, data: bytes) -> None:
        try:
            self._pending.put_nowait(data)
        except asyncio.QueueFull:
            self._close()
            self._call.fail(RpcError(Code.RESOURCE_EXHAUSTED, f"more than {MAX_PENDING} keepalives without an answer"))

    def half_close(self) -> None:
        """The answers to what was sent still come, then the stream ends, as with etcd."""
        try:
            self._pending.put_nowait(None)
        except asyncio.QueueFull:
            self._close()

    def _close(self) -> None:
        for lane in (self._home, *self._lanes.values()):
            lane.close()

    async def _work(self) -> None:
        try:
            while (data := await self._pending.get()) is not None:
                self._call.send(await self._keep_alive(data))
            self._call.end()
        finally:
            self._close()

    async def _keep_alive(self, data: bytes) -> bytes:
        if self._single:
            return await self._home.ask(data)
        number = _decoded(pb.LeaseKeepAliveRequest, data).ID
        copies = [asyncio.ensure_future(self._lane(cluster).ask(data)) for cluster in self._copies.holders(number)]
        try:
            message = await self._home.ask(data)
            reply = pb.LeaseKeepAliveResponse.FromString(message)
            if reply.TTL <= 0:
                if copies:
                    await self._copies.revoke(number)
                return message
            if not copies:
                return message
            done, _ = await asyncio.wait(copies, timeout=COPY_PATIENCE)
            ttls = [pb.LeaseKeepAliveResponse.FromString(copy.result()).TTL for copy in done if copy.exception() is None]
            reply.TTL = min([reply.TTL, *(ttl for ttl in ttls if ttl > 0)])
            return bytes(reply.SerializeToString())
        finally:
            for copy in copies:
                copy.cancel()

    def _lane(self, cluster: Cluster) -> Lane:
        lane = self._lanes.get(cluster.name)
        if lane is None or lane.closed:
            lane = self._lanes[cluster.name] = Lane(self._call, cluster)
        return lane


class Lane:
    """A keepalive stream to one cluster; answers come in the order of the questions."""

    def __init__(self, call: Call, cluster: Cluster) -> None:
        self.closed = False
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._stream = cluster.stream(call.method, self, call.metadata)

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        """The answer to one message; RpcError when the stream has ended."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_exception(RpcError(Code.UNAVAILABLE, "there is no connection available"))
        else:
            self._waiting.append(future)
            self._stream.send(data)
        return future

    def on_message(self, data: bytes) -> None:
        if self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(data)

    def on_end(self, error: RpcError | None) -> None:
        self.closed = True
        failure = error or RpcError(Code.UNAVAILABLE, "the keepalive stream was ended by the cluster")
        for future in self._waiting:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # seen, whether somebody waits or not
        self._waiting.clear()

    def close(self) -> None:
        """No more questions."""
        self.closed = True
        self._stream.cancel()
        for future in self._waiting:
            future.cancel()
        self._waiting.clear()


def _decoded(kind: Any, data: bytes) -> Any:
    """The message; grpc-go's error when it is none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RpcError(Code.INTERNAL, f"grpc: failed to unmarshal the received message: {error}") from None
