"""The configuration: what is accepted, what it means, and what is said of mistakes."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, from_flags, load, models, parse, refusals, warnings
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

WHOLE = """
listeners:
  - name: clients
    address: unix:///run/shardgate.sock
    advertise_urls: [http://127.0.0.1:2379]
    tls: {cert_file: c, key_file: k, client_ca_file: a}
    home: main
  - {name: events-only, address: "[::1]:2381", cluster: events}
admin: {address: 127.0.0.1:9379}
clusters:
  - name: main
    endpoints: [https://etcd-0.example.internal:2379/]
    tls: {ca_file: a, cert_file: c, key_file: k, server_name: s}
    compaction: off
  - name: events
    discovery: {dns_srv: _etcd-client._tcp.events.example.internal}
routes:
  - {prefix: /registry/events/, cluster: events}
  - {resource: coordination.k8s.io/leases, cluster: main, cache: true, coalesce: false}
  - {raw_prefix: "user:", cluster: main}
  - {raw_prefix: !!binary /wA=, cluster: events}
  - {prefix: "", cluster: main, cache: true}
overrides: ""
registry_prefix: registry/
limits: {max_connections: 1000, max_streams: 100, max_request_bytes: 2097152}
log: {level: debug, format: json, slow_request_seconds: 0.5}
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
    assert refusals(found) == warnings(found) == []


def test_every_key_there_is() -> None:
    found = parse(WHOLE)
    clients, alone = found.listeners
    routes = found.routes_for(clients)
    assert found.clusters[0].endpoints == ("https://etcd-0.example.internal:2379",)
    assert found.clusters[0].compaction == "off"
    assert routes.cluster_of(b"user:7") == "main"
    assert routes.cluster_of(b"\xff\x00a") == "events"
    assert routes.cluster_of(b"\xff\x01") == "main"
    assert routes.route_of(b"/registry/leases/a").cache
    assert not routes.route_of(b"/registry/leases/a").coalesce
    assert found.routes_for(alone).cluster_of(b"any") == "events"
    assert (found.home_of(clients), found.home_of(alone)) == ("main", "events")


@pytest.mark.parametrize("file", sorted(ROOT.glob("config/*.yaml")), ids=lambda path: path.name)
def test_the_examples(file: Path) -> None:
    found = load(file)
    assert refusals(found) == []
    for listener in found.listeners:
        assert found.routes_for(listener).cluster_of(b"x")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("address: 127.0.0.1:2379", "address: 127.0.0.1", r"listeners\[0\].address: '127.0.0.1': an address is host:port.* \(line 3\)"),
        ("address: 127.0.0.1:2379", "address: 127.0.0.1:70000", r"listeners\[0\].address: .*an address is host:port"),
        ("address: 127.0.0.1:2379", "address: 127.0.0.1:²", r"listeners\[0\].address: .*an address is host:port"),
        ("address: 127.0.0.1:2379", "address: http://127.0.0.1:2379", r"listeners\[0\].address: .*an address is host:port"),
        ("address: 127.0.0.1:2379", 'address: "::1:2379"', r"listeners\[0\].address: .*\[::1\]:2379"),
        ("address: 127.0.0.1:2379", 'address: "[x]:2379"', r"listeners\[0\].address: .*an address is host:port"),
        ("address: 127.0.0.1:2379", 'address: ":2379"', r"listeners\[0\].address: .*0.0.0.0:2379"),
        ("address: 127.0.0.1:2379", "address: unix://run/x", r"listeners\[0\].address: .*absolute path"),
        ("address: 127.0.0.1:2379", "address: 5", r"listeners\[0\].address: 5 must be a text; put it in quotes"),
        (", address: 127.0.0.1:2379", "", r"listeners\[0\].address: is required \(line 3\)"),
        ("name: clients,", "nam: clients,", r"listeners\[0\].nam: unknown key; did you mean `name`\? \(line 3\)"),
        ("name: clients,", "name: no,", r"listeners\[0\].name: False must be a text; put it in quotes"),
        ("name: clients,", "name: a b,", r"listeners\[0\].name: 'a b' a name has letters"),
        ("name: clients,", "name: clients, tls: {cert: c},", r"listeners\[0\].tls.cert: unknown key; did you mean `cert_file`\?"),
        ("name: clients,", "name: clients, advertise_urls: http://a:1,", r"listeners\[0\].advertise_urls: 'http://a:1' must be a list"),
        ("name: clients,", "name: clients, quux: 1,", r"listeners\[0\].quux: unknown key; known keys are name, address"),
        ("name: clients,", "name: clients, home: manes,", r"listeners\[0\].home: there is no cluster 'manes'"),
        ("name: clients,", "name: clients, cluster: main, home: main,", r"listeners\[0\]: give `cluster`"),
        ("listeners:", "admin: {address: 127.0.0.1:2379}\nlisteners:", r"admin.address: .* is used by listeners\[0\].address"),
        ("listeners:", "admin: 9379\nlisteners:", r"admin: 9379 must be a mapping"),
        ("http://127.0.0.1:12379", "127.0.0.1:12379", r"clusters\[0\].endpoints\[0\]: .*http://host:port"),
        ("http://127.0.0.1:12379", "http://127.0.0.1:x", r"clusters\[0\].endpoints\[0\]: .*http://host:port"),
        ("http://127.0.0.1:12379", "http://127.0.0.1:1/v3", r"clusters\[0\].endpoints\[0\]: .*without a path"),
        ("http://127.0.0.1:12379", "http://u:secret@127.0.0.1:1", r"endpoints\[0\]: 'http://...@127.0.0.1:1': .*no user or password"),
        ("http://127.0.0.1:12379", "http://a:1, https://a:2", r"clusters\[0\].endpoints: .*all http or all https"),
        ("http://127.0.0.1:12379", "http://a:1, http://a:1", r"clusters\[0\].endpoints: .*named twice"),
        ("http://127.0.0.1:22379", "http://127.0.0.1:12379", r"clusters\[1\].endpoints: 'http://127.0.0.1:12379' is used by clusters\[0\]"),
        ("name: events,", "name: main,", r"clusters\[1\].name: 'main' is used by clusters\[0\].name already"),
        ("name: events,", "name: events, tls: {},", r"clusters\[1\].tls: the endpoints are http://"),
        ("name: events,", "name: events, tls: {cert_file: a},", r"clusters\[1\].tls: `cert_file` and `key_file` belong together"),
        ("name: events,", "name: events, discovery: {dns: a},", r"clusters\[1\]: cluster 'events' needs `endpoints`.*one of them"),
        ("name: events,", "name: events, discovery: {},", r"clusters\[1\].discovery: give one of dns_srv"),
        ("name: events,", "name: events, discovery: {dsn: a},", r"clusters\[1\].discovery.dsn: unknown key; did you mean `dns`\?"),
        ("name: events,", "name: events, compaction: weekly,", r"compaction: 'weekly': must be 'follow', 'periodic' or 'off'"),
        ("endpoints: [http://127.0.0.1:22379]", "compaction: off", r"clusters\[1\]: cluster 'events' needs `endpoints`"),
        ("clusters:", "clusters: x\nother:", r"clusters: 'x' must be a list \(line 4\)"),
        ("clusters:", "clusters: []\nclusters:", r"clusters: the key stands here twice; remove one"),
        ("cluster: events}", "cluster: evnts}", r"routes\[0\].cluster: there is no cluster 'evnts'; did you mean 'events'\?"),
        ("cluster: events}", "cluster: quux}", r"routes\[0\].cluster: there is no cluster 'quux'; the clusters are 'main', 'events'"),
        ("cluster: events}", "cluster: events, cluster: main}", r"routes\[0\].cluster: the key stands here twice"),
        ("resource: /events", "resource: /evnts", r"routes\[0\].resource: .*did you mean 'events'"),
        ("resource: /events", "resource: aps/deployments", r"routes\[0\].resource: unknown API group 'aps'.*'apps'"),
        ("resource: /events", "prefix: /a, resource: /events", r"routes\[0\]: give one of `prefix`, `raw_prefix` and `resource`"),
        ("resource: /events,", "", r"routes\[0\]: give one of"),
        ("resource: /events", 'raw_prefix: ""', r"routes\[0\].raw_prefix: '' must not be empty"),
        ("resource: /events", 'raw_prefix: "\\0"', r"routes\[0\]: .*a route can't start at the key"),
        ("resource: /events", 'prefix: "\\0/"', r"routes\[0\]: .*a route can't start at the key"),
        ("resource: /events", 'prefix: "\\ud800"', r"routes\[0\].prefix: "),
        ('prefix: ""', "prefix: /x", r"routes: no default route.* \(line 7\)"),
        ('prefix: ""', "prefix: /registry/events", r"routes\[1\]: prefix '.*' means the keys '/registry/events/', as resource /e"),
        ('prefix: ""', "raw_prefix: /registry/events/", r"routes\[1\]: raw_prefix '/registry/events/' means the keys '/registry/events/'"),
        ('prefix: ""', "resource: events.k8s.io/events", r"routes\[1\]: .*, as resource /events in routes\[0\] does; remove one"),
        ("listeners:", "overrides: events#http://a:1\nlisteners:", r"overrides: 'events#http://a:1' is not of the form .*\(line 2\)"),
        ("listeners:", "overrides: /pods#ftp://a:1\nlisteners:", r"overrides: /pods: 'ftp://a:1': a URL is"),
        ("listeners:", "overrides: /pods#http://a:1;https://a:2\nlisteners:", r"overrides: /pods: .*all http or all https"),
        ("listeners:", "overrides: /pds#http://a:1\nlisteners:", r"overrides: the core API group has no stored resource 'pds'"),
        ("listeners:", "overrides: /events#http://a:1\nlisteners:", r"overrides: resource /events means .*, as .* in routes\[0\]"),
        ("listeners:", "overrides: /pods#http://b:1;http://127.0.0.1:12379\nlisteners:", r"overrides.*12379' is used by clusters"),
        ("listeners:", "overrides: [a]\nlisteners:", r"overrides: \['a'\] must be a text"),
        ("listeners:", "registry_prefix: 1\nlisteners:", r"registry_prefix: 1 must be a text"),
        ("listeners:", "limits: {max_streams: 0}\nlisteners:", r"limits.max_streams: 0: must be greater than or equal to 1"),
        ("listeners:", "limits: {max_streams: lots}\nlisteners:", r"limits.max_streams: 'lots': must be a valid integer"),
        ("listeners:", "log: {level: loud}\nlisteners:", r"log.level: 'loud': must be 'debug'"),
        ("listeners:", "log: {slow_request_seconds: .nan}\nlisteners:", r"log.slow_request_seconds: nan: "),
        ("listeners:", "rotes: []\nlisteners:", r"rotes: unknown key; did you mean `routes`\? \(line 2\)"),
        ("listeners:", "2: []\nlisteners:", r"2: unknown key"),
        ("listeners:", "listeners: []\nold:", r"listeners: \[\]: at least one is needed"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(re.search(expected, problem) for problem in found), found
    assert not any("secret" in problem for problem in found)


def test_a_mistake_makes_no_others_up() -> None:
    assert len(problems(GOOD.replace("endpoints: [http://127.0.0.1:22379]", "endpoints: 5"))) == 1
    assert len(problems(GOOD.replace('prefix: "", cluster: main', 'prefix: "", cluster: main, cahe: true'))) == 1
    assert len(problems(GOOD.replace("name: clients,", "name: clients, home: evens,"))) == 1


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("127.0.0.1:2379", "2379").replace("/events", "/evnts").replace("cluster: main", "cluster: mian, cahe: true")
    text = text.replace("clusters:", "clusters:\n  - {name: main, endpoints: [http://127.0.0.1:12379]}")
    assert [problem.partition(": ")[0] for problem in problems(text)] == [
        "listeners[0].address", "clusters[1].endpoints", "clusters[1].name", "routes[0].resource", "routes[1].cahe",
    ]  # fmt: skip


def test_the_error_as_a_text() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GOOD.replace("/events", "/evnts").replace("name: clients", "nme: clients"), "shardgate.yaml")
    first, *rest = str(caught.value).splitlines()
    assert first == "shardgate.yaml: 3 problems"
    assert all(re.fullmatch(r"  \S+: .+ \(line \d\)", line) for line in rest)


@pytest.mark.parametrize("text", ["", "[]", "a: [", "\x00", "- 1", "a: &a [*a]", "a: 2020-13-45", "[" * 20000, "? [a]\n: b", "%"])
def test_no_mapping(text: str) -> None:
    assert problems(text)


def test_a_bomb_of_aliases_goes_off_nowhere() -> None:
    layers = "".join(f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 9)}]\n" for number in range(1, 40))
    assert any(problem.startswith("l39: unknown key") for problem in problems(f"l0: &l0 [x]\n{layers}"))


KEYS = st.sampled_from(["name", "address", "endpoints", "prefix", "cluster", "tls", "discovery", "resource", "raw_prefix", "dns", "x"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["a:1", "http://a:1", "/pods", "main", ""])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@given(st.fixed_dictionaries({}, optional={name: VALUES | st.lists(VALUES, min_size=1, max_size=3) for name in Config.model_fields}))
def test_nothing_but_a_config_error_comes_of_it(values: dict[str, object]) -> None:
    try:
        parse(json.dumps(values))
    except ConfigError as error:
        assert error.problems


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read the file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin1.yaml").write_bytes("# é".encode("latin-1"))
    with pytest.raises(ConfigError, match="byte 2 is no UTF-8"):
        load(tmp_path / "latin1.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(tmp_path / "bom.yaml") == parse(GOOD)


def test_kube_apiservers_flags() -> None:
    text = "/events#http://e:1;http://e:2,apps/*#http://x:1,apps/deployments#http://e:2;http://e:1,/pods#http://m:2,batch/*#http://x:2"
    found = from_flags("http://m:1,http://m:2", text, "127.0.0.1:2379", "127.0.0.1:9379")
    routes = found.routes_for(found.listeners[0])
    assert [(cluster.name, cluster.endpoints) for cluster in found.clusters] == [
        ("main", ("http://m:1", "http://m:2")), ("events", ("http://e:1", "http://e:2")), ("apps", ("http://x:1",)), ("batch", ("http://x:2",)),
    ]  # fmt: skip
    assert routes.cluster_of(b"/registry/deployments/a/b") == "events"
    assert routes.cluster_of(b"/registry/replicasets/a/b") == "apps"
    assert routes.cluster_of(b"/registry/pods/a") == "main"
    assert found.admin is not None


def test_a_resource_and_its_alias_may_both_be_overridden_to_one_place() -> None:
    both = "/events#http://e:1,events.k8s.io/events#http://e:1"
    assert from_flags("http://m:1", both, "127.0.0.1:1").clusters[1].name == "events"
    with pytest.raises(ConfigError, match="as resource /events in --etcd-servers-overrides does"):
        from_flags("http://m:1", both.replace("e:1,", "e:2,"), "127.0.0.1:1")


def test_made_up_names_are_new() -> None:
    found = from_flags("http://m:1", "main.io/things#http://a:1,main.io/others#http://b:1,/*#http://c:1,/pods#http://d:1", "a:1")
    assert [cluster.name for cluster in found.clusters] == ["main", "main-io-things", "main-io-others", "core", "pods"]
    text = GOOD.replace(" events", " apps") + "overrides: apps/*#http://a:1,batch/jobs#http://b:1"
    assert [cluster.name for cluster in parse(text).clusters][2:] == ["apps-2", "batch-jobs"]


def test_mistakes_in_flags_name_the_flag() -> None:
    with pytest.raises(ConfigError) as caught:
        from_flags("m:1", "/pds#http://a:1", "2379", "9379", "/registry")
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "--listen", "--admin", "--etcd-servers", "--etcd-servers-overrides",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--etcd-servers: cluster 'main' needs"):
        from_flags(",", "", "127.0.0.1:2379")


def test_another_registry() -> None:
    found = from_flags("http://m:1", "/events#http://e:1", "127.0.0.1:1", prefix="other/")
    assert found.routes_for(found.listeners[0]).cluster_of(b"/other/events/a") == "events"
    assert parse(GOOD + "registry_prefix: /\n").routes_for(found.listeners[0]).cluster_of(b"/events/a") == "events"


def test_listeners_of_one_cluster_need_no_routes() -> None:
    found = parse("listeners: [{name: a, address: 'localhost:1', cluster: m}]\nclusters: [{name: m, endpoints: ['http://[::1]:1']}]")
    assert found.table() == []
    assert found.home_of(found.listeners[0]) == "m"


def test_what_this_version_does_not_serve() -> None:
    assert [refusal.partition(": ")[0] for refusal in refusals(parse(WHOLE))] == [
        "listeners[0].tls", "listeners[0].address", "clusters[0]", "clusters[1].discovery",
    ]  # fmt: skip
    assert refusals(parse(GOOD.replace("http:", "https:")))
    assert refusals(parse(GOOD + "admin: {address: unix:///a}"))[0].startswith("admin.address: ")


def test_what_is_probably_not_meant() -> None:
    text = GOOD.replace("127.0.0.1:2379", "0.0.0.0:2379").replace("name: events,", "name: events, compaction: follow,")
    text = text.replace("{resource: /events, cluster: events}", "{resource: /events, cluster: main, cache: true}")
    assert [warning.partition(": ")[0] for warning in warnings(parse(text))] == [
        "clusters[1]", "clusters[1].compaction", "listeners[0]",
    ]  # fmt: skip


def test_every_key_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    found = [each for each in vars(models).values() if isinstance(each, type) and issubclass(each, models.Model)]
    assert {Config, models.Listener, models.Discovery} < set(found)
    for name, field in ((name, field) for model in found for name, field in model.model_fields.items()):
        assert f"`{name}`" in text or f"## {name}" in text, name
        if type(field.default) in (int, float, str) and field.default:
            default = re.escape(str(field.default))
            assert re.search(rf"`{name}` \| `{default}` |## {name}\n\n`{default}` ", text), name
