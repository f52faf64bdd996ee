"""The listeners, clusters and routes of a configuration, each with its place: those of the file, and those that its overrides mean.

Parts of a wrong shape are left out, so that a mistake in one does not hide what is wrong with the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from gateway.config.models import Admin, ClusterConfig, Listener, Model, RouteConfig, folder, url
from gateway.core import overrides

M = TypeVar("M", bound=Model)
Problem = tuple[str, str]
"""The YAML path and a text that names the value and the fix."""


@dataclass
class Parts:
    """Parts with their YAML paths. `names` are those of all clusters, of a wrong shape too; `registry` is the registry_prefix."""

    listeners: list[tuple[str, Listener]]
    clusters: list[tuple[str, ClusterConfig]]
    routes: list[tuple[str, RouteConfig]]
    admin: Admin | None
    names: list[str]
    registry: str

    @classmethod
    def of(cls, values: dict[str, Any]) -> Parts:
        """The parts of what YAML gave."""
        clusters = values.get("clusters")
        names = [each.get("name") for each in clusters if isinstance(each, dict)] if isinstance(clusters, list) else []
        registry = values.get("registry_prefix", "/registry")
        return cls(
            listeners=list(_of_right_shape(values, "listeners", Listener)),
            clusters=list(_of_right_shape(values, "clusters", ClusterConfig)),
            routes=list(_of_right_shape(values, "routes", RouteConfig)),
            admin=next((admin for _, admin in _of_right_shape({"admin": [values.get("admin")]}, "admin", Admin)), None),
            names=[name for name in names if isinstance(name, str)],
            registry=folder(registry) if isinstance(registry, str) else "/registry",
        )

    def override(self, text: str) -> Iterator[Problem]:
        """Add the clusters and routes of a --etcd-servers-overrides. Servers that are a cluster's already are that cluster."""
        entries, wrong = overrides.parse(text) if text.strip() else ([], [])
        yield from (("overrides", each) for each in wrong)
        for entry in entries:
            try:
                cluster = self._cluster_at(tuple(map(url, entry.servers)), entry.resource)
            except ValueError as error:
                reason = error.errors()[0]["ctx"]["error"] if isinstance(error, ValidationError) else error
                yield "overrides", f"{entry.resource}: {shown(';'.join(entry.servers))}: {reason}"
            else:
                self.routes.append(("overrides", RouteConfig(resource=entry.resource, cluster=cluster)))

    def _cluster_at(self, servers: tuple[str, ...], resource: str) -> str:
        """The name of the cluster that has these servers, made up after the resource if there is none."""
        for _, cluster in self.clusters:
            if set(servers) <= set(cluster.endpoints):
                return cluster.name
        base = re.sub("[^a-z0-9]+", "-", resource.lower()).strip("-") or "core"
        name = next(name for name in (base, *(f"{base}-{number}" for number in range(2, len(self.names) + 3))) if name not in self.names)
        self.clusters.append(("overrides", ClusterConfig(name=name, endpoints=servers)))
        self.names.append(name)
        return name


def shown(value: Any) -> str:
    """A value for a message: not too long, and without the password of a URL."""
    text = re.sub("//[^/]*@", "//...@", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _of_right_shape(values: dict[str, Any], key: str, model: type[M]) -> Iterator[tuple[str, M]]:
    items = values.get(key)
    for number, item in enumerate(items if isinstance(items, list) else ()):
        try:
            yield f"{key}[{number}]", model.model_validate(item)
        except ValidationError:
            continue
