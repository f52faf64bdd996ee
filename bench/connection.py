"""One HTTP/2 client connection that is cheap enough to measure others with: it walks frames and checks each call's grpc-status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpack import Decoder

from bench.requests import ACK, DATA, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW, WINDOW_UPDATE, frame

OPENING = PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + WINDOW.to_bytes(4, "big")) + frame(WINDOW_UPDATE, 0, 0, WINDOW.to_bytes(4, "big"))
TOP_UP = 1 << 20


class Connection(asyncio.Protocol):
    """Calls `on_data(stream, payload)` for each DATA frame, `on_end(stream, error)` once a stream, `on_batch()` after each read
    and `on_lost(error)` at the end. error is None for grpc-status 0."""

    on_data: Callable[[int, bytes], None] | None = None
    on_end: Callable[[int, str | None], None]
    on_batch: Callable[[], None] = staticmethod(lambda: None)
    on_lost: Callable[[str], None] = staticmethod(lambda error: None)

    def __init__(self) -> None:
        self.data_bytes = 0
        self.transport: asyncio.Transport
        self._rest = b""
        self._unacknowledged = 0
        self._decoder = Decoder()
        self._known: dict[bytes, str | None] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(OPENING)

    def connection_lost(self, error: Exception | None) -> None:
        self.on_lost(str(error) if error else "connection closed")

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        position, size, on_data = 0, len(buffer), self.on_data
        while size - position >= 9:
            length = int.from_bytes(buffer[position : position + 3], "big")
            end = position + 9 + length
            if end > size:
                break
            kind, stream = buffer[position + 3], int.from_bytes(buffer[position + 5 : position + 9], "big")
            if kind == DATA:
                self.data_bytes += length
                self._unacknowledged += length
                if on_data is not None:
                    on_data(stream, buffer[position + 9 : end])
            elif kind == HEADERS:
                block = buffer[position + 9 : end]
                known = self._known
                error = known[block] if block in known else self._decode(block)
                if buffer[position + 4] & END_STREAM:
                    self.on_end(stream, error)
            else:
                self._control(kind, buffer[position + 4], stream, buffer[position + 9 : end])
            position = end
        self._rest = buffer[position:]
        if self._unacknowledged > TOP_UP:
            self.transport.write(frame(WINDOW_UPDATE, 0, 0, self._unacknowledged.to_bytes(4, "big")))
            self._unacknowledged = 0
        self.on_batch()

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.transport.write(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == RST_STREAM:
            self.on_end(stream, f"RST_STREAM {int.from_bytes(payload, 'big')}")
        elif kind == GOAWAY:
            self.on_lost(f"GOAWAY {int.from_bytes(payload[4:8], 'big')} {payload[8:]!r}")
        elif kind not in (SETTINGS, PING, WINDOW_UPDATE):
            self.on_lost(f"unexpected frame of type {kind}")

    def _decode(self, block: bytes) -> str | None:
        """The error that a header block tells, None for grpc-status 0. A block that leaves the HPACK table as it was is kept with its
        meaning; one that changes the table makes all that is kept void."""
        entries = self._decoder.header_table.dynamic_entries
        newest = entries[0] if entries else None
        fields = dict(self._decoder.decode(block, raw=True))
        status = fields.get(b"grpc-status", b"0" if b"content-type" in fields else b"none")
        error = None if status == b"0" else f"grpc-status {status.decode()}: {fields.get(b'grpc-message', b'').decode()}"
        if newest is not (entries[0] if entries else None):
            self._known.clear()
        else:
            self._known[block] = error
        return error
