"""The requests of the bench, as bytes: gRPC messages, header blocks, HTTP/2 frames."""

from __future__ import annotations

from collections.abc import Iterator

from hpack import Encoder

from gateway.etcdpb import rpc_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW = 1 << 30

RANGE = b"/etcdserverpb.KV/Range"
PUT = b"/etcdserverpb.KV/Put"
TXN = b"/etcdserverpb.KV/Txn"
WATCH = b"/etcdserverpb.Watch/Watch"

GETS = "/registry/configmaps/bench-get/"
LIST_200 = "/registry/secrets/bench-list/"
LIST_10000 = "/registry/pods/bench-list/"
UNCACHED = "/registry/events/"
"""The keys that the gateway is told not to keep in memory."""
LIST_UNCACHED = UNCACHED + "bench-list/"
VALUE = b"v" * 580
"""About what a small Kubernetes object takes."""
OBJECT = b"o" * 1024


def key(prefix: str, number: int) -> bytes:
    """About 70 bytes, as Kubernetes' keys are."""
    return f"{prefix}{number:08d}-6d4cf56db6-abcdefgh-0123456789".encode()


def get(name: bytes, serializable: bool = False) -> bytes:
    """Range over one key."""
    return bytes(rpc_pb2.RangeRequest(key=name, serializable=serializable).SerializeToString())


def listing(prefix: str) -> bytes:
    """Range over a prefix."""
    return bytes(rpc_pb2.RangeRequest(key=prefix.encode(), range_end=end_of(prefix)).SerializeToString())


def end_of(prefix: str) -> bytes:
    """Where the keys with a prefix end."""
    start = prefix.encode()
    return start[:-1] + bytes((start[-1] + 1,))


PAGE = 500
"""Objects of a page."""


def pages(revision: int) -> list[bytes]:
    """The requests for all objects of LIST_10000 at a revision, as kube-apiserver asks for them: each page begins after the last key of
    the one before."""
    begins = [LIST_10000.encode(), *(key(LIST_10000, number - 1) + b"\0" for number in range(PAGE, 10_000, PAGE))]
    end = end_of(LIST_10000)
    return [
        bytes(rpc_pb2.RangeRequest(key=begin, range_end=end, limit=PAGE, revision=revision).SerializeToString()) for begin in begins
    ]


def put(name: bytes, value: bytes = VALUE) -> bytes:
    """Put one key."""
    return bytes(rpc_pb2.PutRequest(key=name, value=value).SerializeToString())


def puts(names: list[bytes], value: bytes) -> bytes:
    """One txn that puts all names (at most 128)."""
    operations = [rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=value)) for name in names]
    return bytes(rpc_pb2.TxnRequest(success=operations).SerializeToString())


def replace(name: bytes, mod_revision: int) -> bytes:
    """kube-apiserver's write: put if the key is still at mod_revision (0: it does not exist), else get it."""
    return bytes(
        rpc_pb2.TxnRequest(
            compare=[rpc_pb2.Compare(target=rpc_pb2.Compare.MOD, result=rpc_pb2.Compare.EQUAL, key=name, mod_revision=mod_revision)],
            success=[rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=VALUE))],
            failure=[rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=name))],
        ).SerializeToString()
    )


READS = {
    "get": get(key(GETS, 7)),
    "get-serializable": get(key(GETS, 7), serializable=True),
    "list-200": listing(LIST_200),
    "list-10000": listing(LIST_10000),
    "list-uncached": listing(LIST_UNCACHED),
}
"""Requests that are the same each time, by the name of the work."""


def watch(prefix: str) -> bytes:
    """Watch a prefix from now on."""
    create = rpc_pb2.WatchCreateRequest(key=prefix.encode(), range_end=end_of(prefix))
    return bytes(rpc_pb2.WatchRequest(create_request=create).SerializeToString())


def message(data: bytes) -> bytes:
    """With gRPC's prefix."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def headers(path: bytes, timeout: bytes | None) -> list[tuple[bytes, bytes]]:
    """What grpc-go sends with a call, in its order."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"127.0.0.1:2379"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-go/1.38.0"),
        (b"te", b"trailers"),
    ]
    return fields if timeout is None else [*fields, (b"grpc-timeout", timeout)]


def constant_blocks(path: bytes) -> Iterator[bytes]:
    """Header blocks of one connection's calls: after the first they are one and the same bytes."""
    encoder = Encoder()
    yield encoder.encode(headers(path, None))
    block = encoder.encode(headers(path, None))
    while True:
        yield block


RING = 4096
CLEAR = b"\x20\x3f\xe1\x1f"
"""HPACK: dynamic table size 0, then 4096 again; an empty table, as on a new connection."""


def timeout_ring(path: bytes) -> list[bytes]:
    """RING header blocks, each with another grpc-timeout, as a Go client writes them: a literal with incremental indexing.
    Each client call has its own remaining time, so no two are equal. The first block clears the table: the ring can start again."""
    encoder = Encoder()
    return [(b"" if i else CLEAR) + encoder.encode(headers(path, b"%du" % (4_999_999 - i * 37))) for i in range(RING)]
