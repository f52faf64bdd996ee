"""What a configuration says, as frozen models. Each checks what can be said of it alone."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.core.resources import prefixes
from gateway.core.routes import Route, Routes

_HOST = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")


def _is_host(text: str) -> bool:
    """A name or an address; IPv6 in brackets."""
    if text.startswith("["):
        try:
            return text.endswith("]") and bool(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            return False
    return bool(_HOST.fullmatch(text))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _address(value: str) -> str:
    if value.startswith("unix://"):
        if not value.removeprefix("unix://").startswith("/"):
            raise ValueError("a unix address needs an absolute path: unix:///run/shardgate.sock")
        return value
    host, _, port = value.rpartition(":")
    if not _is_host(host) or not _is_port(port):
        raise ValueError("an address is host:port (127.0.0.1:2379, [::1]:2379, 0.0.0.0:2379) or unix:///path")
    return value


def url(value: str) -> str:
    """http://host:port or https://host:port. Raises ValueError."""
    scheme, _, rest = value.partition("://")
    host, _, port = rest.removesuffix("/").rpartition(":")
    if "@" in rest:
        raise ValueError("a URL has no user or password: logs and metrics show it")
    if scheme not in ("http", "https") or not _is_host(host) or not _is_port(port):
        raise ValueError("a URL is http://host:port or https://host:port, without a path")
    return value.removesuffix("/")


def _one_kind(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len({urlsplit(each).scheme for each in urls}) > 1:
        raise ValueError("the endpoints of a cluster are all http or all https")
    if len(set(urls)) < len(urls):
        raise ValueError("an endpoint is named twice")
    return urls


def folder(value: str) -> str:
    """A registry_prefix: as in kube-apiserver's --etcd-prefix the slash in front may be left out, one at the end too."""
    return f"/{value.strip('/')}".rstrip("/")


def _encodable(value: str) -> str:
    """YAML can spell surrogates."""
    value.encode()
    return value


def _some(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("at least one is needed")
    return value


def _word(value: Any) -> Any:
    """YAML takes an unquoted `off` for false."""
    return "off" if value is False else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Goes into logs, metrics and a request header."""

Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(url)]


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

    @model_validator(mode="after")
    def _pair(self) -> ClientTls:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("`cert_file` and `key_file` belong together; give both or none")
        return self


class Listener(Model):
    """An address that clients connect to."""

    name: Name
    address: Address
    advertise_urls: tuple[Url, ...] = ()
    tls: ServerTls | None = None
    home: str | None = None
    cluster: str | None = None


class Admin(Model):
    """The listener for metrics, health and status."""

    address: Address


class Discovery(Model):
    """Where endpoints come from, other than a list. No form of it is served yet."""

    dns_srv: str | None = None
    dns: str | None = None
    file: str | None = None
    members: tuple[Url, ...] | None = None

    @model_validator(mode="after")
    def _one(self) -> Discovery:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"give one of {', '.join(type(self).model_fields)}")
        return self


class Cache(Model):
    """What the gateway keeps of a cluster in memory."""

    budget_mib: int = Field(default=1024, ge=1)
    history_revisions: int = Field(default=10_000, ge=0)
    history_mib: int = Field(default=64, ge=0)


class ClusterConfig(Model):
    """One etcd cluster."""

    name: Name
    endpoints: Annotated[tuple[Url, ...], AfterValidator(_one_kind)] = ()
    discovery: Discovery | None = None
    tls: ClientTls | None = None
    compaction: Annotated[Literal["follow", "periodic", "off"], BeforeValidator(_word)] = "off"
    cache: Cache = Cache()
    feed: Literal["cluster", "routes"] = "cluster"
    watch_progress_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)


class RouteConfig(Model):
    """A key prefix, or a Kubernetes resource, and the cluster that owns it."""

    prefix: Annotated[str, AfterValidator(_encodable)] | None = None
    raw_prefix: bytes | None = Field(default=None, min_length=1)
    resource: str | None = None
    cluster: str
    cache: bool | None = None
    coalesce: bool = True

    @model_validator(mode="after")
    def _one(self) -> RouteConfig:
        if sum(each is not None for each in (self.prefix, self.raw_prefix, self.resource)) != 1:
            raise ValueError("give one of `prefix`, `raw_prefix` and `resource`")
        return self

    @property
    def wildcard(self) -> bool:
        """Whether it means all resources of a group."""
        return self.resource is not None and self.resource.endswith("/*")

    def routes(self, registry: str) -> tuple[Route, ...]:
        """What it means, with the resource translated. Raises UnknownResource."""
        cache = self.cache if self.cache is not None else self.prefix == ""
        if self.resource is not None:
            found = [(prefix.encode(), False) for prefix in prefixes(self.resource, registry)]
            source = f"resource {self.resource}"
        elif self.raw_prefix is not None:
            found, source = [(self.raw_prefix, True)], f"raw_prefix {str(self.raw_prefix)[1:]}"
        else:
            found, source = [((self.prefix or "").encode(), False)], f"prefix {self.prefix!r}" if self.prefix else "the default route"
        return tuple(Route(prefix, self.cluster, cache, self.coalesce, source, raw) for prefix, raw in found)


class Limits(Model):
    """Bounds on what clients may ask for."""

    max_connections: int = Field(default=20_000, ge=1)
    max_streams: int = Field(default=16_384, ge=1)
    max_request_bytes: int = Field(default=2 << 20, ge=1024)


class Log(Model):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"
    slow_request_seconds: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class Config(Model):
    """A whole configuration. What `overrides` means is in `clusters` and `routes` too."""

    listeners: Annotated[tuple[Listener, ...], AfterValidator(_some)]
    admin: Admin | None = None
    clusters: tuple[ClusterConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    overrides: str = ""
    registry_prefix: Annotated[str, AfterValidator(folder)] = "/registry"
    limits: Limits = Limits()
    log: Log = Log()

    def table(self) -> list[Route]:
        """The routes with resources translated; an exact resource wins over `group/*`."""
        found: dict[bytes, Route] = {}
        for route in self._translated(wildcard=True):
            found.setdefault(route.below, route)
        found |= {route.below: route for route in self._translated(wildcard=False)}
        return list(found.values())

    def _translated(self, wildcard: bool) -> Iterator[Route]:
        return (route for each in self.routes if each.wildcard == wildcard for route in each.routes(self.registry_prefix))

    def routes_for(self, listener: Listener) -> Routes:
        """The routing table of one listener."""
        return Routes.everything(listener.cluster) if listener.cluster else Routes(self.table())

    def home_of(self, listener: Listener) -> str:
        """The cluster that takes the listener's RPCs without a key."""
        return listener.cluster or listener.home or next(route.cluster for route in self.routes if route.prefix == "")


