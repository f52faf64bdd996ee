"""What a JSON call answers: one JSON value, or a line of each message of a stream."""

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from aiohttp import web

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.listeners import jsonpb

_STATUS: Mapping[int, int] = {
    Code.OK: 200,
    Code.CANCELLED: 408,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
"""As grpc-gateway maps gRPC codes; all others are 500."""

CORS = {
    "Access-Control-Allow-Headers": "accept, content-type, authorization",
    "Access-Control-Allow-Methods": "POST, GET, OPTIONS, PUT, DELETE",
    "Access-Control-Allow-Origin": "*",
}
"""On every answer, as etcd lets any origin in by default."""

_JSON = CORS | {"Content-Type": "application/json"}
_FROM_GRPC = _JSON | {"Grpc-Metadata-Content-Type": "application/grpc"}

LARGE = 64 << 10
"""Bytes from which a message is translated in a thread, so that other clients do not wait for it."""

T = TypeVar("T")


async def translated(size: int, work: Callable[[], T]) -> T:
    """The result of `work` on `size` bytes."""
    return work() if size < LARGE else await asyncio.to_thread(work)


class Single:
    """The answer of a unary call."""

    def __init__(self, rpc: Method) -> None:
        self._rpc = rpc
        self._response: web.Response | None = None

    async def write(self, message: bytes) -> None:
        """The reply."""
        text = await translated(len(message), lambda: jsonpb.encode(self._rpc.reply.FromString(message)))
        self._response = web.Response(body=text.encode(), headers=_FROM_GRPC)

    async def fail(self, error: RpcError) -> None:
        """The error in its place."""
        self._response = error_response(error)

    async def end(self) -> web.StreamResponse:
        return self._response or error_response(RpcError(Code.INTERNAL, "the call ended without a reply"))


class Lines:
    """The answer of a streaming call. Its head waits for the first line, as the status may be an error's."""

    def __init__(self, rpc: Method, request: web.Request) -> None:
        self._rpc = rpc
        self._request = request
        self._response: web.StreamResponse | None = None

    async def _open(self, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
        if self._response is None:
            self._response = web.StreamResponse(status=status, headers=headers)
            await self._response.prepare(self._request)
        return self._response

    async def write(self, message: bytes) -> None:
        """One line; waits while the client reads too slowly."""
        response = await self._open(200, _FROM_GRPC)
        text = await translated(len(message), lambda: jsonpb.encode(self._rpc.reply.FromString(message)))
        await response.write(f'{{"result":{text}}}\n'.encode())

    async def fail(self, error: RpcError) -> None:
        """The last line."""
        status = http_status(error.code)
        response = await self._open(status, _JSON)
        phrase = HTTPStatus(status).phrase
        line = {"grpc_code": error.code, "http_code": status, "message": error.text, "http_status": phrase}
        await response.write(f"{dump({'error': line})}\n".encode())

    async def end(self) -> web.StreamResponse:
        response = await self._open(200, _JSON)
        await response.write_eof()
        return response


def http_status(code: int) -> int:
    """Of a gRPC status code."""
    return _STATUS.get(code, 500)


def error_response(error: RpcError) -> web.Response:
    """An error in place of a reply."""
    text = dump({"error": error.text, "code": error.code, "message": error.text})
    return web.Response(status=http_status(error.code), body=text.encode(), headers=_JSON)


def plain(status: int, text: str, **headers: str) -> web.Response:
    """A line of text, as Go's http.Error writes it."""
    return web.Response(status=status, text=text + "\n", headers=CORS | {"X-Content-Type-Options": "nosniff"} | headers)


def dump(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
