"""Conversations with the `h2` package as the peer, in both roles: any order of events, any cut of the bytes.

Whatever either end says has to arrive, once, in order and in full, and neither may find fault with the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gateway.wire.connection import Limits, Role, Stream
from gateway.wire.frames import CANCEL, NO_ERROR, PREFACE, frame
from gateway.wire.hpack import Headers, encode_static, literal
from tests.wire.side import REQUEST, Heard, Side, frames

LIMITS = Limits(
    stream_window=70_000, connection_window=100_000, slice=50_000, high_water=60_000, low_water=10_000, max_streams=8,
    min_ping_interval=0.0, min_idle_ping_interval=0.0,
)  # fmt: skip
RESPONSE: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS: Headers = ((b"grpc-status", b"0"), (b"x-note", b"n" * 200))
LONG: Headers = (*REQUEST, (b"x-long", b"l" * 20_000), (b"x-longer", b"m" * 20_000))

CUTS = st.lists(st.integers(1, 200), max_size=5)
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([16_384, 16_385, 40_000, 150_000]))
WINDOWS = [0, 1, 1000, 65_535, 200_000]
FRAME_SIZES = [16_384, 20_000, 1 << 20]
PICKS = st.integers(0, 1 << 30)


@dataclass
class Talk:
    """What was said on one stream, and what of it `h2` heard."""

    stream: Stream
    said: bytearray = field(default_factory=bytearray)  # by us
    said_headers: list[Headers] = field(default_factory=list)
    said_end: bool = False
    heard: bytearray = field(default_factory=bytearray)  # by h2
    heard_headers: list[Headers] = field(default_factory=list)
    heard_end: bool = False
    theirs: bytearray = field(default_factory=bytearray)  # said by h2
    theirs_headers: list[Headers] = field(default_factory=list)
    theirs_end: bool = False
    owed: int = 0  # bytes that h2 has not given back
    gone: bool = False  # h2 may not say anything more
    reset: bool = False
    unwatched: bool = False  # reset by one while the other may have been right in the middle


class Conversation(RuleBasedStateMachine):
    """The rules for both roles; `role` is ours."""

    role: Role

    def __init__(self) -> None:
        super().__init__()
        config = h2.config.H2Configuration(client_side=self.role is Role.SERVER, header_encoding=None)
        self.peer = h2.connection.H2Connection(config)
        self.side = Side(self.role, LIMITS)
        self.talks: dict[int, Talk] = {}
        self.pongs = self.pings = 0
        self.generous = False
        self.unacknowledged = 1
        self.peer.initiate_connection()
        self.deliver([])
        self.deliver([])

    # bytes there and back

    @rule(cuts=CUTS)
    def deliver(self, cuts: list[int]) -> None:
        """What both have to say arrives; at `h2` frame by frame, as it heeds an acknowledged frame size from its next call on."""
        data = self.side.conn.take()
        if data.startswith(PREFACE):
            self.hear(self.peer.receive_data(PREFACE))
            data = data[len(PREFACE) :]
        for each in frames(data):
            self.hear(self.peer.receive_data(frame(*each)))
        self.side.receive(self.peer.data_to_send(), cuts)
        assert self.side.conn.closing is None
        for number, heard in self.side.heard.items():
            if number not in self.talks:
                assert heard.stream is not None
                self.talks[number] = Talk(heard.stream)

    def hear(self, events: list[h2.events.Event]) -> None:
        for event in events:
            assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.UnknownFrameReceived), event
            if isinstance(event, h2.events.PingAckReceived):
                self.pongs += 1
            if isinstance(event, h2.events.SettingsAcknowledged):
                self.unacknowledged -= 1
            number = getattr(event, "stream_id", None)
            if number in self.talks:
                self.hear_on(self.talks[number], event)

    def hear_on(self, talk: Talk, event: h2.events.Event) -> None:
        match event:
            case h2.events.DataReceived():
                talk.heard += event.data
                talk.owed += event.flow_controlled_length
                if self.generous:
                    self.give_back(talk)
            case h2.events.RequestReceived() | h2.events.ResponseReceived() | h2.events.TrailersReceived():
                talk.heard_headers.append(tuple((bytes(name), bytes(value)) for name, value in event.headers))
            case h2.events.StreamEnded():
                talk.heard_end = True
            case h2.events.StreamReset():
                talk.gone = True
                talk.reset = not (talk.heard_end and event.error_code == NO_ERROR)

    def give_back(self, talk: Talk) -> None:
        if talk.owed:
            self.peer.acknowledge_received_data(talk.owed, talk.stream.id)
            talk.owed = 0

    # what our side does

    def ours(self, pick: int) -> Talk | None:
        """A stream on which we may still say something."""
        talks = [talk for talk in self.talks.values() if not talk.said_end and not talk.reset and not talk.stream.closed]
        return talks[pick % len(talks)] if talks else None

    @rule(pick=PICKS, size=SIZES)
    def say(self, pick: int, size: int) -> None:
        talk = self.ours(pick)
        if talk is None:
            return
        if self.role is Role.SERVER and not talk.said_headers:
            self.side.conn.send_headers(talk.stream, encode_static(RESPONSE), False)
            talk.said_headers.append(RESPONSE)
        data = bytes((pick + number) % 251 for number in range(256)) * (size // 256 + 1)
        self.side.conn.send_data(talk.stream, data[:size], False)
        talk.said += data[:size]

    @rule(pick=PICKS, trailers=st.booleans())
    def say_end(self, pick: int, trailers: bool) -> None:
        talk = self.ours(pick)
        if talk is None:
            return
        talk.said_end = True
        if not talk.said_headers:
            self.side.conn.send_headers(talk.stream, encode_static(RESPONSE), False)
            talk.said_headers.append(RESPONSE)
        if trailers or talk.stream.send_window < 0:  # `h2` refuses an empty DATA frame then; section 6.9.1 allows it
            self.side.conn.send_headers(talk.stream, encode_static(TRAILERS), True)
            talk.said_headers.append(TRAILERS)
        else:
            self.side.conn.send_data(talk.stream, b"", True)

    @rule(pick=PICKS)
    def cut_off(self, pick: int) -> None:
        talk = self.ours(pick)
        if talk is not None:
            self.side.conn.reset(talk.stream, CANCEL)
            talk.unwatched = True

    @rule()
    def stop_and_go(self) -> None:
        """The transport is full for a moment."""
        self.side.conn.pause()
        assert self.side.conn.take() == b""
        assert not self.side.conn.pending
        self.side.conn.resume()

    # what the peer does

    def theirs(self, pick: int) -> Talk | None:
        """A stream on which h2 may still say something."""
        talks = [talk for talk in self.talks.values() if not talk.theirs_end and not talk.gone and not talk.unwatched]
        talks = [talk for talk in talks if talk.theirs_headers]
        return talks[pick % len(talks)] if talks else None

    @rule(pick=PICKS, size=st.integers(0, 20_000), padding=st.none() | st.integers(0, 255))
    def peer_says(self, pick: int, size: int, padding: int | None) -> None:
        talk = self.theirs(pick)
        if talk is None:
            return
        most = min(self.peer.local_flow_control_window(talk.stream.id), self.peer.max_outbound_frame_size)
        size = min(size, most - (padding + 1 if padding is not None else 0))
        if size >= 0:
            self.peer.send_data(talk.stream.id, b"p" * size, pad_length=padding)
            talk.theirs += b"p" * size

    @rule(pick=PICKS, trailers=st.booleans())
    def peer_ends(self, pick: int, trailers: bool) -> None:
        talk = self.theirs(pick)
        if talk is None:
            return
        talk.theirs_end = True
        if self.role is Role.CLIENT:
            talk.unwatched = not talk.said_end  # our side then gives up what it wanted to say
        if trailers:
            self.peer.send_headers(talk.stream.id, list(TRAILERS), end_stream=True)
            talk.theirs_headers.append(TRAILERS)
        else:
            self.peer.end_stream(talk.stream.id)

    @rule(pick=PICKS)
    def peer_resets(self, pick: int) -> None:
        talk = self.theirs(pick)
        if talk is not None:
            self.peer.reset_stream(talk.stream.id, CANCEL)
            talk.unwatched = True

    @rule(pick=PICKS)
    def peer_gives_back(self, pick: int) -> None:
        talks = [talk for talk in self.talks.values() if talk.owed]
        if talks:
            self.give_back(talks[pick % len(talks)])

    @precondition(lambda self: not self.unacknowledged)  # `h2` does not tell which SETTINGS an acknowledgement is for
    @rule(window=st.sampled_from(WINDOWS), most=st.sampled_from(FRAME_SIZES), table=st.sampled_from([0, 100, 4096]))
    def peer_sets(self, window: int, most: int, table: int) -> None:
        names = h2.settings.SettingCodes
        self.unacknowledged += 1
        self.peer.update_settings({names.INITIAL_WINDOW_SIZE: window, names.MAX_FRAME_SIZE: most, names.HEADER_TABLE_SIZE: table})

    @rule()
    def peer_pings(self) -> None:
        self.peer.ping(b"12345678")
        self.pings += 1

    # how it ends

    def teardown(self) -> None:
        """The peer opens all windows; then everything has to be where it belongs."""
        self.generous = True
        self.deliver([])
        self.deliver([])
        names = h2.settings.SettingCodes
        self.peer.update_settings({names.INITIAL_WINDOW_SIZE: 1 << 20})
        for talk in self.talks.values():
            self.give_back(talk)
        for _ in range(200):
            self.deliver([])
            if not self.side.conn.pending and not self.peer._data_to_send:
                break
        assert not self.side.conn.pending
        assert self.pongs == self.pings
        for number, talk in self.talks.items():
            self.compare(talk, self.side.heard[number])
        self.check_bookkeeping()

    def compare(self, talk: Talk, heard: Heard) -> None:
        assert talk.said.startswith(talk.heard)
        assert talk.theirs.startswith(heard.data)
        if talk.reset or talk.unwatched:
            return
        assert talk.heard == talk.said
        assert talk.heard_headers == talk.said_headers
        assert talk.heard_end == talk.said_end
        if self.role is Role.SERVER and talk.said_end and not heard.ended:
            return  # a server that has answered lets go of what the client still wanted to say
        assert heard.data == talk.theirs
        assert heard.ended == talk.theirs_end
        if self.role is Role.CLIENT or talk.theirs_headers:
            assert heard.headers == talk.theirs_headers
        assert talk.stream.closed == (talk.said_end and (talk.theirs_end or self.role is Role.SERVER))

    def check_bookkeeping(self) -> None:
        output = self.side.conn._output
        assert output.queued == sum(stream.queued for stream in self.side.conn.streams.values()) == 0
        assert not output._ready
        assert output.window == self.peer.inbound_flow_control_window


class Served(Conversation):
    """We are the server."""

    role = Role.SERVER

    @precondition(lambda self: self.peer.open_outbound_streams < LIMITS.max_streams)
    @rule(end=st.booleans(), headers=st.sampled_from([REQUEST, LONG]), timeout=st.integers(0, 99), cuts=CUTS)
    def request(self, end: bool, headers: Headers, timeout: int, cuts: list[int]) -> None:
        number = self.peer.get_next_available_stream_id()
        self.peer.send_headers(number, [*headers, (b"grpc-timeout", b"%dS" % timeout)], end_stream=end)
        self.deliver(cuts)
        assert self.side.heard[number].timeout == b"%dS" % timeout
        talk = self.talks[number]
        talk.theirs_headers.append(headers)
        talk.theirs_end = end


class Asking(Conversation):
    """We are the client."""

    role = Role.CLIENT

    @precondition(lambda self: self.side.conn.can_open)
    @rule(size=st.none() | SIZES, end=st.booleans(), headers=st.sampled_from([REQUEST, LONG]))
    def request(self, size: int | None, end: bool, headers: Headers) -> None:
        data = None if size is None else b"r" * size
        block = self.side.conn.encoder.encode(headers) + literal(b"grpc-timeout", b"5S")
        heard = self.side.open(block, data, end)
        assert heard.stream is not None
        talk = self.talks[heard.stream.id] = Talk(heard.stream, said=bytearray(data or b""), said_end=end)
        talk.said_headers.append((*headers, (b"grpc-timeout", b"5S")))

    @rule(pick=PICKS, interim=st.booleans(), cuts=CUTS)
    def answer(self, pick: int, interim: bool, cuts: list[int]) -> None:
        talks = [talk for talk in self.talks.values() if talk.heard_headers and not talk.theirs_headers and not talk.gone]
        talks = [talk for talk in talks if not talk.unwatched]
        if talks:
            talk = talks[pick % len(talks)]
            if interim:
                self.peer.send_headers(talk.stream.id, [(b":status", b"103"), (b"link", b"x")])
            self.peer.send_headers(talk.stream.id, list(RESPONSE))
            talk.theirs_headers.append(RESPONSE)


TestServed = Served.TestCase
TestAsking = Asking.TestCase
TestServed.settings = TestAsking.settings = settings(max_examples=60, stateful_step_count=50, report_multiple_bugs=False)
