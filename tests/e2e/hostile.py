"""Clients that do everything wrong: bytes of all kinds at the port that well-behaved clients use."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpack import Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CONNECT_SECONDS = 5.0

Random = random.Random


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def head(path: str = "/etcdserverpb.KV/Range", **more: str) -> bytes:
    """A header block."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "content-type": "application/grpc", "te": "trailers"}
    return bytes(Encoder().encode([*fields.items(), *((key.replace("_", "-"), value) for key, value in more.items())]))


def message(data: bytes) -> bytes:
    """gRPC's framing."""
    return b"\0" + len(data).to_bytes(4, "big") + data


RANGE = message(b"\x0a\x01a")
HEAD = head()
CALL = frame(1, 4, 1, HEAD) + frame(0, 1, 1, RANGE)
WATCH = frame(1, 4, 3, head("/etcdserverpb.Watch/Watch")) + frame(0, 0, 3, message(b"\x0a\x03\x0a\x01a"))
SETTINGS = frame(4, 0, 0)
GOOD = PREFACE + SETTINGS + CALL + WATCH
POST = b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + b'{"key": "YWFh"}'


def noise(rng: Random) -> bytes:
    """Nothing at all."""
    return rng.randbytes(rng.randrange(1, 3000))


def mutated(rng: Random) -> bytes:
    """A good conversation with some bytes changed, lost or doubled."""
    data = bytearray(rng.choice((GOOD, GOOD, GOOD, POST)))
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 60)]
        data = data or bytearray(b"x")
    return bytes(data)


def frames(rng: Random) -> bytes:
    """Well-formed frames of any kind, flags, stream and content, after a good start."""
    start = PREFACE + SETTINGS
    for _ in range(rng.randrange(1, 60)):
        payload = rng.choice((b"", rng.randbytes(rng.choice((4, 5, 8, 6, 300))), HEAD, RANGE))
        flags, stream = rng.choice((0, 1, 4, 5, 8, 32, 255)), rng.choice((0, 1, 1, 2, 3, 5, 1 << 31))
        start += frame(rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 200)), flags, stream, payload)
    return start


def flood(rng: Random) -> bytes:
    """Thousands of the same."""
    stream = iter(range(1, 1 << 20, 2))
    one: Callable[[], bytes] = rng.choice((
        lambda: frame(6, 0, 0, bytes(8)),  # pings
        lambda: frame(4, 0, 0, struct.pack(">HI", 4, rng.randrange(1 << 31))),  # settings
        lambda: frame(0, 0, 1, b""),  # empty data
        lambda: frame(8, 0, 0, struct.pack(">I", 1)),  # window updates
        lambda: frame(2, 0, 1, bytes(5)),  # priorities
        lambda: frame(1, 4, (number := next(stream)), HEAD) + frame(3, 0, number, bytes(4)),  # calls, reset at once
        lambda: frame(1, 4, next(stream), HEAD),  # calls without a message
        lambda: frame(9, 0, 1, bytes(20)),  # continuations
    ))
    first = frame(1, rng.choice((0, 4)), 1, HEAD)
    return PREFACE + SETTINGS + first + b"".join(one() for _ in range(rng.randrange(100, 5000)))


def bomb(rng: Random) -> bytes:
    """Header blocks that grow when decoded, and messages that claim to be huge."""
    size = rng.choice((3000, 16_000, 60_000))
    blocks = [
        b"\x40\x01a\x7f" + _varint(size - 127) + b"x" * size + b"\xbe" * rng.randrange(1, 40_000),  # one field, and references to it
        rng.randbytes(200),
        b"\x40" + b"\xff" * 10 + b"\x7f",
    ]
    block = rng.choice(blocks)
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    data = frame(1, 0, 1, parts[0]) + b"".join(frame(9, 0, 1, part) for part in parts[1:]) + frame(9, 4, 1)
    claim = frame(1, 4, 3, HEAD) + frame(0, 0, 3, b"\0" + rng.randrange(1 << 32).to_bytes(4, "big") + bytes(9000))
    return PREFACE + SETTINGS + rng.choice((data, claim, data + claim))


def _varint(number: int) -> bytes:
    """The rest of HPACK's integers."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def shut_window(rng: Random) -> bytes:
    """Watches and lists whose replies may not be sent."""
    settings = frame(4, 0, 0, struct.pack(">HI", 4, rng.randrange(3)))
    everything = message(b"\x0a\x01\0\x12\x01\0")
    calls = b"".join(frame(1, 4, number, HEAD) + frame(0, 1, number, everything) for number in range(1, 201, 2))
    return PREFACE + settings + calls


def http1(rng: Random) -> bytes:
    """Odd HTTP/1.1 and odd JSON."""
    body = rng.choice((b"", b"{", b'{"key":' * 2000, b"[" * 20_000, b'{"key":"' + b"A" * 70_000 + b'"}', rng.randbytes(200)))
    length = rng.choice((len(body), 0, 5, 1 << 40, -1))
    path = rng.choice((b"/v3/kv/range", b"/v3/watch", b"/v3/lease/keepalive", b"/", b"/../..", b"/\xff", b"/v3/" + b"a" * 9000))
    verb = rng.choice((b"POST", b"GET", b"PRIX", b"P", b"\0"))
    chunked = b"Transfer-Encoding: chunked\r\n" if rng.random() < 0.3 else b"Content-Length: %d\r\n" % length
    return verb + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + chunked + b"X: " + b"y" * rng.randrange(20_000) + b"\r\n\r\n" + body


ATTACKS = (noise, mutated, mutated, mutated, frames, frames, flood, bomb, shut_window, http1, http1)


@dataclass
class Hostile:
    """Some threads of it, until the context is left. The seed makes it repeatable, as far as the order of packets is."""

    address: str
    seed: int
    threads: int = 2
    attacks: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Hostile:
        seeds = range(self.seed, self.seed + self.threads)
        self._running = [threading.Thread(target=self._run, args=(Random(seed),), daemon=True) for seed in seeds]
        for thread in self._running:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._running:
            thread.join(30)

    def _run(self, rng: Random) -> None:
        open_ones: list[socket.socket] = []
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                open_ones.append(self._attack(rng))
            self.attacks += 1
            if len(open_ones) > 30:  # some are left hanging for a while
                open_ones.pop(rng.randrange(len(open_ones))).close()
        for sock in open_ones:
            sock.close()

    def _attack(self, rng: Random) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        data = rng.choice(ATTACKS)(rng)
        sock = socket.create_connection((host, int(port)), CONNECT_SECONDS)
        sock.settimeout(0.2)
        if rng.random() < 0.2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close will be a reset
        step = rng.choice((len(data), len(data), 1000, 37))
        end = time.monotonic() + 1
        for at in range(0, len(data), step):
            sock.sendall(data[at : at + step])
            if time.monotonic() > end:
                break
        if rng.random() < 0.7:
            sock.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                sock.recv(1 << 16)
        if rng.random() < 0.5:
            sock.close()
        return sock
