"""HTTP/2 frames: the numbers of RFC 9113, and how a frame is built."""

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


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame: 9 bytes of header (section 4.1), then the payload."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings_frame(values: dict[int, int]) -> bytes:
    """A SETTINGS frame with these values."""
    payload = b"".join(number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in values.items())
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 for the connection's window."""
    return b"\x00\x00\x04\x08\x00" + stream.to_bytes(4, "big") + size.to_bytes(4, "big")


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return b"\x00\x00\x04\x03\x00" + stream.to_bytes(4, "big") + code.to_bytes(4, "big")


def goaway(last_stream: int, code: int, text: str) -> bytes:
    """A GOAWAY frame; the text goes into its debug data."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:256])
