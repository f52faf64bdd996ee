"""Our JSON against etcd's own, request by request: one etcd is asked by its gateway, another one by ours over gRPC."""

import base64
import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gateway.core.errors import RpcError
from gateway.etcdpb.methods import METHODS
from gateway.listeners.json import PATHS
from gateway.listeners.jsoncall import JsonCall
from tests.etcdpb.live import BINARIES, Etcd, running
from tests.listeners.jsonsite import Site, serving


class Forward:
    """Service methods that pass everything on to one etcd."""

    def __init__(self, etcd: Etcd) -> None:
        self._address = etcd.address
        self._channel: grpc.aio.Channel | None = None

    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def unary(self, call: JsonCall, request: bytes) -> None:
        call.run(self._stream(call, request) if call.method.server_streaming else self._unary(call, request))

    async def _unary(self, call: JsonCall, request: bytes) -> bytes:
        stub = self.channel().unary_unary(call.method.path.decode())
        try:
            reply: bytes = await stub(request, metadata=metadata(call), timeout=15)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from None
        return reply

    async def _stream(self, call: JsonCall, *requests: bytes) -> None:
        path = call.method.path.decode()
        channel = self.channel()
        if call.method.client_streaming:
            stream = channel.stream_stream(path)(held_open(call, requests), metadata=metadata(call))
        else:
            stream = channel.unary_stream(path)(requests[0], metadata=metadata(call))
        try:
            async for message in stream:
                call.send(message)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from None
        call.end()

    def session(self, call: JsonCall) -> "Session":
        return Session(self, call)


async def held_open(call: JsonCall, requests: tuple[bytes, ...]) -> Any:
    for request in requests:
        yield request


class Session:
    """The messages of a stream, sent when the client has sent them all."""

    def __init__(self, forward: Forward, call: JsonCall) -> None:
        self._forward = forward
        self._call = call
        self._messages: list[bytes] = []

    def message(self, data: bytes) -> None:
        self._messages.append(data)

    def half_close(self) -> None:
        self._call.run(self._forward._stream(self._call, *self._messages))


def metadata(call: JsonCall) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in call.metadata.items()]


def translated(error: grpc.aio.AioRpcError) -> RpcError:
    return RpcError(error.code().value[0], error.details() or "")


class Pair:
    """The two that are compared: `theirs` is an etcd's port, `ours` serves another etcd."""

    def __init__(self, version: str, theirs: Etcd, ours: Site) -> None:
        self.version = version
        self.theirs = theirs
        self.ours = ours

    def responses(self, path: str, body: str, headers: dict[str, str]) -> list[http.client.HTTPResponse]:
        found = []
        for port in (int(self.theirs.address.rpartition(":")[2]), self.ours.port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
            connection.request("POST", path, body.encode(), headers)
            found.append(connection.getresponse())
        return found

    def compare(self, path: str, body: str, headers: dict[str, str] | None = None, lines: int | None = None) -> Any:
        """Both answers must be equal; returns ours, parsed. `lines`: read so many of a stream that goes on."""
        theirs, ours = self.responses(path, body, headers or {})
        old, new = (read(response, lines) for response in (theirs, ours))
        assert (ours.status, plain(new)) == (self.status(theirs.status, new), self.adapted(plain(old), plain(new))), body
        assert ours.headers["Content-Type"] == (theirs.headers["Content-Type"] or "application/json")
        return json.loads(new.splitlines()[0]) if new else None

    def status(self, status: int, body: str) -> int:
        """3.4 has another status for what is a failed precondition."""
        return 400 if status == 412 and self.version.startswith("3.4") else status

    def adapted(self, theirs: str, ours: str) -> str:
        """etcd 3.5's text must be ours letter by letter. The others are as ours once they have 3.5's form of an error, its order of
        keys and its (missing) spaces."""
        if self.version.startswith("3.5") or theirs == ours:
            return theirs
        adapted = [json.loads(line) for line in theirs.splitlines()]
        for line in adapted:
            if "code" in line:
                line["error"] = line["message"]
        return ours if adapted == [json.loads(line) for line in ours.splitlines()] else theirs


def read(response: http.client.HTTPResponse, lines: int | None) -> str:
    if lines is None:
        return response.read().decode().rstrip("\n")  # until 3.5, the line of a stream's error has none
    text = "".join(response.readline().decode() for _ in range(lines))
    response.close()
    return text


def plain(text: str) -> str:
    """Without what differs between two clusters: ids, ports, hashes, tokens, sizes."""
    text = re.sub(r'"(hash|raftIndex|raftAppliedIndex|dbSize|dbSizeInUse|raft_term|raftTerm)": ?"?[0-9]+"?', r'"\1":0', text)
    text = re.sub(r'"[0-9]{10,20}"', '"ID"', text)
    text = re.sub(r"127\.0\.0\.1:[0-9]+", "ADDRESS", text)
    return re.sub(r'"(token|key|leader)": ?"[A-Za-z.0-9+/=]{20,}"', r'"\1":"…"', text)


@pytest.fixture(scope="module", params=BINARIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with running(request.param) as theirs, running(request.param) as other:
        forward = Forward(other)
        handlers = {
            rpc: forward.session if rpc.client_streaming else forward.unary for rpc in METHODS.values()
        }
        with serving(handlers) as ours:
            yield Pair(request.param, theirs, ours)
            ours.run(forward.close())


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_kv(pair: Pair) -> None:
    foo, end = b64("kv/foo"), b64("kv0")
    ask = pair.compare
    assert ask("/v3/kv/put", f'{{"key":"{foo}","value":"{b64("bar")}"}}')["header"]["revision"]
    assert ask("/v3/kv/put", f'{{"key":"{foo}","value":"{b64("baz")}","prev_kv":true}}')["prev_kv"]["version"] == "1"
    assert ask("/v3beta/kv/put", f'{{"key":"{b64("kv/goo")}"}}')
    for extra in (
        "", ',"limit":1', ',"limit":"1"', ',"count_only":true', ',"keysOnly":true', ',"revision":"2"',
        ',"sort_order":"DESCEND","sort_target":"MOD"', ',"sortOrder":1,"sortTarget":"VALUE"', ',"serializable":true',
        ',"max_mod_revision":"2"', ',"minCreateRevision":3', ',"unknown":1',
    ):  # fmt: skip
        assert "count" in ask("/v3/kv/range", f'{{"key":"{b64("kv/")}","range_end":"{end}"{extra}}}')
    delete = f'{{"request_delete_range":{{"key":"{b64("kv/goo")}","prev_kv":true}}}}'
    ops = f'[{{"request_range":{{"key":"{foo}"}}}},{{"requestPut":{{"key":"{foo}","prevKv":true}}}},{delete}]'
    nested = f'[{{"request_txn":{{"success":[{{"request_range":{{"key":"{foo}"}}}}]}}}}]'
    compare = f'[{{"key":"{foo}","target":"VERSION","result":"GREATER","version":"0"}}]'
    assert ask("/v3/kv/txn", f'{{"compare":{compare},"success":{ops},"failure":[]}}')["succeeded"]
    assert "succeeded" not in ask("/v3/kv/txn", f'{{"compare":{compare.replace("GREATER", "LESS")},"failure":{nested}}}')
    assert ask("/v3/kv/deleterange", f'{{"key":"{foo}","prev_kv":true}}')["deleted"] == "1"
    assert ask("/v3/kv/compaction", '{"revision":"3","physical":true}')


def test_errors(pair: Pair) -> None:
    foo = b64("foo")
    ask = pair.compare
    assert ask("/v3/kv/range", "")["code"] == 3
    assert ask("/v3/kv/range", '{"key":null}')["code"] == 3
    assert ask("/v3/kv/range", f'{{"key":"{foo}","revision":"1000000"}}')["code"] == 11
    assert ask("/v3/kv/put", f'{{"key":"{foo}","lease":"404"}}')["code"] == 5
    assert ask("/v3/kv/txn", '{"success":[{}]}')["code"] == 3
    assert ask("/v3/lease/revoke", '{"ID":"404"}')["code"] == 5
    assert ask("/v3/kv/lease/revoke", '{"ID":404}')["code"] == 5
    assert ask("/v3/auth/authenticate", '{"name":"root","password":"x"}')["code"] == 9
    assert ask("/v3/auth/role/get", '{"role":"x"}')["code"] == 9
    assert ask("/v3/election/leader", '{"name":"bm9uZQ=="}')["code"] == 2
    assert ask("/v3/election/proclaim", "{}")["code"] == 2
    assert ask("/v3/cluster/member/remove", '{"ID":404}')["code"] == 5
    assert ask("/v3/cluster/member/promote", '{"ID":404}')["code"] == 5
    assert ask("/v3/maintenance/transfer-leadership", '{"targetID":404}')["code"] == 9
    assert ask("/v3/kv/range", f'{{"key":"{foo}"}}', {"Grpc-Timeout": "zz"})["code"] == 3
    value = base64.b64encode(bytes(2 << 20)).decode()
    assert ask("/v3/kv/put", f'{{"key":"{foo}","value":"{value}"}}')["code"] == 8
    assert ask("/v3/kv/put", f'{{"key":"{foo}","value":"{value[: 4 << 19]}"}}')["code"] == 3


BAD = ["[]", '"x"', '{"key":', '{"key":5}', '{"key":"Zm9v="}', '{"limit":"x"}', '{"limit":1.5}', '{"limit":true}', '{"key":NaN}',
       '{"limit":99999999999999999999}', '{"serializable":1}', '{"limit":""}', "key=x", "tru", '{"key":"Zm9v",}', "\ufeff{}"]  # fmt: skip


@pytest.mark.parametrize("body", BAD)
def test_bad_bodies(pair: Pair, body: str) -> None:
    """Status and code are etcd's; the texts are those of the JSON libraries and differ from version to version."""
    theirs, ours = pair.responses("/v3/kv/range", body, {})
    assert ours.status == theirs.status == 400
    old, new = json.loads(theirs.read()), json.loads(ours.read())
    assert new["code"] == old["code"]
    assert new["error"] == new["message"] != ""
    if old["message"] == "unexpected EOF" and body != "tru":
        assert new["message"] == "unexpected EOF"


@pytest.mark.parametrize("verb", ["GET", "PUT", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v3/kv/range", "/v3/nothing", "/v3/kv/range/", "/nothing", "/version", "/health", "/version/"])
def test_verbs_and_paths(pair: Pair, verb: str, path: str) -> None:
    answers = []
    for port in (int(pair.theirs.address.rpartition(":")[2]), pair.ours.port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        connection.request(verb, path, "{}")
        response = connection.getresponse()
        body = response.read().decode()
        headers = {name: value for name, value in response.headers.items() if name.startswith(("Access", "Allow", "X-"))}
        answers.append((response.status, "" if response.status == 200 else body, response.headers["Content-Type"], headers))
    if path.startswith("/v3/") and pair.version >= "3.6" and answers[0][0] in (404, 501):
        assert answers[1][0] == {404: 404, 501: 405}[answers[0][0]]
    elif verb == "OPTIONS":
        assert answers[1][::3] == answers[0][::3]
    else:
        assert answers[1] == answers[0]


def test_leases(pair: Pair) -> None:
    ask = pair.compare
    assert ask("/v3/lease/grant", '{"TTL":5000,"ID":"77"}') == ask("/v3/lease/grant", '{"TTL":5000,"ID":78}') | {"ID": "77"}
    assert ask("/v3/lease/grant", '{"TTL":5000,"ID":77}')["code"] == 9
    assert ask("/v3/lease/leases", "{}")["leases"] == ask("/v3/kv/lease/leases", "")["leases"]
    assert ask("/v3/lease/keepalive", '{"ID":77}{"ID":"404"}\n{"ID":78}')["result"]["ID"] == "77"
    assert ask("/v3/lease/keepalive", "") is None
    ask("/v3/kv/put", f'{{"key":"{b64("leased")}","lease":77}}')
    for path in ("/v3/lease/timetolive", "/v3/kv/lease/timetolive"):
        assert ask(path, '{"ID":404}')["TTL"] == "-1"
    for path, lease in (("/v3/lease/revoke", 77), ("/v3/kv/lease/revoke", 78)):
        assert ask(path, f'{{"ID":{lease}}}')["header"]["revision"]


def test_a_lease_with_its_keys(pair: Pair) -> None:
    """The remaining time may differ by a second."""
    ask = pair.compare
    ask("/v3/lease/grant", '{"TTL":5000,"ID":79}')
    ask("/v3/kv/put", f'{{"key":"{b64("k")}","lease":79}}')
    old, new = (json.loads(r.read()) for r in pair.responses("/v3/lease/timetolive", '{"ID":79,"keys":true}', {}))
    assert abs(int(old.pop("TTL")) - int(new.pop("TTL"))) < 5
    assert plain(json.dumps(old)) == plain(json.dumps(new))
    assert new["keys"] == [b64("k")]


def test_watch(pair: Pair) -> None:
    ask = pair.compare
    start = int(ask("/v3/kv/put", f'{{"key":"{b64("w/a")}","value":"{b64("1")}"}}')["header"]["revision"])
    ask("/v3/kv/deleterange", f'{{"key":"{b64("w/a")}"}}')
    watch = f'{{"create_request":{{"key":"{b64("w/")}","rangeEnd":"{b64("w0")}","start_revision":{start},"prev_kv":true}}}}'
    assert ask("/v3/watch", watch, lines=2)["result"]["created"]
    twice = f'{{"create_request":{{"key":"{b64("w")}","watch_id":7}}}}'
    assert ask("/v3/watch", twice + "\n" + twice, lines=2)["result"]["watch_id"] == "7"
    empty = f'{{"create_request":{{"key":"{b64("b")}","range_end":"{b64("a")}"}}}}'
    assert ask("/v3/watch", empty, lines=1)["result"]["cancel_reason"] == "mvcc: watcher range is empty"


def test_cluster_and_maintenance(pair: Pair) -> None:
    ask = pair.compare
    me = ask("/v3/cluster/member/list", "{}")["members"][0]
    assert me["clientURLs"]
    assert ask("/v3/maintenance/status", "{}")["version"] == pair.version
    assert ask("/v3/maintenance/hash", "{}")["hash"]
    assert ask("/v3/maintenance/defragment", "{}") is not None
    assert ask("/v3/maintenance/alarm", '{"action":"ACTIVATE","alarm":"NOSPACE"}')["alarms"]
    assert ask("/v3/maintenance/alarm", '{"action":0}')["alarms"] == [{"alarm": "NOSPACE"}]
    assert ask("/v3/maintenance/status", "{}")["errors"]
    ask("/v3/maintenance/alarm", '{"action":"DEACTIVATE","alarm":1}')
    assert ask("/v3/cluster/member/add", '{"peerURLs":["what"]}')["code"] == 3
    assert ask("/v3/cluster/member/update", '{"ID":1,"peerURLs":["http://127.0.0.1:1"]}')["code"] == 5
    theirs, ours = pair.responses("/v3/maintenance/snapshot", "{}", {})
    old, new = (json.loads(response.readline()) for response in (theirs, ours))
    assert old["result"].keys() == new["result"].keys()
    assert len(base64.b64decode(new["result"]["blob"])) > 1000
    theirs.close(), ours.close()


def test_what_newer_versions_have(pair: Pair) -> None:
    if pair.version >= "3.5":
        assert pair.compare("/v3/auth/status", "{}")["authRevision"]
        assert pair.compare("/v3/maintenance/downgrade", '{"action":"VALIDATE","version":"x"}')["code"] == 3
    if pair.version >= "3.6":
        assert pair.compare("/v3/maintenance/hashkv", "{}")["hash_revision"]


def test_lock_and_election(pair: Pair) -> None:
    ask = pair.compare
    assert ask("/v3/lease/grant", '{"TTL":600,"ID":900}')
    key = ask("/v3/lock/lock", f'{{"name":"{b64("lock")}","lease":900}}')["key"]
    assert ask("/v3/lock/unlock", f'{{"key":"{key}"}}')
    leader = ask("/v3/election/campaign", f'{{"name":"{b64("e")}","value":"{b64("v")}","lease":900}}')["leader"]
    held = json.dumps(leader)
    assert ask("/v3/election/proclaim", f'{{"leader":{held},"value":"{b64("w")}"}}')
    assert ask("/v3/election/leader", f'{{"name":"{b64("e")}"}}')["kv"]["value"] == b64("w")
    assert ask("/v3/election/observe", f'{{"name":"{b64("e")}"}}', lines=1)["result"]["kv"]["key"] == leader["key"]
    assert ask("/v3/election/resign", f'{{"leader":{held}}}')


def test_auth(pair: Pair) -> None:
    ask = pair.compare
    ask("/v3/auth/user/add", '{"name":"root","password":"p"}')
    ask("/v3/auth/user/add", '{"name":"u","options":{"no_password":true}}')
    ask("/v3/auth/user/changepw", '{"name":"root","password":"q"}')
    ask("/v3/auth/role/add", '{"name":"root"}')
    ask("/v3/auth/role/add", '{"name":"r"}')
    ask("/v3/auth/role/grant", f'{{"name":"r","perm":{{"permType":"READWRITE","key":"{b64("a")}","range_end":"AA=="}}}}')
    assert ask("/v3/auth/role/get", '{"role":"r"}')["perm"][0]["permType"] == "READWRITE"
    ask("/v3/auth/role/revoke", f'{{"role":"r","key":"{b64("a")}","range_end":"AA=="}}')
    ask("/v3/auth/user/grant", '{"user":"root","role":"root"}')
    ask("/v3/auth/user/grant", '{"user":"u","role":"r"}')
    assert ask("/v3/auth/user/get", '{"name":"u"}')["roles"] == ["r"]
    ask("/v3/auth/user/revoke", '{"name":"u","role":"r"}')
    ask("/v3/auth/enable", "{}")
    tokens = [
        {"Authorization": json.loads(response.read())["token"]}
        for response in pair.responses("/v3/auth/authenticate", '{"name":"root","password":"q"}', {})
    ]
    assert ask("/v3/kv/range", f'{{"key":"{b64("a")}"}}')["code"] == 3
    assert ask("/v3/auth/user/list", "{}", {"Authorization": "wrong"})["code"] in (3, 16)
    snapshot = ask("/v3/maintenance/snapshot", "{}") if pair.version < "3.6" else None
    assert snapshot is None or snapshot["error"]["message"]
    for path in ("/v3/auth/user/list", "/v3/auth/role/list", "/v3/auth/user/delete", "/v3/auth/role/delete", "/v3/auth/disable"):
        body = {"/v3/auth/user/delete": '{"name":"u"}', "/v3/auth/role/delete": '{"role":"r"}'}.get(path, "{}")
        theirs, ours = pair.responses(path, body, tokens[0])[0], pair.responses(path, body, tokens[1])[1]
        assert ours.status == theirs.status == 200
        assert plain(ours.read().decode()).replace(" ", "") == plain(theirs.read().decode()).replace(" ", "")


def test_all_paths_are_compared() -> None:
    with open(__file__) as file:
        text = file.read()
    assert {path for path in PATHS if f'"{path}"' not in text} == set()
