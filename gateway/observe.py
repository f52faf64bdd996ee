"""What is counted and logged of calls, and what the pages of the client port tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from gateway import logs
from gateway.core.errors import Code, RpcError
from gateway.core.joins import version_key
from gateway.core.plan import quoted
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.metrics import Metrics
from gateway.services.scope import Scope

PATIENCE = 5.0

WAITING = frozenset((method("lock", "lock"), method("election", "campaign")))
"""Calls that wait for other clients: that they take long says nothing of a cluster."""

CODES = {code.value: code.name for code in Code}

STATUS = method("maintenance", "status")
RANGE = method("kv", "range")


class Observer:
    """Told of every call that ends."""

    def __init__(self, metrics: Metrics, slow_seconds: float) -> None:
        self._metrics = metrics
        self.slow = slow_seconds or float("inf")
        self._log = logs.logger("calls")

    def record(self, call: Any, code: int, seconds: float) -> None:
        """Count it; log it if it was slow."""
        self._metrics.calls(call.cluster, call.method).ended(code, seconds, call.bytes_in, call.bytes_out)
        if seconds >= self.slow and not call.method.server_streaming and call.method not in WAITING:
            self.slow_request(call, code, seconds)

    def slow_request(self, call: Any, code: int, seconds: float) -> None:
        """Count and log it."""
        self._metrics.slow_requests += 1
        fields = {"method": call.method.label, "cluster": call.cluster, **_keys(call)}
        self._log.warning("slow_request", **fields, seconds=seconds, code=CODES.get(code, code))

    def crashed(self, call: Any, error: Exception) -> None:
        """A defect of the gateway's own."""
        self._log.error("call_crashed", error, method=call.method.label, cluster=call.cluster)


def _keys(call: Any) -> dict[str, str]:
    """What a slow call was about: its key and range_end, or the name of the lock. Of a transaction its first key. Never values."""
    try:
        request = call.method.request.FromString(call.framed[5:])
    except DecodeError:
        return {}
    if isinstance(request, pb.TxnRequest):
        request = _first(request)
    found = {name: getattr(request, name, b"") for name in ("key", "range_end", "name")}
    return {name: quoted(value) for name, value in found.items() if isinstance(value, bytes) and value}


def _first(txn: pb.TxnRequest) -> Message | None:
    """The first part of a transaction that names a key."""
    if txn.compare:
        return txn.compare[0]
    for each in (*txn.success, *txn.failure):
        kind = each.WhichOneof("request")
        if kind is not None and kind != "request_txn":
            return cast(Message, getattr(each, kind))
    return None


class HomeFacts:
    """Implements gateway.listeners.pages.Facts for one listener: what etcd tells of itself, told of the home cluster."""

    def __init__(self, scope: Scope, metrics: Metrics) -> None:
        self._scope = scope
        self._metrics = metrics

    async def version(self) -> Mapping[str, str]:
        """The lowest version of all clusters, by which clients switch features."""
        statuses = await asyncio.gather(*(self._status(name) for name in self._scope.clusters), return_exceptions=True)
        versions = sorted((each.version for each in statuses if not isinstance(each, BaseException)), key=version_key)
        if not versions:
            raise next(each for each in statuses if isinstance(each, BaseException))
        major, minor, *_ = (*versions[0].split("."), "0")
        return {"etcdserver": versions[0], "etcdcluster": f"{major}.{minor}.0"}

    async def _status(self, name: str) -> pb.StatusResponse:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        return pb.StatusResponse.FromString(await self._scope.clusters[name].unary(STATUS, b"", deadline=deadline))

    async def health(self) -> tuple[bool, str]:
        """A linearizable read of the home cluster, as etcd's own /health."""
        reason = await self._probe(self._scope.home.name)
        return not reason, reason

    async def checks(self) -> Mapping[str, str]:
        """Of home only: a balancer that asks must not give up the gateway because another cluster is down."""
        return {f"cluster_{self._scope.home.name}": await self._probe(self._scope.home.name)}

    async def _probe(self, name: str) -> str:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        request = pb.RangeRequest(key=b"health", limit=1).SerializeToString()
        try:
            await self._scope.clusters[name].unary(RANGE, request, deadline=deadline)
        except RpcError as error:
            return str(error)
        return ""

    def metrics(self) -> bytes:
        """The gateway's own."""
        return self._metrics.exposition()
