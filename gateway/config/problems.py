"""What is wrong with a configuration, each as its YAML path and a text that names the value and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from gateway.config.models import ClusterConfig, Config, Listener, Model
from gateway.config.parts import Parts, Problem, shown
from gateway.core.keyrange import EVERYTHING_FROM
from gateway.core.resources import UnknownResource
from gateway.core.routes import Route

_FIXES = {
    "missing": "is required",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys and values",
    "string_type": "must be a text; put it in quotes",
    "bytes_type": "must be a text; put it in quotes",
    "string_pattern_mismatch": "a name has letters, digits, '.', '_' and '-' only, and begins with a letter or a digit",
    "bytes_too_short": 'must not be empty; the default route is {prefix: "", cluster: NAME}',
}
"""For pydantic's error types: what it says itself names Python's types."""


def of_shape(error: Any) -> Problem:
    """One of pydantic's errors."""
    kind = error["type"]
    *above, last = error["loc"]
    place = (*above, str(last) if kind == "invalid_key" else last)  # a key that is a number, say
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    if kind in ("extra_forbidden", "invalid_key"):
        return path, f"unknown key; {_known(str(last), _model(place[:-1]))}"
    if kind == "missing" or isinstance(error["input"], dict):
        return path, _FIXES.get(kind) or _text(error)
    return path, f"{shown(error['input'])} {_FIXES[kind]}" if kind in _FIXES else f"{shown(error['input'])}: {_text(error)}"


def _text(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must")


def _known(key: str, model: type[Model]) -> str:
    close = get_close_matches(key, model.model_fields, 1)
    return f"did you mean `{close[0]}`?" if close else f"known keys are {', '.join(model.model_fields)}"


def _model(place: tuple[int | str, ...]) -> type[Model]:
    """The model whose keys stand at a path."""
    model: type[Model] = Config
    for part in place:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return model


def _models(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def of_sense(parts: Parts) -> Iterator[Problem]:
    """What makes no sense across the parts."""
    yield from _twice([(f"{path}.name", listener.name) for path, listener in parts.listeners])
    yield from _twice([(f"{path}.name", cluster.name) for path, cluster in parts.clusters])
    addresses = [(f"{path}.address", listener.address) for path, listener in parts.listeners]
    yield from _twice([*addresses, ("admin.address", parts.admin.address)] if parts.admin else addresses)
    yield from _twice([(f"{path}.endpoints", url) for path, cluster in parts.clusters for url in cluster.endpoints])
    for path, cluster in parts.clusters:
        yield from _of_cluster(path, cluster)
    for path, listener in parts.listeners:
        yield from _of_listener(path, listener, parts.names)
    for path, route in parts.routes:
        yield from _unknown(f"{path}.cluster", route.cluster, parts.names)
    yield from _of_routes(parts)


def _twice(values: list[tuple[str, str]]) -> Iterator[Problem]:
    """Names, addresses and endpoints that are somebody else's already."""
    owners: dict[str, str] = {}
    for path, value in values:
        if value in owners:
            yield path, f"{value!r} is used by {owners[value]} already; choose another"
        owners.setdefault(value, path)


def _unknown(path: str, name: str | None, names: list[str]) -> Iterator[Problem]:
    if name is not None and name not in names:
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the clusters are {', '.join(map(repr, names)) or 'not defined'}"
        yield path, f"there is no cluster {name!r}; {hint}"


def _of_cluster(path: str, cluster: ClusterConfig) -> Iterator[Problem]:
    if bool(cluster.endpoints) == bool(cluster.discovery):
        yield path, f"cluster {cluster.name!r} needs `endpoints` (a list of URLs) or `discovery`, one of them"
    if cluster.tls and any(url.startswith("http:") for url in cluster.endpoints):
        yield f"{path}.tls", "the endpoints are http://; write https://, or remove `tls`"


def _of_listener(path: str, listener: Listener, names: list[str]) -> Iterator[Problem]:
    if listener.cluster and listener.home:
        yield path, "give `cluster` (every key goes there, so it is the home too) or `home`, not both"
    yield from _unknown(f"{path}.cluster", listener.cluster, names)
    yield from _unknown(f"{path}.home", listener.home, names)


def of_default(config: Config) -> Iterator[Problem]:
    """Whether every key has a cluster."""
    if not any(route.prefix == "" for route in config.routes) and not all(listener.cluster for listener in config.listeners):
        yield "routes", 'no default route; add {prefix: "", cluster: NAME}'


def _of_routes(parts: Parts) -> Iterator[Problem]:
    seen: dict[tuple[bytes, bool], tuple[str, Route]] = {}
    for path, each in parts.routes:
        try:
            routes = each.routes(parts.registry)
        except UnknownResource as error:
            yield path if path == "overrides" else f"{path}.resource", str(error)
            continue
        for route in routes:
            if route.owned()[0][0] == EVERYTHING_FROM:
                yield path, f"{route.source}: a route can't start at the key \\0, which as the end of a range means the last key"
            first = seen.setdefault((route.below, each.wildcard), (path, route))
            if first[1] is not route and not _same(first, (path, route)):
                keys = shown(route.below.decode(errors="backslashreplace"))
                yield path, f"{route.source} means the keys {keys}, as {first[1].source} in {first[0]} does; remove one"


def _same(one: tuple[str, Route], two: tuple[str, Route]) -> bool:
    """Overrides name a resource and its alias, often both."""
    return one[0] == two[0] == "overrides" and one[1].cluster == two[1].cluster


def refusals(config: Config) -> list[str]:
    """What is accepted, but not served by this version: `serve` refuses it."""
    found: list[Problem] = []
    for number, listener in enumerate(config.listeners):
        if listener.tls:
            found.append((f"listeners[{number}].tls", "TLS is not served by this version yet; remove it"))
        if listener.address.startswith("unix:"):
            found.append((f"listeners[{number}].address", "unix sockets are not served by this version yet; use host:port"))
    if config.admin and config.admin.address.startswith("unix:"):
        found.append(("admin.address", "unix sockets are not served by this version yet; use host:port"))
    for number, cluster in enumerate(config.clusters):
        if cluster.tls or any(url.startswith("https:") for url in cluster.endpoints):
            found.append((f"clusters[{number}]", f"cluster {cluster.name!r}: TLS is not spoken by this version yet; use http:// endpoints"))
        if cluster.discovery:
            found.append((f"clusters[{number}].discovery", "endpoints are not discovered by this version yet; list them in `endpoints`"))
    return [f"{path}: {text}" for path, text in found]


def warnings(config: Config) -> list[str]:
    """What has no effect, or is probably not meant."""
    found: list[Problem] = []
    used = {route.cluster for route in config.routes} | {each.cluster or each.home for each in config.listeners}
    for number, cluster in enumerate(config.clusters):
        if cluster.name not in used:
            found.append((f"clusters[{number}]", f"no route and no listener uses cluster {cluster.name!r}"))
        if cluster.compaction != "off":
            found.append((f"clusters[{number}].compaction", "has no effect in this version yet; a client's compaction goes to home"))
    for number, listener in enumerate(config.listeners):
        if not listener.advertise_urls and listener.address.startswith(("0.0.0.0:", "[::]:")):
            found.append((f"listeners[{number}]", f"clients are told http://{listener.address}; name a real address in `advertise_urls`"))
    return [f"{path}: {text}" for path, text in found]
