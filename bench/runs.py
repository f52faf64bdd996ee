"""One measured run: the load program against one target, and what the servers used meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.cases import Case
from bench.client import call, renew
from bench.h2load import LoadFailed, h2load
from bench.procfs import cpu_seconds, rss_bytes
from bench.requests import RANGE, READS
from bench.targets import Target

_runs = count()


@dataclass(frozen=True, slots=True)
class Site:
    """What the runs are made with."""

    h2load: str | None
    folder: Path


def run(site: Site, case: Case, target: Target, seconds: float) -> dict[str, Any]:
    """The load program's result, with `rate` (calls or events a second), CPU seconds and memory of etcd and the proxy.
    Raises LoadFailed."""
    pids = {"etcd": target.etcd_pid} | ({"proxy": target.pid} if target.pid else {})
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    result = _load(site, case, target, seconds * case.longer)
    for name, pid in pids.items():
        result[f"{name}_cpu_seconds"] = round(cpu_seconds(pid) - before[name], 3)
        result[f"{name}_rss_bytes"] = rss_bytes(pid)
    result["rate"] = result["calls"] / result["seconds"] if result["seconds"] else 0.0
    return result


def _load(site: Site, case: Case, target: Target, seconds: float) -> dict[str, Any]:
    lanes = case.size // case.connections
    if case.program == "h2load" and site.h2load:
        size = 5 + len(asyncio.run(call(target.port, RANGE, READS[case.work])))
        return h2load(site.h2load, target.port, case.work, case.connections, lanes, seconds, size, site.folder)
    name = f"r{next(_runs)}"
    if case.program == "fanout":
        writes = max(20, int(case.writes * min(1, seconds)))
        spec: dict[str, object] = {"port": target.port, "writes_port": target.etcd_port or target.port, "metrics_port": target.etcd_port}
        spec |= {"watchers": case.size, "per_connection": case.per_connection, "writes": writes, "rate": case.rate, "run": name}
        return _own("bench.fanout", spec | {"pid": target.pid or target.etcd_pid})
    if case.program == "burst":
        return _own("bench.burst", {"port": target.port, "etcd_port": target.etcd_port, "calls": case.size, "seconds": seconds})
    spec = {"port": target.port, "work": case.work, "connections": case.connections, "lanes": lanes, "seconds": seconds}
    spec["revision"] = asyncio.run(renew(target.etcd_port)) if case.work == "pages-10000" else 0
    return _own("bench.load", spec | {"timeouts": case.timeouts, "run": name})


def _own(module: str, spec: dict[str, object]) -> dict[str, Any]:
    """Run a load program of this package; it needs a process of its own, so that it shares no interpreter with what measures."""
    done = subprocess.run([sys.executable, "-m", module, json.dumps(spec)], capture_output=True, text=True, timeout=180)
    if done.returncode != 0:
        raise LoadFailed(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
