"""CallMachine: one gRPC call on one stream of HTTP/2, as the side that answers or the side that asks: how far each half
of the call is, the bytes that wait to be sent, and the message that is arriving. No I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final

from block_node.grpc.http2.message_reader import MessageReader

Headers = list[tuple[bytes, bytes]]


class CallProgress(enum.Enum):
    """How far the two halves of a call are: both may send (OPEN), the remote half is closed (ANSWERING), our last bytes
    wait to be sent (ENDING, or ENDING_ALONE if the remote half is closed), only the remote half is open (LINGERING)."""

    OPEN = "open"
    ANSWERING = "answering"
    ENDING = "ending"
    ENDING_ALONE = "ending alone"
    LINGERING = "lingering"
    CLOSED = "closed"


class CallInput(enum.Enum):
    """An event that can change the progress of a call. PEER_ENDED: the remote half has ended. FINISH: our half ends
    after its waiting bytes. SENT: the end of our half is framed. RESET: either side has reset the stream, or the
    connection is gone."""

    PEER_ENDED = "peer ended"
    FINISH = "finish"
    SENT = "sent"
    RESET = "reset"


_OPEN, _ANSWERING, _ENDING, _ENDING_ALONE, _LINGERING, _CLOSED = CallProgress

TRANSITIONS: Final[dict[tuple[CallProgress, CallInput], CallProgress]] = {
    (_OPEN, CallInput.PEER_ENDED): _ANSWERING,
    (_OPEN, CallInput.FINISH): _ENDING,
    (_OPEN, CallInput.RESET): _CLOSED,
    (_ANSWERING, CallInput.FINISH): _ENDING_ALONE,
    (_ANSWERING, CallInput.RESET): _CLOSED,
    # The peer may end or reset its half while our last bytes wait for its window.
    (_ENDING, CallInput.PEER_ENDED): _ENDING_ALONE,
    (_ENDING, CallInput.SENT): _LINGERING,
    (_ENDING, CallInput.RESET): _CLOSED,
    (_ENDING_ALONE, CallInput.SENT): _CLOSED,
    (_ENDING_ALONE, CallInput.RESET): _CLOSED,
    # The peer reads our end before anything closes, and then ends its half.
    (_LINGERING, CallInput.PEER_ENDED): _CLOSED,
    (_LINGERING, CallInput.RESET): _CLOSED,
}
"""For each state and input, the next state. A pair that is not listed changes nothing."""


class CallMachine:
    """One call. metadata: the headers of its request by their names; of a repeated name, the last one. path:
    `/SERVICE/METHOD`. reader: the messages of the remote half. reads: whether bytes from the peer are still used.

    - window_bytes: the window that we give the peer when nothing is under way. window_left_bytes: its rest.
    - closed_since_s, closed_s_longest: since when the window is 0, and the longest time for which it was 0.
    - message_until_s: when the message that is arriving must be complete; message_timed: the number of
      this message, counted as in `MessageReader.begun`.
    - moved_s: when bytes of `pending` were last framed, or began to wait.
    - wants_room: whether `send` has refused more bytes: the handler is told when there is room again.
    - trailers: the headers that follow `pending`; empty for a client, whose half ends without headers.
    - is_framed: whether our half has begun, with its headers.

    Invariant (`check`): `pending_bytes` is the size of `pending`. Nothing is pending in LINGERING and CLOSED.
    """

    def __init__(self, stream_id: int, metadata: dict[bytes, bytes], window_bytes: int, reader: MessageReader) -> None:
        self.stream_id = stream_id
        self.metadata = metadata
        self.path = metadata.get(b":path", b"")
        self.state = CallProgress.OPEN
        self.reader = reader
        self.reads = True
        self.window_bytes = self.window_left_bytes = window_bytes
        self.window_due_bytes = 0
        self.closed_since_s: float | None = None
        self.closed_s_longest = 0.0
        self.deadline_s: float | None = None
        self.linger_until_s: float | None = None
        self.message_until_s: float | None = None
        self.message_timed = 0
        self.pending: deque[bytes | memoryview] = deque()
        self.pending_bytes = 0
        self.moved_s = 0.0
        self.wants_room = False
        self.trailers: Headers | None = None
        self.is_framed = False

    @property
    def peer_ended(self) -> bool:
        return self.state in (_ANSWERING, _ENDING_ALONE, _CLOSED)

    @property
    def may_send(self) -> bool:
        return self.state in (_OPEN, _ANSWERING)

    def take(self, happened: CallInput) -> bool:
        before = self.state
        self.state = TRANSITIONS.get((before, happened), before)
        if self.state in (_LINGERING, _CLOSED):
            self.drop_pending()
        return self.state is not before

    def add(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.pending += pieces
        self.pending_bytes += sum(map(len, pieces))

    def cut(self, bytes_max: int, frame_bytes_max: int) -> bytes | memoryview:
        """Removes and returns up to `bytes_max` bytes of `pending`: a part of one large piece, or small pieces
        together."""
        room_bytes, first_bytes = min(bytes_max, frame_bytes_max), len(self.pending[0])
        if first_bytes >= room_bytes:
            return self._cut_first(min(bytes_max, first_bytes))
        # Small messages share a frame.
        gathered = []
        while self.pending and room_bytes:
            piece = self._cut_first(min(room_bytes, len(self.pending[0])))
            gathered.append(piece)
            room_bytes -= len(piece)
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)

    def drop_pending(self) -> None:
        self.pending.clear()
        self.pending_bytes = 0

    def note_window(self, change_bytes: int, now_s: float) -> None:
        self.window_left_bytes += change_bytes
        if self.window_left_bytes <= 0:
            self.closed_since_s = now_s if self.closed_since_s is None else self.closed_since_s
        elif self.closed_since_s is not None:
            self.closed_s_longest = max(self.closed_s_longest, now_s - self.closed_since_s)
            self.closed_since_s = None

    def window_closed_s(self, now_s: float) -> float:
        """Returns the longest time, up to now, for which the window that we give the peer was 0."""
        # A peer that has ended its half needs no window.
        since_s = None if self.peer_ended else self.closed_since_s
        return self.closed_s_longest if since_s is None else max(self.closed_s_longest, now_s - since_s)

    def check(self) -> None:
        assert self.pending_bytes == sum(map(len, self.pending))
        assert not self.pending or self.state not in (_LINGERING, _CLOSED)

    def _cut_first(self, size_bytes: int) -> bytes | memoryview:
        first = self.pending[0]
        self.pending_bytes -= size_bytes
        if size_bytes == len(first):
            return self.pending.popleft()
        view = memoryview(first)
        self.pending[0] = view[size_bytes:]
        return view[:size_bytes]
