"""One reply from the replies of several clusters, and the requests that lead to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.routes import Span
from gateway.etcdpb import rpc_pb2 as pb

_NONE, _ASCEND, _DESCEND = pb.RangeRequest.NONE, pb.RangeRequest.ASCEND, pb.RangeRequest.DESCEND
_KEY, _VALUE = pb.RangeRequest.KEY, pb.RangeRequest.VALUE
_TARGETS: dict[int, Callable[[Any], Any]] = {
    _KEY: lambda kv: kv.key,
    pb.RangeRequest.VERSION: lambda kv: kv.version,
    pb.RangeRequest.CREATE: lambda kv: kv.create_revision,
    pb.RangeRequest.MOD: lambda kv: kv.mod_revision,
    _VALUE: lambda kv: kv.value,
}
_LARGEST = (1 << 63) - 1


def part(request: pb.RangeRequest, span: Span, revision: int) -> pb.RangeRequest:
    """What to ask for a part of a range, so that `join_range` has all it needs; revision 0 is the newest. At a revision that another part
    was read at, only a linearizable read is sure to find it."""
    asked = pb.RangeRequest()
    asked.CopyFrom(request)
    asked.key, asked.range_end, asked.revision = span.key, span.end, revision
    asked.serializable = request.serializable and not revision
    if _cut_first(request):
        asked.sort_target = _KEY
        asked.limit = min(request.limit + 1, _LARGEST)
    if request.sort_target == _VALUE:
        asked.keys_only = False
    return asked


def join_range(request: pb.RangeRequest, replies: Sequence[pb.RangeResponse], header: pb.ResponseHeader) -> pb.RangeResponse:
    """The reply of one etcd that held all keys, from those to the parts in key order: the first `limit` of all are among
    the first `limit` of each. Keys of the same version (or value …) stay in key order."""
    count, more = sum(reply.count for reply in replies), any(reply.more for reply in replies)
    joined = pb.RangeResponse(header=header, count=count, more=more)
    for reply in replies:
        joined.kvs.extend(reply.kvs)
    if _cut_first(request):
        del joined.kvs[request.limit + 1 :]
    _sort(request, joined)
    if 0 < request.limit < len(joined.kvs):
        del joined.kvs[request.limit :]
        joined.more = True
    if request.keys_only and request.sort_target == _VALUE:
        for kv in joined.kvs:
            kv.ClearField("value")
    return joined


def _cut_first(request: pb.RangeRequest) -> bool:
    """Whether etcd takes the first limit + 1 keys and sorts only those: it does when a target is given without an order (rangeLimit in
    server/etcdserver/txn/range.go, in 3.4 and 3.5 the same in apply.go)."""
    filtered = request.min_mod_revision or request.max_mod_revision or request.min_create_revision or request.max_create_revision
    return request.sort_order == _NONE and request.sort_target != _KEY and request.limit > 0 and not filtered


def _sort(request: pb.RangeRequest, joined: pb.RangeResponse) -> None:
    """They are in key order. Targets other than the key ascend where no order is given; etcd up to 3.5 ignores an unknown order."""
    order, target = request.sort_order, request.sort_target
    if order == _DESCEND or (target != _KEY and order in (_NONE, _ASCEND)):
        joined.kvs.sort(key=_TARGETS[target], reverse=order == _DESCEND)


def join_time_to_live(home: pb.LeaseTimeToLiveResponse, others: Sequence[pb.LeaseTimeToLiveResponse]) -> pb.LeaseTimeToLiveResponse:
    """Home's reply about a lease that it has, with the smallest TTL and all keys, those of home first. `others`: replies of clusters that
    may have a copy; grantedTTL is 0 where there is none."""
    copies = [other for other in others if other.grantedTTL > 0]
    joined = pb.LeaseTimeToLiveResponse()
    joined.CopyFrom(home)
    joined.TTL = min((home.TTL, *(copy.TTL for copy in copies)))
    for copy in copies:
        joined.keys.extend(copy.keys)
    return joined


def join_status(home: pb.StatusResponse, others: Sequence[pb.StatusResponse], errors: Sequence[str]) -> pb.StatusResponse:
    """Home's status with the lowest version, the summed sizes, and everybody's errors."""
    joined = pb.StatusResponse()
    joined.CopyFrom(home)
    joined.version = min((home.version, *(other.version for other in others)), key=version_key)
    joined.dbSize += sum(other.dbSize for other in others)
    joined.dbSizeInUse += sum(other.dbSizeInUse for other in others)
    joined.dbSizeQuota += sum(other.dbSizeQuota for other in others)
    for other in others:
        joined.errors.extend(other.errors)
    joined.errors.extend(errors)
    return joined


def version_key(version: str) -> tuple[int, ...]:
    """"3.5.1" -> (3, 5, 1); what follows the numbers does not count."""
    numbers = (part.partition("-")[0] for part in version.split("."))
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)


def join_alarms(home: pb.AlarmResponse, others: Sequence[pb.AlarmResponse]) -> pb.AlarmResponse:
    """The alarms of all clusters, home's first."""
    joined = pb.AlarmResponse()
    joined.CopyFrom(home)
    for other in others:
        joined.alarms.extend(other.alarms)
    return joined
