"""A connection to an endpoint that is kept up: connect, wait, back off, connect again."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from enum import Enum
from urllib.parse import urlsplit

from gateway.upstream.channel import Channel

CONNECT_TIMEOUT = 3.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class LinkState(Enum):
    """CONNECTING: first attempt since the start or since the link was up. FAILING: an attempt has failed since."""

    CONNECTING = "connecting"
    READY = "ready"
    FAILING = "failing"
    CLOSED = "closed"


def pause_before(attempt: int) -> float:
    """Seconds to wait before the attempt (1 = the first retry): doubled each time, bounded, jittered by half."""
    longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 10))
    return longest * random.uniform(0.5, 1.0)


class Link:
    """Keeps one channel to an endpoint up. `changed(link, error)` is called after each change of state; error is "" but for failures."""

    def __init__(self, url: str, changed: Callable[[Link, str], None], freed: Callable[[], None]) -> None:
        parts = urlsplit(url)
        self.url = url
        self.state = LinkState.CONNECTING
        self.channel: Channel | None = None
        self._address = (parts.hostname or "", parts.port or 2379)
        self._authority = parts.netloc
        self._changed = changed
        self._freed = freed
        self._attempt = 0
        self._down = asyncio.Event()
        self._up = asyncio.Event()
        self._pending: Channel | None = None
        self._reason = ""
        self._retired: set[Channel] = set()
        self._task = asyncio.get_running_loop().create_task(self._keep_up())

    async def _keep_up(self) -> None:
        while True:
            error = await self._connect()
            if not error:
                await self._down.wait()
                error = self._reason
            self._attempt += 1
            if self.state is LinkState.READY:
                self._set(LinkState.CONNECTING, error)
            else:
                self._set(LinkState.FAILING, error)
                await asyncio.sleep(pause_before(self._attempt))

    async def _connect(self) -> str:
        """One attempt; "" when the link is up, else what went wrong."""
        self._down.clear()
        self._up.clear()
        channel = Channel(self._authority, self)
        self._pending = channel
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await asyncio.get_running_loop().create_connection(lambda: channel, *self._address)
                await self._up.wait()
        except TimeoutError:
            channel.abort("timeout")
            return f"no answer within {CONNECT_TIMEOUT:g} s"
        except OSError as error:
            return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        finally:
            self._pending = None
        return self._reason if self._down.is_set() and self.channel is None else ""

    def _set(self, state: LinkState, error: str = "") -> None:
        self.state = state
        self._changed(self, error)

    def on_ready(self, channel: Channel) -> None:
        self.channel = channel
        self._attempt = 0
        self._reason = ""
        self._up.set()
        self._set(LinkState.READY)

    def on_slots(self, channel: Channel) -> None:
        self._freed()

    def on_retired(self, channel: Channel, reason: str) -> None:
        self._retired.add(channel)
        self._let_go(channel, reason)

    def on_lost(self, channel: Channel, reason: str) -> None:
        if channel in self._retired:
            self._retired.discard(channel)
        else:
            self._let_go(channel, reason)

    def _let_go(self, channel: Channel, reason: str) -> None:
        if channel is self.channel:
            self.channel = None
        elif channel is not self._pending:
            return
        self._reason = reason
        self._up.set()
        self._down.set()

    def tick(self, now: float) -> None:
        """About once a second: keepalive of the channel and of those that finish their last calls."""
        for channel in (self.channel, *self._retired):
            if channel is not None:
                channel.tick(now)

    def close(self) -> None:
        """End the link for good; calls under way fail."""
        self._task.cancel()
        for channel in (self.channel, self._pending, *self._retired):
            if channel is not None:
                channel.abort("the gateway is closing")
        self.state = LinkState.CLOSED


def keep_alive(sock: socket.socket) -> None:
    """TCP keepalive for a connection without streams, where etcd forbids HTTP/2 pings (its enforcement policy)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
