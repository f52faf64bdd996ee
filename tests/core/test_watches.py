"""A client's watch stream, against a naive etcd per cluster: whatever breaks, nothing is lost, doubled or out of order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gateway.core import watches
from gateway.core.branches import MAX_HELD, Branch, Turns
from gateway.core.routes import Route, Routes
from gateway.core.watches import Ask, Fail, Open, Tell, Watches
from gateway.etcdpb import rpc_pb2 as pb
from tests.core.watchmodel import DUPLICATE, EMPTY, Store, Stream, within

ROUTES = Routes([Route(b"", "main"), Route(b"/b/", "b"), Route(b"/c/", "c")])
CLUSTERS = ("main", "b", "c")
KEYS = (b"/a", b"/b/1", b"/b/2", b"/c/1", b"/c/2", b"/d")
RANGES = (
    (b"/a", b""), (b"/b/", b"/b0"), (b"/b/1", b""), (b"/c/", b"/c0"), (b"", b""),
    (b"/a", b"/c/2"), (b"", b"\0"), (b"/c/1", b"\0"), (b"/c/", b"/b/"),
)  # fmt: skip


def creating(key: bytes = b"/a", end: bytes = b"", start: int = 0, number: int = 0, fragment: bool = False) -> bytes:
    create = pb.WatchCreateRequest(key=key, range_end=end, start_revision=start, watch_id=number, fragment=fragment)
    return pb.WatchRequest(create_request=create).SerializeToString()


def canceling(number: int) -> bytes:
    return pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=number)).SerializeToString()


PROGRESS = pb.WatchRequest(progress_request=pb.WatchProgressRequest()).SerializeToString()


class World:
    """A client stream, its clusters, and what lies between."""

    def __init__(self, routes: Routes = ROUTES) -> None:
        self.stores = {name: Store(number) for number, name in enumerate(CLUSTERS, 1)}
        self.streams: dict[str, Stream] = {}
        self.opening: set[str] = set()
        self.told: list[pb.WatchResponse] = []
        self.failure: Fail | None = None
        self.watches = Watches(routes, "main")

    def do(self, actions: list[watches.Action]) -> None:
        for action in actions:
            match action:
                case Tell(message):
                    self.told.append(pb.WatchResponse.FromString(message))
                case Ask(cluster, message):
                    self.streams[cluster].request(message)
                case Open(cluster):
                    assert cluster not in self.streams
                    self.opening.add(cluster)
                case Fail():
                    self.failure = action
                    return

    def ask(self, data: bytes) -> None:
        self.do(self.watches.request(data))

    def open(self, cluster: str) -> None:
        self.opening.remove(cluster)
        self.streams[cluster] = Stream(self.stores[cluster])
        self.do(self.watches.opened(cluster))

    def deliver(self, cluster: str) -> None:
        self.say(cluster, self.streams[cluster].out.pop(0))

    def say(self, cluster: str, reply: pb.WatchResponse) -> None:
        self.do(self.watches.response(cluster, reply.SerializeToString()))

    def lose(self, cluster: str) -> None:
        self.streams.pop(cluster).close()
        self.do(self.watches.lost(cluster))

    def settle(self) -> None:
        """Open and deliver until nothing is left to do."""
        while self.failure is None:
            for cluster in tuple(self.opening):
                self.open(cluster)
            busy = [cluster for cluster, stream in self.streams.items() if stream.out]
            if not busy:
                return
            for cluster in busy:
                self.deliver(cluster)


class Seen:
    """What the client knows of a watch: its request, and where the clusters were when it was told `created`."""

    def __init__(self, create: pb.WatchCreateRequest, reply: pb.WatchResponse, stores: dict[str, Store]) -> None:
        self.create = create
        self.header = reply.header
        self.then = {name: store.revision for name, store in stores.items()}
        self.events: list[tuple[str, int, bytes]] = []
        self.canceled = False

    def check(self, stores: dict[str, Store]) -> None:
        spans = {span.cluster for span in ROUTES.spans(self.create.key or b"\0", self.create.range_end)}
        for cluster in spans:
            self._check_cluster(cluster, stores[cluster], joined=len(spans) > 1)

    def _check_cluster(self, cluster: str, store: Store, joined: bool) -> None:
        history = [
            (cluster, event.kv.mod_revision, event.kv.key)
            for event in store.events
            if within(event.kv.key, self.create) and ROUTES.cluster_of(event.kv.key) == cluster
        ]
        seen = [event for event in self.events if event[0] == cluster]
        first = self.create.start_revision or (self.header.revision + 1 if not joined else 0)
        due = [event for event in history if event[1] >= first]
        if joined and not self.canceled:
            assert seen == due[len(due) - len(seen) :]
            assert {event for event in due if event[1] > self.then[cluster]} <= set(seen)
        elif joined:
            assert seen == [] or any(seen == due[at : at + len(seen)] for at in range(len(due)))
        elif self.canceled:
            assert seen == due[: len(seen)]
        else:
            assert seen == due


class Client:
    """Reads a stream as a client does, and insists on what clients rely on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: list[pb.WatchCreateRequest] = []
        self.live: dict[int, Seen] = {}
        self.all: list[Seen] = []
        self.read = 0
        self.fragmented: int | None = None

    def create(self, data: bytes) -> None:
        self.asked.append(pb.WatchRequest.FromString(data).create_request)
        self.world.ask(data)
        self.catch_up()

    def catch_up(self) -> None:
        news, self.read = self.world.told[self.read :], len(self.world.told)
        for reply in news:
            self.take(reply)

    def take(self, reply: pb.WatchResponse) -> None:
        if self.fragmented is not None:
            assert reply.watch_id == self.fragmented and not reply.created and not reply.canceled
        if reply.created:
            create = self.asked.pop(0)
            if not reply.canceled:
                assert reply.watch_id not in self.live
                assert create.watch_id in (0, reply.watch_id)
                self.live[reply.watch_id] = Seen(create, reply, self.world.stores)
                self.all.append(self.live[reply.watch_id])
        elif reply.canceled:
            self.live.pop(reply.watch_id).canceled = True
        elif reply.watch_id != -1:
            name = next(name for name, store in self.world.stores.items() if store.number == reply.header.cluster_id)
            self.live[reply.watch_id].events += [(name, event.kv.mod_revision, event.kv.key) for event in reply.events]
        else:
            assert len({cluster for seen in self.live.values() for cluster in clusters_of(seen.create)}) <= 1
        self.fragmented = reply.watch_id if reply.fragment else None


def clusters_of(create: pb.WatchCreateRequest) -> set[str]:
    return {span.cluster for span in ROUTES.spans(create.key or b"\0", create.range_end)}


class Streams(RuleBasedStateMachine):
    """Any interleaving of requests, writes, deliveries, failures and compactions."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.client = Client(self.world)

    def running(self) -> bool:
        return self.world.failure is None

    @precondition(running)
    @rule(where=st.sampled_from(RANGES), back=st.integers(-1, 4), number=st.sampled_from([0, 0, 0, 1, 7]), fragment=st.booleans())
    def create(self, where: tuple[bytes, bytes], back: int, number: int, fragment: bool) -> None:
        store = self.world.stores[ROUTES.cluster_of(where[0])]
        start = 0 if back < 0 else max(1, store.revision + 1 - back)
        self.client.create(creating(*where, start, number, fragment))

    @precondition(running)
    @rule(number=st.sampled_from([0, 1, 2, 7]))
    def cancel(self, number: int) -> None:
        self.world.ask(canceling(number))
        self.client.catch_up()

    @precondition(running)
    @rule()
    def progress(self) -> None:
        self.world.ask(PROGRESS)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def put(self, keys: list[bytes]) -> None:
        for cluster in CLUSTERS:
            own = [key for key in keys if ROUTES.cluster_of(key) == cluster]
            if own:
                self.world.stores[cluster].put(*own)

    @rule(cluster=st.sampled_from(CLUSTERS), key=st.sampled_from(KEYS))
    def put_past_the_gateway(self, cluster: str, key: bytes) -> None:
        """A key in a cluster that does not own it, as before a migration."""
        self.world.stores[cluster].put(key)

    @rule(cluster=st.sampled_from(CLUSTERS), back=st.integers(0, 3))
    def compact(self, cluster: str, back: int) -> None:
        store = self.world.stores[cluster]
        store.compacted = max(store.compacted, store.revision - back)

    @precondition(running)
    @rule(cluster=st.sampled_from(CLUSTERS), steps=st.integers(1, 5))
    def proceed(self, cluster: str, steps: int) -> None:
        for _ in range(steps):
            if cluster in self.world.opening:
                self.world.open(cluster)
            elif self.running() and cluster in self.world.streams and self.world.streams[cluster].out:
                self.world.deliver(cluster)
                self.client.catch_up()

    @precondition(running)
    @rule()
    def settle(self) -> None:
        self.world.settle()
        self.client.catch_up()

    @precondition(running)
    @rule(cluster=st.sampled_from(CLUSTERS))
    def lose(self, cluster: str) -> None:
        if cluster in self.world.streams:
            self.world.lose(cluster)
            self.client.catch_up()

    @precondition(running)
    @rule(sure=st.integers(0, 3))
    def give_up(self, sure: int) -> None:
        if not sure:
            self.world.do(self.world.watches.give_up())
            self.client.catch_up()

    def teardown(self) -> None:
        self.world.settle()
        self.client.catch_up()
        if self.world.failure is None:
            assert not self.client.asked
            assert len(self.world.watches) == len(self.client.live)
            for seen in self.client.all:
                seen.check(self.world.stores)


Streams.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestStreams = Streams.TestCase


KEY, END, START, NUMBER = map(st.sampled_from, ([b"/a", b"", b"/b"], [b"", b"\0", b"/c", b"/"], [0, 1, 2, 3], [0, 0, 1, 5]))
REQUESTS = st.one_of(
    st.builds(creating, KEY, END, START, NUMBER),
    st.builds(canceling, st.sampled_from([0, 1, 2, 5, 9])),
    st.just(PROGRESS),
    st.just(b""),
)


@given(st.lists(st.one_of(REQUESTS, st.sampled_from(KEYS).map(lambda key: (key,))), max_size=30))
def test_with_one_cluster_the_client_is_told_what_etcd_says(steps: list[bytes | tuple[bytes]]) -> None:
    world = World(Routes.everything("main"))
    direct = Stream(world.stores["main"])
    for step in steps:
        if isinstance(step, tuple):
            world.stores["main"].put(*step)
        else:
            world.ask(step)
            world.settle()
            direct.request(step)
        world.settle()
    for reply in (*world.told, *direct.out):
        if reply.watch_id == -1 and reply.canceled:
            reply.header.ClearField("revision")  # the gateway's is of the last message, etcd's of now
    assert world.told == direct.out


# what the model does not do


def test_requests_that_are_none_end_the_stream() -> None:
    (action,) = Watches(ROUTES, "main").request(b"\xff")
    assert isinstance(action, Fail) and action.error.code == 13
    assert action.error.text == "grpc: failed to unmarshal the received message"


def test_responses_that_are_none_end_the_stream() -> None:
    world = World()
    world.ask(creating())
    world.settle()
    world.do(world.watches.response("main", b"\xff"))
    assert world.failure is not None and 'cluster "main"' in world.failure.error.text


def test_unanswered_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_PENDING", 3)
    world = World()
    for key in (b"/a", b"/a", b"/b/1"):
        world.ask(creating(key))
        assert world.failure is None
    world.ask(creating())
    assert world.failure is not None and world.failure.error.code == 8


def test_creates_of_one_cluster_do_not_wait_for_each_other() -> None:
    world = World()
    world.ask(creating())
    world.open("main")
    world.ask(creating())
    assert len(world.streams["main"].out) == 2


def test_a_create_waits_for_an_unanswered_one_of_another_cluster() -> None:
    world = World()
    world.ask(creating(b"/b/1"))
    world.ask(creating())
    assert world.opening == {"b"}
    assert world.watches.unanswered is not None and world.watches.unanswered.silent == ["b"]
    world.settle()
    assert [reply.header.cluster_id for reply in world.told] == [2, 1]
    assert world.watches.unanswered is None


def test_an_endpoint_that_does_not_keep_ids_is_found_out() -> None:
    world = World()
    world.ask(creating(number=7))
    world.open("main")
    world.say("main", pb.WatchResponse(watch_id=0, created=True))
    assert world.failure is not None and "does not keep watch ids (0 for 7)" in world.failure.error.text


def test_a_created_that_nobody_asked_for_is_ignored() -> None:
    world = World()
    world.ask(creating())
    world.settle()
    world.say("main", pb.WatchResponse(watch_id=9, created=True))
    assert len(world.told) == 1


DENIED = {"created": True, "canceled": True, "cancel_reason": "etcdserver: permission denied"}


@pytest.mark.parametrize("number", [1, -1])
def test_a_refusal_has_the_id_that_etcd_gives(number: int) -> None:
    """3.5 repeats the id of the request, here the gateway's 1 for the client's 0."""
    world = World()
    world.ask(creating())
    world.settle()
    world.ask(creating())
    world.say("main", pb.WatchResponse(watch_id=number, **DENIED))
    assert world.told[-1] == pb.WatchResponse(watch_id=min(0, number), **DENIED)
    world.streams["main"].out.clear()
    world.streams["main"].watchers.pop(1)
    world.ask(creating())
    world.settle()
    assert world.told[-1].watch_id == 1, "the number is free again"


def test_a_watch_that_is_refused_when_resumed_is_canceled() -> None:
    world = World()
    world.ask(creating())
    world.settle()
    world.lose("main")
    world.open("main")
    world.say("main", pb.WatchResponse(watch_id=-1, **DENIED))
    assert world.told[-1] == pb.WatchResponse(watch_id=0, canceled=True, cancel_reason=DENIED["cancel_reason"])
    assert len(world.watches) == 0


def test_a_joined_watch_that_one_cluster_cancels_before_the_other_has_created_it_is_refused() -> None:
    world = World()
    world.ask(creating(b"/b/", b"/d"))
    world.open("b")
    world.open("c")
    world.deliver("b")
    world.stores["b"].put(b"/b/1")
    world.deliver("b")
    world.say("b", pb.WatchResponse(watch_id=0, canceled=True, cancel_reason="why"))
    assert world.told == [pb.WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="why")]
    world.settle()
    assert len(world.told) == 1 and not world.streams["c"].watchers


def test_a_refused_joined_watch_is_forgotten_within_a_response() -> None:
    """Its other cluster was sending fragments: the rest of them is for nobody."""
    world = World()
    world.ask(creating(b"/b/", b"/d", fragment=True))
    world.open("b")
    world.open("c")
    world.deliver("b")
    world.stores["b"].put(*[b"/b/1"] * 5)
    world.deliver("b")
    world.say("c", pb.WatchResponse(watch_id=-1, **DENIED))
    world.lose("b")
    world.settle()
    assert world.failure is None and len(world.told) == 1


def test_fragments_stay_together() -> None:
    world = World()
    world.ask(creating(b"/b/1", fragment=True))
    world.settle()
    world.ask(creating())
    world.settle()
    world.stores["b"].put(*[b"/b/1"] * 5)
    world.stores["main"].put(b"/a")
    world.deliver("b")
    world.deliver("main")
    world.deliver("b")
    assert [(reply.watch_id, reply.fragment) for reply in world.told[2:]] == [(0, True), (0, False), (1, False)]


def test_an_empty_last_fragment_says_nothing_of_progress() -> None:
    world = World()
    world.ask(creating(fragment=True))
    world.settle()
    event = {"kv": {"mod_revision": 5}}
    world.say("main", pb.WatchResponse(header=pb.ResponseHeader(revision=50), watch_id=0, events=[event], fragment=True))
    world.say("main", pb.WatchResponse(header=pb.ResponseHeader(revision=50), watch_id=0))
    world.lose("main")
    world.open("main")
    assert world.streams["main"].watchers[0].start_revision == 6


def test_a_cluster_lost_within_a_response_ends_the_stream() -> None:
    world = World()
    world.ask(creating(b"/b/1", fragment=True))
    world.settle()
    world.stores["b"].put(*[b"/b/1"] * 5)
    world.deliver("b")
    world.lose("b")
    assert world.failure is not None and world.failure.error.code == 14


def test_what_is_held_back_too_long_pauses_its_cluster() -> None:
    world = World()
    world.ask(creating(b"/b/1", fragment=True))
    world.settle()
    world.ask(creating())
    world.settle()
    world.stores["b"].put(*[b"/b/1"] * 5)
    world.deliver("b")
    assert world.watches.reading("main")
    event = pb.WatchResponse(watch_id=1, events=world.stores["b"].events[:1])
    event.events[0].kv.value = bytes(MAX_HELD)
    world.say("main", event)
    assert not world.watches.reading("main") and world.watches.reading("b")
    world.deliver("b")
    assert world.watches.reading("main")


def test_progress_is_not_asked_for_a_stream_over_several_clusters() -> None:
    world = World()
    world.ask(creating())
    world.settle()
    world.ask(PROGRESS)
    world.settle()
    assert world.told[-1].watch_id == -1
    world.ask(PROGRESS)
    world.ask(creating(b"/b/1"))
    world.ask(PROGRESS)
    world.settle()
    assert [reply.watch_id for reply in world.told] == [0, -1, 1], "nor passed on when a second cluster has come meanwhile"


def test_progress_of_one_watch_moves_its_place() -> None:
    world = World()
    world.ask(creating())
    world.settle()
    world.stores["main"].put(b"/z")
    world.say("main", pb.WatchResponse(header=pb.ResponseHeader(revision=50), watch_id=0))
    world.lose("main")
    world.open("main")
    assert world.streams["main"].watchers[0].start_revision == 51


def test_progress_of_a_joined_watch_is_not_told() -> None:
    world = World()
    world.ask(creating(b"/b/", b"/d"))
    world.settle()
    world.say("b", pb.WatchResponse(header=pb.ResponseHeader(revision=50), watch_id=0))
    assert len(world.told) == 1


def test_revisions_over_several_clusters_are_refused() -> None:
    world = World()
    world.ask(creating(b"/b/", b"/d", start=5))
    (reply,) = world.told
    assert (reply.watch_id, reply.created, reply.canceled) == (-1, True, True)
    assert "several clusters (b, main, c)" in reply.cancel_reason


def test_given_up_creates() -> None:
    """From a revision on nothing is lost by being created first and fed later; from now on it would."""
    world = World()
    world.ask(creating(b"/b/1", start=1))
    world.ask(creating(b"/b/2"))
    world.ask(creating())
    world.do(world.watches.give_up())
    assert [(reply.watch_id, reply.canceled) for reply in world.told] == [(0, False), (-1, True)]
    assert world.told[1].cancel_reason == "shardgate: no answer from cluster b"
    world.stores["b"].put(b"/b/1")
    world.settle()
    assert [(reply.watch_id, reply.created) for reply in world.told[2:]] == [(2, True), (0, False)]


def test_turns_let_waiting_speakers_finish_one_after_the_other() -> None:
    turns, a, b, c = Turns(), Branch("a"), Branch("b"), Branch("c")
    assert list(turns.say(a, b"a1", True)) == [b"a1"]
    assert list(turns.say(b, b"b1", True)) == []
    assert list(turns.say(c, b"c1", False)) == []
    assert list(turns.say(a, b"a2", False)) == [b"a2", b"b1"]
    assert list(turns.say(b, b"b2", False)) == [b"b2", b"c1"]
    assert (a.held, b.held, c.held) == (0, 0, 0)


def test_a_joined_watch_is_told_nothing_before_created() -> None:
    world = World()
    world.ask(creating(b"/a", b"/d"))
    world.open("main")
    world.deliver("main")
    world.stores["main"].put(b"/a", b"/b/1")
    world.stores["main"].put(b"/b/1")  # of another cluster
    world.deliver("main")
    world.deliver("main")
    assert world.told == []
    world.settle()
    assert [(reply.created, [event.kv.key for event in reply.events]) for reply in world.told] == [(True, []), (False, [b"/a"])]


def test_a_joined_watch_is_canceled_when_every_cluster_has_let_go() -> None:
    world = World()
    world.ask(creating(b"/b/", b"/d"))
    world.settle()
    world.ask(canceling(0))
    world.deliver("b")
    world.deliver("c")
    assert len(world.told) == 1 and len(world.watches) == 1
    world.deliver("main")
    assert world.told[1].canceled and len(world.watches) == 0


def test_a_canceled_watch_of_a_lost_cluster_ends_at_once() -> None:
    world = World()
    world.ask(creating())
    world.ask(creating())
    world.settle()
    world.ask(canceling(0))
    world.lose("main")
    world.ask(canceling(1))
    assert [(reply.watch_id, reply.canceled) for reply in world.told[2:]] == [(0, True), (1, True)]


def test_an_id_that_is_used_again_gets_no_events_of_its_first_watch() -> None:
    """The first was given up unanswered, and its cluster gets to it later."""
    world = World()
    world.ask(creating(number=7))
    world.open("main")
    world.do(world.watches.give_up())
    world.ask(creating(number=7))
    stream = world.streams["main"]
    assert [reply.watch_id for reply in stream.out] == [7, 7, 7], "created, canceled, created"
    world.deliver("main")
    world.say("main", pb.WatchResponse(watch_id=7, events=[{}]))
    world.settle()
    assert [(reply.watch_id, reply.created, reply.canceled) for reply in world.told] == [(-1, True, True), (7, True, False)]


def test_an_id_can_be_used_again_once_its_watch_is_canceled() -> None:
    """etcd handles one request after the other."""
    world = World()
    world.ask(creating(number=7))
    world.settle()
    world.ask(canceling(7))
    world.ask(creating(b"/b/1", number=7))
    assert "b" not in world.opening
    world.settle()
    assert [(reply.created, reply.canceled) for reply in world.told] == [(True, False), (False, True), (True, False)]


def test_an_id_in_use_is_refused() -> None:
    world = World()
    world.ask(creating(number=7))
    world.settle()
    world.ask(creating(b"/b/1", number=7))
    world.ask(creating(b"/b/2", b"/b/1", number=7))
    assert [reply.cancel_reason for reply in world.told] == ["", DUPLICATE, EMPTY]
    assert [reply.watch_id for reply in world.told] == [7, -1, -1]


def test_events_with_nothing_of_their_cluster_are_not_told() -> None:
    world = World()
    world.ask(creating(b"/a", b"/d", fragment=True))
    world.settle()
    world.stores["main"].put(b"/b/1")
    world.stores["main"].put(*[b"/b/1"] * 5)
    world.settle()
    assert [(len(reply.events), reply.fragment) for reply in world.told[1:]] == [(0, True), (0, False)]


def test_what_etcd_does_not_answer_is_not_answered() -> None:
    world = World()
    world.ask(b"")
    world.ask(canceling(3))
    assert world.told == [] and not world.opening


def test_a_cancel_waits_for_its_watch() -> None:
    world = World()
    world.ask(creating(number=7))
    world.ask(canceling(7))
    world.ask(canceling(7))
    world.settle()
    assert [(reply.created, reply.canceled) for reply in world.told] == [(True, False), (False, True)]


def test_a_refused_id_of_the_client_is_its_own() -> None:
    world = World()
    world.ask(creating(number=7))
    world.open("main")
    world.say("main", pb.WatchResponse(watch_id=7, **DENIED))
    assert world.told == [pb.WatchResponse(watch_id=7, **DENIED)]


def test_a_joined_watch_ends_when_one_cluster_cancels_it() -> None:
    world = World()
    world.ask(creating(b"/b/", b"/d"))
    world.settle()
    world.stores["b"].compacted = 5
    world.lose("b")
    world.settle()
    assert world.told[1] == pb.WatchResponse(header=world.stores["b"].header(), watch_id=0, canceled=True, compact_revision=5)
    assert not world.streams["c"].watchers and len(world.watches) == 0
