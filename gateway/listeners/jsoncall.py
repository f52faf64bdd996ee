"""One JSON call of a client: the services answer into it, the HTTP handler takes the answers out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any, Protocol

from gateway.core.errors import Code, RpcError
from gateway.etcdpb.methods import Method
from gateway.services.call import Session
from gateway.wire.grpc import MessageReader

HIGH_WATER = 256 << 10
"""Bytes that wait for the client at which a stream's `writable` turns false."""
LOW_WATER = 64 << 10


class Recorder(Protocol):
    """Who counts and logs the calls."""

    def record(self, call: JsonCall, code: int, seconds: float) -> None:
        """The call has ended."""

    def crashed(self, call: JsonCall, error: Exception) -> None:
        """A service raised what is no RpcError."""


class JsonCall:
    """Implements gateway.services.call.Call. A call that has not ended when its HTTP request does is cancelled."""

    __slots__ = (
        "_error",
        "_messages",
        "_news",
        "_paused",
        "_queued",
        "_reader",
        "_recorder",
        "_started",
        "_task",
        "_timer",
        "bytes_in",
        "bytes_out",
        "cluster",
        "deadline",
        "ended",
        "framed",
        "metadata",
        "method",
        "on_cancel",
        "on_writable",
        "session",
    )  # fmt: skip

    def __init__(
        self, method: Method, metadata: Mapping[bytes, bytes], timeout: float | None, recorder: Recorder
    ) -> None:
        loop = asyncio.get_running_loop()
        self.method = method
        self.metadata = metadata
        self._started = perf_counter()
        self.deadline: float | None = None if timeout is None else loop.time() + timeout
        self._timer = None if self.deadline is None else loop.call_at(self.deadline, self._expire)
        self.cluster = ""
        self.on_cancel: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.ended = False
        self._error: RpcError | None = None
        self.framed = b""
        self.bytes_in = 0
        self.bytes_out = 0
        self._messages: deque[bytes] = deque()
        self._queued = 0
        self._paused = False
        self._news = asyncio.Event()
        self._reader: MessageReader | None = None
        self._recorder = recorder
        self._task: asyncio.Task[bytes | None] | None = None
        self.session: Session | None = None

    # what the services answer

    @property
    def writable(self) -> bool:
        return not self._paused

    def reply(self, message: bytes) -> None:
        self.send(message)
        self.end()

    def reply_raw(self, data: bytes) -> None:
        self.send_raw(data)
        self.end()

    def send(self, message: bytes) -> None:
        if self.ended:
            return
        self.bytes_out += len(message)
        self._messages.append(message)
        self._queued += len(message)
        # a unary reply is written when it is complete: a pause would be for ever
        self._paused = self.method.server_streaming and (self._paused or self._queued > HIGH_WATER)
        self._news.set()

    def send_raw(self, data: bytes) -> None:
        if self._reader is None:
            self._reader = MessageReader(None)
        for message in self._reader.feed(data):
            self.send(message)

    def end(self) -> None:
        if not self.ended:
            self._close(Code.OK)

    def fail(self, error: RpcError) -> None:
        if not self.ended:
            self._error = error
            self._close(error.code)

    def run(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[bytes | None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, RpcError):
            self.fail(error)
        elif isinstance(error, Exception):
            self.crash(error)
        elif (message := task.result()) is not None:
            self.reply(message)

    # what the HTTP side does

    def crash(self, error: Exception) -> RpcError:
        """A service failed by a defect of its own: what the client is told."""
        self._recorder.crashed(self, error)
        failure = RpcError(Code.INTERNAL, "the gateway failed to answer; its log says why")
        self.fail(failure)
        return failure

    async def next(self) -> bytes | None:
        """The next message, None when the call has ended, its RpcError when it failed: after all that came before."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._queued -= len(message)
        if self._paused and self._queued < LOW_WATER:
            self._paused = False
            if self.on_writable is not None:
                self.on_writable()
        return message

    def cancel(self) -> None:
        """The client went away. Without effect on a call that has ended."""
        self._abort(Code.CANCELLED)

    def _expire(self) -> None:
        if not self.ended:
            self._error = RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
            self._abort(Code.DEADLINE_EXCEEDED)

    def _abort(self, code: int) -> None:
        if self.ended:
            return
        tell = self.on_cancel
        self._close(code)
        if self._task is not None:
            self._task.cancel()
        if tell is not None:
            tell()

    def _close(self, code: int) -> None:
        self.ended = True
        self.on_cancel = self.on_writable = None
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        self._recorder.record(self, code, perf_counter() - self._started)
