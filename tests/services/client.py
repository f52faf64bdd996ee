"""A gRPC client for the tests: etcd's methods by name, and watch streams that can be read message by message."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import Method, method

WAIT = 15.0
"""Seconds within which an expected message has to come."""


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def call(self, service: str, name: str, request: Any, timeout: float = WAIT, **metadata: str) -> Any:
        """A unary call; raises grpc.RpcError. Underscores in metadata names stand for hyphens."""
        rpc = method(service, name)
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        stub = self.channel.unary_unary(rpc.path.decode(), request_serializer=_bytes, response_deserializer=rpc.reply.FromString)
        return stub(request, timeout=timeout, metadata=pairs, wait_for_ready=True)

    def replies(self, service: str, name: str, request: Any, timeout: float = WAIT, **metadata: str) -> Any:
        """A call with many replies."""
        rpc = method(service, name)
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        stub = self.channel.unary_stream(rpc.path.decode(), request_serializer=_bytes, response_deserializer=rpc.reply.FromString)
        return stub(request, timeout=timeout, metadata=pairs, wait_for_ready=True)

    def put(self, key: bytes, value: bytes = b"") -> int:
        """The revision."""
        return int(self.call("kv", "put", pb.PutRequest(key=key, value=value)).header.revision)

    def watching(self, paused: bool = False, **metadata: str) -> WatchStream:
        """A new watch stream; a paused one reads nothing before it is told to."""
        return WatchStream(self.channel, metadata, paused)


class WatchStream:
    """A watch stream."""

    def __init__(self, channel: grpc.Channel, metadata: dict[str, str], paused: bool) -> None:
        rpc: Method = method("watch", "watch")
        self._requests: queue.Queue[Any] = queue.Queue()
        self._replies: queue.Queue[Any] = queue.Queue()
        stub = channel.stream_stream(rpc.path.decode(), request_serializer=_bytes, response_deserializer=rpc.reply.FromString)
        self._call = stub(iter(self._requests.get, None), metadata=list(metadata.items()), wait_for_ready=True)
        if not paused:
            self.read()

    def read(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for reply in self._call:
                self._replies.put(reply)
            self._replies.put(None)
        except grpc.RpcError as error:
            self._replies.put(error)

    def __enter__(self) -> WatchStream:
        return self

    def __exit__(self, *error: object) -> None:
        self._call.cancel()
        self._requests.put(None)

    def send(self, request: Any) -> None:
        """A WatchRequest, or bytes."""
        self._requests.put(request)

    def create(self, key: bytes, range_end: bytes = b"", **fields: Any) -> None:
        self.send(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=key, range_end=range_end, **fields)))

    def created(self, key: bytes, range_end: bytes = b"", **fields: Any) -> Any:
        """Create one and read the reply."""
        self.create(key, range_end, **fields)
        reply = self.next()
        assert reply.created
        return reply

    def cancel(self, number: int) -> None:
        self.send(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=number)))

    def ask_progress(self) -> None:
        self.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))

    def half_close(self) -> None:
        self._requests.put(None)

    def next(self, timeout: float = WAIT) -> Any:
        """The next reply. Raises grpc.RpcError when the stream has failed, queue.Empty when nothing comes."""
        reply = self._replies.get(timeout=timeout)
        if isinstance(reply, Exception):
            raise reply
        assert reply is not None, "the stream has ended"
        return reply

    def events(self, count: int, timeout: float = WAIT) -> Iterator[tuple[bytes, int]]:
        """Key and revision of the next events; replies without events are skipped."""
        while count > 0:
            for event in self.next(timeout).events:
                count -= 1
                yield event.kv.key, event.kv.mod_revision

    def silent(self, seconds: float = 0.3) -> bool:
        """Nothing comes for so long."""
        try:
            self.next(seconds)
        except queue.Empty:
            return True
        return False


def _bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
