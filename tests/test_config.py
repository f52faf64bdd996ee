"""The configuration file: what is accepted, what it means, and what is said of mistakes."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway import config
from gateway.config import Config, ConfigError, from_flags, load, parse
from tests.etcd import ROOT

GOOD = """
listeners:
  - {name: clients, address: 127.0.0.1:2379}
clusters:
  - {name: main, endpoints: [http://127.0.0.1:12379]}
  - {name: events, endpoints: [http://127.0.0.1:22379]}
routes:
  - {resource: /events, cluster: events}
  - {prefix: "", cluster: main}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return list(caught.value.problems)


def test_a_good_file() -> None:
    found = parse(GOOD)
    routes = found.routes_for(found.listeners[0])
    assert routes.cluster_of(b"/registry/events/default/a") == "events"
    assert routes.cluster_of(b"/registry/events") == "events"
    assert routes.cluster_of(b"/registry/pods/a") == "main"
    assert found.home_of(found.listeners[0]) == "main"
    assert routes.route_of(b"x").cache
    assert not routes.route_of(b"/registry/events/").cache


@pytest.mark.parametrize("file", sorted(ROOT.glob("config/*.yaml")), ids=lambda path: path.name)
def test_the_examples(file: Path) -> None:
    assert load(file).clusters


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("address: 127.0.0.1:2379", "address: 127.0.0.1", r"listeners\[0\].address: '127.0.0.1': an address is host:port.* \(line 3\)"),
        ("address: 127.0.0.1:2379", "address: 127.0.0.1:70000", r"listeners\[0\].address: .*port of 1 to 65535"),
        ("address: 127.0.0.1:2379", "address: unix://run/x", r"listeners\[0\].address: .*absolute path"),
        ("name: clients,", "nam: clients,", r"listeners\[0\].nam: unknown key; did you mean `name`\?"),
        ("http://127.0.0.1:12379", "127.0.0.1:12379", r"clusters\[0\].endpoints: .*http://host:port"),
        ("http://127.0.0.1:12379", "http://127.0.0.1:x", r"clusters\[0\].endpoints: .*http://host:port"),
        ("http://127.0.0.1:12379", "http://127.0.0.1:1/v3", r"clusters\[0\].endpoints: .*has no path"),
        ("http://127.0.0.1:12379", "http://u:p@127.0.0.1:1", r"clusters\[0\].endpoints: .*no user or password"),
        ("http://127.0.0.1:12379", "http://a:1, https://a:2", r"clusters\[0\].endpoints: .*all http or all https"),
        ("http://127.0.0.1:12379", "http://a:1, http://a:1", r"clusters\[0\].endpoints: .*named twice"),
        ("name: events,", "name: main,", r"clusters\[1\].name: 'main' is used by clusters\[0\] already"),
        ("cluster: events}", "cluster: evnts}", r"routes\[0\].cluster: there is no cluster 'evnts'; did you mean 'events'\?"),
        ("resource: /events", "resource: /evnts", r"routes\[0\].resource: .*did you mean 'events'"),
        ("resource: /events", "resource: aps/deployments", r"routes\[0\].resource: unknown API group 'aps'.*'apps'"),
        ("resource: /events", "prefix: /a, resource: /events", r"routes\[0\]: give `prefix` or `resource`"),
        ('prefix: ""', "prefix: /x", r"routes: no default route"),
        ('prefix: ""', "prefix: /registry/events", r"routes\[1\]: prefix '/registry/events' means .* routes\[0\].* has already"),
        ("endpoints: [http://127.0.0.1:22379]", "compaction: periodic", r"clusters\[1\]: cluster 'events' needs `endpoints`"),
        ("name: clients,", "name: clients, cluster: main, home: main,", r"listeners\[0\]: give `cluster`"),
        ("listeners:", "overrides: events#http://a:1\nlisteners:", r"overrides: 'events#http://a:1' is not of the form"),
        ("listeners:", "overrides: /pods#ftp://a:1\nlisteners:", r"overrides: /pods: an endpoint is"),
        ("listeners:", "limits: {max_streams: 0}\nlisteners:", r"limits.max_streams: 0: .*greater than or equal to 1"),
        ("listeners:", "log: {level: loud}\nlisteners:", r"log.level: 'loud': .*'debug'"),
        ("clusters:", "clusters: x\nother:", r"clusters: 'x'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(re.search(expected, problem) for problem in found), found


def test_a_bare_off_is_no_boolean() -> None:
    assert parse(GOOD.replace("name: events,", "name: events, compaction: off,")).clusters[1].compaction == "off"


def test_all_mistakes_are_told_at_once() -> None:
    text = GOOD.replace("resource: /events", "resource: /evnts").replace('prefix: "", cluster: main', 'prefix: "", cluster: mian')
    assert len(problems(text)) == 2


@pytest.mark.parametrize("text", ["", "[]", "a: [", "\x00", "- 1", "a: &a [*a]"])
def test_no_mapping(text: str) -> None:
    assert problems(text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read the file"):
        load(tmp_path / "none.yaml")


def test_kube_apiservers_flags() -> None:
    text = "/events#http://e:1;http://e:2,apps/*#http://x:1,apps/deployments#http://e:2;http://e:1"
    found = from_flags("http://m:1,http://m:2", text, "127.0.0.1:2379", "127.0.0.1:9379")
    routes = found.routes_for(found.listeners[0])
    assert [(cluster.name, cluster.endpoints) for cluster in found.clusters] == [
        ("main", ("http://m:1", "http://m:2")), ("events", ("http://e:1", "http://e:2")), ("apps", ("http://x:1",)),
    ]  # fmt: skip
    assert routes.cluster_of(b"/registry/deployments/a/b") == "events"
    assert routes.cluster_of(b"/registry/replicasets/a/b") == "apps"
    assert found.admin is not None


def test_a_listener_of_one_cluster() -> None:
    found = parse(GOOD.replace("name: clients,", "name: clients, cluster: events,"))
    assert found.routes_for(found.listeners[0]).cluster_of(b"any") == "events"
    assert found.home_of(found.listeners[0]) == "events"


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs/config.md").read_text()
    models = [each for each in vars(config).values() if isinstance(each, type) and issubclass(each, BaseModel) and each is not BaseModel]
    assert Config in models
    missing = [name for model in models for name in model.model_fields if f"`{name}`" not in text and f"## {name}" not in text]
    assert not missing
