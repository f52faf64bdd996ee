"""The feed of a cluster: one watch on all of its keys, from which the store and all watchers are served.

Every revision of etcd has an event there, so the store's revision needs no progress notification to be known, and a revision that is
missing or comes twice is noticed: then the feed starts anew.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import groupby
from typing import Protocol

from gateway.core.assembly import proves_progress
from gateway.core.errors import NO_LEADER, Code, RpcError
from gateway.core.joins import version_key
from gateway.core.listings import Listings
from gateway.core.reads import tagged
from gateway.core.store import Store, Window
from gateway.core.watchers import Watchers
from gateway.etcdpb import kv_pb2
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.upstream.cluster import Cluster
from gateway.upstream.confirm import Arrivals, Confirmations, Reader, give_up
from gateway.upstream.link import pause_before
from gateway.upstream.loading import Interval, event, pages, versions
from gateway.upstream.watching import Rebuild, Watching

RANGE = method("kv", "range")
STATUS = method("maintenance", "status")

PATIENCE = 5.0
"""Seconds for each step of a start: a page, the watch's creation, the look at the last known key."""

LAG = 0.5
"""Seconds that the watch may be behind a confirmed revision before reads stop waiting for it."""


LISTINGS_LIVE = 2.0
"""Seconds after which a large answer that nobody asks for again is forgotten."""


class FeedState(Enum):
    """LOADING: the store is being filled. LIVE: it follows the cluster. BROKEN: the watch is lost and will go on where it was."""

    LOADING = "loading"
    LIVE = "live"
    BROKEN = "broken"
    CLOSED = "closed"


class Follower(Protocol):
    """Told of the feed's comings and goings."""

    def on_live(self) -> None:
        """It is live, maybe with a log that begins later than before (watchers.oldest)."""

    def on_lost(self, no_leader: bool) -> None:
        """It is not; `no_leader`: because the cluster has none."""


Report = Callable[[str, str, str], None]
"""Told of changes: the cluster's name, the state in a word, the reason ("" without one)."""


class Feed:
    """`header`: of the cluster's last message; its revision is the store's. `known`: the highest revision that the cluster is known to have
    reached. `hits`: reads that were answered from the store; `bypasses`: those that could have been but for a reason; both only grow, as
    `rebuilds` does. `progress_seconds`: after so long without events a watcher that asked for it is told how far it is; etcd's default.
    `watches`: how many there are in each state (services.fedwatch.State)."""

    def __init__(
        self,
        cluster: Cluster,
        intervals: Sequence[Interval],
        window: Window,
        budget: int,
        report: Report,
        watched: Sequence[Interval] = (),
    ) -> None:
        """`intervals`: the cached keys, sorted and disjoint. `budget`: bytes that the store may have. `watched`: the only keys that are
        watched, where the cluster is shared with others; none: all."""
        self.cluster = cluster
        self.state = FeedState.LOADING
        self.store = Store(window)
        self.watchers = Watchers(window)
        self.listings = Listings()
        self.header = pb.ResponseHeader()
        self.known = 0
        self.rebuilds = 0
        self.progress_seconds = 600.0
        self.watches: Counter[str] = Counter()
        self.hits = 0
        self.bypasses: Counter[str] = Counter()
        self.aside = False
        self.confirmations = Confirmations(cluster, self._confirmed)
        cluster.seen = self.seen
        self._intervals = intervals
        self._lows = [low for low, _ in intervals]
        self._window = window
        self._budget = budget
        self._watched = watched
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._lagging = False
        self._aged = 0.0
        self._undelivered = False
        self._arrivals = Arrivals()
        self._followers: set[Follower] = set()
        self._watch: Watching | None = None
        self._last: tuple[bytes, bytes | None] | None = None
        self._head = b""
        self._task = self._loop.create_task(self._run())

    # what the services see

    @property
    def live(self) -> bool:
        """Watchers are fed."""
        return self.state is FeedState.LIVE

    @property
    def caching(self) -> bool:
        """The store may be read."""
        return self.state is FeedState.LIVE and not self.aside and not self._lagging

    @property
    def revision(self) -> int:
        """Everything up to it is in the store, and with `flush` has been told to the watchers."""
        return self.watchers.revision

    @property
    def lag(self) -> int:
        """Revisions that the cluster is known to be ahead."""
        return max(0, self.known - self.revision)

    @property
    def head(self) -> bytes:
        """The header of a reply from the store as it is now: field 1 of a message."""
        if not self._head:
            header = self.header.SerializeToString()
            self._head = b"\x0a%c%b" % (len(header), header)  # four numbers: below 128 bytes
        return self._head

    def confirm(self, reader: Reader) -> None:
        """Queue for the next confirmation."""
        if self.live and not self._lagging:
            self.confirmations.add(reader)
        else:
            reader.unconfirmed()

    def current(self, reader: Reader) -> None:
        """For a read that need not be linearizable: at once, but not older than what a client was told through this gateway."""
        if self.revision >= self.known:
            reader.confirmed()
        else:
            self._await(self.known, (reader,))

    def seen(self, revision: int) -> None:
        """A client was told this revision of the cluster."""
        self.known = max(self.known, revision)

    def compacted(self, revision: int) -> None:
        """The cluster was compacted: older revisions are an error from now on."""
        self.store.compact(revision)
        self.watchers.compact(revision)

    def flush(self) -> None:
        """Tell the watchers of everything up to `revision`. What comes at once is told at once: at the end of the loop's turn."""
        if self._undelivered:
            self._undelivered = False
            self.watchers.deliver(self.head)

    def follow(self, follower: Follower) -> None:
        """Tell it of changes."""
        self._followers.add(follower)

    def unfollow(self, follower: Follower) -> None:
        """No more."""
        self._followers.discard(follower)

    def tick(self, now: float) -> None:
        """Often: reads that have waited too long ask the cluster themselves."""
        self.confirmations.tick(now)
        if now - self._aged > LISTINGS_LIVE:
            self._aged = now
            self.listings.age()
        if self._arrivals.late(now - LAG):
            self._lagging = True
            self._arrivals.close()

    def close(self) -> None:
        """End the feed."""
        self._task.cancel()
        self._set(FeedState.CLOSED)
        if self._watch is not None:
            self._watch.close()
        self.confirmations.close()
        self._arrivals.close()

    # the feed's life

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if self.state is FeedState.LOADING:
                    await self._load()
                await self._follow()
            except Rebuild as reason:
                self._restart(str(reason))
            except RpcError as error:
                if self.live or not failures:
                    self._report(self.cluster.name, "interrupted", str(error))
                failures = 0 if self.live else failures + 1
                self._lose(error)
            await asyncio.sleep(pause_before(failures))

    def _set(self, state: FeedState) -> None:
        self.state = state

    async def _load(self) -> None:
        """All cached keys at one revision."""
        if self._watched:
            await self._check_version()
        store, aside = Store(self._window), self.aside
        first: pb.ResponseHeader | None = None
        newest: kv_pb2.KeyValue | None = None
        async for header, kvs in pages(self.cluster, self._intervals, PATIENCE):
            first = first or header
            if header.cluster_id != first.cluster_id:
                raise Rebuild("the endpoints are of different clusters")
            store.load(versions(kvs))
            newest = max((newest, *kvs) if newest else kvs, key=_mod_revision, default=None)
            if aside or store.bytes > self._budget:
                aside = True
                store = Store(self._window)
                break
        assert first is not None
        store.start(first.revision)
        self.store = store
        self.listings.clear()
        self._set_aside(aside)
        self.watchers.start(first.revision)
        self.header, self._head = first, b""
        self._last = None if newest is None else (newest.key, tagged(newest.SerializeToString()))
        self.seen(first.revision)

    async def _check_version(self) -> None:
        """A watch on some keys needs progress notifications, and only newer versions of etcd send them rightly."""
        status = pb.StatusResponse.FromString(await self.cluster.unary(STATUS, b"", deadline=self._loop.time() + PATIENCE))
        if not proves_progress(version_key(status.version)):
            text = f"`feed: routes` needs etcd 3.4.31, 3.5.13 or 3.6, whose progress notifications are right; this is {status.version}"
            raise RpcError(Code.FAILED_PRECONDITION, text)

    def _set_aside(self, aside: bool) -> None:
        if aside and not self.aside:
            self._report(self.cluster.name, "aside", f"the cached keys need more than {self._budget >> 20} MiB")
        self.aside = aside

    async def _follow(self) -> None:
        """Watch until the stream ends. Raises Rebuild, or RpcError when it has ended."""
        watch = self._watch = Watching(self.cluster, self.revision + 1, self._watched)
        try:
            async with asyncio.timeout(PATIENCE):
                await watch.created
                await self._verify()
        except TimeoutError:
            watch.close()
            raise RpcError(Code.UNAVAILABLE, f"no answer to the watch within {PATIENCE:g} s") from None
        except BaseException:
            watch.close()
            raise
        self._lagging = False
        self._set(FeedState.LIVE)
        self._report(self.cluster.name, "live", "")
        watch.read_by(self._events)
        for follower in tuple(self._followers):
            follower.on_live()
        try:
            await watch.ended
        finally:
            watch.close()

    async def _verify(self) -> None:
        """The cluster may have been made anew or restored meanwhile, with the same ids: what it has at the store's revision shows that."""
        key, entry = self._last or (b"\0", None)
        request = pb.RangeRequest(key=key, revision=self.revision, limit=1)
        try:
            message = await self.cluster.unary(RANGE, request.SerializeToString())
        except RpcError as error:
            if error.code == Code.OUT_OF_RANGE:
                raise Rebuild(error.text) from None
            raise
        reply = pb.RangeResponse.FromString(message)
        if reply.header.cluster_id != self.header.cluster_id:
            raise Rebuild("another cluster answers at its endpoints")
        if self._last is not None and [tagged(kv.SerializeToString()) for kv in reply.kvs] != ([] if entry is None else [entry]):
            raise Rebuild("the cluster's history is another one")
        self.seen(reply.header.revision)

    def _restart(self, reason: str) -> None:
        self.rebuilds += 1
        self.known = 0
        self._report(self.cluster.name, "rebuild", reason)
        self._lose(RpcError(Code.UNAVAILABLE, reason))
        self._set(FeedState.LOADING)

    def _lose(self, error: RpcError) -> None:
        """Reads wait for nothing that may not come."""
        was_live = self.live
        if self.state is FeedState.LIVE:
            self._set(FeedState.BROKEN)
        self._arrivals.close()
        if was_live:
            for follower in tuple(self._followers):
                follower.on_lost(error.text == NO_LEADER.text)

    # what the watch brings

    def _events(self, header: pb.ResponseHeader, events: Sequence[kv_pb2.Event]) -> None:
        """Whole revisions. Raises Rebuild."""
        if header.cluster_id != self.header.cluster_id:
            raise Rebuild("another cluster answers at its endpoints")
        for revision, changes in groupby(events, _revision):
            if revision != self.watchers.revision + 1 and not self._watched:
                raise Rebuild(f"revision {revision} came after {self.watchers.revision}")
            happened = [event(each, self.store) for each in changes]
            if not self.aside:
                self.store.apply(revision, [each for each in happened if self._cached(each.key)])
            self.watchers.append(revision, happened)
            last = happened[-1]
            self._last = last.key, None if last.deleted else last.entry
        if self._watched and header.revision > self.revision:
            self.watchers.append(header.revision, [])
            if not self.aside:
                self.store.apply(header.revision, ())
        header.revision = self.revision
        self.header, self._head = header, b""
        self.known = max(self.known, header.revision)
        if self.store.bytes > self._budget:
            self.store = Store(self._window)
            self.listings.clear()
            self._set_aside(True)
        if not self._undelivered:
            self._undelivered = True
            self._loop.call_soon(self.flush)
        self._lagging = self._lagging and self.revision < self.known
        self._arrivals.reached(self.revision)

    def _cached(self, key: bytes) -> bool:
        at = bisect_right(self._lows, key) - 1
        if at < 0:
            return False
        high = self._intervals[at][1]
        return high is None or key < high

    def _confirmed(self, header: pb.ResponseHeader, readers: Sequence[Reader]) -> None:
        if header.cluster_id != self.header.cluster_id:
            if self._watch is not None:
                self._watch.fail(Rebuild("another cluster answers at its endpoints"))
            give_up(readers)
            return
        self.seen(header.revision)
        if not self.live or self._lagging:
            give_up(readers)
        elif self.revision >= header.revision:
            self._serve(header, readers)
        else:
            self._await(header.revision, readers)

    def _await(self, revision: int, readers: Sequence[Reader]) -> None:
        self._arrivals.wait(revision, readers, self._loop.time())
        if self._watch is not None:
            self._watch.prove(revision)

    def _serve(self, header: pb.ResponseHeader, readers: Sequence[Reader]) -> None:
        """Served by the member that confirmed."""
        if header.member_id != self.header.member_id or header.raft_term != self.header.raft_term:
            header.revision = self.revision
            self.header, self._head = header, b""
        for reader in readers:
            reader.confirmed()


def _revision(event: kv_pb2.Event) -> int:
    return event.kv.mod_revision


def _mod_revision(kv: kv_pb2.KeyValue) -> int:
    return kv.mod_revision
