"""The short way gives the answers of the usual way: whatever the split of the bytes, the windows, and what else the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import RpcError
from gateway.etcdpb.methods import method
from gateway.listeners.client import ClientPort
from gateway.listeners.grpc import GrpcConnection
from gateway.metrics import Metrics
from gateway.observe import Observer
from gateway.services.call import Call, Read, Reader
from gateway.wire.connection import Limits
from gateway.wire.grpc import frame_message

RANGE = method("kv", "range")


class Memory:
    """Stands for a cluster's keys: `now/…` is answered at once, `later/…` when told, `gone/…` never from memory."""

    name = "main"

    def __init__(self) -> None:
        self.waiting: list[Reader] = []
        self.declined = 0
        self.hits = 0
        self.readable = True

    def confirm(self, reader: Reader) -> None:
        self.waiting.append(reader)

    def replies(self) -> Mapping[bytes, bytes] | None:
        return Replies() if self.readable else None

    def current(self) -> Mapping[bytes, bytes] | None:
        return self.replies()

    def answered(self, count: int) -> None:
        self.hits += count

    def decline(self, call: Call, key: bytes) -> None:
        self.declined += 1
        call.cluster = self.name
        call.reply(b"value of " + key)

    def range(self, call: Call, request: bytes) -> None:
        """The usual way."""
        call.cluster = self.name
        if request == b"refused":
            call.fail(RpcError(3, "refused"))
        elif request.startswith(b"later/"):
            self.confirm(Waiting(self, call, request))
        else:
            call.reply(b"value of " + request)

    def instant(self, request: bytes, metadata: Mapping[bytes, bytes]) -> Read | None:
        at_once = request.startswith(b"now/")
        return Read(self, request, not at_once) if at_once or request.startswith(b"later/") else None

    def tell(self, confirmed: bool = True) -> None:
        waiting, self.waiting = self.waiting, []
        for reader in waiting:
            (reader.confirmed if confirmed else reader.unconfirmed)()


class Waiting:
    """A read that waits in the usual way."""

    def __init__(self, memory: Memory, call: Call, key: bytes) -> None:
        self.memory, self.call, self.key = memory, call, key

    def confirmed(self) -> None:
        if not self.call.ended:
            self.call.reply_raw(Replies()[self.key])

    def unconfirmed(self) -> None:
        if not self.call.ended:
            self.memory.decline(self.call, self.key)


class Replies(dict[bytes, bytes]):
    def __missing__(self, key: bytes) -> bytes:
        return frame_message(b"value of " + key)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()

    def write(self, data: Any) -> None:
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Never full."""

    def close(self) -> None:
        raise AssertionError("closed")


class Site:
    """A connection with a client of another kind (h2) at its other end."""

    def __init__(self, quick: bool, window: int = 65_535) -> None:
        self.memory = Memory()
        self.metrics = Metrics()
        observer = Observer(self.metrics, 1.0)
        instants = {RANGE.path: (RANGE, self.memory.instant)} if quick else {}
        self.port = ClientPort(
            name="l", handlers={RANGE.path: (RANGE, self.memory.range)}, instants=instants, web=None, metrics=self.metrics,
            observer=observer, limits=Limits(), max_connections=9, max_request_bytes=1000,
        )  # fmt: skip
        self.connection = GrpcConnection(self.port)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.client.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.client.initiate_connection()
        self.replies: dict[int, list[Any]] = {}

    def ask(self, message: bytes, timeout: str | None = None, length: bool = False, end: bool = True) -> int:
        number = self.client.get_next_available_stream_id()
        headers = [
            (":method", "POST"), (":scheme", "http"), (":path", RANGE.path.decode()), (":authority", "x"),
            ("content-type", "application/grpc"), ("te", "trailers"),
        ]  # fmt: skip
        data = frame_message(message)
        headers += [("grpc-timeout", timeout)] if timeout else []
        headers += [("content-length", str(len(data)))] if length else []
        self.client.send_headers(number, headers)
        self.client.send_data(number, data, end_stream=end)
        return number

    def pass_on(self, cuts: list[int] | None = None) -> None:
        """What the client wants to send goes to the gateway in pieces, and its answers back until nobody says more."""
        data = self.client.data_to_send()
        places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
        for low, high in pairwise(places):
            self.connection.data_received(data[low:high])
        self.connection._flush()
        while self.transport.sent:
            sent, self.transport.sent = bytes(self.transport.sent), bytearray()
            for event in self.client.receive_data(sent):
                self._hear(event)
            more = self.client.data_to_send()
            if more:
                self.connection.data_received(more)
            self.connection._flush()

    def _hear(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.replies.setdefault(event.stream_id, []).append([pair for pair in event.headers if pair[0].startswith((b"grpc", b":"))])
        elif isinstance(event, h2.events.DataReceived):
            said = self.replies[event.stream_id]
            if isinstance(said[-1], bytes):
                said[-1] += event.data
            else:
                said.append(event.data)
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.replies.setdefault(event.stream_id, []).append("reset")

    def counted(self) -> dict[str, Any]:
        stats = self.metrics.calls("main", RANGE)
        return {"codes": stats.codes, "in": stats.bytes_in, "out": stats.bytes_out, "seen": sum(stats.buckets)}


def run(work: Any) -> None:
    async def inside() -> None:
        work()

    asyncio.run(inside())


MESSAGES = st.sampled_from([b"now/a", b"later/b", b"gone/c", b"refused", b"", b"now/" + bytes(500), b"later/" + bytes(900), bytes(2000)])
REQUESTS = st.tuples(MESSAGES, st.sampled_from([None, "1S", "4999123u", "4999124u", "bad"]), st.booleans())


@settings(max_examples=150)
@given(st.lists(REQUESTS, min_size=1, max_size=12), st.lists(st.integers(0, 10_000), max_size=6), st.sampled_from([65_535, 10, 100]))
def test_the_same_answers_as_the_usual_way(requests: list[tuple[bytes, str | None, bool]], cuts: list[int], window: int) -> None:
    def work() -> None:
        sites = [Site(quick, window) for quick in (True, False)]
        for site in sites:
            for message, timeout, length in requests:
                site.ask(message, timeout, length)
            site.pass_on(cuts)
            site.memory.tell()
            site.pass_on()
        assert sites[0].replies == sites[1].replies
        assert len(sites[0].replies) == len(requests)
        assert sites[0].counted() == sites[1].counted()
        assert not sites[0].connection.calls and not sites[0].connection.batches and not sites[0].connection.conn.streams

    run(work)


def test_what_came_later_waits_for_another_confirmation() -> None:
    def work() -> None:
        site = Site(True)
        for _ in range(3):
            site.ask(b"later/a")
        site.pass_on()
        site.ask(b"later/b")
        site.pass_on()
        assert len(site.memory.waiting) == 2, "those of one piece together"
        site.memory.waiting.pop(0).confirmed()
        site.pass_on()
        assert list(site.replies) == [1, 3, 5]

    run(work)


def test_a_promise_that_can_not_be_kept_goes_the_usual_way() -> None:
    def work() -> None:
        site = Site(True)
        numbers = [site.ask(b"later/%d" % number, "9S") for number in range(4)]
        site.pass_on()
        assert len(list(next(iter(site.connection.batches)).open())) == 4
        site.memory.tell(confirmed=False)
        site.pass_on()
        assert site.memory.declined == 4
        assert [site.replies[number][1] for number in numbers] == [frame_message(b"value of later/%d" % number) for number in range(4)]
        assert site.counted()["codes"][0] == 4

    run(work)


def test_a_cancelled_read_is_not_answered() -> None:
    def work() -> None:
        site = Site(True)
        first, second = site.ask(b"later/a"), site.ask(b"later/b")
        site.pass_on()
        site.client.reset_stream(first, 8)
        site.pass_on()
        site.memory.tell()
        site.pass_on()
        assert list(site.replies) == [second]
        assert site.counted()["codes"][:2] == [1, 1]

    run(work)


def test_a_deadline_passes_while_it_waits() -> None:
    def work() -> None:
        site = Site(True)
        site.ask(b"later/a", "1S")
        site.ask(b"later/b", "9S")
        site.ask(b"later/c")
        site.pass_on()
        site.connection.tick(asyncio.get_running_loop().time() + 2)
        site.pass_on()
        assert [pair for pair in site.replies[1][0] if pair[0] == b"grpc-status"] == [(b"grpc-status", b"4")]
        site.memory.tell()
        site.pass_on()
        assert list(site.replies) == [1, 3, 5] and len(site.replies[1]) == 1
        assert site.counted()["codes"][0] == 2 and site.counted()["codes"][4] == 1

    run(work)


def test_a_lost_connection_counts_its_reads_as_cancelled() -> None:
    def work() -> None:
        site = Site(True)
        site.ask(b"later/a")
        site.pass_on()
        site.connection.connection_lost(None)
        site.memory.tell()
        assert site.counted()["codes"][1] == 1 and site.counted()["codes"][0] == 0

    run(work)


def test_a_request_that_does_not_end_at_once_goes_the_usual_way() -> None:
    def work() -> None:
        site = Site(True)
        number = site.ask(b"now/a", end=False)
        site.pass_on()
        assert site.replies[number][1] == frame_message(b"value of now/a")
        assert not site.memory.hits

    run(work)
