"""Our .proto files against the descriptors in real etcd programs: etcd must not have anything that we lack or number otherwise."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from gateway.etcdpb import auth_pb2, election_pb2, kv_pb2, lock_pb2, rpc_pb2
from tests.etcdpb.descriptors import embedded
from tests.etcdpb.live import BINARIES

FILES = {
    "kv.proto": kv_pb2,
    "auth.proto": auth_pb2,
    "rpc.proto": rpc_pb2,
    "v3lock.proto": lock_pb2,
    "v3election.proto": election_pb2,
}
PEERS_ONLY = {"etcdserverpb.LeaseCheckpoint", "etcdserverpb.DowngradeVersionTestRequest"}
"""Messages that no client sends or gets."""


def facts(file: FileDescriptorProto) -> dict[str, Any]:
    """Everything that decides about bytes, paths and JSON, by full name."""
    found: dict[str, Any] = {}
    for message in file.message_type:
        found.update(_message(f"{file.package}.{message.name}", message))
    for enum in file.enum_type:
        found.update(_enum(f"{file.package}.{enum.name}", enum))
    for service in file.service:
        for rpc in service.method:
            path = f"{file.package}.{service.name}/{rpc.name}"
            found[path] = (rpc.input_type, rpc.output_type, rpc.client_streaming, rpc.server_streaming)
    return found


def _message(name: str, message: DescriptorProto) -> Iterator[tuple[str, Any]]:
    yield name, "message"
    for field in message.field:
        yield f"{name}.{field.name}", _field(message, field)
    for part in message.nested_type:
        yield from _message(f"{name}.{part.name}", part)
    for enum in message.enum_type:
        yield from _enum(f"{name}.{enum.name}", enum)


def _field(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[Any, ...]:
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return field.number, field.type, field.label, field.type_name, oneof


def _enum(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, Any]]:
    yield name, "enum"
    for value in enum.value:
        yield f"{name}.{value.name}", value.number


def ours(name: str) -> Mapping[str, Any]:
    file = FileDescriptorProto()
    FILES[name].DESCRIPTOR.CopyToProto(file)
    return facts(file)


@pytest.mark.parametrize("version", BINARIES)
@pytest.mark.parametrize("name", FILES)
def test_etcd_has_nothing_else(version: str, name: str) -> None:
    theirs = facts(embedded(BINARIES[version].read_bytes())[name])
    mine = ours(name)
    wanted = {key: fact for key, fact in theirs.items() if not key.startswith(tuple(PEERS_ONLY))}
    assert len(wanted) >= 10
    assert {key: mine.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("name", FILES)
def test_we_have_nothing_that_the_newest_etcd_lacks(name: str) -> None:
    newest = max(BINARIES, key=lambda version: tuple(map(int, version.split("."))))
    if newest < "3.7":
        pytest.skip("needs etcd 3.7")
    theirs = facts(embedded(BINARIES[newest].read_bytes())[name])
    assert ours(name).keys() - theirs.keys() == set()
