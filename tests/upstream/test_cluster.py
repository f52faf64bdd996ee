"""A cluster's connections and calls, against real etcd and against endpoints that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.core.errors import Code, RpcError
from gateway.etcdpb import lock_pb2
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method
from gateway.upstream import calls
from gateway.upstream.cluster import MAX_PARKED, Cluster
from gateway.upstream.link import LONGEST_PAUSE, LinkState, pause_before
from gateway.wire import frames as f
from gateway.wire.grpc import RESPONSE_HEADERS, trailers
from tests.etcd import EtcdCluster, free_port

RANGE = method("kv", "range")
WATCH = method("watch", "watch")
KEY = pb.RangeRequest(key=b"upstream").SerializeToString()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


@contextlib.asynccontextmanager
async def cluster(*urls: str) -> AsyncIterator[tuple[Cluster, list[tuple[str, LinkState, str]]]]:
    changes: list[tuple[str, LinkState, str]] = []
    made = Cluster("c", urls, lambda name, url, state, error: changes.append((url, state, error)))
    try:
        yield made, changes
    finally:
        made.close()


@contextlib.asynccontextmanager
async def endpoint(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that does as told with each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def until_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Greet, read frames up to a call's HEADERS; its stream."""
    await reader.readexactly(len(f.PREFACE))
    writer.write(f.settings_frame({}))
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == f.HEADERS:
            return int.from_bytes(head[5:9], "big")


def test_a_call(main_etcd: EtcdCluster) -> None:
    async def work() -> None:
        async with cluster(*main_etcd.urls) as (made, changes):
            assert await made.settled(5)
            reply = pb.RangeResponse.FromString(await made.unary(RANGE, KEY))
            assert reply.header.cluster_id
            assert changes[-1][1] is LinkState.READY
            assert made.endpoints[0].connections <= 2
            with pytest.raises(RpcError) as caught:
                await made.unary(RANGE, b"")
            assert (caught.value.code, caught.value.text) == (Code.INVALID_ARGUMENT, "etcdserver: key is not provided")

    run(work)


def test_a_large_reply_comes_whole(main_etcd: EtcdCluster) -> None:
    async def work() -> None:
        async with cluster(*main_etcd.urls) as (made, _):
            value = bytes(range(256)) * 4096
            for number in range(8):
                put = pb.PutRequest(key=b"large/%d" % number, value=value).SerializeToString()
                await made.unary(method("kv", "put"), put)
            asked = pb.RangeRequest(key=b"large/", range_end=b"large0").SerializeToString()
            reply = pb.RangeResponse.FromString(await made.unary(RANGE, asked))
            assert [kv.value for kv in reply.kvs] == [value] * 8

    run(work)


def test_calls_before_the_first_connection_wait_for_it(main_etcd: EtcdCluster) -> None:
    async def work() -> None:
        async with cluster(*main_etcd.urls) as (made, _):
            assert not made.available
            replies = await asyncio.gather(*(made.unary(RANGE, KEY) for _ in range(20)))
            assert all(replies)

    run(work)


def test_without_an_endpoint_a_call_fails_at_once_and_says_that_nothing_was_sent() -> None:
    async def work() -> None:
        async with cluster(f"http://127.0.0.1:{free_port()}") as (made, changes):
            assert not await made.settled(5)
            start = asyncio.get_running_loop().time()
            with pytest.raises(RpcError) as caught:
                await made.unary(RANGE, KEY)
            assert asyncio.get_running_loop().time() - start < 0.5
            assert (caught.value.code, caught.value.text) == (Code.UNAVAILABLE, "there is no connection available")
            assert "refused" in changes[0][2]

    run(work)


def test_parked_calls_are_bounded() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # never answers: the connection never gets ready

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            waiting = [asyncio.ensure_future(made.unary(RANGE, KEY)) for _ in range(MAX_PARKED + 5)]
            await asyncio.sleep(0.2)
            done = [each for each in waiting if each.done()]
            assert len(done) == 5
            made.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, RpcError) and each.code == Code.UNAVAILABLE for each in results)

    run(work)


def test_a_deadline_passes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_call(reader, writer)
        await reader.read()

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            with pytest.raises(RpcError) as caught:
                await made.unary(RANGE, KEY, deadline=asyncio.get_running_loop().time() + 0.3)
            assert caught.value.code == Code.DEADLINE_EXCEEDED

    run(work)


def test_a_broken_connection_leaves_the_outcome_unknown() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_call(reader, writer)

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            with pytest.raises(RpcError) as caught:
                await made.unary(RANGE, KEY)
            assert caught.value.code == Code.UNAVAILABLE
            assert "before the reply came" in caught.value.text

    run(work)


def test_a_refused_stream_is_sent_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f.rst_stream(await until_call(reader, writer), f.REFUSED_STREAM))
        head = await reader.readexactly(9)
        while head[3] != f.HEADERS:
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            head = await reader.readexactly(9)
        number = int.from_bytes(head[5:9], "big")
        reply = pb.RangeResponse(count=7).SerializeToString()
        writer.write(f.frame(f.HEADERS, f.END_HEADERS, number, RESPONSE_HEADERS))
        writer.write(f.frame(f.DATA, 0, number, b"\0" + len(reply).to_bytes(4, "big") + reply))
        writer.write(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, number, trailers(0, "")))
        await reader.read()

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            assert pb.RangeResponse.FromString(await made.unary(RANGE, KEY)).count == 7

    run(work)


def test_an_endpoint_that_refuses_everything_is_not_asked_for_ever() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = await until_call(reader, writer)
        while True:
            writer.write(f.rst_stream(number, f.REFUSED_STREAM))
            head = await reader.readexactly(9)
            while head[3] != f.HEADERS:
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            number = int.from_bytes(head[5:9], "big")

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            with pytest.raises(RpcError) as caught:
                await made.unary(RANGE, KEY)
            assert (caught.value.code, caught.value.text) == (Code.UNAVAILABLE, "there is no connection available")

    run(work)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 64])
def test_an_endpoint_that_speaks_something_else(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, changes):
            assert not await made.settled(5)
            assert changes[0][1] is LinkState.FAILING
            assert changes[0][2]

    run(work)


def test_it_comes_back() -> None:
    port = free_port()

    async def work() -> None:
        async with cluster(f"http://127.0.0.1:{port}") as (made, _):
            assert not await made.settled(5)

            async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await until_call(reader, writer)

            server = await asyncio.start_server(talk, "127.0.0.1", port)
            start = asyncio.get_running_loop().time()
            # a server is silent until its SETTINGS; this one sends them when the preface is there
            await until(lambda: made.available)
            assert asyncio.get_running_loop().time() - start < 2
            server.close()

    run(work)


def test_a_stream_does_not_keep_what_nobody_takes() -> None:
    class Receiver:
        def __init__(self) -> None:
            self.ends: list[RpcError | None] = []

        def on_message(self, data: bytes) -> None: ...

        def on_end(self, error: RpcError | None) -> None:
            self.ends.append(error)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def work() -> None:
        async with endpoint(talk) as url, cluster(url) as (made, _):
            receiver = Receiver()
            stream = made.stream(WATCH, receiver, {})
            for _ in range(calls.MAX_QUEUED // (1 << 20) + 1):
                stream.send(bytes(1 << 20))
            assert [error.code for error in receiver.ends if error] == [Code.RESOURCE_EXHAUSTED]

    run(work)


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [pause_before(attempt) for attempt in range(1, 50)]
    assert all(0 < pause <= LONGEST_PAUSE for pause in pauses)
    assert max(pauses[:1]) <= 0.1
    assert min(pauses[10:]) >= LONGEST_PAUSE / 2


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (a test looks from outside)
        await asyncio.sleep(0.02)


def test_the_idlest_endpoint_is_chosen(main_etcd: EtcdCluster) -> None:
    lock = method("lock", "lock")

    async def work() -> None:
        async with cluster(main_etcd.urls[0], main_etcd.urls[0].replace("127.0.0.1", "localhost")) as (made, _):
            await until(lambda: all(each.calls.channel is not None for each in made.endpoints))
            request = lock_pb2.LockRequest(name=b"busy").SerializeToString()
            await made.unary(lock, request)
            held = [asyncio.ensure_future(made.unary(lock, request)) for _ in range(4)]  # they wait for ever
            await asyncio.sleep(0.3)
            channels = [each.calls.channel for each in made.endpoints]
            assert [channel.conn.active for channel in channels if channel is not None] == [2, 2]
            for each in held:
                each.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    run(work)
