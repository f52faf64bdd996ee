"""What goes to the peer: frames in order, DATA under the peer's windows.

A stream whose DATA finds a window shut keeps it in its queue. It is `ready` while its own window is open: what it then waits for is the
connection's window, or its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gateway.wire import frames as f
from gateway.wire.streams import Limits, Stream

_REMEMBERED = 4096
"""Bytes of the largest reply whose frame heads are kept."""

_COPIED = 2048
"""Bytes up to which one chunk more costs more than the copy that it saves."""


class ReplyForm(dict[int, bytes]):
    """Whole unary replies: `name.join((first, form[size], data + between, last))`, where `name` is the stream's number in four bytes, is a
    reply of so much data."""

    def __init__(self, headers: f.Numberless, trailers: f.Numberless) -> None:
        self.headers = headers
        self.trailers = trailers
        self.first = headers[0]
        self.between = trailers[0]
        self.last = trailers[1]

    def __missing__(self, size: int) -> bytes:
        middle = self.headers[1] + size.to_bytes(3, "big") + b"\x00\x00"
        if size <= _REMEMBERED:
            self[size] = middle
        return middle


class Output:
    """`chunks`: what `take` joins. `budget`: bytes of DATA that may go out at once, without a look at anything but the stream's own
    window and the frame size; below 0 none may, not even an empty one. `queued`: bytes that wait in streams. `spent`: the last `take`
    had DATA. `ended` is called when a stream's END_STREAM went into `chunks`."""

    __slots__ = (
        "_announcement", "_ended", "_granted", "_limits", "_ready", "budget", "chunks", "frame_size", "paused", "queued", "spent",
        "stalled_since", "stream_window", "window",
    )  # fmt: skip

    def __init__(self, limits: Limits, ended: Callable[[Stream], None]) -> None:
        self._limits = limits
        self._ended = ended
        self._announcement = b""  # HPACK's table size update, which begins the next header block
        self._ready: dict[int, Stream] = {}
        self.chunks: list[bytes | memoryview] = []
        self.window = f.DEFAULT_WINDOW
        self.budget = self._granted = self.window
        self.spent = False
        self.stream_window = f.DEFAULT_WINDOW  # of new streams
        self.frame_size = f.DEFAULT_FRAME_SIZE
        self.queued = 0
        self.paused = False
        self.stalled_since: float | None = None

    @property
    def pending(self) -> bool:
        """There is something that could be written now."""
        return not self.paused and bool(self.chunks or (self._ready and self.window > 0))

    def take(self) -> bytes:
        """Everything that may be written now, at most about two slices of DATA."""
        if self._ready and not self.paused:
            self._turn()
        self.spent = self.budget != self._granted
        data = b"".join(self.chunks)
        self.chunks.clear()
        self._renew()
        return data

    def _turn(self) -> None:
        """The streams that are ready put out a slice, one after the other."""
        left = self._limits.slice
        while self._ready and self.window > 0 and left > 0:
            left -= self._pump(next(iter(self._ready.values())), left)

    def _renew(self) -> None:
        shut = self.paused or self._announcement
        self.budget = self._granted = -1 if shut else min(self.window, self._limits.slice)

    def announce(self, update: bytes) -> None:
        """What the next header block has to begin with; until then there is no short way for anybody."""
        if update:
            self._announcement = update
            self._renew()

    def pause(self) -> None:
        """Put out no DATA until `resume`."""
        self.paused = True
        self._renew()

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self.stalled_since = None
        self._renew()

    def request(self, stream: Stream, block: bytes, data: bytes, end: bool) -> bool:
        """A new stream's HEADERS and message in one piece, if nothing stands against it; whether it went out."""
        size = len(data)
        if size > self.budget or size > stream.send_window or size > self.frame_size or len(block) > self.frame_size:
            return False
        self.budget -= size
        self.window -= size
        stream.send_window -= size
        name = stream.id.to_bytes(4, "big")
        self.chunks.append(b"".join((
            len(block).to_bytes(3, "big"), b"\x01\x04", name, block,
            size.to_bytes(3, "big"), b"\x00\x01" if end else b"\x00\x00", name, data,
        )))  # fmt: skip
        return True

    def reply(self, number: int, window: int, headers: f.Numberless, data: bytes, trailers: f.Numberless) -> bool:
        """A whole unary reply in one piece, if nothing stands against it; whether it went out."""
        size = len(data)
        if size > self.budget or size > window or size > self.frame_size:
            return False
        self.budget -= size
        self.window -= size
        name = number.to_bytes(4, "big")
        self.chunks.append(b"".join((
            headers[0], name, headers[1], size.to_bytes(3, "big"), b"\x00\x00", name, data, trailers[0], name, trailers[1],
        )))  # fmt: skip
        return True

    def replies(self, replies: list[tuple[bytes, bytes]], form: ReplyForm) -> bool:
        """Replies on new streams, if nothing stands against them: names and DATA. Whether they went out; all or none."""
        sizes = [len(data) for _, data in replies]
        total = sum(sizes)
        if total > self.budget or max(sizes) > min(self.stream_window, self.frame_size):
            return False
        self.budget -= total
        self.window -= total
        first, between, last = form.first, form.between, form.last
        self.chunks += [name.join((first, form[len(data)], data + between, last)) for name, data in replies]
        return True

    def data(self, stream: Stream, data: bytes, end: bool) -> None:
        """A DATA frame now, or as many as it takes when the windows allow."""
        size = len(data)
        if size <= self.budget and size <= stream.send_window and size <= self.frame_size and not stream.queued:
            self.budget -= size
            self.window -= size
            stream.send_window -= size
            head = size.to_bytes(3, "big") + (b"\x00\x01" if end else b"\x00\x00") + stream.id.to_bytes(4, "big")
            if size > _COPIED:
                self.chunks += (head, data)
            else:
                self.chunks.append(head + data)
            if end:
                self._ended(stream)
            return
        if end:
            stream.tail = b""
        if data:
            self._enqueue(stream, data)
        if end and not stream.queued:
            self._finish(stream)

    def headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """HEADERS, behind what is queued."""
        if stream.queued:
            stream.tail = block
            return
        if self._announcement:
            block = self._announcement + block
            self._announcement = b""
        self.chunks.append(f.header_frames(stream.id, block, end, self.frame_size))
        if end:
            self._ended(stream)

    def _enqueue(self, stream: Stream, data: bytes) -> None:
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(data)
        stream.queued += len(data)
        self.queued += len(data)
        if stream.send_window > 0:
            self._ready[stream.id] = stream
            if self.budget > 0:
                self._pump(stream, self.budget)
        if stream.queued > self._limits.high_water:
            stream.writable = False

    def _pump(self, stream: Stream, most: int) -> int:
        """Puts out what the windows allow of a ready stream's queue; how many bytes that were."""
        room = min(most, self.window, stream.send_window)
        left = room
        while left and stream.queue:
            left -= self._piece(stream, stream.queue, left)
        sent = room - left
        self.budget -= sent
        self.window -= sent
        self.queued -= sent
        stream.send_window -= sent
        stream.queued -= sent
        self.stalled_since = None
        del self._ready[stream.id]
        if not stream.queued:
            self._finish(stream)
        elif stream.send_window > 0:
            self._ready[stream.id] = stream  # behind the others
        if not stream.writable and stream.queued <= self._limits.low_water and not stream.closed:
            stream.writable = True
            stream.owner.on_drained(stream)
        return sent

    def _piece(self, stream: Stream, queue: deque[bytes], most: int) -> int:
        """One frame from the head of the queue."""
        head = queue[0]
        at = stream.offset
        size = min(len(head) - at, most, self.frame_size)
        self.chunks.append(size.to_bytes(3, "big") + b"\x00\x00" + stream.id.to_bytes(4, "big"))
        if size == len(head):
            self.chunks.append(head)
        else:
            self.chunks.append(memoryview(head)[at : at + size])
        if at + size == len(head):
            queue.popleft()
            stream.offset = 0
        else:
            stream.offset = at + size
        return size

    def _finish(self, stream: Stream) -> None:
        """The queue is empty: how the stream ends, if that is said already."""
        stream.queue = None
        tail, stream.tail = stream.tail, None
        if tail:
            self.headers(stream, tail, True)
        elif tail is not None:
            self.chunks.append(f.frame(f.DATA, f.END_STREAM, stream.id, b""))
            self._ended(stream)

    def forget(self, stream: Stream) -> None:
        """The stream is closed: drop what is queued."""
        if stream.queued:
            self.queued -= stream.queued
            stream.queued = 0
            stream.queue = None
            self._ready.pop(stream.id, None)
        stream.tail = None

    # What the peer allows

    def open_window(self, size: int) -> None:
        """WINDOW_UPDATE for the connection. Raises ProtocolError."""
        if not size:
            raise f.ProtocolError(f.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        self.window += size
        if self.window > f.LARGEST_WINDOW:
            raise f.ProtocolError(f.FLOW_CONTROL_ERROR, "the connection's window grew over 2^31-1")

    def open_stream_window(self, stream: Stream, size: int) -> int:
        """WINDOW_UPDATE for a stream; an error code, or NO_ERROR."""
        if not size:
            return f.PROTOCOL_ERROR
        if stream.send_window + size > f.LARGEST_WINDOW:
            return f.FLOW_CONTROL_ERROR
        stream.send_window += size
        if stream.queued and stream.send_window > 0:
            self._ready[stream.id] = stream
        return f.NO_ERROR

    def allow(self, settings: Mapping[int, int], streams: Iterable[Stream]) -> None:
        """The peer's SETTINGS. Raises ProtocolError."""
        self.frame_size = settings.get(f.MAX_FRAME_SIZE, self.frame_size)
        size = settings.get(f.INITIAL_WINDOW_SIZE, self.stream_window)
        if size != self.stream_window:
            self._resize_windows(streams, size)

    def _resize_windows(self, streams: Iterable[Stream], size: int) -> None:
        """The initial window changed, for open streams too; theirs may turn negative (section 6.9.2)."""
        difference = size - self.stream_window
        self.stream_window = size
        for stream in streams:
            stream.send_window += difference
            if stream.send_window > f.LARGEST_WINDOW:
                raise f.ProtocolError(f.FLOW_CONTROL_ERROR, "a stream's window grew over 2^31-1")
            if stream.queued and stream.send_window > 0:
                self._ready[stream.id] = stream
            else:
                self._ready.pop(stream.id, None)

    def stalled(self, now: float) -> bool:
        """Call now and then: whether something has waited too long for a peer that takes nothing."""
        if not self.queued and not self.paused:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = now
        return self.stalled_since is not None and now - self.stalled_since > self._limits.stall
