"""The YAML file: read, checked as a whole, turned into frozen models. An error names the place, the value and the fix; all are told at once."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.core import overrides
from gateway.core.resources import UnknownResource, prefixes
from gateway.core.routes import Route, Routes


class ConfigError(Exception):
    """`problems`: one line each, with the YAML path."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return "\n".join((f"{self.source}: {count}", *(f"  {problem}" for problem in self.problems)))


class Model(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerTls(Model):
    """A listener's certificate; with client_ca_file clients must show one of theirs."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None


class ClientTls(Model):
    """How the gateway identifies a cluster's endpoints, and itself to them."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None


def _address(value: str) -> str:
    if value.startswith("unix://"):
        if not value.removeprefix("unix://").startswith("/"):
            raise ValueError("a unix address needs an absolute path: unix:///run/shardgate.sock")
        return value
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("an address is host:port with a port of 1 to 65535, or unix:///path")
    return value


def _url(value: str) -> str:
    parts = urlsplit(value)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise ValueError("an endpoint is http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an endpoint has no user or password in its URL: logs and metrics show it")
    if parts.path not in ("", "/") or parts.query:
        raise ValueError("an endpoint has no path; etcd serves at the root")
    return value.rstrip("/")


class Listener(Model):
    """An address that clients connect to."""

    name: str = Field(min_length=1)
    address: str
    advertise_urls: tuple[str, ...] = ()
    tls: ServerTls | None = None
    home: str | None = None
    cluster: str | None = None

    _check_address = field_validator("address")(_address)

    @field_validator("advertise_urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_url(each) for each in value)


class Admin(Model):
    """The listener for metrics, health and status."""

    address: str

    _check_address = field_validator("address")(_address)


class Discovery(Model):
    """Where endpoints come from, other than a list. No form of it is served yet."""

    dns_srv: str | None = None
    dns: str | None = None
    file: str | None = None
    members: tuple[str, ...] | None = None
    kubernetes: str | None = None


class ClusterConfig(Model):
    """One etcd cluster."""

    name: str = Field(min_length=1)
    endpoints: tuple[str, ...] = ()
    discovery: Discovery | None = None
    tls: ClientTls | None = None
    compaction: Literal["follow", "periodic", "off"] = "off"

    @field_validator("compaction", mode="before")
    @classmethod
    def _check_compaction(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` so

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        urls = tuple(_url(each) for each in value)
        if len({urlsplit(url).scheme for url in urls}) > 1:
            raise ValueError("endpoints of one cluster are all http or all https")
        if len(set(urls)) < len(urls):
            raise ValueError("an endpoint is named twice")
        return urls


class RouteConfig(Model):
    """A key prefix, or a Kubernetes resource, and the cluster that owns it."""

    prefix: str | None = None
    resource: str | None = None
    cluster: str
    cache: bool | None = None
    coalesce: bool = True


class Limits(Model):
    """Bounds on what clients may ask for."""

    max_connections: int = Field(default=20_000, ge=1)
    max_streams: int = Field(default=16_384, ge=1)
    max_request_bytes: int = Field(default=2 << 20, ge=1024)


class Log(Model):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"
    slow_request_seconds: float = Field(default=1.0, ge=0)


class Config(Model):
    """A whole configuration that makes sense."""

    listeners: tuple[Listener, ...] = Field(min_length=1)
    admin: Admin | None = None
    clusters: tuple[ClusterConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    overrides: str = ""
    registry_prefix: str = "/registry"
    limits: Limits = Limits()
    log: Log = Log()

    def table(self) -> list[Route]:
        """The routes with resources translated; an exact resource wins over `group/*`."""
        found: dict[bytes, tuple[bool, Route]] = {}
        for _, route, wildcard in _routes(self):
            if isinstance(route, Route) and (route.prefix not in found or (found[route.prefix][0] and not wildcard)):
                found[route.prefix] = wildcard, route
        return [route for _, route in found.values()]

    def routes_for(self, listener: Listener) -> Routes:
        """The routing table of one listener."""
        return Routes.everything(listener.cluster) if listener.cluster else Routes(self.table())

    def home_of(self, listener: Listener) -> str:
        """The cluster that takes the listener's RPCs without a key."""
        return listener.cluster or listener.home or next(route.cluster for route in self.routes if route.prefix == "")


def load(path: str | Path) -> Config:
    """The configuration in a file. Raises ConfigError with all that is wrong."""
    source = str(path)
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(source, [f"can't read the file: {getattr(error, 'strerror', None) or error}"]) from None
    return parse(text, source)


def parse(text: str, source: str = "config") -> Config:
    """The configuration in a YAML text. Raises ConfigError."""
    try:
        raw = yaml.safe_load(text)
        lines = _lines(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(source, [f"not YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError(source, ["nested too deeply"]) from None
    if not isinstance(raw, dict):
        raise ConfigError(source, ["the file is no mapping; it needs `listeners`, `clusters` and `routes`"])
    return check(raw, source, lines)


def from_flags(servers: str, overrides_text: str, listen: str, admin: str | None) -> Config:
    """The configuration that kube-apiserver's own --etcd-servers and --etcd-servers-overrides describe. Raises ConfigError."""
    urls = [url.strip() for url in servers.split(",") if url.strip()]
    raw: dict[str, Any] = {
        "listeners": [{"name": "clients", "address": listen}],
        "clusters": [{"name": "main", "endpoints": urls}],
        "routes": [{"prefix": "", "cluster": "main"}],
        "overrides": overrides_text,
    }
    if admin:
        raw["admin"] = {"address": admin}
    return check(raw, "flags", {})


def check(raw: dict[str, Any], source: str, lines: dict[str, int]) -> Config:
    """A Config from what YAML or flags gave; `lines` has the line numbers of YAML paths. Raises ConfigError."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(source, [_located(*_told(each), lines) for each in error.errors()]) from None
    config, problems = _with_overrides(config)
    problems += list(_problems(config))
    if problems:
        raise ConfigError(source, [_located(path, text, lines) for path, text in problems])
    return config


def _located(path: str, text: str, lines: dict[str, int]) -> str:
    line = lines.get(path) or lines.get(path.rpartition(".")[0])
    return f"{path}: {text}" + (f" (line {line})" if line else "")


def _lines(node: yaml.Node | None, path: str = "") -> dict[str, int]:
    """Line numbers by YAML path."""
    found = {path: node.start_mark.line + 1} if node is not None and path else {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            found |= _lines(value, f"{path}.{key.value}" if path else str(key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            found |= _lines(value, f"{path}[{number}]")
    return found


_KEYS: dict[str, type[Model]] = {
    "": Config, "listeners": Listener, "admin": Admin, "clusters": ClusterConfig, "routes": RouteConfig, "limits": Limits, "log": Log,
}  # fmt: skip


def _told(error: Any) -> tuple[str, str]:
    """Path and text of one of pydantic's errors."""
    place: tuple[int | str, ...] = error["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    value = repr(error["input"])
    value = value if len(value) <= 60 else f"{value[:57]}..."
    if error["type"] == "extra_forbidden":
        model = _KEYS.get(str(place[0]) if len(place) > 1 else "", Config)
        close = get_close_matches(str(place[-1]), model.model_fields, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(model.model_fields)}"
        return path, f"unknown key; {hint}"
    if error["type"] == "missing":
        return path, "is required"
    text = str(error["msg"]).removeprefix("Value error, ")
    return path, f"{value}: {text[:1].lower()}{text[1:]}"


def _with_overrides(config: Config) -> tuple[Config, list[tuple[str, str]]]:
    """The config with `overrides` turned into clusters and routes; equal server lists are one cluster."""
    entries, wrong = overrides.parse(config.overrides) if config.overrides.strip() else ([], [])
    problems = [("overrides", each) for each in wrong]
    by_servers = {frozenset(cluster.endpoints): cluster.name for cluster in config.clusters if cluster.endpoints}
    clusters = list(config.clusters)
    routes = list(config.routes)
    for entry in entries:
        try:
            servers = tuple(_url(url) for url in entry.servers)
        except ValueError as error:
            problems.append(("overrides", f"{entry.resource}: {error}"))
            continue
        name = by_servers.get(frozenset(servers))
        if name is None:
            name = _free_name(entry.resource, {cluster.name for cluster in clusters})
            by_servers[frozenset(servers)] = name
            clusters.append(ClusterConfig(name=name, endpoints=servers))
        routes.append(RouteConfig(resource=entry.resource, cluster=name))
    return config.model_copy(update={"clusters": tuple(clusters), "routes": tuple(routes)}), problems


def _free_name(resource: str, taken: set[str]) -> str:
    base = resource.strip("/").replace("/*", "").replace("/", "-") or "override"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 1_000_000))) if name not in taken)


def _problems(config: Config) -> Iterator[tuple[str, str]]:
    """What makes no sense across the parts."""
    names = [cluster.name for cluster in config.clusters]
    yield from _twice("clusters", names)
    yield from _twice("listeners", [listener.name for listener in config.listeners])
    yield from _twice("listeners", [listener.address for listener in config.listeners], "address")
    for number, cluster in enumerate(config.clusters):
        path = f"clusters[{number}]"
        if bool(cluster.endpoints) == bool(cluster.discovery):
            yield path, f"cluster {cluster.name!r} needs `endpoints` (a list of URLs) or `discovery`, one of them"
    for number, listener in enumerate(config.listeners):
        path = f"listeners[{number}]"
        if listener.cluster and listener.home:
            yield path, "give `cluster` (every key goes there, so it is the home too) or `home`, not both"
        yield from _unknown(f"{path}.cluster", listener.cluster, names)
        yield from _unknown(f"{path}.home", listener.home, names)
    for number, route in enumerate(config.routes):
        yield from _unknown(f"routes[{number}].cluster", route.cluster, names)
    yield from _route_problems(config)


def _twice(path: str, values: list[str], field: str = "name") -> Iterator[tuple[str, str]]:
    for number, value in enumerate(values):
        if value in values[:number]:
            yield f"{path}[{number}].{field}", f"{value!r} is used by {path}[{values.index(value)}] already; choose another"


def _unknown(path: str, name: str | None, names: list[str]) -> Iterator[tuple[str, str]]:
    if name is not None and name not in names:
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"clusters are {', '.join(names) or 'not defined'}"
        yield path, f"there is no cluster {name!r}; {hint}"


def _route_problems(config: Config) -> Iterator[tuple[str, str]]:
    if not any(route.prefix == "" for route in config.routes) and not all(listener.cluster for listener in config.listeners):
        yield "routes", 'no default route; add {prefix: "", cluster: NAME}'
    seen: dict[tuple[bytes, bool], str] = {}
    for path, route, wildcard in _routes(config):
        if isinstance(route, str):
            yield path, route
            continue
        key = route.prefix.rstrip(b"/") or route.prefix, wildcard
        if key in seen:
            yield path, f"{route.source} means {route.prefix.decode()!r}, which {seen[key]} has already; remove one"
        seen[key] = path


def _routes(config: Config) -> Iterator[tuple[str, Route | str, bool]]:
    """Each route's YAML path, the translated route or what is wrong with it, and whether it came from `group/*`."""
    for number, route in enumerate(config.routes):
        path = f"routes[{number}]"
        if (route.prefix is None) == (route.resource is None):
            yield path, "give `prefix` or `resource`, one of them", False
        elif route.prefix is None:
            yield from _resource_routes(f"{path}.resource", route.resource or "", route, config.registry_prefix)
        elif route.prefix == "\0":
            yield path, "a route can't have the prefix \\0", False
        else:
            yield path, _route(route, route.prefix, f"prefix {route.prefix!r}"), False


def _resource_routes(path: str, resource: str, route: RouteConfig, registry: str) -> Iterator[tuple[str, Route | str, bool]]:
    try:
        found = prefixes(resource, registry)
    except UnknownResource as error:
        yield path, str(error), False
        return
    for prefix in found:
        yield path, _route(route, prefix, f"resource {resource}"), resource.endswith("/*")


def _route(route: RouteConfig, prefix: str, source: str) -> Route:
    """Caching is on for the default route, where nothing is said."""
    cache = route.cache if route.cache is not None else not prefix
    return Route(prefix.encode(), route.cluster, cache, route.coalesce, source)
