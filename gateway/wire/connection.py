"""One HTTP/2 connection, either role, sans-IO (RFC 9113).

`receive` takes bytes and calls the handler and the streams' owners; what is to be written gathers until `take` joins it. Nothing here
waits, and everything a peer can make grow has a bound.
"""

from __future__ import annotations

from gateway.wire import frames as f
from gateway.wire.frames import Numberless, ProtocolError
from gateway.wire.guards import Guards, Keepalive, Strikes
from gateway.wire.hpack import Decoder, Encoder, HeaderListTooLarge, Headers, HpackError
from gateway.wire.lane import Lane
from gateway.wire.numbering import Numbering
from gateway.wire.output import Output
from gateway.wire.reader import FrameReader
from gateway.wire.streams import INTERIM, NOBODY, Handler, Heads, Limits, Owner, Role, Stream, data_fault, greeting

__all__ = ["Connection", "Handler", "Headers", "Limits", "Owner", "Role", "Stream"]

_KEEPALIVE_PING = f.frame(f.PING, 0, 0, b"keepaliv")


class Connection:
    """After a protocol error or a guard's verdict `closing` says why and the GOAWAY frame is in the output: write it, then close the
    transport. `streams` are the open ones that are no matter of the lane's. `going_away`: no new ones are taken."""

    def __init__(self, role: Role, handler: Handler, limits: Limits, now: float, lane: Lane | None = None) -> None:
        self.closing: str | None = None
        self.going_away = False
        self.streams: dict[int, Stream] = {}
        self.encoder = Encoder()
        self.numbering = Numbering(role is Role.SERVER)
        self._server = role is Role.SERVER
        self._handler = handler
        self._lane = lane
        self._limits = limits
        self._decoder = Decoder(limits.max_header_list)
        self._output = Output(limits, self._end_local)
        self._guards = Guards(limits, now)
        self._strikes = Strikes(limits)
        self._keepalive = Keepalive(limits, now)
        self._peer_streams = f.LARGEST_WINDOW if self._server else 100
        self._half_window = limits.connection_window // 2
        self._unreturned = 0
        self.last_taken = 0
        self._heads = Heads(self._server)
        self._reader = FrameReader(self, f.PREFACE if self._server else b"", self._guards, limits, lane)
        if lane is not None:
            lane.join(self, self._output, self._decoder, limits)
        self._put(greeting(role, limits))

    def _put(self, frame: bytes) -> None:
        self._output.chunks.append(frame)

    @property
    def active(self) -> int:
        """Calls under way."""
        return len(self.streams) + (0 if self._lane is None else self._lane.active)

    @property
    def can_open(self) -> bool:
        """Client role: the peer takes another stream."""
        return not self.going_away and self.closing is None and len(self.streams) < self._peer_streams

    @property
    def pending(self) -> bool:
        """There is more to write after the last `take`, and nothing but the turn of others keeps it back."""
        return self._output.pending

    def take(self) -> bytes:
        """All bytes to write now, b"" when there are none."""
        output = self._output
        if output.paused and self.closing is None:
            return b""
        data = output.take()
        if output.spent:
            self._guards.paid()
            self._strikes.forgive()
        return data

    def pause(self) -> None:
        """The transport's buffer is full: `take` gives nothing until `resume`."""
        self._output.pause()

    def resume(self) -> None:
        """The transport takes more."""
        if self.closing is None:
            self._output.resume()

    def open(self, owner: Owner, block: bytes, data: bytes | None, end: bool) -> Stream:
        """Client role: HEADERS with this HPACK block, then data if not None, END_STREAM if end."""
        number = self.numbering.next()
        stream = self.streams[number] = Stream(number, self._output.stream_window, self._limits.stream_window, owner)
        if data is None:
            self.send_headers(stream, block, end)
        elif self._output.request(stream, block, data, end):
            stream.local_ended = end
        else:
            self.send_headers(stream, block, False)
            self.send_data(stream, data, end)
        return stream

    def respond(self, stream: Stream, headers: Numberless, data: bytes, trailers: Numberless) -> None:
        """Server role: a whole unary reply."""
        if stream.closed or not self._output.reply(stream.id, stream.send_window, headers, data, trailers):
            self.send_headers(stream, headers[1], False)
            self.send_data(stream, data, False)
            self.send_headers(stream, trailers[1], True)
            return
        stream.local_ended = True
        if stream.remote_ended:
            self._close(stream)
        else:
            self.reset(stream, f.NO_ERROR)

    def send_headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """HEADERS; behind queued data if there is any (trailers)."""
        if not stream.closed and not stream.local_ended:
            stream.local_ended = end
            self._strikes.forgive()
            self._output.headers(stream, block, end)

    def send_data(self, stream: Stream, data: bytes, end: bool) -> None:
        """DATA under flow control, split to the peer's max frame size, queued when a window is shut."""
        if stream.closed or stream.local_ended:
            return
        stream.local_ended = end
        self._output.data(stream, data, end)
        if self._output.queued > self._limits.max_queued:
            self._fail(f.ENHANCE_YOUR_CALM, "the peer does not read what it asked for")

    def _end_local(self, stream: Stream) -> None:
        """Our END_STREAM is out. A server tells a client that still sends to stop (section 8.1)."""
        if stream.remote_ended:
            self._close(stream)
        elif self._server:
            self.reset(stream, f.NO_ERROR)

    def _close(self, stream: Stream) -> None:
        if stream.closed:
            return
        stream.closed = True
        stream.owner = NOBODY
        del self.streams[stream.id]
        if stream.queued:
            self._output.forget(stream)
        if not self._server:
            if len(self.streams) == self._peer_streams - 1 and self.can_open:
                self._handler.on_slots()
        elif self.going_away:
            self.wind_up()

    def wind_up(self) -> None:
        """Server role: after GOAWAY, and something has ended: maybe it was the last."""
        if self.going_away and not self.active:
            self.closing = self.closing or "all calls have ended after GOAWAY"

    def reset(self, stream: Stream, code: int) -> None:
        """RST_STREAM; drops what is queued; the owner hears nothing more. A closed stream: no effect."""
        if not stream.closed:
            self._refuse(stream.id, code)
            self._close(stream)

    def _refuse(self, number: int, code: int) -> None:
        """RST_STREAM; what the peer has under way for the stream will be ignored."""
        self._put(f.rst_stream(number, code))
        self.numbering.cut(number)

    def consume(self, stream: Stream, size: int) -> None:
        """The application is done with received bytes: opens the stream's window again."""
        if stream.remote_ended or stream.closed:
            return
        stream.unreturned += size
        if stream.unreturned * 2 >= self._limits.stream_window:
            self._put(f.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def shut_down(self, code: int, text: str) -> None:
        """GOAWAY: existing streams go on, new ones are refused; `closing` is set when the last one has ended."""
        if self.going_away or self.closing is not None:
            return
        self.going_away = True
        self._put(f.goaway(self.last_taken, code, text))
        if not self.active:
            self.closing = text

    def _fail(self, code: int, text: str) -> None:
        if self.closing is None:
            self.closing = text
            self._put(f.goaway(self.last_taken, code, text))
            self._output.pause()  # what still waits is not sent

    def lost(self, text: str) -> None:
        """The transport is gone: every open stream's owner gets on_reset."""
        self.closing = self.closing or text
        if self._lane is not None:
            self._lane.part()
        for stream in tuple(self.streams.values()):
            self._drop(stream, f.INTERNAL_ERROR, text)

    def _drop(self, stream: Stream, code: int, text: str) -> None:
        """The stream is over; its owner hears it."""
        owner = stream.owner
        self._close(stream)
        owner.on_reset(stream, code, text)

    def tick(self, now: float) -> None:
        """Call about once a second: keepalive pings, their timeout, stalled peers."""
        limits = self._limits
        if self._keepalive.dead(now):
            self._fail(f.NO_ERROR, f"no answer to a keepalive ping within {limits.ping_timeout:g} s")
        elif self._output.stalled(now):
            self._fail(f.ENHANCE_YOUR_CALM, f"the peer read nothing for {limits.stall:g} s")
        elif (self._server or self.streams) and self._keepalive.ask(now):  # etcd forbids its clients to ping without streams
            self._put(_KEEPALIVE_PING)

    def receive(self, data: bytes, now: float) -> None:
        """All that came from the peer, in any split."""
        if self.closing is not None:
            return
        self._keepalive.heard = now
        self._guards.turn(now, self.numbering.last_peer)
        try:
            self._reader.feed(data)
        except (ProtocolError, HpackError) as error:
            self._fail(error.code, str(error))
        if self._lane is not None and self._lane.begun:
            self._lane.settle()
        if self._output.paused and len(self._output.chunks) > self._limits.max_control:
            self._fail(f.ENHANCE_YOUR_CALM, "the peer does not read the answers to its frames")

    # reader.Frames

    def on_data(self, number: int, data: bytes, length: int, end: int) -> None:
        self._unreturned += length
        if self._unreturned >= self._half_window:
            self._open_window()
        stream = self.streams.get(number)
        if stream is None and (stream := self._found(number)) is None:
            self._late_data(number, length)
            return
        stream.receive_window -= length
        if (stream.receive_window < 0 or stream.remote_ended or stream.expected >= 0) and (code := data_fault(stream, len(data), end)):
            self._stream_error(stream, code)
            return
        if end:
            stream.remote_ended = True
            stream.owner.on_data(stream, data, True)
            if not stream.closed:
                self._end_remote(stream)
        elif data:
            stream.owner.on_data(stream, data, False)
            if length != len(data):
                self.consume(stream, length - len(data))
        else:
            self.consume(stream, length)
            self._guards.nothing()

    def _end_remote(self, stream: Stream) -> None:
        """The peer's END_STREAM came, and the owner knows. When a server has answered, what a client still wanted to send is of no use."""
        if stream.local_ended and stream.tail is None:
            self._close(stream)
        elif not self._server:
            self.reset(stream, f.NO_ERROR)

    def _open_window(self) -> None:
        """The connection's window is opened again as soon as data is here: streams hold back by their own windows."""
        if self._unreturned > self._limits.connection_window:
            raise ProtocolError(f.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        self._put(f.window_update(0, self._unreturned))
        self._unreturned = 0

    def _late_data(self, number: int, length: int) -> None:
        """DATA for a stream that is not open."""
        self.numbering.check_opened(number)
        if self._server or not length:
            self._guards.nothing()  # a client may have cut off much: what a window of its lets through
        if not self.numbering.was_cut(number):
            self._refuse(number, f.STREAM_CLOSED)

    def _stream_error(self, stream: Stream, code: int) -> None:
        """The peer broke the rules of one stream."""
        if self._server:
            self._guards.reset(stream.id)
        owner = stream.owner
        self.reset(stream, code)
        owner.on_reset(stream, code, "the peer broke the protocol")

    def on_headers(self, number: int, block: bytes, end: int) -> None:
        try:
            headers, timeout = self._decoder.decode(block)
        except HeaderListTooLarge:
            self._guards.nothing(len(block) >> 6)  # what it cost
            self._refuse_headers(self._found(number), number)
            return
        stream = self.streams.get(number) or self._found(number)
        if stream is not None:
            self._more_headers(stream, headers, end)
        elif not self.numbering.opens(number):
            self._guards.nothing()
        elif end or self._lane is None or not self._lane.begin(number, headers, timeout):
            self.new_stream(number, headers, timeout, end)

    def _found(self, number: int) -> Stream | None:
        """The stream, made now if the lane has its request."""
        return self.streams.get(number) or (None if self._lane is None else self._lane.find(number))

    def _refuse_headers(self, stream: Stream | None, number: int) -> None:
        if stream is not None:
            self._stream_error(stream, f.ENHANCE_YOUR_CALM)
        elif self.numbering.opens(number):
            self._guards.reset(number)
            self._refuse(number, f.ENHANCE_YOUR_CALM)

    def new_stream(self, number: int, headers: Headers, timeout: bytes | None, end: int) -> None:
        """Server role: the peer opened it; refused if there are too many."""
        under_way = len(self.streams) if self._lane is None else self.active
        if self.going_away or under_way >= self._limits.max_streams:
            self._guards.reset(number)
            self._refuse(number, f.REFUSED_STREAM)
            return
        stream = self.streams[number] = Stream(number, self._output.stream_window, self._limits.stream_window, NOBODY)
        self.last_taken = max(self.last_taken, number)
        stream.remote_ended = bool(end)
        self._handler.on_stream(stream, headers, timeout, bool(end))

    def received(self, length: int) -> None:
        """So much DATA came in frames that nobody else counts."""
        self._unreturned += length
        if self._unreturned >= self._half_window:
            self._open_window()

    def _more_headers(self, stream: Stream, headers: Headers, end: int) -> None:
        """A response's headers, or trailers."""
        fault = self._heads.fault(stream, headers, end)
        if fault is INTERIM:
            self._guards.nothing()
        elif fault:
            self._stream_error(stream, fault)
        else:
            stream.answered = True
            stream.remote_ended = bool(end)
            stream.owner.on_headers(stream, headers, bool(end))
            if end and not stream.closed:
                self._end_remote(stream)

    def on_reset(self, number: int, code: int) -> None:
        self.numbering.check_opened(number)
        stream = self._found(number)
        if stream is None:
            self._guards.nothing()
            return
        if self._server:
            self._guards.reset(number)
        self._drop(stream, code, f"stream reset by the peer with code {code}")

    def on_settings(self, settings: list[tuple[int, int]]) -> None:
        for name, value in settings:
            if name == f.HEADER_TABLE_SIZE:
                self._output.announce(self.encoder.resize(value))
        latest = dict(settings)
        if f.INITIAL_WINDOW_SIZE in latest:
            self._guards.nothing(len(self.streams) // 16)  # it costs a look at each
        self._output.allow(latest, self.streams.values())
        self._put(f.SETTINGS_ACK)
        could = self.can_open
        self._peer_streams = latest.get(f.MAX_CONCURRENT_STREAMS, self._peer_streams)
        if not self._server and self.can_open and not could:
            self._handler.on_slots()

    def on_ping(self, payload: bytes) -> None:
        self._put(f.frame(f.PING, f.ACK, 0, payload))
        if self._server:
            self._strikes.ping(self._keepalive.heard, self.active > 0)

    def on_goaway(self, last: int, code: int, text: str) -> None:
        if not self._server:
            self.going_away = True
            for stream in [each for each in self.streams.values() if each.id > last]:
                self._drop(stream, f.REFUSED_STREAM, f"GOAWAY {text}".rstrip())
        self._handler.on_goaway(code, text)

    def on_window_update(self, number: int, size: int) -> None:
        if not number:
            self._output.open_window(size)
        elif (stream := self._found(number)) is None:
            self.numbering.check_opened(number)
        elif code := self._output.open_stream_window(stream, size):
            self._stream_error(stream, code)
