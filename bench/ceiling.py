"""How much the load programs can do at all: `python -m bench.ceiling` points them at a server that does next to nothing.

It reads no header and no message: a call gets one constant reply, a watch is told that it exists, and a put that carries MARK becomes one
event for every watch. No target can be measured to be faster than this."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import uvloop

from bench.cases import Case
from bench.fanout import MARK
from bench.requests import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, WINDOW, WINDOW_UPDATE, frame, message
from bench.runs import Site, run
from bench.targets import Target

REPLY_HEADERS = b"\x88\x0f\x10\x10application/grpc"
TRAILERS = b"\0\x0bgrpc-status\x010"
REPLY = message(bytes(700))
"""As long as the reply to a get of the bench."""
CREATED = message(b"created")
OPENING = (
    frame(SETTINGS, 0, 0, b"\0\4" + WINDOW.to_bytes(4, "big"))
    + frame(WINDOW_UPDATE, 0, 0, WINDOW.to_bytes(4, "big"))
    + frame(SETTINGS, ACK, 0, b"")
)


class Constant(asyncio.Protocol):
    """One connection of the server."""

    connections: set[Constant] = set()  # noqa: RUF012 — one server, one process

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._rest = b""
        self._started = False
        self._watches: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(OPENING)
        self.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        buffer, position, out = self._rest + data, 0, []
        if not self._started and len(buffer) >= len(PREFACE):
            self._started, position = True, len(PREFACE)
        while self._started and len(buffer) - position >= 9:
            end = position + 9 + int.from_bytes(buffer[position : position + 3], "big")
            if end > len(buffer):
                break
            kind, flags, stream = buffer[position + 3], buffer[position + 4], buffer[position + 5 : position + 9]
            if kind == DATA:
                out.append(self._reply(flags, stream, buffer[position:end]))
            elif kind == PING and not flags & ACK:
                out.append(frame(PING, ACK, 0, buffer[position + 9 : end]))
            position = end
        self._rest = buffer[position:]
        self._transport.write(b"".join(out))

    def _reply(self, flags: int, stream: bytes, data: bytes) -> bytes:
        if not flags & END_STREAM:
            self._watches.append(stream)
            return _on(HEADERS, END_HEADERS, stream, REPLY_HEADERS) + _on(DATA, 0, stream, CREATED)
        if MARK in data:
            event = message(data[data.index(MARK) :])
            for connection in self.connections:
                connection.send(event)
        return (
            _on(HEADERS, END_HEADERS, stream, REPLY_HEADERS)
            + _on(DATA, 0, stream, REPLY)
            + _on(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS)
        )

    def send(self, event: bytes) -> None:
        """An event for each watch of the connection."""
        if self._watches:
            self._transport.write(b"".join([_on(DATA, 0, stream, event) for stream in self._watches]))


def _on(kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream + payload


async def serve() -> None:
    """Serve on a free port until the process is ended; the port is printed."""
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def constant_server() -> Iterator[Target]:
    """The server as a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "bench.ceiling", "--serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Target("constant", int(process.stdout.readline()), process.pid, os.getpid(), 0)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


CASES = (
    *(Case("h2load", size, "h2load", "get") for size in (1, 32, 256)),
    *(Case("load", size, "load", "get") for size in (1, 32, 256)),
    *(Case("load-grpc-timeout", size, "load", "get", timeouts=True) for size in (1, 32, 256)),
    *(Case("fanout", size, "fanout", "watch", writes=2_000) for size in (1, 100, 1_000)),
)


@click.command()
@click.option("--serve", "only_serve", is_flag=True, help="Only run the server; prints its port.")
@click.option("--seconds", type=click.FloatRange(0.1), default=2.0, show_default=True)
def main(only_serve: bool, seconds: float) -> None:
    """What the load programs can do at most on this machine."""
    if only_serve:
        uvloop.run(serve())
        return
    click.echo("load               per second  p50 ms  µs of the load program's CPU per call")
    with constant_server() as target, tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            site = Site(shutil.which("h2load"), Path(folder))
            click.echo(line(case, run(site, case, target, seconds)))


def line(case: Case, result: dict[str, Any]) -> str:
    """One row."""
    cpu = f"{result['load_cpu'] / result['calls'] * 1e6:.1f}"
    error = f"  {result['errors']} ! {result['error']}" if result["errors"] else ""
    return f"{case.name:22}{result['rate']:>11,.0f}{result['p50_ms']:>8.3f}  {cpu}{error}"


if __name__ == "__main__":
    main()
