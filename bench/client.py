"""Single calls outside of the measured load: readiness, objects to read, checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench.connection import Connection
from bench.requests import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GETS,
    HEADERS,
    LIST_200,
    LIST_10000,
    LIST_UNCACHED,
    OBJECT,
    PUT,
    RANGE,
    READS,
    TXN,
    VALUE,
    constant_blocks,
    frame,
    key,
    message,
    put,
    puts,
)
from gateway.etcdpb import rpc_pb2

KEYS = 1000
"""How many keys there are for single gets."""

BATCH = 12
"""Objects in one txn: as many as fit into one frame of HTTP/2's default size."""


class CallFailed(Exception):
    """The text is the error that the server gave."""


async def call(port: int, path: bytes, request: bytes, within: float = 10) -> bytes:
    """One unary call; the reply message's bytes. Raises CallFailed, OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str | None] = loop.create_future()
    parts: list[bytes] = []

    def finish(error: str | None) -> None:
        if not done.done():
            done.set_result(error)

    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    connection.on_data = lambda stream, payload: parts.append(payload)
    connection.on_end = lambda stream, error: finish(error)
    connection.on_lost = finish
    block = next(constant_blocks(path))
    connection.transport.write(frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, message(request)))
    try:
        error = await asyncio.wait_for(done, within)
    finally:
        connection.transport.abort()
    if error is not None:
        raise CallFailed(error)
    return b"".join(parts)[5:]


async def wait_ready(port: int, within: float, alive: Callable[[], bool]) -> None:
    """Wait until a port answers as etcd does. Raises TimeoutError when it doesn't in time, or its server is no longer alive."""
    async with asyncio.timeout(within):
        while alive():
            try:
                await call(port, RANGE, READS["get"], 2)
                return
            except (OSError, CallFailed, TimeoutError):
                await asyncio.sleep(0.05)
    raise TimeoutError


async def fill(port: int) -> None:
    """Write the objects that the reading cases read."""
    for prefix, count, value in ((GETS, KEYS, VALUE), (LIST_200, 200, OBJECT), (LIST_UNCACHED, 200, OBJECT), (LIST_10000, 10_000, OBJECT)):
        for start in range(0, count, BATCH):
            names = [key(prefix, number) for number in range(start, min(start + BATCH, count))]
            await call(port, TXN, puts(names, value))


REVISIONS = 300
"""How many revisions there are at which the same objects can be listed, so that hardly any two lists are the same."""


async def renew(port: int) -> int:
    """Make REVISIONS new ones; the last."""
    revision = 0
    for number in range(REVISIONS):
        reply = await call(port, PUT, put(b"/registry/configmaps/bench-renewed", b"%d" % number))
        revision = rpc_pb2.PutResponse.FromString(reply).header.revision
    return revision
