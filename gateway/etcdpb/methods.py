"""Every RPC of the etcd v3 API by its path, read from the service descriptors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from gateway.etcdpb import election_pb2, lock_pb2, rpc_pb2


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One RPC. `path` as on the wire (b"/etcdserverpb.KV/Range"), `service` ("kv"), `name` in snake case ("range"),
    `label` for metrics and logs ("KV/Range"), `request` and `reply` the message classes."""

    path: bytes
    service: str
    name: str
    label: str
    request: type[Any]
    reply: type[Any]
    client_streaming: bool
    server_streaming: bool


def snake(name: str) -> str:
    """"DeleteRange" -> "delete_range", "HashKV" -> "hash_kv"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _method(rpc: MethodDescriptor) -> Method:
    service = rpc.containing_service
    return Method(
        path=f"/{service.full_name}/{rpc.name}".encode(),
        service=service.name.lower(),
        name=snake(rpc.name),
        label=f"{service.name}/{rpc.name}",
        request=GetMessageClass(rpc.input_type),
        reply=GetMessageClass(rpc.output_type),
        client_streaming=rpc.client_streaming,
        server_streaming=rpc.server_streaming,
    )


def _all() -> Iterator[Method]:
    for file in (rpc_pb2, lock_pb2, election_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from map(_method, service.methods)


METHODS: dict[bytes, Method] = {method.path: method for method in _all()}
"""By path; all services of etcd 3.4 to 3.7: KV, Watch, Lease, Cluster, Maintenance, Auth, Lock, Election."""

_BY_NAME = {(method.service, method.name): method for method in METHODS.values()}


def method(service: str, name: str) -> Method:
    """The method by its service ("kv") and snake-case name ("range"); KeyError if there is none."""
    return _BY_NAME[service, name]
