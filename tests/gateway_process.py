"""The gateway as a process of its own, as operators run it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.etcd import ROOT, die_with_parent, free_port


class GatewayProcess:
    """`python -m gateway serve` with a configuration file of its own; ports are filled in."""

    def __init__(self, config: dict[str, Any], directory: Path) -> None:
        self.port, self.admin_port = free_port(), free_port()
        config.setdefault("listeners", [{"name": "clients"}])
        for number, listener in enumerate(config["listeners"]):
            listener.setdefault("address", f"127.0.0.1:{self.port if not number else free_port()}")
        self.addresses = {listener["name"]: listener["address"] for listener in config["listeners"]}
        config["admin"] = {"address": f"127.0.0.1:{self.admin_port}"}
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
        log = self._log.open("ab")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self._file), "--log-level", "debug"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, preexec_fn=die_with_parent)
        log.close()
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if self.admin("/readyz") == "ok\n":
                    return
            time.sleep(0.05)
        raise TimeoutError(f"the gateway is not ready:\n{self.log()}")

    def admin(self, path: str) -> str:
        """A page of the admin listener."""
        return str(urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=5).read().decode())

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
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


@contextlib.contextmanager
def gateway(
    clusters: Mapping[str, Sequence[str]], routes: Mapping[str, str] | None = None, **config: Any
) -> Iterator[GatewayProcess]:
    """A gateway in front of clusters {name: URLs}; routes {prefix: name}, the first cluster is the default. Afterwards the log must have no
    traceback."""
    names = list(clusters)
    prefixes = {"": names[0], **(routes or {})}
    config["clusters"] = [{"name": name, "endpoints": list(urls)} for name, urls in clusters.items()]
    config["routes"] = [{"prefix": prefix, "cluster": name} for prefix, name in prefixes.items()]
    with tempfile.TemporaryDirectory(prefix="shardgate-test-") as directory:
        process = GatewayProcess(config, Path(directory))
        process.start()
        try:
            yield process
        finally:
            process.stop()
        assert "Traceback" not in process.log(), process.log()[-5000:]
