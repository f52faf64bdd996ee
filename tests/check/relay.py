"""TCP relays on loopback that do to connections what networks do, in a process of their own.

    python -m tests.check.relay 127.0.0.1:2379 127.0.0.1:2380

prints a JSON list of ports, one for each address, and takes commands, a JSON object a line; it ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import uvloop

from tests.etcd import ROOT, end

WATCH = b"/etcdserverpb.Watch/Watch"
"""A connection on which this was sent is the one that the feed uses: the gateway has streams apart from calls, and writes paths out."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: what is closed is reset."""


class Half(asyncio.Protocol):
    """One side of a connection through a relay."""

    def __init__(self, relay: Relay, other: Half | None = None) -> None:
        self._relay = relay
        self._kept: deque[tuple[float, bytes]] = deque()  # each with the time at which it may go
        self.other = other
        self.feed = False
        self.held = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._relay.halves.add(self)
        if self.other is None:
            self._relay.connect(self)
        else:
            self.other.other = self
            self.other.pass_on()
        self._relay.suit(self)

    def data_received(self, data: bytes) -> None:
        if not self.feed and WATCH in data:
            self.feed = True
            self._relay.suit(self)
            if self.other is not None:
                self.other.feed = True
                self._relay.suit(self.other)
        loop, delay = asyncio.get_running_loop(), self._relay.delay
        self._kept.append((loop.time() + delay, data))
        if delay:
            loop.call_later(delay + 0.0005, self.pass_on)
        self.pass_on()

    def pass_on(self) -> None:
        """Give the other side what it may have."""
        if self._kept and not self.held and self.other is not None and self.other.transport is not None:
            now = asyncio.get_running_loop().time()
            while self._kept and self._kept[0][0] <= now:
                self.other.transport.write(self._kept.popleft()[1])

    def hold(self, on: bool) -> None:
        """Nothing passes, and nobody is told; or all that was held back does."""
        self.held = on
        if self.transport is not None and not self.transport.is_closing():
            (self.transport.pause_reading if on else self.transport.resume_reading)()
        self.pass_on()

    def cut(self) -> None:
        """RST."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._relay.halves.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self._kept.clear()


class Relay:
    """Connections to one address. What is held: nothing, the feed's, or all. `delay`: seconds that everything takes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.delay = 0.0
        self.halves: set[Half] = set()
        self._target = host, int(port)
        self._held = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> int:
        """The port."""
        server = await asyncio.get_running_loop().create_server(lambda: Half(self), "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    def connect(self, half: Half) -> None:
        """To the server, for a client that has come."""

        async def connect() -> None:
            try:
                await asyncio.get_running_loop().create_connection(lambda: Half(self, half), *self._target)
            except OSError:
                half.cut()

        task = asyncio.get_running_loop().create_task(connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def suit(self, half: Half) -> None:
        """Do to a connection what is done to its kind."""
        held = self._held == "all" or (self._held == "feed" and half.feed)
        if held is not half.held:
            half.hold(held)

    def do(self, what: str, which: str) -> None:
        """`which`: "all", or "feed" for the feed's connection; with "delay" the seconds."""
        if what == "delay":
            self.delay = float(which)
            return
        if what != "cut":
            self._held = which if what == "hold" else ""
        for half in tuple(self.halves):
            if what != "cut":
                self.suit(half)
            elif which == "all" or half.feed:
                half.cut()


async def serve(addresses: Sequence[str]) -> None:
    """Until standard input ends."""
    relays = [Relay(address) for address in addresses]
    print(json.dumps([await relay.listen() for relay in relays]), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command = json.loads(line)
        relays[command["relay"]].do(command["do"], command["which"])
        print("done", flush=True)


class Relays:
    """The process, from outside: a context manager. `urls`: what to connect to, for each address."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.urls: list[str] = []

    def __enter__(self) -> Relays:
        command = [sys.executable, "-m", "tests.check.relay", *self._addresses]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.urls = [f"http://127.0.0.1:{port}" for port in json.loads(self._process.stdout.readline())]
        return self

    def __exit__(self, *error: object) -> None:
        end(self._process)  # type: ignore[arg-type]
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def do(self, relay: int, what: str, which: str = "all") -> None:
        """"cut", "hold" or "release" its connections, or the one of the feed; "delay" what passes."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"relay": relay, "do": what, "which": which}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
