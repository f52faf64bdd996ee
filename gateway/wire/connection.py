"""One HTTP/2 connection, either role, sans-IO (RFC 9113).

`receive` takes bytes and calls the handler and the streams' owners; what is to be written gathers in a list that `take` joins. Nothing here
waits, and everything a peer can make grow has a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from gateway.wire import frames as f
from gateway.wire.hpack import Decoder, Encoder, HeaderListTooLarge, Headers, HpackError
from gateway.wire.streams import NOBODY, Limits, Owner, Stream

__all__ = ["Connection", "Handler", "Headers", "Limits", "Owner", "Role", "Stream"]

_REMEMBERED_RESETS = 1_000


class Role(Enum):
    """Which side of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class Handler(Protocol):
    """What a connection belongs to."""

    def on_stream(self, stream: Stream, headers: Headers, timeout: bytes | None, end: bool) -> None:
        """Server role: a request's headers came, `grpc-timeout` apart; set `stream.owner` before returning, or reset the stream."""

    def on_goaway(self, code: int, text: str) -> None:
        """The peer will take no more streams; those it left out got on_reset(REFUSED_STREAM)."""

    def on_slots(self) -> None:
        """Client role: `can_open` turned true again."""


class ProtocolError(Exception):
    """The peer broke the protocol, or a bound: the connection ends with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamError(Exception):
    """One stream ends with this code."""

    def __init__(self, stream: int, code: int) -> None:
        super().__init__(stream, code)
        self.stream = stream
        self.code = code


class Connection:
    """After a protocol error or a guard's verdict `closing` says why and the GOAWAY frame is in the output: write it, then close the
    transport. `streams` are the open ones; `active` is their number."""

    def __init__(self, role: Role, handler: Handler, limits: Limits, now: float) -> None:
        self.closing: str | None = None
        self.streams: dict[int, Stream] = {}
        self.encoder = Encoder()
        self._server = role is Role.SERVER
        self._handler = handler
        self._limits = limits
        self._decoder = Decoder(limits.max_header_list)
        # output
        self._out: list[bytes] = []
        self._out_data = 0
        self._paused = False
        self._blocked: dict[int, Stream] = {}
        self._queued = 0
        self._send_window = f.DEFAULT_WINDOW
        self._peer_window = f.DEFAULT_WINDOW
        self._peer_frame = f.DEFAULT_FRAME_SIZE
        self._peer_streams = f.LARGEST_WINDOW if self._server else 100
        # input
        self._rest = b""
        self._preface = self._server
        self._first_settings = True
        self._receive_window = limits.connection_window
        self._unreturned = 0
        self._block: tuple[int, bool, list[bytes]] | None = None
        self._block_size = 0
        self._last_peer = 0
        self._next_own = 1
        self._own = 0
        self._going_away = False
        self._resets: deque[int] = deque(maxlen=_REMEMBERED_RESETS)
        # guards and keepalive
        self._second = now
        self._reset_count = 0
        self._nothings = 0
        self._heard = now
        self._pinged: float | None = None
        self._stalled_since: float | None = None
        self._greet()

    def _greet(self) -> None:
        limits = self._limits
        values = {
            f.INITIAL_WINDOW_SIZE: limits.stream_window,
            f.MAX_HEADER_LIST_SIZE: limits.max_header_list,
        }
        if self._server:
            values[f.MAX_CONCURRENT_STREAMS] = limits.max_streams
        else:
            values[f.ENABLE_PUSH] = 0
            self._out.append(f.PREFACE)
        self._out.append(f.settings_frame(values))
        self._out.append(f.window_update(0, limits.connection_window - f.DEFAULT_WINDOW))

    @property
    def active(self) -> int:
        """Open streams."""
        return len(self.streams)

    @property
    def can_open(self) -> bool:
        """Client role: the peer takes another stream."""
        return not self._going_away and self.closing is None and self._own < self._peer_streams

    @property
    def pending(self) -> bool:
        """There is more to write after the last `take`, and nothing but the turn of others keeps it back."""
        return not self._paused and bool(self._out or (self._blocked and self._send_window > 0))

    # ---- output

    def take(self) -> bytes:
        """All bytes to write now, b"" when there are none."""
        if self._blocked and not self._paused:
            self._pump_all()
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_data = 0
        return data

    def pause(self) -> None:
        """The transport's buffer is full: emit no DATA until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._paused = False

    def open(self, owner: Owner, block: bytes, data: bytes | None, end: bool) -> Stream:
        """Client role: HEADERS with this HPACK block, then data if not None, END_STREAM if end."""
        number = self._next_own
        self._next_own = number + 2
        self._own += 1
        stream = Stream(number, self._peer_window, self._limits.stream_window, owner)
        self.streams[number] = stream
        name = number.to_bytes(4, "big")
        if data is None:
            self._out.append(len(block).to_bytes(3, "big") + (b"\x01\x05" if end else b"\x01\x04") + name + block)
            stream.local_ended = end
            return stream
        size = len(data)
        if size <= self._send_window and size <= stream.send_window and size <= self._peer_frame and not self._blocked:
            self._send_window -= size
            stream.send_window -= size
            self._out.append(
                len(block).to_bytes(3, "big") + b"\x01\x04" + name + block
                + size.to_bytes(3, "big") + (b"\x00\x01" if end else b"\x00\x00") + name + data
            )  # fmt: skip
            stream.local_ended = end
        else:
            self._out.append(len(block).to_bytes(3, "big") + b"\x01\x04" + name + block)
            self.send_data(stream, data, end)
        return stream

    def respond(self, stream: Stream, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Server role: a whole unary reply."""
        size = len(data)
        if (
            size <= self._send_window and size <= stream.send_window and size <= self._peer_frame
            and not self._blocked and not self._paused and not stream.closed
        ):  # fmt: skip
            self._send_window -= size
            self._out_data += size
            name = stream.id.to_bytes(4, "big")
            self._out.append(b"".join((
                headers[:5], name, headers[5:], size.to_bytes(3, "big"), b"\x00\x00", name, data, trailers[:5], name, trailers[5:],
            )))  # fmt: skip
            stream.local_ended = True
            self._end_local(stream)
        else:
            self.send_headers(stream, headers[5:], False)
            self.send_data(stream, data, False)
            self.send_headers(stream, trailers[5:], True)

    def send_headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """HEADERS; behind queued data if there is any (trailers)."""
        if stream.closed or stream.local_ended:
            return
        stream.local_ended = end
        data = self._headers_frames(stream.id, block, end)
        if stream.queued:
            stream.tail = data
            return
        self._out.append(data)
        if end:
            self._end_local(stream)

    def _headers_frames(self, number: int, block: bytes, end: bool) -> bytes:
        size = self._peer_frame
        flags = f.END_STREAM if end else 0
        if len(block) <= size:
            return f.frame(f.HEADERS, flags | f.END_HEADERS, number, block)
        parts = [block[at : at + size] for at in range(0, len(block), size)]
        first = f.frame(f.HEADERS, flags, number, parts[0])
        middle = [f.frame(f.CONTINUATION, 0, number, part) for part in parts[1:-1]]
        return b"".join((first, *middle, f.frame(f.CONTINUATION, f.END_HEADERS, number, parts[-1])))

    def send_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """DATA under flow control, split to the peer's max frame size, queued when a window is shut."""
        if stream.closed or stream.local_ended:
            return
        stream.local_ended = end
        size = len(data)
        if (
            size <= self._send_window and size <= stream.send_window and size <= self._peer_frame
            and not self._blocked and not self._paused and not stream.queued and self._out_data < self._limits.slice
        ):  # fmt: skip
            self._send_window -= size
            stream.send_window -= size
            self._out_data += size
            self._out.append(
                size.to_bytes(3, "big") + (b"\x00\x01" if end else b"\x00\x00") + stream.id.to_bytes(4, "big") + data
            )
            if end:
                self._end_local(stream)
            return
        self._enqueue(stream, data, end)

    def _enqueue(self, stream: Stream, data: bytes, end: bool) -> None:
        if end:
            stream.tail = f.frame(f.DATA, f.END_STREAM, stream.id, b"")
        if not data:
            if end and not stream.queued:
                self._finish_queue(stream)
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(data)
        stream.queued += len(data)
        self._queued += len(data)
        if stream.queued > self._limits.high_water:
            stream.writable = False
        self._blocked[stream.id] = stream
        self._pump(stream)
        if self._queued > self._limits.max_queued:
            self._fail(f.ENHANCE_YOUR_CALM, "the peer does not read what it asked for")

    def _pump_all(self) -> None:
        """One frame after the other from each waiting stream, as far as the windows and this turn's slice reach."""
        for stream in tuple(self._blocked.values()):
            if self._send_window <= 0 or self._out_data >= self._limits.slice:
                break
            self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        queue = stream.queue
        if self._paused or queue is None:
            return
        room = min(self._send_window, stream.send_window, self._limits.slice - self._out_data)
        sent = 0
        name = stream.id.to_bytes(4, "big")
        while queue and room > 0:
            chunk = queue.popleft()
            size = len(chunk)
            use = min(size, room)
            step = self._peer_frame
            for at in range(0, use, step):
                part = chunk[at : min(at + step, use)]
                self._out.append(len(part).to_bytes(3, "big") + b"\x00\x00" + name + part)
            if use < size:
                queue.appendleft(chunk[use:])
            room -= use
            sent += use
        if sent:
            self._stalled_since = None
            self._sent(stream, sent)

    def _sent(self, stream: Stream, size: int) -> None:
        self._send_window -= size
        stream.send_window -= size
        self._out_data += size
        stream.queued -= size
        self._queued -= size
        if not stream.queued:
            self._finish_queue(stream)
        else:  # the next one's turn
            self._blocked.pop(stream.id, None)
            self._blocked[stream.id] = stream
        if not stream.writable and stream.queued <= self._limits.low_water:
            stream.writable = True
            stream.owner.on_drained(stream)

    def _finish_queue(self, stream: Stream) -> None:
        self._blocked.pop(stream.id, None)
        if stream.tail is not None and not stream.closed:
            self._out.append(stream.tail)
            stream.tail = None
            self._end_local(stream)

    def _end_local(self, stream: Stream) -> None:
        """Our END_STREAM is out. A server tells a client that still sends to stop (section 8.1)."""
        if stream.remote_ended:
            self._close(stream)
        elif self._server:
            self._out.append(f.rst_stream(stream.id, f.NO_ERROR))
            self._resets.append(stream.id)
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        if stream.closed:
            return
        stream.closed = True
        stream.owner = NOBODY
        del self.streams[stream.id]
        if stream.queued:
            self._queued -= stream.queued
            stream.queued = 0
            stream.queue = None
        self._blocked.pop(stream.id, None)
        if self._server:
            if self._going_away and not self.streams:
                self.closing = self.closing or "all calls have ended after GOAWAY"
        else:
            self._own -= 1
            if self._own == self._peer_streams - 1:
                self._handler.on_slots()

    def reset(self, stream: Stream, code: int) -> None:
        """RST_STREAM; drops what is queued; the owner hears nothing more. A closed stream: no effect."""
        if not stream.closed:
            self._out.append(f.rst_stream(stream.id, code))
            self._resets.append(stream.id)
            self._close(stream)

    def consume(self, stream: Stream, size: int) -> None:
        """The application is done with received bytes: opens the stream's window again."""
        if stream.remote_ended or stream.closed:
            return
        stream.unreturned += size
        if stream.unreturned * 2 >= self._limits.stream_window:
            self._out.append(f.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def shut_down(self, code: int, text: str) -> None:
        """GOAWAY: existing streams go on, new ones are refused; `closing` is set when the last one has ended."""
        if self._going_away or self.closing is not None:
            return
        self._going_away = True
        self._out.append(f.goaway(self._last_peer, code, text))
        if not self.streams:
            self.closing = text

    def _fail(self, code: int, text: str) -> None:
        if self.closing is None:
            self.closing = text
            self._out.append(f.goaway(self._last_peer, code, text))

    def lost(self, text: str) -> None:
        """The transport is gone: every open stream's owner gets on_reset."""
        self.closing = self.closing or text
        for stream in tuple(self.streams.values()):
            owner = stream.owner
            self._close(stream)
            owner.on_reset(stream, f.INTERNAL_ERROR, text)

    def tick(self, now: float) -> None:
        """Call about once a second: keepalive pings, their timeout, stalled peers."""
        limits = self._limits
        silence = now - self._heard
        if self._pinged is not None:
            if now - self._pinged > limits.ping_timeout:
                self._fail(f.NO_ERROR, f"no answer to a keepalive ping within {limits.ping_timeout:g} s")
        elif silence > limits.ping_interval and self.streams:
            self._pinged = now
            self._out.append(f.frame(f.PING, 0, 0, b"keepaliv"))
        if not self._queued:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since > limits.stall:
            self._fail(f.ENHANCE_YOUR_CALM, f"the peer read nothing for {limits.stall:g} s")

    # ---- input

    def receive(self, data: bytes, now: float) -> None:
        """All that came from the peer, in any split."""
        if self.closing is not None:
            return
        self._heard = now
        self._pinged = None
        if now - self._second >= 1.0:
            self._second = now
            self._reset_count = self._nothings = 0
        buffer = self._rest + data if self._rest else data
        try:
            at = self._frames(buffer)
        except ProtocolError as error:
            self._fail(error.code, str(error))
            return
        except HpackError as error:
            self._fail(f.COMPRESSION_ERROR, str(error))
            return
        self._rest = buffer[at:] if at < len(buffer) else b""
        if len(self._out) > self._limits.max_control and self._paused:
            self._fail(f.ENHANCE_YOUR_CALM, "the peer does not read the answers to its control frames")

    def _frames(self, buffer: bytes) -> int:
        """Handles the whole frames in the buffer; the place of the first byte that is not handled."""
        size = len(buffer)
        at = 0
        if self._preface:
            at = self._read_preface(buffer)
            if not at:
                return 0
        streams = self.streams
        while size - at >= 9:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if length > f.DEFAULT_FRAME_SIZE:
                raise ProtocolError(f.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            end = at + 9 + length
            if end > size:
                break
            kind = buffer[at + 3]
            flags = buffer[at + 4]
            number = int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF
            if self._block is not None and kind != f.CONTINUATION:
                raise ProtocolError(f.PROTOCOL_ERROR, "a header block was interrupted")
            if kind == 0 and not flags & 0x08:
                stream = streams.get(number)
                if stream is None or (not length and not flags & 1):
                    self._odd_data(number, length, flags)
                else:
                    self._data(stream, buffer[at + 9 : end], length, flags & 1)
            elif kind == 1 and flags & 0x2C == 0x04:
                self._headers(number, buffer[at + 9 : end], bool(flags & 1))
            else:
                self._other(kind, flags, number, buffer[at + 9 : end])
            at = end
            if self.closing is not None:
                return size
        return at

    def _read_preface(self, buffer: bytes) -> int:
        preface = f.PREFACE
        if buffer[: len(preface)] != preface[: len(buffer)]:
            raise ProtocolError(f.PROTOCOL_ERROR, "no HTTP/2 connection preface")
        if len(buffer) < len(preface):
            return 0
        self._preface = False
        return len(preface)

    def _data(self, stream: Stream, data: bytes, length: int, end: int) -> None:
        """`length` is what counts for flow control: the data and its padding."""
        if stream.remote_ended:
            self._stream_error(stream, f.STREAM_CLOSED)
            return
        self._count_received(length)
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._stream_error(stream, f.FLOW_CONTROL_ERROR)
            return
        if stream.expected >= 0:
            stream.expected -= len(data)
            if stream.expected < 0 or (end and stream.expected):
                self._stream_error(stream, f.PROTOCOL_ERROR)
                return
        owner = stream.owner
        if end:
            stream.remote_ended = True
            owner.on_data(stream, data, True)
            if stream.local_ended and not stream.queued and stream.tail is None:
                self._close(stream)
        else:
            owner.on_data(stream, data, False)

    def _count_received(self, length: int) -> None:
        """The connection's window is opened again as soon as data is here: streams hold back by their own windows."""
        self._unreturned += length
        if self._unreturned > self._receive_window:
            raise ProtocolError(f.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        if self._unreturned * 2 >= self._receive_window:
            self._out.append(f.window_update(0, self._unreturned))
            self._unreturned = 0

    def _odd_data(self, number: int, length: int, flags: int) -> None:
        """DATA that carries nothing, or for a stream that is not open."""
        self._count_received(length)
        if number in self.streams:
            self._nothing()
        elif not number or self._is_idle(number):
            raise ProtocolError(f.PROTOCOL_ERROR, f"DATA for stream {number}, which was never opened")
        elif number not in self._resets:
            self._count_reset()
            self._out.append(f.rst_stream(number, f.STREAM_CLOSED))

    def _is_idle(self, number: int) -> bool:
        peers = number & 1 == self._server
        return number > self._last_peer if peers else number >= self._next_own

    def _nothing(self) -> None:
        self._nothings += 1
        if self._nothings > self._limits.max_nothings:
            raise ProtocolError(f.ENHANCE_YOUR_CALM, f"more than {self._limits.max_nothings} idle frames in a second")

    def _count_reset(self) -> None:
        self._reset_count += 1
        if self._reset_count > self._limits.max_resets:
            raise ProtocolError(f.ENHANCE_YOUR_CALM, f"more than {self._limits.max_resets} stream resets in a second")

    def _stream_error(self, stream: Stream, code: int) -> None:
        """The peer broke the rules of one stream."""
        self._count_reset()
        owner = stream.owner
        self.reset(stream, code)
        owner.on_reset(stream, code, "the peer broke the protocol")

    def _headers(self, number: int, block: bytes, end: bool) -> None:
        """A complete header block."""
        try:
            headers, timeout = self._decoder.decode(block)
        except HeaderListTooLarge:
            self._refuse_headers(number)
            return
        stream = self.streams.get(number)
        if stream is not None:
            self._more_headers(stream, headers, end)
        elif self._server:
            self._new_stream(number, headers, timeout, end)
        elif self._is_idle(number) or not number & 1:
            raise ProtocolError(f.PROTOCOL_ERROR, f"HEADERS for stream {number}, which was never opened")

    def _refuse_headers(self, number: int) -> None:
        self._count_reset()
        stream = self.streams.get(number)
        if stream is not None:
            self._stream_error(stream, f.ENHANCE_YOUR_CALM)
        else:
            self._check_new(number)
            self._last_peer = number
            self._out.append(f.rst_stream(number, f.ENHANCE_YOUR_CALM))
            self._resets.append(number)

    def _check_new(self, number: int) -> None:
        if not number & 1:
            raise ProtocolError(f.PROTOCOL_ERROR, f"stream {number} is not a client's number")

    def _new_stream(self, number: int, headers: Headers, timeout: bytes | None, end: bool) -> None:
        if number <= self._last_peer or not number & 1:
            self._check_new(number)
            if number not in self._resets:
                raise ProtocolError(f.STREAM_CLOSED, f"HEADERS for closed stream {number}")
            return
        self._last_peer = number
        if self._going_away or len(self.streams) >= self._limits.max_streams:
            self._count_reset()
            self._out.append(f.rst_stream(number, f.REFUSED_STREAM))
            self._resets.append(number)
            return
        stream = Stream(number, self._peer_window, self._limits.stream_window, NOBODY)
        stream.remote_ended = end
        self.streams[number] = stream
        self._handler.on_stream(stream, headers, timeout, end)

    def _more_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if stream.remote_ended:
            raise ProtocolError(f.STREAM_CLOSED, f"HEADERS after the end of stream {stream.id}")
        if self._server and (not end or any(name.startswith(b":") for name, _ in headers) or stream.expected > 0):
            self._stream_error(stream, f.PROTOCOL_ERROR)
            return
        if not self._server and not end and headers and headers[0][0] == b":status" and headers[0][1][:1] == b"1":
            return  # an interim response (section 8.1)
        stream.remote_ended = end
        stream.owner.on_headers(stream, headers, end)
        if end and stream.local_ended and not stream.queued and stream.tail is None:
            self._close(stream)
        elif end and not self._server:
            self.reset(stream, f.NO_ERROR)  # the server has answered: what we still wanted to send is of no use

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Everything but the plain DATA and HEADERS frames."""
        if self._first_settings and kind != f.SETTINGS:
            raise ProtocolError(f.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        method = _OTHERS.get(kind)
        if method is None:
            self._nothing()
        else:
            method(self, flags, number, payload)

    def _padded_data(self, flags: int, number: int, payload: bytes) -> None:
        data = _unpad(flags, payload)
        stream = self.streams.get(number)
        if stream is None or not data:
            if stream is not None and flags & f.END_STREAM:
                self._data(stream, b"", len(payload), 1)
            else:
                self._odd_data(number, len(payload), flags)
            return
        self._data(stream, data, len(payload), flags & 1)
        self.consume(stream, len(payload) - len(data))

    def _split_headers(self, flags: int, number: int, payload: bytes) -> None:
        """HEADERS with padding or priority, or continued."""
        block = _unpad(flags, payload)
        if flags & f.WITH_PRIORITY:
            if len(block) < 5:
                raise ProtocolError(f.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            if int.from_bytes(block[:4], "big") & 0x7FFFFFFF == number:
                raise ProtocolError(f.PROTOCOL_ERROR, f"stream {number} depends on itself")
            block = block[5:]
        if not number:
            raise ProtocolError(f.PROTOCOL_ERROR, "HEADERS for stream 0")
        if flags & f.END_HEADERS:
            self._headers(number, block, bool(flags & f.END_STREAM))
        else:
            self._block = (number, bool(flags & f.END_STREAM), [block])
            self._block_size = len(block)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise ProtocolError(f.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        parts = self._block[2]
        parts.append(payload)
        self._block_size += len(payload)
        if len(parts) > self._limits.max_continuations or self._block_size > 2 * self._limits.max_header_list:
            raise ProtocolError(f.ENHANCE_YOUR_CALM, "header block too large")
        if flags & f.END_HEADERS:
            end = self._block[1]
            self._block = None
            self._headers(number, b"".join(parts), end)

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        self._nothing()
        if not number:
            raise ProtocolError(f.PROTOCOL_ERROR, "PRIORITY for stream 0")
        if len(payload) != 5:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
        if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == number:
            raise ProtocolError(f.PROTOCOL_ERROR, f"stream {number} depends on itself")

    def _rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        if not number or self._is_idle(number):
            raise ProtocolError(f.PROTOCOL_ERROR, f"RST_STREAM for stream {number}, which was never opened")
        if self._server:
            self._count_reset()
        stream = self.streams.get(number)
        if stream is None:
            return
        owner = stream.owner
        self._resets.append(number)
        self._close(stream)
        code = int.from_bytes(payload, "big")
        owner.on_reset(stream, code, f"stream reset by the peer with code {code}")

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(f.PROTOCOL_ERROR, "SETTINGS for a stream")
        if flags & f.ACK:
            if payload:
                raise ProtocolError(f.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            return
        if len(payload) % 6:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "SETTINGS length is no multiple of 6")
        self._nothing()
        self._first_settings = False
        for at in range(0, len(payload), 6):
            self._setting(int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big"))
        self._out.append(f.frame(f.SETTINGS, f.ACK, 0, b""))

    def _setting(self, name: int, value: int) -> None:
        if name == f.INITIAL_WINDOW_SIZE:
            if value > f.LARGEST_WINDOW:
                raise ProtocolError(f.FLOW_CONTROL_ERROR, f"initial window of {value}")
            difference = value - self._peer_window
            self._peer_window = value
            for stream in self.streams.values():
                stream.send_window += difference
                if stream.send_window > f.LARGEST_WINDOW:
                    raise ProtocolError(f.FLOW_CONTROL_ERROR, "a window grew over 2^31-1")
        elif name == f.MAX_FRAME_SIZE:
            if not f.DEFAULT_FRAME_SIZE <= value <= f.LARGEST_FRAME_SIZE:
                raise ProtocolError(f.PROTOCOL_ERROR, f"max frame size of {value}")
            self._peer_frame = min(value, 1 << 20)
        elif name == f.HEADER_TABLE_SIZE:
            self.encoder.resize(value)
        elif name == f.MAX_CONCURRENT_STREAMS:
            could = self.can_open
            self._peer_streams = value
            if not self._server and self.can_open and not could:
                self._handler.on_slots()
        elif name == f.ENABLE_PUSH and value > 1:
            raise ProtocolError(f.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")

    def _push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise ProtocolError(f.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(f.PROTOCOL_ERROR, "PING for a stream")
        if len(payload) != 8:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not flags & f.ACK:
            self._nothing()
            self._out.append(f.frame(f.PING, f.ACK, 0, payload))

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ProtocolError(f.PROTOCOL_ERROR, "GOAWAY for a stream")
        if len(payload) < 8:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        code = int.from_bytes(payload[4:8], "big")
        text = payload[8:264].decode("utf-8", "replace")
        if not self._server:
            self._going_away = True
            for stream in [s for s in self.streams.values() if s.id > last]:
                owner = stream.owner
                self._close(stream)
                owner.on_reset(stream, f.REFUSED_STREAM, f"GOAWAY {text}".rstrip())
        self._handler.on_goaway(code, text)

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(f.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        size = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not number:
            if not size:
                raise ProtocolError(f.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self._send_window += size
            if self._send_window > f.LARGEST_WINDOW:
                raise ProtocolError(f.FLOW_CONTROL_ERROR, "the connection's window grew over 2^31-1")
            return
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ProtocolError(f.PROTOCOL_ERROR, f"WINDOW_UPDATE for stream {number}, which was never opened")
            return
        stream.send_window += size
        if not size:
            self._stream_error(stream, f.PROTOCOL_ERROR)
        elif stream.send_window > f.LARGEST_WINDOW:
            self._stream_error(stream, f.FLOW_CONTROL_ERROR)


def _unpad(flags: int, payload: bytes) -> bytes:
    """The payload without its padding (section 6.1)."""
    if not flags & f.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(f.PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - payload[0]]


_OTHERS: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    f.DATA: Connection._padded_data,
    f.HEADERS: Connection._split_headers,
    f.PRIORITY: Connection._priority,
    f.RST_STREAM: Connection._rst_stream,
    f.SETTINGS: Connection._settings,
    f.PUSH_PROMISE: Connection._push_promise,
    f.PING: Connection._ping,
    f.GOAWAY: Connection._goaway,
    f.WINDOW_UPDATE: Connection._window_update,
    f.CONTINUATION: Connection._continuation,
}
