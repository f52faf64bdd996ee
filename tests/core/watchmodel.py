"""A naive etcd, as far as watches go: what the tests of gateway.core.watches compare with and talk to."""

from gateway.core.keyrange import bounds
from gateway.etcdpb import kv_pb2
from gateway.etcdpb import rpc_pb2 as pb

DUPLICATE = "mvcc: duplicate watch ID provided on the WatchStream"
EMPTY = "mvcc: watcher range is empty"
LARGE = 3
"""Events in a response above which it is cut into fragments."""


class Store:
    """A cluster's history."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.revision = 1
        self.compacted = 0
        self.events: list[kv_pb2.Event] = []
        self.streams: list[Stream] = []

    def put(self, *keys: bytes) -> None:
        """One transaction."""
        self.revision += 1
        news = [kv_pb2.Event(kv=kv_pb2.KeyValue(key=key, mod_revision=self.revision)) for key in keys]
        self.events += news
        for stream in self.streams:
            stream.publish(news)

    def header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self.number, member_id=self.number, revision=self.revision)


class Stream:
    """One watch stream of a client; `out` is what it was answered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.out: list[pb.WatchResponse] = []
        self.watchers: dict[int, pb.WatchCreateRequest] = {}
        self.next_id = 0
        store.streams.append(self)

    def request(self, data: bytes) -> None:
        request = pb.WatchRequest.FromString(data)
        kind = request.WhichOneof("request_union")
        if kind == "create_request":
            self.create(request.create_request)
        elif kind == "cancel_request" and self.watchers.pop(request.cancel_request.watch_id, None) is not None:
            self.say(watch_id=request.cancel_request.watch_id, canceled=True)
        elif kind == "progress_request" and self.watchers:
            self.say(watch_id=-1)

    def create(self, create: pb.WatchCreateRequest) -> None:
        low, high = bounds(create.key or b"\0", create.range_end)
        if high is not None and low >= high:
            self.say(watch_id=-1, created=True, canceled=True, cancel_reason=EMPTY)
        elif create.watch_id in self.watchers and create.watch_id:
            self.say(watch_id=-1, created=True, canceled=True, cancel_reason=DUPLICATE)
        else:
            number = create.watch_id or self.number()
            self.watchers[number] = create
            self.say(watch_id=number, created=True)
            if create.start_revision:
                self.replay(number, create)

    def number(self) -> int:
        while self.next_id in self.watchers:
            self.next_id += 1
        self.next_id += 1
        return self.next_id - 1

    def replay(self, number: int, create: pb.WatchCreateRequest) -> None:
        if create.start_revision <= self.store.compacted:
            del self.watchers[number]
            self.say(watch_id=number, canceled=True, compact_revision=self.store.compacted)
        else:
            self.tell(number, [e for e in self.store.events if e.kv.mod_revision >= create.start_revision])

    def publish(self, events: list[kv_pb2.Event]) -> None:
        for number, create in self.watchers.items():
            self.tell(number, [e for e in events if e.kv.mod_revision >= create.start_revision])

    def tell(self, number: int, events: list[kv_pb2.Event]) -> None:
        create = self.watchers[number]
        mine = [event for event in events if within(event.kv.key, create)]
        size = LARGE if create.fragment else max(1, len(mine))
        for at in range(0, len(mine), size):
            self.say(watch_id=number, events=mine[at : at + size], fragment=at + size < len(mine))

    def say(self, **fields: object) -> None:
        self.out.append(pb.WatchResponse(header=self.store.header(), **fields))

    def close(self) -> None:
        self.store.streams.remove(self)


def within(key: bytes, create: pb.WatchCreateRequest) -> bool:
    low, high = bounds(create.key or b"\0", create.range_end)
    return low <= key and (high is None or key < high)
