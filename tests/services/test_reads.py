"""What memory may no longer answer when the time for it has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.plan import Forward
from gateway.core.routes import Route, Routes
from gateway.etcdpb import rpc_pb2 as pb
from gateway.services.reads import Reads
from gateway.services.scope import Scope
from tests.etcd import EtcdCluster
from tests.upstream.test_feed import following, run


@pytest.mark.parametrize("kind", ["key", "range"])
def test_a_store_that_is_given_up_while_a_read_waits(etcd: EtcdCluster, kind: str) -> None:
    """The event that the read waits for is the one that is too much: the empty store is no answer."""

    async def work() -> None:
        async with following(etcd, budget=1 << 20) as made:
            await made.live()
            feed = made.feed
            route = Route(b"", "c", cache=True)
            reads = Reads(Scope("l", Routes((route,)), made.cluster, {"c": made.cluster}, (), {"c": feed}))
            forwarded: list[Any] = []
            reads.forward = lambda call, *_: forwarded.append(call)  # type: ignore[method-assign]
            call: Any = SimpleNamespace(ended=False, metadata={}, cluster="", framed=b"", reply_raw=lambda data: pytest.fail("answered"))
            waiting: list[Any] = []
            feed.confirm = waiting.append  # type: ignore[method-assign]
            source = reads.instant(route, b"/given-up", False, {})
            assert source is not None and source.source.replies() is not None
            if kind == "key":
                reads.key(call, route, b"/given-up", False)
            else:
                reads.range(call, pb.RangeRequest(key=b"/given-up", limit=1), Forward("c", cache=True))
            assert len(waiting) == 1 and not forwarded
            for number in range(12):
                await made.put(b"/given-up", bytes(100_000 + number))
            await made.until("aside", lambda: feed.aside)
            waiting[0].confirmed()
            assert forwarded == [call] and source.source.replies() is None
            await made.delete(b"/given-up")

    run(work)
