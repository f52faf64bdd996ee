"""The JSON API: what becomes of a call, whatever its service method or its client does."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.core.errors import COMPACTED, Code, RpcError
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import METHODS, method
from gateway.listeners.json import PATHS
from gateway.listeners.jsoncall import HIGH_WATER, JsonCall
from tests.listeners.jsonsite import MAX_REQUEST, Site, serving

RANGE = method("kv", "range")
WATCH = method("watch", "watch")
SNAPSHOT = method("maintenance", "snapshot")


class Service:
    """Service methods that do what the test says, and what they got."""

    def __init__(self) -> None:
        self.calls: list[JsonCall] = []
        self.requests: list[Any] = []
        self.act: Callable[[JsonCall], Any] = lambda call: None
        self.cancelled = 0

    def unary(self, call: JsonCall, request: bytes) -> None:
        self.calls.append(call)
        self.requests.append(call.method.request.FromString(request))
        call.on_cancel = self.on_cancel
        self.act(call)

    def stream(self, call: JsonCall) -> "Service":
        self.calls.append(call)
        call.on_cancel = self.on_cancel
        return self

    def on_cancel(self) -> None:
        self.cancelled += 1

    def message(self, data: bytes) -> None:
        self.requests.append(self.calls[-1].method.request.FromString(data))

    def half_close(self) -> None:
        self.requests.append("half-close")
        self.act(self.calls[-1])


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def site(service: Service) -> Iterator[Site]:
    handlers = {rpc: service.stream if rpc.client_streaming else service.unary for rpc in METHODS.values()}
    with serving(handlers) as site:
        yield site


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def reply(call: JsonCall) -> None:
    call.reply(call.method.reply().SerializeToString())


def frame(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


COUNT = pb.RangeResponse(count=7).SerializeToString()


@pytest.mark.parametrize("path", PATHS)
def test_every_path_reaches_its_method(site: Site, service: Service, path: str) -> None:
    service.act = lambda call: (reply(call), call.end())
    for variant in (path, path.replace("/v3/", "/v3beta/")):
        status, text = site.ask(variant)
        assert (status, text.strip()) == (200, '{"result":{}}' if PATHS[path].server_streaming else "{}")
        assert service.calls.pop().method is PATHS[path]


def test_every_rpc_of_etcds_gateway_has_a_path() -> None:
    assert {rpc.label for rpc in METHODS.values()} - {rpc.label for rpc in PATHS.values()} == {"KV/RangeStream"}


def test_a_reply(site: Site, service: Service) -> None:
    service.act = lambda call: call.reply(COUNT)
    response = site.open("/v3/kv/range", b'{"key":"Zm9v"}')
    assert response.read() == b'{"count":"7"}'
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Grpc-Metadata-Content-Type"] == "application/grpc"
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert service.requests == [pb.RangeRequest(key=b"foo")]
    assert site.records == [("KV/Range", 0)]
    assert (service.calls[0].bytes_in, service.calls[0].bytes_out) == (5, 2)
    assert service.cancelled == 0


def test_a_relayed_reply_in_pieces(site: Site, service: Service) -> None:
    def relay(call: JsonCall) -> None:
        for byte in frame(COUNT):
            call.send_raw(bytes([byte]))
        call.end()

    service.act = relay
    assert site.ask("/v3/kv/range") == (200, '{"count":"7"}')


def test_a_large_relayed_reply_is_not_paused(site: Site, service: Service) -> None:
    big = pb.RangeResponse()
    big.kvs.add(value=bytes(4 * HIGH_WATER))
    data = frame(big.SerializeToString())

    def relay(call: JsonCall) -> None:
        call.send_raw(data)
        assert call.writable
        call.end()

    service.act = relay
    status, text = site.ask("/v3/kv/range")
    assert (status, len(json.loads(text)["kvs"][0]["value"])) == (200, 4 * -(-4 * HIGH_WATER // 3))


def test_a_relay_that_fails_after_its_message_is_an_error(site: Site, service: Service) -> None:
    service.act = lambda call: (call.send_raw(frame(COUNT)), call.fail(COMPACTED.error()))
    assert site.ask("/v3/kv/range")[0] == 400


def test_an_end_without_a_reply_is_an_error(site: Site, service: Service) -> None:
    service.act = lambda call: call.end()
    assert site.ask("/v3/kv/range")[0] == 500


def test_an_answer_by_a_task(site: Site, service: Service) -> None:
    async def work() -> bytes:
        await asyncio.sleep(0)
        return COUNT

    service.act = lambda call: call.run(work())
    assert site.ask("/v3/kv/range") == (200, '{"count":"7"}')


@pytest.mark.parametrize("by_task", [False, True])
def test_an_error(site: Site, service: Service, by_task: bool) -> None:
    async def work() -> bytes:
        raise COMPACTED.error()

    service.act = lambda call: call.run(work()) if by_task else call.fail(COMPACTED.error())
    text = "etcdserver: mvcc: required revision has been compacted"
    assert site.ask("/v3/kv/range") == (400, f'{{"error":"{text}","code":11,"message":"{text}"}}')
    assert site.records == [("KV/Range", 11)]


STATUS = {1: 408, 2: 500, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 12: 501, 13: 500, 14: 503, 15: 500, 16: 401, 99: 500}


@pytest.mark.parametrize(("code", "status"), STATUS.items())
def test_the_http_status_of_an_error(site: Site, service: Service, code: int, status: int) -> None:
    service.act = lambda call: call.fail(RpcError(code, "t\u00e4xt"))
    assert site.ask("/v3/kv/range") == (status, f'{{"error":"t\u00e4xt","code":{code},"message":"t\u00e4xt"}}')
    line = json.loads(site.ask("/v3/maintenance/snapshot")[1])["error"]
    assert (line["grpc_code"], line["http_code"], line["message"]) == (code, status, "t\u00e4xt")


@pytest.mark.parametrize("path", ["/v3/kv/range", "/v3/watch"])
@pytest.mark.parametrize("by_task", [False, True])
def test_a_defect_of_a_service(site: Site, service: Service, path: str, by_task: bool) -> None:
    async def work() -> bytes:
        raise KeyError("oops")

    def act(call: JsonCall) -> None:
        if by_task:
            call.run(work())
        else:
            raise KeyError("oops")

    service.act = act
    status, text = site.ask(path)
    assert (status, "oops" in text) == (500, False)
    assert [type(error) for error in site.crashes] == [KeyError]
    assert [code for _, code in site.records] == [Code.INTERNAL]


@pytest.mark.parametrize("body", [b"[]", b'{"key":', b'{"key":5}'])
def test_a_bad_body(site: Site, service: Service, body: bytes) -> None:
    status, text = site.ask("/v3/kv/range", body)
    assert (status, json.loads(text)["code"]) == (400, 3)
    assert service.calls == []


@pytest.mark.parametrize("size", [MAX_REQUEST + 10, 2 * MAX_REQUEST])
def test_a_request_that_is_too_large(site: Site, service: Service, size: int) -> None:
    status, text = site.ask("/v3/kv/range", b'{"key":"' + b"A" * (4 * -(-size // 3)) + b'"}')
    assert (status, json.loads(text)["code"]) == (429, 8)
    assert "grpc: received message larger than max (" in text
    assert service.calls == []


def test_a_large_request_and_reply(site: Site, service: Service) -> None:
    """They are translated in a thread."""
    service.act = lambda call: call.reply(pb.RangeResponse(kvs=[{"key": service.requests[-1].key}]).SerializeToString())
    text = '{"key":"' + "QUJD" * 100_000 + '"}'
    assert site.ask("/v3/kv/range", text.encode()) == (200, '{"kvs":[' + text + "]}")


def test_a_compressed_body_is_not_unpacked(site: Site, service: Service) -> None:
    service.act = reply
    assert site.ask("/v3/kv/range", b"{}", {"Content-Encoding": "gzip"}) == (200, "{}")


def test_metadata(site: Site, service: Service) -> None:
    service.act = reply
    headers = {
        "Authorization": "tok",
        "Grpc-Metadata-Token": "tok2",
        "grpc-metadata-hasleader": "true",
        "Grpc-Metadata-Shardgate-Cluster": "events",
        "Grpc-Metadata-Other": "x",
        "Grpc-Metadata-Client-Api-Version": "\xff",
        "Token": "no",
    }
    assert site.ask("/v3/kv/range", headers=headers)[0] == 200
    assert service.calls[0].metadata == {
        b"authorization": b"tok", b"token": b"tok2", b"hasleader": b"true", b"shardgate-cluster": b"events",
    }  # fmt: skip


def test_a_deadline(site: Site, service: Service) -> None:
    text = "context deadline exceeded"
    answer = site.ask("/v3/kv/range", headers={"Grpc-Timeout": "30m"})
    assert answer == (504, f'{{"error":"{text}","code":4,"message":"{text}"}}')
    assert (service.cancelled, site.records) == (1, [("KV/Range", 4)])
    assert service.calls[0].ended


def test_a_deadline_that_is_kept(site: Site, service: Service) -> None:
    service.act = reply
    assert site.ask("/v3/kv/range", headers={"Grpc-Timeout": "5S"}) == (200, "{}")
    assert service.calls[0].deadline is not None
    assert site.ask("/v3/kv/range", headers={"Grpc-Timeout": "0S"}) == (200, "{}")
    assert service.calls[1].deadline is None


def test_a_malformed_deadline(site: Site) -> None:
    status, text = site.ask("/v3/kv/range", headers={"Grpc-Timeout": "zz"})
    assert (status, json.loads(text)["message"]) == (400, "invalid grpc-timeout: zz")


# streams


def test_a_watch(site: Site, service: Service) -> None:
    """The body's messages, then half-close; each reply is a line, written at once."""
    service.act = lambda call: call.send(pb.WatchResponse(created=True).SerializeToString())
    response = site.open("/v3/watch", b'{"create_request":{"key":"Zm9v"}} {"progress_request":{}}')
    assert response.readline() == b'{"result":{"created":true}}\n'
    create = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"foo"))
    assert service.requests == [create, pb.WatchRequest(progress_request={}), "half-close"]
    call = service.calls[0]
    site.loop.call_soon_threadsafe(call.send, pb.WatchResponse(watch_id=5).SerializeToString())
    assert response.readline() == b'{"result":{"watch_id":"5"}}\n'
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    site.loop.call_soon_threadsafe(call.end)
    assert response.read() == b""
    assert site.records == [("Watch/Watch", 0)]


def test_a_stream_that_fails_midway(site: Site, service: Service) -> None:
    service.act = lambda call: (call.send(b""), call.fail(RpcError(Code.UNAVAILABLE, "gone")))
    status, text = site.ask("/v3/watch")
    error = '{"grpc_code":14,"http_code":503,"message":"gone","http_status":"Service Unavailable"}'
    assert (status, text) == (200, f'{{"result":{{}}}}\n{{"error":{error}}}\n')


def test_a_stream_that_ends_without_a_message(site: Site, service: Service) -> None:
    service.act = lambda call: call.end()
    assert site.ask("/v3/lease/keepalive", b"") == (200, "")
    assert service.requests == ["half-close"]


def test_a_bad_message_in_a_stream(site: Site, service: Service) -> None:
    """As etcd: the first one is an error, a later one ends what the client sends."""
    service.act = lambda call: call.end()
    status, text = site.ask("/v3/lease/keepalive", b'{"ID":true}')
    assert (status, json.loads(text)["error"]["grpc_code"], service.calls) == (500, 2, [])
    assert site.ask("/v3/lease/keepalive", b'{"ID":1}{"ID":true}{"ID":2}') == (200, "")
    assert service.requests == [pb.LeaseKeepAliveRequest(ID=1), "half-close"]


def test_a_client_that_goes_away_cancels(site: Site, service: Service) -> None:
    for path in ("/v3/watch", "/v3/kv/range"):
        with socket.create_connection(("127.0.0.1", site.port)) as sock:
            sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            eventually(lambda: len(service.calls) == 1 and service.calls[0].on_cancel is not None)
        eventually(lambda: service.cancelled == 1)
        assert service.calls[0].ended
        eventually(lambda: [code for _, code in site.records] == [Code.CANCELLED])
        service.calls.clear()
        site.records.clear()
        service.cancelled = 0


def test_a_task_is_cancelled_with_its_call(site: Site, service: Service) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    service.act = lambda call: call.run(work())
    with socket.create_connection(("127.0.0.1", site.port)) as sock:
        sock.sendall(b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        eventually(lambda: bool(service.calls))
        time.sleep(0.05)
    eventually(lambda: ended == [True])


def test_a_slow_reader_pauses_its_stream(site: Site, service: Service) -> None:
    """Little is taken from the service while the client does not read, and all arrives in order when it does."""
    blob = bytes(100_000)
    total, state = 300, {"sent": 0}

    def pump() -> None:
        call = service.calls[0]
        while call.writable and state["sent"] < total:
            state["sent"] += 1
            call.send(pb.SnapshotResponse(remaining_bytes=state["sent"], blob=blob).SerializeToString())
        if state["sent"] == total:
            call.end()

    def act(call: JsonCall) -> None:
        call.on_writable = pump
        pump()

    service.act = act
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        sock.connect(("127.0.0.1", site.port))
        sock.sendall(b"POST /v3/maintenance/snapshot HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        time.sleep(1)
        assert state["sent"] < total / 2
        data = b"".join(iter(lambda: sock.recv(1 << 20), b""))
    lines = data.partition(b"\r\n\r\n")[2].splitlines()
    assert [int(json.loads(line)["result"]["remaining_bytes"]) for line in lines] == list(range(1, total + 1))
