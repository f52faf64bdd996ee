"""A feed follows a real cluster: what it loads and hears is what the cluster has, whatever happens to the connection or to the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest

from gateway.core.assembly import proves_progress
from gateway.core.errors import RpcError
from gateway.core.joins import version_key
from gateway.core.reads import tagged
from gateway.core.store import Window
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.upstream import feed as feeds
from gateway.upstream.cluster import Cluster
from gateway.upstream.feed import Feed, FeedState
from gateway.upstream.loading import Interval
from tests.etcd import EtcdCluster
from tests.etcd import cluster as etcd_cluster

EVERYTHING: tuple[Interval, ...] = ((b"", None),)
RANGE, PUT, DELETE, TXN, COMPACT = (method("kv", name) for name in ("range", "put", "delete_range", "txn", "compact"))
_names = count()


class Following:
    """A cluster, its feed, and what was told of it."""

    def __init__(
        self, urls: list[str], intervals: tuple[Interval, ...], budget: int, window: Window, watched: tuple[Interval, ...]
    ) -> None:
        self.told: list[tuple[str, str]] = []
        self.cluster = Cluster("c", urls, lambda *changes: None)
        self.feed = Feed(self.cluster, intervals, window, budget, lambda name, event, reason: self.told.append((event, reason)), watched)

    async def put(self, key: bytes, value: bytes) -> int:
        reply = await self.cluster.unary(PUT, pb.PutRequest(key=key, value=value).SerializeToString(), deadline=soon())
        return int(pb.PutResponse.FromString(reply).header.revision)

    async def delete(self, key: bytes, end: bytes = b"") -> int:
        reply = await self.cluster.unary(DELETE, pb.DeleteRangeRequest(key=key, range_end=end).SerializeToString(), deadline=soon())
        return int(pb.DeleteRangeResponse.FromString(reply).header.revision)

    async def until(self, what: str, true: Callable[[], object], seconds: float = 10.0) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not true():
            assert asyncio.get_running_loop().time() < end, f"not {what} within {seconds} s: {self.told}, {self.feed.state}"
            await asyncio.sleep(0.01)

    async def live(self) -> None:
        await self.until("live", lambda: self.feed.live)

    async def same(self, key: bytes = b"\0", end: bytes = b"\0") -> None:
        """The store has what the cluster has, once it is there."""
        asked = pb.RangeRequest(key=key, range_end=end)
        reply = pb.RangeResponse.FromString(await self.cluster.unary(RANGE, asked.SerializeToString(), deadline=soon()))
        revision = reply.header.revision
        await self.until(f"at {revision}", lambda: self.feed.revision >= revision)
        wanted = [tagged(kv.SerializeToString()) for kv in reply.kvs]
        assert list(self.feed.store.scan(key, None if end == b"\0" else end, revision)) == wanted


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


@contextlib.asynccontextmanager
async def following(
    etcd: EtcdCluster,
    intervals: tuple[Interval, ...] = EVERYTHING,
    budget: int = 1 << 30,
    window: Window | None = None,
    watched: tuple[Interval, ...] = (),
) -> AsyncIterator[Following]:
    made = Following(etcd.urls, intervals, budget, window or Window(), watched)
    ticking = asyncio.create_task(tick(made))
    try:
        assert await made.cluster.settled(10)
        yield made
    finally:
        ticking.cancel()
        made.feed.close()
        made.cluster.close()


async def tick(made: Following) -> None:
    while True:
        await asyncio.sleep(0.05)
        made.feed.tick(asyncio.get_running_loop().time())
        made.cluster.tick(asyncio.get_running_loop().time())


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def prefix() -> bytes:
    return b"/feed/%d/" % next(_names)


class Asked:
    """A reader that remembers its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def confirmed(self) -> None:
        self.answer.set_result(True)

    def unconfirmed(self) -> None:
        self.answer.set_result(False)


async def confirmed(feed: Feed) -> bool:
    reader = Asked()
    feed.confirm(reader)
    return await asyncio.wait_for(reader.answer, 10)


def test_it_loads_and_follows(etcd: EtcdCluster) -> None:
    async def work() -> None:
        below = prefix()
        async with following(etcd) as first:
            for number in range(350):  # more than a first page
                await first.put(below + b"%04d" % number, b"v" * (number % 7) * 1000)
            await first.live()
            await first.same()
            async with following(etcd) as second:
                await second.live()
                await second.same()
                await first.put(below + b"new", b"1")
                await first.delete(below + b"0", below + b"1")
                await first.put(below + b"new", b"")
                txn = pb.TxnRequest()
                for name in (b"a", b"b", b"c"):
                    txn.success.add().request_put.key = below + name
                txn.success.add().request_delete_range.key = below + b"new"
                await first.cluster.unary(TXN, txn.SerializeToString(), deadline=soon())
                for each in (first, second):
                    await each.same()
                    await each.same(below, below + b"0100")
                    assert each.feed.rebuilds == 0 and each.told == [("live", "")]
                assert first.feed.header.cluster_id and first.feed.head == second.feed.head

    run(work)


def test_only_the_cached_intervals_are_stored(etcd: EtcdCluster) -> None:
    async def work() -> None:
        below = prefix()
        async with following(etcd, intervals=((below + b"b", below + b"d"), (below + b"x", None))) as made:
            for name in (b"a", b"b", b"c", b"d", b"x", b"y"):
                await made.put(below + name, b"early")
            await made.live()
            revision = 0
            for name in (b"a", b"b", b"c1", b"d", b"x", b"z"):
                revision = await made.put(below + name, b"late")
            await made.until("there", lambda: made.feed.revision == revision)
            found = [pb.RangeResponse.FromString(entry).kvs[0].key for entry in made.feed.store.scan(below, below + b"~", revision)]
            assert found == [below + name for name in (b"b", b"c", b"c1", b"x", b"y", b"z")]
            assert await confirmed(made.feed)

    run(work)


def test_a_confirmation_is_as_new_as_every_write_before_it(etcd: EtcdCluster) -> None:
    async def work() -> None:
        below = prefix()
        async with following(etcd) as made, following(etcd) as other:
            await made.live()
            for number in range(50):
                revision = await other.put(below, b"%d" % number)
                assert await confirmed(made.feed)
                assert made.feed.revision >= revision
            before = made.feed.confirmations.count
            readers = [Asked() for _ in range(100)]
            for reader in readers:
                made.feed.confirm(reader)
            assert all(await asyncio.gather(*(reader.answer for reader in readers)))
            assert made.feed.confirmations.count - before <= 2, "they share"

    run(work)


def test_a_serializable_read_is_not_older_than_what_was_said(etcd: EtcdCluster) -> None:
    async def work() -> None:
        below = prefix()
        async with following(etcd) as made:
            await made.live()
            for number in range(50):
                revision = await made.put(below, b"%d" % number)
                reader = Asked()
                made.feed.current(reader)
                assert await reader.answer
                assert made.feed.revision >= revision

    run(work)


def test_it_goes_on_after_the_connection_broke() -> None:
    async def work() -> None:
        with etcd_cluster() as own:
            async with following(own) as made:
                await made.live()
                await made.put(b"a", b"1")
                await made.same()
                own.kill()
                await made.until("broken", lambda: made.feed.state is FeedState.BROKEN)
                assert not await confirmed(made.feed)
                own.restart()
                await made.live()
                await made.put(b"a", b"2")
                await made.same()
                assert made.feed.rebuilds == 0

    run(work)


@pytest.mark.parametrize("revisions", [0, 1, 3, 30], ids=lambda revisions: f"{revisions} later")
def test_a_cluster_made_anew_is_noticed(revisions: int) -> None:
    """Same name, same members, hence the same ids; another history, shorter or longer than the one that is in the store."""

    async def work() -> None:
        with etcd_cluster() as own:
            async with following(own) as made:
                await made.live()
                for value in (b"1", b"2", b"3"):
                    await made.put(b"old", value)
                await made.same()
                own.kill()
                for member in own.members:
                    shutil.rmtree(member.directory / member.name, ignore_errors=True)
                async with following_after(own, revisions):
                    await made.until("rebuilt", lambda: made.feed.rebuilds >= 1)
                    await made.live()
                    await made.same()

    run(work)


@contextlib.asynccontextmanager
async def following_after(own: EtcdCluster, revisions: int) -> AsyncIterator[None]:
    """The cluster with nothing but so many new revisions, before anybody else can look."""
    own.restart()
    own.wait()
    writer = Cluster("w", own.urls, lambda *changes: None)
    assert await writer.settled(10)
    for number in range(revisions):
        await writer.unary(PUT, pb.PutRequest(key=b"new%d" % number).SerializeToString(), deadline=soon())
    try:
        yield
    finally:
        writer.close()


def test_compacted_while_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't go on where it was: it begins anew."""

    async def work() -> None:
        with etcd_cluster() as own:
            async with following(own) as made, following(own) as other:
                await made.live()
                await made.put(b"a", b"1")
                await made.same()
                watch = made.feed._watch
                assert watch is not None
                monkeypatch.setattr(feeds, "pause_before", lambda attempt: 1.0)
                watch.fail(RpcError(14, "cut by the test"))
                revision = 0
                for number in range(5):
                    revision = await other.put(b"a", b"%d" % number)
                await other.cluster.unary(COMPACT, pb.CompactionRequest(revision=revision).SerializeToString(), deadline=soon())
                await made.until("rebuilt", lambda: made.feed.rebuilds == 1)
                await made.live()
                await made.same()

    run(work)


def test_over_its_budget_it_steps_aside(etcd: EtcdCluster) -> None:
    async def work() -> None:
        below = prefix()
        async with following(etcd, intervals=((below, below + b"~"),), budget=1 << 20) as made:
            await made.live()
            assert made.feed.caching
            revision = 0
            for number in range(20):
                revision = await made.put(below + b"%d" % number, bytes(100_000))
            await made.until("there", lambda: made.feed.revision >= revision)
            assert made.feed.live and not made.feed.caching and len(made.feed.store) == 0
            assert [event for event, _ in made.told] == ["live", "aside"]
        async with following(etcd, intervals=((below, below + b"~"),), budget=1 << 20) as made:
            await made.live()
            assert not made.feed.caching and len(made.feed.store) == 0
            await made.delete(below, below + b"~")

    run(work)


def test_a_feed_of_routes_only(etcd: EtcdCluster) -> None:
    """Other keys of the cluster are none of its business; that nothing is missing is proven by progress, where that is right."""

    async def work() -> None:
        below = prefix()
        parts = ((below + b"b", below + b"c"), (below + b"x", below + b"z"))
        async with following(etcd, parts, watched=parts) as made:
            if not proves_progress(version_key(etcd.version)):
                await made.until("told", lambda: made.told)
                assert made.told[0][1].startswith("FAILED_PRECONDITION: `feed: routes` needs etcd 3.4.31, 3.5.13 or 3.6")
                assert not made.feed.live and not await confirmed(made.feed)
                return
            await made.live()
            for number in range(30):
                revision = await made.put(below + b"a", b"not watched")
                assert await confirmed(made.feed)
                assert made.feed.revision >= revision, "proven without an event"
                for name in (b"b1", b"x1", b"b2", b"c"):
                    revision = await made.put(below + name, b"%d" % number)
                assert await confirmed(made.feed)
                assert made.feed.revision >= revision
            await made.same(*parts[0])
            await made.same(*parts[1])
            assert list(made.feed.store.scan(below + b"c", below + b"d", made.feed.revision)) == []
            revision = await made.delete(below + b"b1")
            await made.until("told of an event without being asked", lambda: made.feed.revision >= revision)
            await made.same(*parts[0])
            assert made.feed.rebuilds == 0

    run(work)
