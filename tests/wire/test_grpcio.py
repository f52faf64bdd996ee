"""Real gRPC in both roles: grpcio's client at our server, our client at grpcio's server, and both of ours together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import uvloop

from gateway.wire.connection import Limits
from tests.etcd import wait_for
from tests.wire.asking import AskingClient
from tests.wire.echo import MAX_MESSAGE, EchoSite, serving

SIZES = (0, 1, 100, 16_379, 16_380, 65_530, 70_000, 1_500_000, 5_000_000)
SMALL = Limits(stream_window=65_535, connection_window=65_535, slice=20_000)
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@contextmanager
def channel(site: EchoSite, *options: tuple[str, Any]) -> Iterator[grpc.Channel]:
    """grpcio's client."""
    with grpc.insecure_channel(f"127.0.0.1:{site.port}", options=[*UNLIMITED, *options]) as opened:
        yield opened


@pytest.fixture(scope="module", params=[Limits(), SMALL], ids=["usual", "small windows"])
def site(request: pytest.FixtureRequest) -> Iterator[EchoSite]:
    with serving(EchoSite(request.param)) as running:
        yield running
        assert running.verdicts == []


def body(size: int) -> bytes:
    return bytes(number % 251 for number in range(256)) * (size // 256) + bytes(size % 256)


# grpcio's client


def test_unary(site: EchoSite) -> None:
    with channel(site) as opened:
        call = opened.unary_unary("/echo/Unary")
        for size in SIZES:
            assert call(body(size), timeout=20) == body(size)


def test_many_at_once(site: EchoSite) -> None:
    with channel(site) as opened:
        call = opened.unary_unary("/echo/Unary")
        futures = [(size, call.future(body(size), timeout=20)) for size in range(0, 60_000, 200)]
        for size, future in futures:
            assert future.result() == body(size)


def test_streams_both_ways(site: EchoSite) -> None:
    messages = [body(size) for size in (*SIZES[:-2], *range(300))]
    with channel(site) as opened:
        assert list(opened.stream_stream("/echo/Stream")(iter(messages), timeout=20)) == messages
        assert opened.stream_unary("/echo/Unary")(iter(messages), timeout=20) == b"".join(messages)


@pytest.mark.parametrize("text", ["", "plain", "ümläut → %25 \n\t", "x" * 3000])
def test_errors(site: EchoSite, text: str) -> None:
    with channel(site) as opened, pytest.raises(grpc.RpcError) as caught:
        opened.unary_unary("/echo/Fail")(f"11 {text}".encode(), timeout=20)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, text)


def test_an_error_after_data(site: EchoSite) -> None:
    with channel(site) as opened:
        call = opened.unary_stream("/echo/Late")(body(300_000), timeout=20)
        assert next(call) == body(300_000)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "after the data")


def test_a_message_that_is_too_large(site: EchoSite) -> None:
    with channel(site) as opened, pytest.raises(grpc.RpcError) as caught:
        opened.unary_unary("/echo/Unary")(bytes(MAX_MESSAGE + 1), timeout=20)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == f"grpc: received message larger than max ({MAX_MESSAGE + 1} vs. {MAX_MESSAGE})"


def test_gzip(site: EchoSite) -> None:
    with channel(site, ("grpc.default_compression_algorithm", 2)) as opened:
        assert opened.unary_unary("/echo/Unary")(body(1_000_000), timeout=20) == body(1_000_000)


def test_cancel(site: EchoSite) -> None:
    with channel(site) as opened:
        call = opened.stream_stream("/echo/Stream")(iter_then_wait(b"first"))
        assert next(call) == b"first"
        connection = site.connections[-1]
        before = len(connection.resets)
        call.cancel()
        wait_for("the reset", lambda: len(connection.resets) > before, 10)
        assert connection.conn.active == 0


def iter_then_wait(message: bytes) -> Iterator[bytes]:
    yield message
    time.sleep(0.5)


def test_a_reader_that_is_slow(site: EchoSite) -> None:
    """Flow control holds the server back, and nothing is lost."""
    messages = [body(100_000)] * 40
    with channel(site) as opened:
        got = []
        for message in opened.stream_stream("/echo/Stream")(iter(messages), timeout=30):
            time.sleep(0.01)
            got.append(message)
    assert got == messages


def test_metadata_and_deadline(site: EchoSite) -> None:
    with channel(site) as opened:
        metadata = (("token", "t" * 5000), ("x-bin", bytes(range(256))), ("authorization", "a"))
        assert opened.unary_unary("/echo/Unary")(b"x", timeout=20, metadata=metadata) == b"x"
        with pytest.raises(grpc.RpcError) as caught:
            list(opened.stream_stream("/echo/Stream")(iter_then_wait(b"x"), timeout=0.2))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_keepalive_as_etcd_allows_it() -> None:
    with serving(EchoSite(Limits(min_ping_interval=0.2))) as site, channel(site, ("grpc.keepalive_time_ms", 500)) as opened:
        call = opened.stream_stream("/echo/Stream")(iter_then_wait(b"x"), timeout=5)
        assert list(call) == [b"x"]
        assert site.verdicts == []


def test_keepalive_that_is_too_eager_is_sent_away() -> None:
    options = (("grpc.keepalive_time_ms", 100), ("grpc.http2.max_pings_without_data", 0))
    with serving(EchoSite(Limits(min_ping_interval=30.0))) as site, channel(site, *options) as opened:
        call = opened.stream_stream("/echo/Stream")(never(), timeout=10)
        with pytest.raises(grpc.RpcError):
            next(call)
        wait_for("the verdict", lambda: site.verdicts == ["too_many_pings"], 10)


def never() -> Iterator[bytes]:
    time.sleep(8)
    yield from ()


def test_shut_down_lets_calls_end_and_moves_clients_on() -> None:
    with serving(EchoSite()) as site, channel(site) as opened:
        call = opened.unary_unary("/echo/Unary")
        assert call(b"one", timeout=10) == b"one"
        first = site.connections[0]
        first.shut_down()
        wait_for("GOAWAY", lambda: first.conn.closing is not None, 10)
        assert call(b"two", timeout=10, wait_for_ready=True) == b"two"
        assert len(site.connections) == 2


# grpcio's server


class Echo(grpc.GenericRpcHandler):
    """As our own server answers."""

    def service(self, details: Any) -> Any:
        handlers: dict[str, Callable[[], Any]] = {
            "/echo/Unary": lambda: grpc.unary_unary_rpc_method_handler(lambda request, context: request),
            "/echo/Stream": lambda: grpc.stream_stream_rpc_method_handler(lambda requests, context: requests),
            "/echo/Fail": lambda: grpc.unary_unary_rpc_method_handler(fail),
            "/echo/Hang": lambda: grpc.unary_unary_rpc_method_handler(hang),
        }
        return handlers[details.method]() if details.method in handlers else None


CANCELLED = threading.Event()


def fail(request: bytes, context: Any) -> None:
    code, _, text = request.partition(b" ")
    context.abort({11: grpc.StatusCode.OUT_OF_RANGE}[int(code)], text.decode())


def hang(request: bytes, context: Any) -> bytes:
    context.add_callback(CANCELLED.set)
    CANCELLED.wait(10)
    return request


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(8), [Echo()], options=[*UNLIMITED, ("grpc.http2.min_ping_interval_without_data_ms", 100)])
    chosen = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield chosen
    server.stop(0).wait(10)


def asking(port: int, work: Callable[[AskingClient], Any], limits: Limits | None = None) -> None:
    """Runs the coroutine with a client of ours."""

    async def run() -> None:
        client = await AskingClient.connect(port, limits)
        async with asyncio.timeout(30):
            await work(client)
        assert client.conn.closing is None
        client.close()
        await client.lost

    uvloop.run(run())


@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["usual", "small windows"])
def test_our_client(port: int, limits: Limits) -> None:
    async def work(client: AskingClient) -> None:
        for size in SIZES:
            assert await client.ask(b"/echo/Unary", body(size)).reply() == body(size)
        asks = [(size, client.ask(b"/echo/Unary", body(size))) for size in range(0, 20_000, 100)]
        for size, ask in asks:
            assert await ask.reply() == body(size)
        stream = client.ask(b"/echo/Stream", None, end=False)
        for size in SIZES[:-1]:
            stream.send(body(size))
            assert await stream.messages.get() == body(size)
        stream.send(b"last", end=True)
        assert await stream.done == (0, "")
        assert stream.messages.get_nowait() == b"last"

    asking(port, work, limits)


def test_errors_reach_our_client(port: int) -> None:
    async def work(client: AskingClient) -> None:
        assert await client.ask(b"/echo/Fail", "11 ümläut → %25 \n".encode()).done == (11, "ümläut → %25 \n")
        assert await client.ask(b"/echo/Nothing", b"x").done == (12, "Method not found!")
        code, _ = await client.ask(b"/echo/Hang", b"x", timeout=0.2).done
        assert code == 4
        assert await client.ask(b"/echo/Unary", b"x", token=b"t" * 4000, big=b"b" * 3000).reply() == b"x"

    asking(port, work)


def test_our_client_cancels(port: int) -> None:
    async def work(client: AskingClient) -> None:
        CANCELLED.clear()
        ask = client.ask(b"/echo/Hang", b"x")
        await asyncio.sleep(0.2)
        ask.cancel()
        await asyncio.get_running_loop().run_in_executor(None, CANCELLED.wait, 10)
        assert CANCELLED.is_set()
        assert await client.ask(b"/echo/Unary", b"x").reply() == b"x"
        assert ask.reset is None

    asking(port, work)


def test_our_client_learns_that_the_server_goes() -> None:
    server = grpc.server(ThreadPoolExecutor(2), [Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    async def run() -> None:
        client = await AskingClient.connect(port)
        assert await client.ask(b"/echo/Unary", b"x").reply() == b"x"
        server.stop(5)
        async with asyncio.timeout(10):
            await client.lost
        assert client.goaways
        assert not client.conn.can_open

    uvloop.run(run())


# both ours


@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["usual", "small windows"])
def test_ours_with_ours(site: EchoSite, limits: Limits) -> None:
    async def work(client: AskingClient) -> None:
        for size in SIZES:
            assert await client.ask(b"/echo/Unary", body(size)).reply() == body(size)
        asks = [(size, client.ask(b"/echo/Unary", body(size))) for size in range(0, 100_000, 777)]
        for size, ask in asks:
            assert await ask.reply() == body(size)

    asking(site.port, work, limits)
