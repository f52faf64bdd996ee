"""etcd's JSON API: HTTP/1.1 requests on the client port become calls of the same service methods that gRPC calls.

What a client sees is what etcd 3.5 shows; later versions differ a little (501 for 405, no "error" in an error's body).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method, method
from gateway.listeners import jsonpb, weblog
from gateway.listeners.jsonanswer import CORS, Lines, Single, error_response, plain, translated
from gateway.listeners.jsoncall import JsonCall, Recorder
from gateway.listeners.pages import Facts, Pages
from gateway.wire.grpc import METADATA, frame_message, seconds

CALLS: web.AppKey[set[JsonCall]] = web.AppKey("calls")
"""The application's calls under way, for the metrics."""

Handlers = Mapping[Method, Callable[..., Any]]
"""The service methods: `(call, request)`, or `(call) -> Session` where the client streams."""

PATHS = {
    "/v3/kv/range": method("kv", "range"),
    "/v3/kv/put": method("kv", "put"),
    "/v3/kv/deleterange": method("kv", "delete_range"),
    "/v3/kv/txn": method("kv", "txn"),
    "/v3/kv/compaction": method("kv", "compact"),
    "/v3/watch": method("watch", "watch"),
    "/v3/lease/grant": method("lease", "lease_grant"),
    "/v3/lease/revoke": method("lease", "lease_revoke"),
    "/v3/lease/keepalive": method("lease", "lease_keep_alive"),
    "/v3/lease/timetolive": method("lease", "lease_time_to_live"),
    "/v3/lease/leases": method("lease", "lease_leases"),
    "/v3/kv/lease/revoke": method("lease", "lease_revoke"),
    "/v3/kv/lease/timetolive": method("lease", "lease_time_to_live"),
    "/v3/kv/lease/leases": method("lease", "lease_leases"),
    "/v3/cluster/member/add": method("cluster", "member_add"),
    "/v3/cluster/member/remove": method("cluster", "member_remove"),
    "/v3/cluster/member/update": method("cluster", "member_update"),
    "/v3/cluster/member/list": method("cluster", "member_list"),
    "/v3/cluster/member/promote": method("cluster", "member_promote"),
    "/v3/maintenance/alarm": method("maintenance", "alarm"),
    "/v3/maintenance/status": method("maintenance", "status"),
    "/v3/maintenance/defragment": method("maintenance", "defragment"),
    "/v3/maintenance/hash": method("maintenance", "hash"),
    "/v3/maintenance/hashkv": method("maintenance", "hash_kv"),
    "/v3/maintenance/snapshot": method("maintenance", "snapshot"),
    "/v3/maintenance/transfer-leadership": method("maintenance", "move_leader"),
    "/v3/maintenance/downgrade": method("maintenance", "downgrade"),
    "/v3/auth/enable": method("auth", "auth_enable"),
    "/v3/auth/disable": method("auth", "auth_disable"),
    "/v3/auth/status": method("auth", "auth_status"),
    "/v3/auth/authenticate": method("auth", "authenticate"),
    "/v3/auth/user/add": method("auth", "user_add"),
    "/v3/auth/user/get": method("auth", "user_get"),
    "/v3/auth/user/list": method("auth", "user_list"),
    "/v3/auth/user/delete": method("auth", "user_delete"),
    "/v3/auth/user/changepw": method("auth", "user_change_password"),
    "/v3/auth/user/grant": method("auth", "user_grant_role"),
    "/v3/auth/user/revoke": method("auth", "user_revoke_role"),
    "/v3/auth/role/add": method("auth", "role_add"),
    "/v3/auth/role/get": method("auth", "role_get"),
    "/v3/auth/role/list": method("auth", "role_list"),
    "/v3/auth/role/delete": method("auth", "role_delete"),
    "/v3/auth/role/grant": method("auth", "role_grant_permission"),
    "/v3/auth/role/revoke": method("auth", "role_revoke_permission"),
    "/v3/lock/lock": method("lock", "lock"),
    "/v3/lock/unlock": method("lock", "unlock"),
    "/v3/election/campaign": method("election", "campaign"),
    "/v3/election/proclaim": method("election", "proclaim"),
    "/v3/election/leader": method("election", "leader"),
    "/v3/election/observe": method("election", "observe"),
    "/v3/election/resign": method("election", "resign"),
}
"""Of each RPC that has one, the path(s) that all versions together know."""


def make_runner(handlers: Handlers, facts: Facts, recorder: Recorder, max_request_bytes: int) -> web.AppRunner:
    """The application in a runner: after `setup()`, `runner.server()` makes the protocol of a new connection."""
    app = make_app(handlers, facts, recorder, max_request_bytes)
    return web.AppRunner(
        app,
        access_log=None,
        logger=weblog.logger(),
        handler_cancellation=True,  # how a watch learns that its client has gone
        auto_decompress=False,  # etcd does not either, and a small body could become a large one
        shutdown_timeout=1.0,  # watches never end by themselves
    )


def make_app(handlers: Handlers, facts: Facts, recorder: Recorder, max_request_bytes: int) -> web.Application:
    """All that etcd serves by HTTP/1.1 on its client port. `max_request_bytes` limits a request's protobuf form."""
    app = web.Application(client_max_size=2 * max_request_bytes)  # base64 makes four bytes of three
    app[CALLS] = set()
    app.router.add_route("*", "/{path:.*}", _Site(handlers, facts, recorder, max_request_bytes, app[CALLS]).serve)
    return app


class _Site:
    """Finds what a path means and answers it."""

    def __init__(self, handlers: Handlers, facts: Facts, recorder: Recorder, max_request_bytes: int, calls: set[JsonCall]) -> None:
        self._handlers = handlers
        self._calls = {path: rpc for path, rpc in PATHS.items() if rpc in handlers}
        self._pages = Pages(facts).by_path
        self._recorder = recorder
        self._max_request_bytes = max_request_bytes
        self._open = calls

    async def serve(self, request: web.Request) -> web.StreamResponse:
        path = re.sub("^/v3beta/", "/v3/", request.path)
        rpc, page = self._calls.get(path), self._pages.get(path)
        if request.method == "OPTIONS":
            return web.Response(headers=CORS)
        if rpc is not None:
            return await self._answer(request, rpc) if request.method == "POST" else plain(405, "Method Not Allowed")
        if page is not None:
            return await page(request) if request.method == "GET" else plain(405, "Method Not Allowed", Allow="GET")
        return plain(404, "Not Found" if path.startswith("/v3/") else "404 page not found")

    async def _answer(self, request: web.Request, rpc: Method) -> web.StreamResponse:
        try:
            return await self._call(request, rpc)
        except ConnectionError:
            return web.Response(status=499)  # the client has gone; nobody reads this, and aiohttp would log the error

    async def _call(self, request: web.Request, rpc: Method) -> web.StreamResponse:
        """One RPC. Its call ends with this coroutine, whatever ends that."""
        try:
            call = JsonCall(rpc, metadata(request), timeout(request), self._recorder)
        except RpcError as error:
            return error_response(error)
        self._open.add(call)
        answer = Lines(rpc, request) if rpc.server_streaming else Single(rpc)
        try:
            await self._start(call, await self._body(request))
            while (message := await call.next()) is not None:
                await answer.write(message)
        except RpcError as error:
            call.fail(error)
            await answer.fail(error)
        except ConnectionError:
            raise  # the client's own
        except Exception as error:
            await answer.fail(call.crash(error))
        finally:
            call.cancel()
            self._open.discard(call)
        return await answer.end()

    async def _body(self, request: web.Request) -> bytes:
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large(2 * self._max_request_bytes) from None

    def _too_large(self, size: int) -> RpcError:
        """grpc-go's refusal."""
        limit = self._max_request_bytes
        return RpcError(Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")

    async def _start(self, call: JsonCall, body: bytes) -> None:
        """Hand the request to its service method."""
        rpc = call.method
        messages, bad = await translated(len(body), lambda: _requests(rpc, body))
        if bad and not messages:
            raise RpcError(Code.UNKNOWN if rpc.client_streaming else Code.INVALID_ARGUMENT, bad)
        call.bytes_in = sum(map(len, messages))
        if call.bytes_in > self._max_request_bytes:
            raise self._too_large(call.bytes_in)
        if rpc.client_streaming:
            session = call.session = self._handlers[rpc](call)
            for message in messages:
                session.message(message)
            session.half_close()
        else:
            call.framed = frame_message(messages[0])
            self._handlers[rpc](call, messages[0])


_METADATA = {f"grpc-metadata-{name.decode()}": name for name in METADATA} | {"authorization": b"authorization"}


def metadata(request: web.Request) -> Mapping[bytes, bytes]:
    """The headers that etcd's gateway passes on and that mean something: the first of each name, and only printable
    ASCII, as nothing else can be sent on."""
    found: dict[bytes, bytes] = {}
    for name, value in request.headers.items():
        key = _METADATA.get(name.lower())
        if key is not None and value.isascii() and value.isprintable():
            found.setdefault(key, value.encode())
    return found


def timeout(request: web.Request) -> float | None:
    """Seconds, from a Grpc-Timeout header; 0 means none, as in etcd's gateway."""
    text = request.headers.get("Grpc-Timeout")
    if text is None:
        return None
    found = seconds(text.encode("utf-8", "surrogateescape"))
    if found is None:
        raise RpcError(Code.INVALID_ARGUMENT, f"invalid grpc-timeout: {text}")
    return found or None


def _requests(rpc: Method, body: bytes) -> tuple[list[bytes], str]:
    """The request, or all messages of a client's stream: its body has them one after another. The second value is why they
    end before the body does, if so: etcd goes on with those that came before the bad one."""
    messages: list[bytes] = []
    try:
        found = jsonpb.decode_all(body, rpc.request) if rpc.client_streaming else [jsonpb.decode(body, rpc.request)]
        messages.extend(message.SerializeToString() for message in found)
    except jsonpb.Malformed as error:
        return messages, str(error)
    return messages, ""
