"""Watch streams through the gateway, over real etcd: as etcd answers them, over several clusters, and while clusters fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import grpc
import pytest

from gateway.core.store import Window
from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import BINARIES, cluster, get
from tests.gateway_process import gateway
from tests.services.client import Client, WatchStream
from tests.services.site import ROUTES, Site, site

# as etcd answers


def parity(ours: WatchStream, theirs: WatchStream, count: int = 1) -> None:
    """The next replies are the same."""
    for _ in range(count):
        assert ours.next() == theirs.next()


def test_a_conversation_is_the_one_with_etcd(shared: Site) -> None:
    """Ids, order, refusals, options: every reply equals the one of the etcd that owns the keys."""
    with shared.direct("main") as direct, direct.watching() as theirs, shared.client.watching() as ours:
        first = direct.put(b"/p/a", b"1")

        def both(method: str, *args: object, **fields: object) -> None:
            for stream in (ours, theirs):
                getattr(stream, method)(*args, **fields)

        def answered(method: str, *args: object, **fields: object) -> None:
            both(method, *args, **fields)
            parity(ours, theirs)

        answered("create", b"/p/a")
        answered("create", b"/p/", b"/p0", prev_kv=True)
        answered("create", b"/p/", b"/p0", filters=[pb.WatchCreateRequest.NOPUT], watch_id=7)
        answered("create", b"/p/a", watch_id=7)
        answered("create", b"/p/b", b"/p/a")
        answered("create", b"/p/b", b"/p/a", watch_id=7)
        answered("create", b"/p/b", b"/p/b")
        answered("create", b"/p/a", start_revision=first + 1000)
        both("create", b"/p/a", start_revision=first)
        parity(ours, theirs, 2)
        both("send", b"")
        both("cancel", 99)
        answered("cancel", 7)
        answered("create", b"/p/a", watch_id=7)
        answered("cancel", 7)
        revision = direct.put(b"/p/a", b"2")
        expected = sorted((theirs.next() for _ in range(3)), key=_by_id)
        assert sorted((ours.next() for _ in range(3)), key=_by_id) == expected
        assert [reply.events[0].kv.mod_revision for reply in expected] == [revision] * 3
        assert expected[1].events[0].prev_kv.value == b"1"
        both("half_close")
        direct.put(b"/p/z")
        parity(ours, theirs)


def _by_id(reply: pb.WatchResponse) -> int:
    return int(reply.watch_id)


def test_compacted_revisions_are_canceled_as_etcd_does(shared: Site) -> None:
    with shared.direct("main") as direct, direct.watching() as theirs, shared.client.watching() as ours:
        first = direct.put(b"/compact/a")
        last = direct.put(b"/compact/a")
        shared.client.call("kv", "compact", pb.CompactionRequest(revision=last, physical=True))
        for start in (first, -1):
            for stream in (ours, theirs):
                stream.create(b"/compact/a", start_revision=start)
            replies = [theirs.next() for _ in range(1 if _refuses_negative(shared) and start < 0 else 2)]
            assert [ours.next() for _ in replies] == replies
            assert replies[-1].canceled
        assert ours.silent() and theirs.silent()


def _refuses_negative(site: Site) -> bool:
    return site.clusters["main"].version.startswith(("3.6", "3.7"))


def test_what_is_no_message_ends_the_stream(shared: Site) -> None:
    with shared.direct("main") as direct, direct.watching() as theirs, shared.client.watching() as ours:
        codes = []
        for stream in (ours, theirs):
            stream.send(b"\xff")
            with pytest.raises(grpc.RpcError) as caught:
                stream.next()
            codes.append(caught.value.code())
        assert codes == [grpc.StatusCode.INTERNAL] * 2


def test_progress_is_answered_as_etcd_does(shared: Site) -> None:
    with shared.direct("main") as direct, direct.watching() as theirs, shared.client.watching() as ours:
        for stream in (ours, theirs):
            stream.create(b"/progress/a")
        parity(ours, theirs)
        direct.put(b"/progress/elsewhere")
        for stream in (ours, theirs):
            stream.ask_progress()
        parity(ours, theirs)


def test_fragments_say_what_etcd_says(shared: Site) -> None:
    """Where a response ends is the gateway's choice: between revisions, or as a fragment within one."""
    with shared.direct("main") as direct, direct.watching() as theirs, shared.client.watching() as ours:
        first = direct.put(b"/fragment/a", bytes(1 << 20))
        for _ in range(3):
            direct.put(b"/fragment/a", bytes(1 << 20))
        txn = pb.TxnRequest()
        for name in (b"b", b"c", b"d", b"e", b"f", b"g"):
            put = txn.success.add().request_put
            put.key, put.value = b"/fragment/" + name, bytes(200_000)
        for _ in range(2):  # with what it replaces the second one is too large for one response
            direct.call("kv", "txn", txn)
        for stream in (ours, theirs):
            stream.create(b"/fragment/", b"/fragment0", start_revision=first, fragment=True, prev_kv=True)
        parity(ours, theirs)
        expected, told = _told(theirs, 16), _told(ours, 16)
        assert any(reply.fragment for reply in told)
        assert [event for reply in told for event in reply.events] == [event for reply in expected for event in reply.events]
        for reply, after in pairwise(told):
            assert reply.fragment == (reply.events[-1].kv.mod_revision == after.events[0].kv.mod_revision)
        assert not told[-1].fragment


def _told(stream: WatchStream, events: int) -> list[pb.WatchResponse]:
    """Responses until so many events have come."""
    replies: list[pb.WatchResponse] = []
    while sum(len(reply.events) for reply in replies) < events:
        replies.append(stream.next())
    return replies


def test_permissions_are_as_etcd_has_them() -> None:
    for version in BINARIES:
        with site(version, ("main",)) as guarded, guarded.direct("main") as direct:
            for name, request in _guard():
                direct.call("auth", name, request)
            tokens = [
                each.call("auth", "authenticate", pb.AuthenticateRequest(name="reader", password="secret")).token
                for each in (guarded.client, direct)
            ]
            with guarded.client.watching(token=tokens[0]) as ours, direct.watching(token=tokens[1]) as theirs:
                for key in (b"/mine", b"/not-mine", b"/mine", b"/not-mine", b"/mine"):
                    for stream in (ours, theirs):
                        stream.create(key)
                    parity(ours, theirs)
            with guarded.client.watching() as ours, direct.watching() as theirs:
                for stream in (ours, theirs):
                    stream.create(b"/mine")
                parity(ours, theirs)


def _guard() -> Iterator[tuple[str, object]]:
    yield "user_add", pb.AuthUserAddRequest(name="root", password="root")
    yield "role_add", pb.AuthRoleAddRequest(name="root")
    yield "user_grant_role", pb.AuthUserGrantRoleRequest(user="root", role="root")
    yield "user_add", pb.AuthUserAddRequest(name="reader", password="secret")
    yield "role_add", pb.AuthRoleAddRequest(name="reader")
    yield "role_grant_permission", pb.AuthRoleGrantPermissionRequest(name="reader", perm={"permType": 0, "key": b"/mine"})
    yield "user_grant_role", pb.AuthUserGrantRoleRequest(user="reader", role="reader")
    yield "auth_enable", pb.AuthEnableRequest()


# over several clusters


def test_watches_of_one_stream_lie_in_their_clusters(shared: Site) -> None:
    with shared.client.watching() as stream:
        for key in (b"/a", b"/events/a", b"/cni/a", b"/events/a"):
            stream.create(key)
        created = [stream.next() for _ in range(4)]
        assert [reply.watch_id for reply in created] == [0, 1, 2, 3]
        assert len({reply.header.cluster_id for reply in created}) == 3
        for key, ids in ((b"/cni/a", {2}), (b"/events/a", {1, 3}), (b"/a", {0})):
            revision = shared.client.put(key)
            replies = [stream.next() for _ in ids]
            assert {reply.watch_id for reply in replies} == ids
            assert {event.kv.mod_revision for reply in replies for event in reply.events} == {revision}
        stream.ask_progress()
        assert stream.silent()


def test_a_watch_over_clusters_gets_the_events_of_all(shared: Site) -> None:
    with shared.client.watching() as stream:
        home = stream.created(b"/a").header.cluster_id
        reply = stream.created(b"", b"\0")
        assert (reply.watch_id, reply.header.cluster_id) == (1, home)
        for key in (b"/events/x", b"/b", b"/cni/x", b"/events/x"):
            revision = shared.client.put(key)
            assert list(stream.events(1)) == [(key, revision)]
        stream.cancel(1)
        assert stream.next().canceled
        shared.client.put(b"/events/x")
        stream.create(b"/events/", b"/f", start_revision=5)
        reply = stream.next()
        assert reply.created and reply.canceled and reply.watch_id == -1
        assert "several clusters (events, main)" in reply.cancel_reason


def test_a_key_in_a_cluster_that_does_not_own_it_is_not_seen(shared: Site) -> None:
    with shared.client.watching() as stream, shared.direct("main") as main:
        stream.created(b"", b"\0")
        main.put(b"/events/stray")
        shared.client.put(b"/after")
        assert [key for key, _ in stream.events(1)] == [b"/after"]


def test_many_creates_at_once(shared: Site) -> None:
    with shared.client.watching() as stream:
        for number in range(1000):
            stream.create(b"/many/%d" % number if number % 100 else b"/events/many/%d" % number)
        assert [stream.next().watch_id for _ in range(1000)] == list(range(1000))
        shared.client.put(b"/many/999")
        assert stream.next().watch_id == 999


def test_a_client_that_leaves_leaves_nothing_behind(shared: Site) -> None:
    def watchers() -> list[str]:
        wanted = ("etcd_debugging_mvcc_watcher_total ", "etcd_debugging_mvcc_watch_stream_total ")
        pages = [get(each.address, "/metrics")[1] for each in shared.clusters.values()]
        return [line for page in pages for line in page.splitlines() if line.startswith(wanted)]

    def settled() -> list[str]:
        """When the gateway has no watches, and etcd's numbers stay."""
        end = time.monotonic() + 5
        found: list[str] = []
        while (shared.gateway.metric("shardgate_watches") or watchers() != found) and time.monotonic() < end:
            found = watchers()
            time.sleep(0.2)
        return found

    before = settled()
    with shared.client.watching() as stream:
        stream.created(b"", b"\0")
        assert watchers() != before
        assert shared.gateway.metric("shardgate_watches") == 3, "one in each cluster"
    assert settled() == before
    assert shared.gateway.metric("shardgate_watches") == 0


# while clusters fail


class Writer:
    """Writes to a cluster directly, as fast as it takes it, until told to stop; knows what was written."""

    def __init__(self, address: str, key: bytes) -> None:
        self.written: list[int] = []
        self.errors = 0
        self._key = key
        self._address = address
        self._going = True
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with Client(self._address) as client:
            while self._going:
                try:
                    self.written.append(client.put(self._key, b"%d" % len(self.written)))
                except grpc.RpcError:
                    self.errors += 1
                time.sleep(0.005)

    def stop(self) -> list[int]:
        self._going = False
        self._thread.join()
        return self.written


@pytest.mark.parametrize("version", BINARIES)
def test_killed_etcd(version: str) -> None:
    """Watches of other clusters go on at once; its own go on when it is back, without a lost or a doubled event."""
    with site(version, ("main", "events")) as running, running.client.watching() as stream:
        own, other, joined = b"/events/w", b"/w", b""
        stream.created(own)
        stream.created(other)
        stream.created(joined, b"\0")
        writers = {name: Writer(running.clusters[name].address, key) for name, key in (("events", own), ("main", other))}
        seen: dict[int, list[tuple[bytes, int]]] = {0: [], 1: [], 2: []}
        marks = []

        def read_one() -> None:
            reply = stream.next()
            assert not reply.created and not reply.canceled
            seen[reply.watch_id] += [(event.kv.key, event.kv.mod_revision) for event in reply.events]

        def read(until: float) -> None:
            while time.monotonic() < until:
                read_one()

        for _ in range(2):
            read(time.monotonic() + 0.7)
            running.clusters["events"].kill()
            marks.append(len(seen[1]))
            read(time.monotonic() + 1.0)
            assert len(seen[1]) > marks[-1] + 20, "the other cluster's events came on"
            running.clusters["events"].restart()
            running.clusters["events"].wait()
            marks.append(len(seen[0]))
            read(time.monotonic() + 2.0)
            assert len(seen[0]) > marks[-1], "its own events came again within two seconds"
        for writer in writers.values():
            writer.stop()
        with running.direct("events") as events, running.direct("main") as main:
            last = {own: events.put(own), other: main.put(other)}
        due = {(number, key, last[key]) for number, keys in ((0, [own]), (1, [other]), (2, [own, other])) for key in keys}
        while not due <= {(number, *event) for number, events in seen.items() for event in events[-200:]}:
            read_one()
        for number, keys in ((0, [own]), (1, [other]), (2, [own, other])):
            for key in keys:
                revisions = [revision for each, revision in seen[number] if each == key]
                assert revisions == list(range(revisions[0], last[key] + 1)), "each revision once and in order"
                assert revisions[0] == 2


def test_a_watch_that_was_compacted_while_its_cluster_was_away_is_canceled(own: Site) -> None:
    with own.client.watching() as stream, own.direct("events") as events:
        stream.created(b"/events/quiet")
        own.clusters["events"].kill()
        own.clusters["events"].restart()
        own.clusters["events"].wait()
        last = max(events.put(b"/events/x") for _ in range(20))
        events.call("kv", "compact", pb.CompactionRequest(revision=last, physical=True))
        own.clusters["events"].kill()
        own.clusters["events"].restart()
        reply = stream.next()
        assert (reply.watch_id, reply.canceled, reply.compact_revision) == (0, True, last)


def test_a_cluster_that_is_gone_keeps_no_other_waiting(own: Site) -> None:
    with own.client.watching() as stream, own.direct("events") as events:
        first = events.put(b"/events/a")
        own.clusters["events"].kill()
        began = time.monotonic()
        stream.create(b"/events/a", start_revision=first)
        stream.create(b"/events/a")
        stream.create(b"/a")
        replies = [stream.next() for _ in range(3)]
        assert time.monotonic() - began < 5
        assert [(reply.watch_id, reply.canceled) for reply in replies] == [(0, False), (-1, True), (2, False)]
        assert all(reply.created for reply in replies)
        assert replies[1].cancel_reason == "shardgate: no answer from cluster events"
        began = time.monotonic()
        stream.create(b"/events/a")
        assert stream.next().canceled
        assert time.monotonic() - began < 1, "it is known to be gone"
        own.client.put(b"/a")
        assert stream.next().watch_id == 2
        own.clusters["events"].restart()
        own.clusters["events"].wait()
        assert list(stream.events(1)) == [(b"/events/a", first)]
        stream.created(b"/events/b")


def test_a_cluster_that_hangs_keeps_no_other_waiting(own: Site) -> None:
    with own.client.watching() as stream:
        stream.created(b"/events/a")
        own.clusters["events"].members[0].stop()
        try:
            stream.create(b"/events/b")
            stream.create(b"/b")
            assert [stream.next().watch_id for _ in range(2)] == [-1, 2]
        finally:
            own.clusters["events"].members[0].cont()
        revision = own.client.put(b"/events/a")
        own.client.put(b"/events/b")
        assert list(stream.events(1)) == [(b"/events/a", revision)]
        assert stream.silent()


def test_a_cluster_without_a_leader_ends_the_streams_that_ask_to_know() -> None:
    with cluster(size=3) as events, cluster() as main:
        with gateway({"main": main.urls, "events": events.urls}, ROUTES | {"/cni/": "main"}) as process, Client(process.address) as client:
            with client.watching(hasleader="true") as stream, client.watching() as patient:
                stream.created(b"/events/a")
                patient.created(b"/events/a")
                for member in events.members[1:]:
                    member.kill()
                with pytest.raises(grpc.RpcError) as caught:
                    stream.next()
                assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
                assert patient.silent()


HISTORY = Window().bytes


def test_a_client_that_does_not_read_slows_nobody(own: Site) -> None:
    """Its events wait in etcd, the gateway keeps no more than the history that it keeps anyway."""
    with Client(own.gateway.address) as lazy, own.client.watching() as stream, lazy.watching(paused=True) as slow:
        for each in (stream, slow):
            each.create(b"/big")
        stream.next()
        before = own.gateway.rss()
        revisions = [own.client.put(b"/big", bytes(1 << 20)) for _ in range(200)]
        assert [revision for _, revision in stream.events(200)] == revisions
        assert own.gateway.rss() - before < 2 * HISTORY + (60 << 20)
        slow.read()
        slow.next()
        assert [revision for _, revision in slow.events(200)] == revisions
