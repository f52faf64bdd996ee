"""The command line, and the gateway started by nothing but a kube-apiserver's own flags."""

import base64
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway import demo, server
from gateway.cli import main
from gateway.config import Config
from tests.etcd import ROOT, EtcdCluster, cluster, end, free_port, get, post, spawn, wait_for

KUBERNETES = str(ROOT / "config/kubernetes.yaml")
LISTENERS = str(ROOT / "config/listeners.yaml")


def run(*args: str) -> tuple[int, str]:
    """Status and output, of both kinds."""
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What `serve` would have served."""
    found: list[Config] = []
    monkeypatch.setattr(server, "run", lambda config: found.append(config) or 7)
    return found


# check


def test_check_prints_what_the_file_means() -> None:
    status, text = run("check", "--config", KUBERNETES)
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["clients", "127.0.0.1:2379", "by", "route", "main"] in lines
    assert ["(admin)", "127.0.0.1:9379"] in lines
    assert ['""', "main", "on", "the", "default", "route"] in lines
    assert ["/registry/events/", "events", "off", "resource", "/events"] in lines
    assert ["/registry/leases/", "leases", "off", "resource", "coordination.k8s.io/leases"] in lines
    assert ["events", "http://127.0.0.1:22379"] in lines


def test_check_aligns_its_tables() -> None:
    table = run("check", "--config", KUBERNETES)[1].partition("PREFIX")[2].partition("\n\n")[0].splitlines()
    column = len("PREFIX") + table[0].index("CLUSTER")
    assert {line[column - 2 : column] for line in table[1:]} == {"  "}
    assert all(line[column] != " " for line in table[1:])


def test_check_of_listeners_with_clusters_of_their_own() -> None:
    status, text = run("check", "--config", LISTENERS)
    assert status == 0
    assert ["events", "127.0.0.1:2381", "all", "to", "events", "events"] in [line.split() for line in text.splitlines()]
    assert "PREFIX" not in text


@pytest.mark.parametrize("command", [("check",), ("serve",), ("route", "x")], ids=lambda command: command[0])
def test_a_bad_file(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("listeners: []\n")
    status, text = run(*command, "--config", str(file))
    assert status == 1
    assert f"{file}: " in text
    assert "listeners: []: at least one is needed (line 1)" in text


UNSERVED = """
listeners: [{name: a, address: unix:///run/x.sock, cluster: m, tls: {cert_file: c, key_file: k}}]
clusters: [{name: m, endpoints: [https://a:1]}, {name: n, discovery: {dns: x}, compaction: follow}]
"""


def test_check_warns_of_what_serve_refuses(tmp_path: Path, served: list[Config]) -> None:
    file = tmp_path / "tls.yaml"
    file.write_text(UNSERVED)
    status, text = run("check", "--config", str(file))
    assert status == 0
    assert text.count("warning: serve refuses this: ") == 4
    assert text.count("warning: clusters[1]") == 2
    assert "(discovery)" in text
    status, text = run("serve", "--config", str(file))
    assert status == 1
    assert text.startswith(f"{file}: 4 problems\n")
    assert not served


# route


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("/registry/events/default/a",), ["'/registry/events/default/a': cluster events, by resource /events"]),
        (("/registry/pods/a",), ["'/registry/pods/a': cluster main, by the default route"]),
        (("--hex", "2f72656769737472792f6576656e7473"), ["'/registry/events': cluster events, by resource /events"]),
        (("--hex", "ff"), ["'\\xff': cluster main, by the default route"]),
        (("--prefix", "/registry/events/"), ["'/registry/events/' to '/registry/events0': cluster events, by resource /events"]),
        (("--from-key", "/registry/z"), ["'/registry/z' to the last key: cluster main, by the default route"]),
        (
            ("/registry/events/", "/registry/f"),
            [
                "'/registry/events/' to '/registry/events0': cluster events, by resource /events",
                "'/registry/events0' to '/registry/f': cluster main, by the default route",
            ],
        ),
        (
            ("--prefix", "/registry/cilium.io/"),
            [
                "'/registry/cilium.io/' to '/registry/cilium.io/ciliumendpoints': cluster main, by the default route",
                "'/registry/cilium.io/ciliumendpoints' to '/registry/cilium.io/ciliumendpoints\\x00': cluster cni, "
                "by resource cilium.io/ciliumendpoints",
            ],
        ),
    ],
)
def test_route(args: tuple[str, ...], expected: list[str]) -> None:
    status, text = run("route", "--config", KUBERNETES, *args)
    assert status == 0
    assert text.splitlines()[: len(expected)] == expected


def test_route_names_all_routes_of_a_cluster() -> None:
    text = run("route", "--etcd-servers=http://a:1", "--etcd-servers-overrides=/pods#http://a:1", "--prefix", "/registry/")[1]
    assert text == "'/registry/' to '/registry0': cluster main, by the default route, resource /pods\n"


def test_route_as_a_listener_sees_it() -> None:
    assert run("route", "--config", LISTENERS, "x") == (0, "'x': cluster main, by the listener's cluster\n")
    assert run("route", "--config", LISTENERS, "--listener", "events", "x") == (0, "'x': cluster events, by the listener's cluster\n")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--hex", "zz"), "hexadecimal"),
        (("",), "KEY is empty"),
        (("--prefix", "a", "b"), "give one of RANGE_END, --prefix and --from-key"),
        (("--prefix", "--from-key", "a"), "give one of RANGE_END, --prefix and --from-key"),
        (("--listener", "other", "a"), "there is no listener 'other'; there are clients"),
    ],
)
def test_route_of_nothing(args: tuple[str, ...], expected: str) -> None:
    status, text = run("route", "--config", KUBERNETES, *args)
    assert status == 2
    assert expected in text


# where the configuration comes from


def test_flags_in_place_of_a_file(served: list[Config]) -> None:
    flags = ("--etcd-servers=http://a:1,http://a:2", "--etcd-servers-overrides=/events#http://b:1", "--etcd-servers-overrides=/pods#http://c:1")
    assert run("serve", *flags, "--admin", "127.0.0.1:9379", "--etcd-prefix", "/other")[0] == 7
    [config] = served
    assert [each.name for each in config.clusters] == ["main", "events", "pods"]
    assert config.listeners[0].address == "127.0.0.1:2379"
    assert config.admin is not None
    assert config.routes_for(config.listeners[0]).cluster_of(b"/other/pods/a") == "pods"


def test_log_flags_win_over_the_file(served: list[Config]) -> None:
    assert run("serve", "--config", KUBERNETES, "--log-level", "debug", "--log-format", "json")[0] == 7
    assert run("serve", "--config", KUBERNETES)[0] == 7
    assert [(config.log.level, config.log.format) for config in served] == [("debug", "json"), ("info", "logfmt")]
    assert served[0].log.slow_request_seconds == 1.0


@pytest.mark.parametrize(
    "args",
    [
        (), ("--config", KUBERNETES, "--etcd-servers", "http://a:1"), ("--config", KUBERNETES, "--admin", "127.0.0.1:1"),
        ("--config", KUBERNETES, "--listen", "127.0.0.1:1"), ("--config", KUBERNETES, "--etcd-servers-overrides", "/events#http://a:1"),
        ("--etcd-servers-overrides", "/events#http://a:1"),
    ],
)  # fmt: skip
def test_one_source_only(args: tuple[str, ...]) -> None:
    status, text = run("check", *args)
    assert status == 2
    assert "--etcd-servers" in text


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool | None] = []
    monkeypatch.setattr(demo, "run", lambda keep: asked.append(keep) or 3)
    assert [run("demo")[0], run("demo", "--keep")[0], run("demo", "--no-keep")[0]] == [3, 3, 3]
    assert asked == [None, True, False]


def test_version_and_help() -> None:
    assert run("--version")[1].startswith("shardgate, version ")
    status, text = run("-h")
    assert status == 0
    assert all(name in text for name in ("serve", "check", "route", "demo"))


# with real clusters


def test_a_gateway_from_kube_apiservers_own_two_flags(main_etcd: EtcdCluster, tmp_path: Path) -> None:
    address, key = f"127.0.0.1:{free_port()}", base64.b64encode(b"/registry/events/default/by-flags").decode()
    log = tmp_path / "gateway.log"
    with cluster() as events:
        flags = [f"--etcd-servers={main_etcd.urls[0]}", f"--etcd-servers-overrides=/events#{events.urls[0]}", f"--listen={address}"]
        process = spawn([sys.executable, "-m", "gateway", "serve", *flags], log)
        try:
            wait_for("gateway", lambda: log.exists() and b"listening" in log.read_bytes())
            wait_for("gateway", lambda: get(address, "/health")[0] == 200)
            assert "header" in post(address, "/v3/kv/put", key=key, value="eA==")
            assert post(events.address, "/v3/kv/range", key=key)["kvs"][0]["value"] == "eA=="
            assert "kvs" not in post(main_etcd.address, "/v3/kv/range", key=key)
        finally:
            end(process)
