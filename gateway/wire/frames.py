"""HTTP/2 frames: the numbers of RFC 9113, how a frame is built, and what a frame may look like."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types (section 6)
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags
END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
WITH_PRIORITY = 0x20

# Settings (section 6.5.2)
HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6

# Error codes (section 7)
NO_ERROR = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2
FLOW_CONTROL_ERROR = 3
SETTINGS_TIMEOUT = 4
STREAM_CLOSED = 5
FRAME_SIZE_ERROR = 6
REFUSED_STREAM = 7
CANCEL = 8
COMPRESSION_ERROR = 9
CONNECT_ERROR = 10
ENHANCE_YOUR_CALM = 11
INADEQUATE_SECURITY = 12
HTTP_1_1_REQUIRED = 13

DEFAULT_WINDOW = 65_535
LARGEST_WINDOW = (1 << 31) - 1
DEFAULT_FRAME_SIZE = 16_384
LARGEST_FRAME_SIZE = (1 << 24) - 1


class ProtocolError(Exception):
    """The peer broke the protocol, or a bound: the connection ends with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# Building


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame: 9 bytes of header (section 4.1), then the payload."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


Numberless = tuple[bytes, bytes]
"""A frame but for its stream number: what comes before it, and after it."""


def headers_frame(block: bytes, end: bool) -> Numberless:
    """A HEADERS frame of a short block, to be sent on many streams."""
    return len(block).to_bytes(3, "big") + (b"\x01\x05" if end else b"\x01\x04"), block


def header_frames(stream: int, block: bytes, end: bool, size: int) -> bytes:
    """A HEADERS frame, and CONTINUATION frames when the block is longer than `size`."""
    flags = END_STREAM if end else 0
    if len(block) <= size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    middle = [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join((frame(HEADERS, flags, stream, parts[0]), *middle, frame(CONTINUATION, END_HEADERS, stream, parts[-1])))


def settings_frame(values: dict[int, int]) -> bytes:
    """A SETTINGS frame with these values."""
    payload = b"".join(number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in values.items())
    return frame(SETTINGS, 0, 0, payload)


SETTINGS_ACK = frame(SETTINGS, ACK, 0, b"")


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 for the connection's window."""
    return b"\x00\x00\x04\x08\x00" + stream.to_bytes(4, "big") + size.to_bytes(4, "big")


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return b"\x00\x00\x04\x03\x00" + stream.to_bytes(4, "big") + code.to_bytes(4, "big")


def goaway(last_stream: int, code: int, text: str) -> bytes:
    """A GOAWAY frame; the text goes into its debug data."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:256])


# Reading

_ANY = -1
_SHAPES: dict[int, tuple[str, bool | None, int]] = {
    DATA: ("DATA", True, _ANY),
    HEADERS: ("HEADERS", True, _ANY),
    PRIORITY: ("PRIORITY", True, 5),
    RST_STREAM: ("RST_STREAM", True, 4),
    SETTINGS: ("SETTINGS", False, _ANY),
    PUSH_PROMISE: ("PUSH_PROMISE", True, _ANY),
    PING: ("PING", False, 8),
    GOAWAY: ("GOAWAY", False, _ANY),
    WINDOW_UPDATE: ("WINDOW_UPDATE", None, 4),
    CONTINUATION: ("CONTINUATION", True, _ANY),
}
"""Name, whether it belongs to a stream (None: either way), length in bytes."""


def check_shape(kind: int, stream: int, length: int) -> None:
    """Raises ProtocolError for a frame on the wrong sort of stream or of the wrong length; frames of unknown kinds are fine."""
    name, on_stream, size = _SHAPES.get(kind, ("", None, _ANY))
    if on_stream is not None and on_stream != bool(stream):
        raise ProtocolError(PROTOCOL_ERROR, f"{name} frame for {'no stream' if on_stream else 'a stream'}")
    if length != size and size != _ANY:
        raise ProtocolError(FRAME_SIZE_ERROR, f"{name} frame of {length} bytes")


def unpad(flags: int, payload: bytes) -> bytes:
    """The payload without its padding (section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def first_block(flags: int, stream: int, payload: bytes) -> bytes:
    """The piece of header block in a HEADERS frame: without its padding and its priority."""
    block = unpad(flags, payload)
    if not flags & WITH_PRIORITY:
        return block
    if len(block) < 5:
        raise ProtocolError(FRAME_SIZE_ERROR, "HEADERS too short for its priority")
    check_priority(stream, block)
    return block[5:]


def check_priority(stream: int, payload: bytes) -> None:
    """Priorities are not used, but a stream that depends on itself is an error (RFC 7540, section 5.3.1)."""
    if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream:
        raise ProtocolError(PROTOCOL_ERROR, f"stream {stream} depends on itself")


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Numbers and values in their order. Raises ProtocolError for values out of range."""
    if len(payload) % 6:
        raise ProtocolError(FRAME_SIZE_ERROR, "SETTINGS length is no multiple of 6")
    values = []
    for at in range(0, len(payload), 6):
        name = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + 6], "big")
        low, high, code = _RANGES.get(name, _NO_RANGE)
        if not low <= value <= high:
            raise ProtocolError(code, f"setting {name} of {value}")
        values.append((name, value))
    return values


_NO_RANGE = (0, 1 << 32, PROTOCOL_ERROR)
_RANGES = {
    ENABLE_PUSH: (0, 1, PROTOCOL_ERROR),
    INITIAL_WINDOW_SIZE: (0, LARGEST_WINDOW, FLOW_CONTROL_ERROR),
    MAX_FRAME_SIZE: (DEFAULT_FRAME_SIZE, LARGEST_FRAME_SIZE, PROTOCOL_ERROR),
}
"""Smallest and largest value, and the error for others (section 6.5.2)."""


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """The last stream that the peer takes, an error code, and its words."""
    if len(payload) < 8:
        raise ProtocolError(FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
    last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
    return last, int.from_bytes(payload[4:8], "big"), payload[8:264].decode("utf-8", "replace")
