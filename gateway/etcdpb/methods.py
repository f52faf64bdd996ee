"""INTERFACE SKETCH, to be derived from the generated service descriptors: every RPC by its path."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One RPC. `path` as on the wire (b"/etcdserverpb.KV/Range"), `service` ("kv"), `name` in snake case ("range"), label for
    metrics and logs `label` ("KV/Range")."""

    path: bytes
    service: str
    name: str
    label: str
    request: type[Any]
    reply: type[Any]
    client_streaming: bool
    server_streaming: bool


METHODS: dict[bytes, Method] = {}
"""By path; all services of etcd 3.4 to 3.7: KV, Watch, Lease, Cluster, Maintenance, Auth, Lock, Election."""


def method(service: str, name: str) -> Method:
    """The method by its service ("kv") and snake-case name ("range"); KeyError if there is none."""
    raise NotImplementedError
