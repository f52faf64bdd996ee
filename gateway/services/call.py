"""The seam between listeners and services: one client call, however it came in (gRPC or JSON).

A unary service method is `def range(self, call: Call, request: bytes) -> None`; it must lead to exactly one `call.reply`
or `call.fail`, now or later. A streaming method is `def watch(self, call: Call) -> Session`; the session gets the
client's messages, the call takes the replies.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from gateway.core.errors import RpcError
from gateway.etcdpb.methods import Method

SEVERAL = "(several)"
"""Stands for the cluster's name in metrics and logs where a call went to more than one."""


class Call(Protocol):
    """One client call. All methods are called on the event loop's thread and never block.

    `metadata` has the request metadata that etcd looks at, lower-case names: b"token", b"authorization", b"hasleader",
    b"client-api-version", b"shardgate-cluster". `deadline` is in the event loop's time() seconds, None without one.
    """

    method: Method
    metadata: Mapping[bytes, bytes]
    deadline: float | None
    cluster: str
    """The cluster that the call was routed to, "" while undecided; for metrics and logs. Set it when you route."""

    framed: bytes
    """The request of a call that has one, with gRPC's 5-byte prefix: what a relay sends on."""

    on_cancel: Callable[[], None] | None
    """Called once if the client cancels, disconnects or its deadline passes before the call has ended."""

    on_writable: Callable[[], None] | None
    """Called when `writable` turns true again."""

    @property
    def writable(self) -> bool:
        """False while the client reads too slowly: more than the send buffer's high-water mark is queued."""

    @property
    def ended(self) -> bool:
        """True once the call was replied to, failed, ended or cancelled; every further send is then ignored."""

    def reply(self, message: bytes) -> None:
        """End a unary call with OK and this serialised protobuf message."""

    def reply_raw(self, data: bytes) -> None:
        """End a unary call with OK and this message, which is gRPC-framed already."""

    def send(self, message: bytes) -> None:
        """Send one message of a server stream. Messages are queued in order, whatever `writable` says."""

    def end(self) -> None:
        """End a server stream with OK."""

    def fail(self, error: RpcError) -> None:
        """End any call with an error status."""

    def send_raw(self, data: bytes) -> None:
        """Pass on bytes that are already gRPC-framed (any split): the relay of a reply from upstream."""

    def run(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        """Run a multi-step answer as a task: bytes returned are the reply, RpcError raised is the failure; None when it
        replied by itself. The task is cancelled when the client cancels."""


class Reader(Protocol):
    """Who waits until the store may be read."""

    def confirmed(self) -> None:
        """What the store has now is not older than the question."""

    def unconfirmed(self) -> None:
        """That can't be had: ask the cluster."""


class Source(Protocol):
    """A cluster's keys in memory, as one listener may read them."""

    name: str
    """The cluster's."""

    def replies(self) -> Mapping[bytes, bytes] | None:
        """The gRPC-framed reply about each key by what memory has now; None if it may not be read now. Good until the caller returns."""

    def current(self) -> Mapping[bytes, bytes] | None:
        """The same for reads that need no confirmation; None if even they had to wait."""

    def confirm(self, reader: Reader) -> None:
        """Tell the reader, now or later, whether `replies` has for it what it should see."""

    def answered(self, count: int) -> None:
        """So many of the replies were given."""

    def decline(self, call: Call, key: bytes) -> None:
        """Let the cluster answer."""


class Read(NamedTuple):
    """What a request reads from memory: one key, and whether that has to be confirmed."""

    source: Source
    key: bytes
    linearizable: bool


Instant = Callable[[bytes, Mapping[bytes, bytes]], Read | None]
"""Shown a request's message and metadata: None if it is not for memory to answer. The answer is the same each time, so it may be
remembered."""


class Session(Protocol):
    """The service's side of a streaming call."""

    def message(self, data: bytes) -> None:
        """One serialised message from the client."""

    def half_close(self) -> None:
        """The client will send no more; the stream goes on until the service ends it."""
