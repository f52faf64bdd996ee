"""The gateway as a process of its own, as operators run it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.etcd import end, free_port, get, spawn, wait_for

WRONG = re.compile(r"level=error|Traceback|exception was never retrieved|was never awaited")
"""What no log may have."""


class GatewayProcess:
    """`python -m gateway serve` with a configuration file of its own; ports are filled in. `module`: another one than gateway's own."""

    def __init__(self, config: dict[str, Any], directory: Path, module: str) -> None:
        self._module = module
        self.admin_address = f"127.0.0.1:{free_port()}"
        config.setdefault("listeners", [{"name": "clients"}])
        for listener in config["listeners"]:
            listener.setdefault("address", f"127.0.0.1:{free_port()}")
        self.addresses: dict[str, str] = {listener["name"]: listener["address"] for listener in config["listeners"]}
        config["admin"] = {"address": self.admin_address}
        self._file = directory / "shardgate.yaml"
        self._file.write_text(yaml.safe_dump(config))
        self._log = directory / "gateway.log"
        self.process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """host:port of the first listener."""
        return next(iter(self.addresses.values()))

    @property
    def url(self) -> str:
        """The first listener's URL."""
        return f"http://{self.address}"

    def start(self) -> None:
        """Start it and wait until it is ready. Raises TimeoutError with the log."""
        command = [sys.executable, "-m", self._module, "serve", "--config", self._file]
        self.process = spawn(command, self._log, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        try:
            wait_for("ready", lambda: self.process.poll() is not None or self._ready(), 20)
            ready = self._ready()
        except TimeoutError:
            ready = False
        if not ready:
            end(self.process)
            raise TimeoutError(f"the gateway is not ready:\n{self.log()[-5000:]}")

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            return get(self.admin_address, "/readyz") == (200, "ok\n")
        return False

    def admin(self, path: str) -> str:
        """A page of the admin listener."""
        return get(self.admin_address, path)[1]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.admin("/metrics").splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total

    def status(self) -> dict[str, Any]:
        """/status."""
        return dict(json.loads(self.admin("/status")))

    def rss(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmRSS"))

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM, SIGKILL if that does not end it; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        end(self.process)
        return self.process.returncode

    def check_log(self) -> None:
        """No error, no traceback."""
        wrong = [line for line in self.log().splitlines() if WRONG.search(line)]
        assert not wrong, "\n".join((f"{len(wrong)} errors in the log:", *wrong[:3]))


@contextlib.contextmanager
def gateway(
    clusters: Mapping[str, Sequence[str]],
    routes: Mapping[str, str] | None = None,
    module: str = "gateway",
    cache: bool = True,
    options: Mapping[str, Any] | None = None,
    **config: Any,
) -> Iterator[GatewayProcess]:
    """A gateway in front of clusters {name: URLs}; routes {prefix: name}, the first cluster is the default. `options`: others of each
    cluster. In the end it must stop with status 0 when told so, and its log must have no error."""
    names = list(clusters)
    prefixes = {"": names[0], **(routes or {})}
    config["clusters"] = [{"name": name, "endpoints": list(urls), **(options or {})} for name, urls in clusters.items()]
    config["routes"] = [{"prefix": prefix, "cluster": name} | ({} if cache else {"cache": False}) for prefix, name in prefixes.items()]
    with tempfile.TemporaryDirectory(prefix="shardgate-test-") as directory:
        process = GatewayProcess(config, Path(directory), module)
        process.start()
        try:
            yield process
            code = process.stop()
            assert code == 0, f"ended with {code}:\n{process.log()[-5000:]}"
            process.check_log()
        finally:
            end(process.process)
