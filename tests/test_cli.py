"""The command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.etcd import ROOT

KUBERNETES = str(ROOT / "config/kubernetes.yaml")


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, args)
    return result.exit_code, result.output


def test_check_prints_the_routing_table() -> None:
    status, text = run("check", "--config", KUBERNETES)
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["/registry/events/", "events", "off", "resource", "/events"] in lines
    assert ["/registry/leases/", "main", "on", "resource", "coordination.k8s.io/leases"] in lines
    assert ["events", "http://127.0.0.1:22379"] in lines


def test_check_of_a_bad_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("listeners: []\n")
    status, text = run("check", "--config", str(file))
    assert status == 1
    assert "listeners" in text


def test_check_warns_of_what_is_not_served(tmp_path: Path) -> None:
    file = tmp_path / "tls.yaml"
    file.write_text(
        "listeners: [{name: a, address: unix:///run/x.sock, cluster: m, tls: {cert_file: c, key_file: k}}]\n"
        "clusters: [{name: m, endpoints: [https://a:1]}, {name: n, discovery: {dns: x}}]\n"
    )
    status, text = run("check", "--config", str(file))
    assert status == 0
    assert text.count("warning:") == 5


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("/registry/events/default/a",), "'/registry/events/default/a': cluster events, by resource /events"),
        (("/registry/pods/a",), "'/registry/pods/a': cluster main, by prefix ''"),
        (("--hex", "2f72656769737472792f6576656e7473"), "'/registry/events': cluster events, by resource /events"),
        (("--prefix", "/registry/crd.projectcalico.org/"), "to '/registry/crd.projectcalico.org0': cluster cni"),
        (("/registry/events/", "/registry/f"), "'/registry/events0' to '/registry/f': cluster main"),
    ],
)
def test_route(args: tuple[str, ...], expected: str) -> None:
    status, text = run("route", "--config", KUBERNETES, *args)
    assert status == 0
    assert expected in text


def test_route_needs_hex_digits() -> None:
    status, text = run("route", "--config", KUBERNETES, "--hex", "zz")
    assert status == 2
    assert "hexadecimal" in text


def test_flags_in_place_of_a_file() -> None:
    status, text = run("check", "--etcd-servers", "http://a:1", "--etcd-servers-overrides", "/events#http://b:1")
    assert status == 0
    assert "/registry/events/" in text


@pytest.mark.parametrize("args", [(), ("--config", KUBERNETES, "--etcd-servers", "http://a:1"), ("--config", KUBERNETES, "--admin", "a:1")])
def test_one_source_only(args: tuple[str, ...]) -> None:
    status, text = run("check", *args)
    assert status == 2
    assert "--config" in text or "--etcd-servers" in text


def test_version() -> None:
    assert run("--version")[1].startswith("shardgate, version ")
