"""A TCP relay on loopback that does to a connection what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

from tests.etcd import free_port


class Relay:
    """Passes bytes between clients and a server, until told otherwise; a context manager. Runs in a thread."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._target = host, int(port)
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        """What to connect to."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Relay:
        self._open.set()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", self.port), self._loop).result(5)
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def cut(self) -> None:
        """RST of every connection."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def swallow(self, on: bool) -> None:
        """Nothing passes, and nobody is told; or all that was held back does."""
        self._loop.call_soon_threadsafe(self._open.clear if on else self._open.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream[1]}
        await asyncio.gather(self._pass(reader, upstream[1]), self._pass(upstream[0], writer))
        self._writers -= {writer, upstream[1]}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
