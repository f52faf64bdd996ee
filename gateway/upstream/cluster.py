"""One etcd cluster as the services see it: its endpoints, the choice among them, and calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.upstream.calls import NOT_SENT, NOTHING, Caller, Outgoing, Receiver, Relay, Streaming, Unary, header_revision
from gateway.upstream.channel import Channel
from gateway.upstream.link import Link, LinkState

MAX_PARKED = 16_384
"""Calls that may wait for a first connection; beyond, they are refused."""

Report = Callable[[str, str, LinkState, str], None]
"""Told of every change of an endpoint: cluster, URL, state, error ("" but for failures)."""


class Endpoint:
    """One member's client URL, with two connections: one for calls, one for long-lived streams, so that neither waits for the other."""

    def __init__(self, url: str, changed: Callable[[Endpoint, Link, str], None], freed: Callable[[], None]) -> None:
        self.url = url

        def link_changed(link: Link, error: str) -> None:
            changed(self, link, error)

        self.calls = Link(url, link_changed, freed)
        self.streams = Link(url, link_changed, freed)

    @property
    def connections(self) -> int:
        """Open connections to this endpoint."""
        return sum(link.channel is not None for link in (self.calls, self.streams))


class Cluster:
    """A raft group: a call goes to the connected endpoint with the fewest calls under way. `seen`, if set, is told the revision in the
    header of each reply."""

    def __init__(self, name: str, urls: Sequence[str], report: Report) -> None:
        self.name = name
        self.seen: Callable[[int], None] | None = None
        self._report = report
        self._parked: deque[tuple[Outgoing, bool]] = deque()
        self._settled = asyncio.Event()
        self.failures: dict[str, int] = dict.fromkeys(urls, 0)
        self.endpoints = [Endpoint(url, self._changed, self._unpark) for url in urls]

    @property
    def available(self) -> bool:
        """At least one endpoint is connected."""
        return any(endpoint.calls.channel is not None for endpoint in self.endpoints)

    async def settled(self, seconds: float) -> bool:
        """Wait until an endpoint is connected or all have failed once; whether one is connected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        return self.available

    # calls

    def forward(self, call: Caller) -> None:
        """Relay: send the request's own bytes to an endpoint, pass the reply's bytes (any number of messages) and its status on to the
        client as they come. Honours the call's deadline, metadata and cancel. Without an endpoint: fails with Unavailable."""
        call.cluster = self.name
        relay = Relay(call, self._again, self.seen)
        channel = self._pick(False)
        if channel is not None:
            relay.start(channel)
        else:
            self._park(relay, False)

    async def unary(
        self, method: Method, message: bytes, *, deadline: float | None = None, metadata: Mapping[bytes, bytes] = NOTHING
    ) -> bytes:
        """One call for the gateway's own use; the reply's serialised message. Raises RpcError (etcd's own code and text)."""
        call = Unary(method, message, deadline, metadata, self._again)
        self.dispatch(call)
        try:
            async with asyncio.timeout_at(deadline):
                reply = await call.reply
        except TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded") from None
        finally:
            call.cancel()
        if self.seen is not None:
            self.seen(header_revision(reply, 0))
        return reply

    def stream(self, method: Method, receiver: Receiver, metadata: Mapping[bytes, bytes]) -> Streaming:
        """Open a two-way stream (Watch, LeaseKeepAlive). A failure to open arrives as receiver.on_end, never raised and never before
        this returns."""
        stream = Streaming(method, receiver, metadata)
        asyncio.get_running_loop().call_soon(self._dispatch, stream, True)
        return stream

    def dispatch(self, call: Outgoing) -> None:
        """A call that is given its channel, now or when there is one."""
        self._dispatch(call, False)

    # choosing an endpoint

    def _pick(self, streams: bool) -> Channel | None:
        best: Channel | None = None
        fewest = 0
        for endpoint in self.endpoints:
            channel = (endpoint.streams if streams else endpoint.calls).channel
            if channel is not None and channel.usable:
                active = len(channel.conn.streams)
                if best is None or active < fewest:
                    best, fewest = channel, active
        return best

    def _dispatch(self, call: Outgoing, streams: bool) -> None:
        channel = self._pick(streams)
        if channel is not None:
            call.start(channel)
        else:
            self._park(call, streams)

    def _again(self, call: Outgoing) -> None:
        """An endpoint refused the stream unprocessed (RFC 9113, section 8.7): try another, after this loop turn."""
        asyncio.get_running_loop().call_soon(self._dispatch, call, False)

    def _park(self, call: Outgoing, streams: bool) -> None:
        """Wait while a connection may still come: the first attempt is under way, or all streams are taken."""
        links = [endpoint.streams if streams else endpoint.calls for endpoint in self.endpoints]
        hopeful = any(link.state in (LinkState.CONNECTING, LinkState.READY) for link in links)
        if hopeful and len(self._parked) < MAX_PARKED:
            self._parked.append((call, streams))
        else:
            call.refuse(NOT_SENT)

    def _unpark(self) -> None:
        parked, self._parked = self._parked, deque()
        for call, streams in parked:
            self._dispatch(call, streams)

    def _changed(self, endpoint: Endpoint, link: Link, error: str) -> None:
        if error:
            self.failures[endpoint.url] += 1
        if link is endpoint.calls:
            self._report(self.name, endpoint.url, link.state, error)
        if self.available or all(each.calls.state is LinkState.FAILING for each in self.endpoints):
            self._settled.set()
        if self._parked:
            self._unpark()

    def tick(self, now: float) -> None:
        """About once a second: keepalive of every connection."""
        for endpoint in self.endpoints:
            endpoint.calls.tick(now)
            endpoint.streams.tick(now)

    def close(self) -> None:
        """End every connection; calls under way and parked ones fail."""
        for endpoint in self.endpoints:
            endpoint.calls.close()
            endpoint.streams.close()
        parked, self._parked = self._parked, deque()
        for call, _ in parked:
            call.refuse(NOT_SENT)
