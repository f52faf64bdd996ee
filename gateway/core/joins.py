"""One reply from the replies of several clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.etcdpb import rpc_pb2 as pb

_NONE, _ASCEND, _DESCEND = range(3)
_KEY, _VERSION, _CREATE, _MOD, _VALUE = range(5)
_TARGETS: dict[int, Callable[[Any], Any]] = {
    _KEY: lambda kv: kv.key,
    _VERSION: lambda kv: kv.version,
    _CREATE: lambda kv: kv.create_revision,
    _MOD: lambda kv: kv.mod_revision,
    _VALUE: lambda kv: kv.value,
}


def join_range(request: pb.RangeRequest, replies: Sequence[pb.RangeResponse], header: pb.ResponseHeader) -> pb.RangeResponse:
    """The reply of one etcd that held all keys: `replies` are those of the request's spans in key order, each asked with the request's
    own limit, sort and filters (the first `limit` of the union are among the first `limit` of each). Reuses the first reply."""
    joined = replies[0]
    kvs = list(joined.kvs)
    for reply in replies[1:]:
        kvs.extend(reply.kvs)
    ordered = _sorted(request, kvs)
    more = any(reply.more for reply in replies)
    if 0 < request.limit < len(ordered):
        ordered = ordered[: request.limit]
        more = True
    count = sum(reply.count for reply in replies)
    result = type(joined)(header=header, kvs=ordered, more=more, count=count)
    return result


def _sorted(request: pb.RangeRequest, kvs: list[Any]) -> list[Any]:
    order, target = int(request.sort_order), int(request.sort_target)
    if order == _NONE:
        order = _NONE if target == _KEY else _ASCEND  # as etcd: other targets ascend where nothing is said
    if order == _NONE or (order == _ASCEND and target == _KEY):
        return kvs
    return sorted(kvs, key=_TARGETS[target], reverse=order == _DESCEND)


def join_status(home: pb.StatusResponse, others: Sequence[pb.StatusResponse], errors: Sequence[str]) -> pb.StatusResponse:
    """Home's status with the lowest version, the summed sizes, and everybody's errors."""
    joined = type(home)()
    joined.CopyFrom(home)
    joined.version = min((home.version, *(other.version for other in others)), key=version_key)
    joined.dbSize += sum(other.dbSize for other in others)
    joined.dbSizeInUse += sum(other.dbSizeInUse for other in others)
    for other in others:
        joined.errors.extend(other.errors)
    joined.errors.extend(errors)
    return joined


def version_key(version: str) -> tuple[int, ...]:
    """"3.5.1" -> (3, 5, 1); what follows the numbers does not count."""
    numbers = (part.partition("-")[0] for part in version.split("."))
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)


def join_alarms(home: pb.AlarmResponse, others: Sequence[pb.AlarmResponse]) -> pb.AlarmResponse:
    """The alarms of all clusters, home's first."""
    joined = type(home)()
    joined.CopyFrom(home)
    for other in others:
        joined.alarms.extend(other.alarms)
    return joined
