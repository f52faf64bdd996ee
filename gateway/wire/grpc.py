"""gRPC over HTTP/2: request heads, message framing, status trailers (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.core.errors import Code, RpcError
from gateway.wire.hpack import Headers, encode_static, literal

METADATA = frozenset((b"token", b"authorization", b"hasleader", b"client-api-version", b"shardgate-cluster"))
"""The request metadata that etcd or the gateway looks at; all other is dropped."""

_CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_MEMO = 1024
NO_METADATA: Mapping[bytes, bytes] = {}


@dataclass(frozen=True)
class RequestHead:
    """What a request's header fields say. `malformed`: against HTTP/2's rules (section 8.1.1), the stream is reset. `refusal`: the header
    block to answer with when it is HTTP but no gRPC that we take. `length`: the content-length, -1 without one."""

    path: bytes
    metadata: Mapping[bytes, bytes]
    compressed: bool
    length: int
    malformed: bool
    refusal: bytes | None


_heads: dict[Headers, RequestHead] = {}


def request_head(headers: Headers) -> RequestHead:
    """Reads and checks a request's header fields; the same fields again cost one look-up."""
    head = _heads.get(headers)
    if head is None:
        head = _read_head(headers)
        if len(_heads) >= _MAX_MEMO:
            _heads.clear()
        if sum(len(name) + len(value) for name, value in headers) < 4096:
            _heads[headers] = head
    return head


def _read_head(headers: Headers) -> RequestHead:
    fields = dict(headers)
    path = fields.get(b":path", b"")
    length = fields.get(b"content-length", b"-1")
    malformed = not _well_formed(headers) or not (length == b"-1" or length.isdigit())
    return RequestHead(
        path=path,
        metadata=_metadata(headers),
        compressed=fields.get(b"grpc-encoding", b"identity") != b"identity",
        length=-1 if malformed else int(length),
        malformed=malformed,
        refusal=None if malformed else _refusal(fields),
    )


def _well_formed(headers: Headers) -> bool:
    """Pseudo-fields first, each once, none unknown; names in lower case; nothing about the connection (RFC 9113, 8.2 and 8.3)."""
    pseudo = [name for name, _ in headers if name[:1] == b":"]
    if len(set(pseudo)) != len(pseudo) or not _REQUEST_PSEUDO.issuperset(pseudo):
        return False
    if [name for name, _ in headers[: len(pseudo)]] != pseudo or not {b":method", b":scheme", b":path"} <= set(pseudo):
        return False
    return all(_good_field(name, value) for name, value in headers) and dict(headers)[b":path"] != b""


def _good_field(name: bytes, value: bytes) -> bool:
    if not name or name != name.lower() or name in _CONNECTION_FIELDS or b" " in name:
        return False
    if name == b"te" and value != b"trailers":
        return False
    return not any(bad in value for bad in (b"\0", b"\r", b"\n"))


def _metadata(headers: Headers) -> Mapping[bytes, bytes]:
    kept = {name: value for name, value in headers if name in METADATA}
    return kept or NO_METADATA


def _refusal(fields: Mapping[bytes, bytes]) -> bytes | None:
    """As grpc-go's server answers (internal/transport/http2_server.go)."""
    kind = fields.get(b"content-type", b"")
    if not (kind.lower() == b"application/grpc" or kind.lower().startswith((b"application/grpc+", b"application/grpc;"))):
        return http_error(415, Code.INVALID_ARGUMENT, f'invalid gRPC request content-type "{kind.decode("latin-1")}"')
    if fields[b":method"] != b"POST":
        text = f'Received a HEADERS frame with :method "{fields[b":method"].decode("latin-1")}" which should be POST'
        return http_error(405, Code.INTERNAL, text)
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding not in (b"identity", b"gzip"):
        name = encoding.decode("latin-1")
        return trailers_only(Code.UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{name}"')
    return None


def seconds(timeout: bytes) -> float | None:
    """The value of grpc-timeout in seconds; None if it is malformed."""
    unit = _UNITS.get(timeout[-1:])
    digits = timeout[:-1]
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


def timeout_value(left: float) -> bytes:
    """A grpc-timeout for so many seconds: at most 8 digits, in the finest unit that holds them."""
    if left < 99.0:
        return b"%du" % max(1, int(left * 1e6))
    return b"%dm" % int(left * 1e3) if left < 99_999.0 else b"%dS" % min(99_999_999, int(left))


def binary(value: bytes) -> bytes | None:
    """The value of a `-bin` metadata field: base64, its padding optional; None if it is none."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return None


# Replies

RESPONSE_HEADERS = encode_static(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILERS_OK = encode_static(((b"grpc-status", b"0"),))


def percent_encode(text: str) -> bytes:
    """A grpc-message: what is not printable ASCII, and %, as %XX."""
    return b"".join(b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode())


def trailers(code: int, text: str) -> bytes:
    """The block that ends a stream."""
    if not code:
        return TRAILERS_OK
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", percent_encode(text))


def trailers_only(code: int, text: str) -> bytes:
    """The block of a reply that is nothing but its status."""
    return RESPONSE_HEADERS + trailers(code, text)


def http_error(status: int, code: int, text: str) -> bytes:
    """The block of a reply to what is no gRPC request."""
    return (
        encode_static(((b":status", b"%d" % status), (b"content-type", b"application/grpc")))
        + literal(b"grpc-status", b"%d" % code)
        + literal(b"grpc-message", percent_encode(text))
    )


_HTTP_CODES = {
    400: Code.INTERNAL, 401: Code.UNAUTHENTICATED, 403: Code.PERMISSION_DENIED, 404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE, 502: Code.UNAVAILABLE, 503: Code.UNAVAILABLE, 504: Code.UNAVAILABLE,
}  # fmt: skip
"""doc/http-grpc-status-mapping.md"""

_OK = (0, "")
_STATUS_OK = ((b"grpc-status", b"0"),)


def parse_status(headers: Headers) -> tuple[int, str]:
    """Client role: code and text from trailers, from a trailers-only reply, or from the HTTP status of what is no gRPC reply."""
    if headers[:1] == _STATUS_OK:
        return _OK
    fields = dict(headers)
    status = fields.get(b"grpc-status")
    if status is not None and status.isdigit():
        text = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
        return int(status), text
    http = fields.get(b":status", b"200")
    code = _HTTP_CODES.get(int(http) if http.isdigit() else 0, Code.UNKNOWN)
    return code, f"unexpected HTTP status code received from server: {http.decode('latin-1')}"


# Messages


def frame_message(message: bytes) -> bytes:
    """One message with its prefix: not compressed, 4 bytes of length."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def whole(data: bytes) -> bytes | None:
    """The message, if the data is exactly one, not compressed."""
    if len(data) >= 5 and not data[0] and int.from_bytes(data[1:5], "big") == len(data) - 5:
        return data[5:]
    return None


class MessageReader:
    """Cuts a stream of bytes into messages, whatever the split."""

    __slots__ = ("_at", "_buffer", "_compressed", "_size")

    def __init__(self, max_size: int | None, compressed: bool = False) -> None:
        self._size = max_size
        self._compressed = compressed
        self._buffer = bytearray()
        self._at = 0  # where in the buffer the next message begins; 0 but for the time of a `feed`

    @property
    def buffered(self) -> int:
        """Bytes of what is no whole message yet, or not handed out."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete now. Raises RpcError: too large, or wrongly compressed; grpc-go's codes and texts."""
        buffer = self._buffer
        buffer += data
        try:
            while len(buffer) - self._at >= 5:
                start = self._at + 5
                flag = buffer[self._at]
                size = int.from_bytes(buffer[self._at + 1 : start], "big")
                if self._size is not None and size > self._size:
                    raise RpcError(Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {self._size})")
                if start + size > len(buffer):
                    return
                self._at = start + size
                yield self._plain(flag, bytes(buffer[start : self._at]))
        finally:
            del buffer[: self._at]
            self._at = 0

    def _plain(self, flag: int, message: bytes) -> bytes:
        if not flag:
            return message
        if flag != 1:
            raise RpcError(Code.INTERNAL, f"grpc: received unexpected payload format {flag}")
        if not self._compressed:
            raise RpcError(Code.INTERNAL, "grpc: compressed flag set with identity or empty encoding")
        return self._unzip(message)

    def _unzip(self, message: bytes) -> bytes:
        inflater = zlib.decompressobj(wbits=31)
        limit = self._size or 1 << 31
        try:
            plain = inflater.decompress(message, limit + 1)
        except zlib.error as error:
            raise RpcError(Code.INTERNAL, f"grpc: failed to decompress the received message: {error}") from None
        if len(plain) > limit:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"grpc: received message after decompression larger than max {limit}")
        if not inflater.eof:
            raise RpcError(Code.INTERNAL, "grpc: failed to decompress the received message: unexpected EOF")
        return plain
