"""Http2Machine: one HTTP/2 connection with its gRPC calls, as server or client. Bytes in, events out; no I/O.

`h2` reads and writes all frames but DATA, whose bytes it would copy several times. This module decides how much each
call may send, when a window is given back, how a call and a connection end, and how many frames of a kind may come.

Received bytes take from two windows. The window of the connection is given back when the bytes arrive, and that of the
call when a message has absorbed them. So a call whose handler waits never stops other calls.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import h2.events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import DataFrame, Frame

from block_node.grpc.http2.call_machine import CallInput, CallMachine, CallProgress, Headers
from block_node.grpc.http2.limits import Flood, FloodGuard, Http2Limits
from block_node.grpc.http2.message_reader import ACCEPTED, IDENTITY, MessageBudget, MessageReader
from block_node.grpc.http2.status import CallRefused, GrpcStatus, encode_message, read_timeout

TURN_BYTES: Final = 256 * 1024
"""How much one call sends before another one has its turn."""
STREAM_ID_MAX: Final = 2**31 - 1
HEAD_BYTES: Final = 9
"""The size of the head of a frame: length (3 bytes), type (1), flags (1), stream (4) (RFC 9113 §4.1)."""
PLAIN_DATA: Final[dict[bytes, tuple[str, ...]]] = {b"\0\0": (), b"\0\1": ("END_STREAM",)}
"""The type and flags of a DATA frame without padding (RFC 9113 §6.1), and the names of the flags in h2."""
DRAIN_PING: Final = b"leaving!"
HEADER_TABLE_BYTES: Final = 4096
"""The most that the compression of our headers remembers, which is the default of HTTP/2 (RFC 9113 §6.5.2). A peer can
allow 4 GiB; each new text of a `grpc-message` would then stay in memory until the end of the connection."""
DRAIN_S: Final = 1.0
"""The longest wait for the answer to DRAIN_PING. Calls that cross with the first GOAWAY are still served."""
CONTENT_TYPE: Final = b"application/grpc"
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(\+proto)?([ \t]*;.*)?")
"""Other messages than those of protobuf, and gRPC-Web with its trailers in the body, are not understood."""
ACCEPTED_HEADER: Final = (b"grpc-accept-encoding", ",".join(ACCEPTED).encode())


class ConnectionFailed(Exception):
    """The error of a connection that must end. kind: a short, fixed word for counters."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class CallOpened(NamedTuple):
    """A peer asks for a call. The caller sets up the reader of the call and begins the call, or finishes it."""

    call: CallMachine


class CallArrived(NamedTuple):
    """The call has new bytes, or its remote half has ended (is_end)."""

    call: CallMachine
    is_end: bool = False


class CallAnswered(NamedTuple):
    """The headers or trailers of an answer, at the side that asks."""

    call: CallMachine
    headers: dict[bytes, bytes]


class CallRoom(NamedTuple):
    call: CallMachine


class CallLost(NamedTuple):
    """The call is over, but its handler has not ended it. status: CANCELLED if the peer ended the call or is gone."""

    call: CallMachine
    reason: str
    status: GrpcStatus = GrpcStatus.CANCELLED


Event: TypeAlias = CallOpened | CallArrived | CallAnswered | CallRoom | CallLost


class DrainStage(enum.Enum):
    """How far the end of a connection is. DRAINING: the peer was asked to open no more calls. LEAVING: calls that the
    peer opens now are not served."""

    SERVING = "serving"
    DRAINING = "draining"
    LEAVING = "leaving"


class _FrameStates(H2ConnectionStateMachine):
    """The connection states of h2, without GOAWAY. h2 takes a GOAWAY for the end of the connection, while open calls go
    on after it (RFC 9113 §6.8)."""

    def process_input(self, input_: ConnectionInputs) -> list[h2.events.Event]:
        if input_ in (ConnectionInputs.SEND_GOAWAY, ConnectionInputs.RECV_GOAWAY):
            return []
        found: list[h2.events.Event] = super().process_input(input_)
        return found


class _Data(DataFrame):
    """A DATA frame with a short text form. h2 formats each received frame for a trace that nobody reads. For a DATA
    frame, the hexadecimal text would cost more than all else that h2 does with it."""

    def __repr__(self) -> str:
        return f"DATA of stream {self.stream_id}"


class _Frames(FrameBuffer):
    """The received frames, with `_Data` for each DATA frame. h2 would copy the data of an unpadded frame twice. The
    guard judges the head of each frame, once, before the body has come."""

    def __init__(self, guard: FloodGuard, *, server: bool) -> None:
        super().__init__(server=server)
        self._guard = guard
        self._is_judged = False

    def __next__(self) -> Frame:
        data = self._data
        if len(data) < HEAD_BYTES:
            raise StopIteration
        size_bytes, kind_and_flags = int.from_bytes(data[:3], "big"), bytes(data[3:5])
        if not self._is_judged:
            self._guard.judge(kind_and_flags[0], kind_and_flags[1], size_bytes)
        self._is_judged = len(data) < HEAD_BYTES + size_bytes
        stream_id = int.from_bytes(data[5:HEAD_BYTES], "big") & STREAM_ID_MAX
        if not stream_id or kind_and_flags not in PLAIN_DATA or self._headers_buffer:
            frame = super().__next__()
            if type(frame) is DataFrame:
                frame.__class__ = _Data
            return frame
        self._validate_frame_length(size_bytes)
        end = HEAD_BYTES + size_bytes
        if len(data) < end:
            raise StopIteration
        frame = _Data(stream_id, flags=PLAIN_DATA[kind_and_flags])
        with memoryview(data) as view:
            frame.data = bytes(view[HEAD_BYTES:end])
        frame.body_len = size_bytes
        del data[:end]
        return frame


class Http2Machine:
    """One HTTP/2 connection. calls: the open ones, by stream. out: the framed bytes that the socket has not taken.

    Invariant (`check`): `_sending` has each call that has bytes or trailers to send and is not `_blocked` by a window.
    `unsent_bytes` is the size of `out`.
    """

    def __init__(self, limits: Http2Limits, budget: MessageBudget, now_s: float, *, is_client: bool = False) -> None:
        self._limits = limits
        self._budget = budget
        self._is_client = is_client
        self._guard = FloodGuard(limits, now_s)
        self._sending: dict[int, CallMachine] = {}
        self._blocked: dict[int, CallMachine] = {}
        self._connection_due_bytes = 0
        self._pinged_s: float | None = None
        self._drained_by_s: float | None = None
        self._sent_s: float | None = None
        self.heard_s = self._used_s = self._ping_from_s = now_s
        self.stage = DrainStage.SERVING
        self.peer_leaves = False
        self.calls: dict[int, CallMachine] = {}
        self.out: deque[bytes | memoryview] = deque()
        self.unsent_bytes = 0
        self._h2 = self._make_h2()
        self._take_frames()

    def _make_h2(self) -> H2Connection:
        # Requests of real peers have headers that h2 would refuse, with the whole connection. `_note_request` checks
        # the headers that matter.
        made = H2Connection(
            H2Configuration(
                client_side=self._is_client,
                header_encoding=None,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        made.state_machine = _FrameStates()
        made.incoming_buffer = _Frames(self._guard, server=not self._is_client)
        made._frame_dispatch_table[_Data] = made._receive_data_frame
        limits = self._limits
        # Settings that are changed after the first frame are sent later: the peer would begin with the small defaults.
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SettingCodes.MAX_FRAME_SIZE: limits.frame_bytes_max,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
        }
        if self._is_client:
            values[SettingCodes.ENABLE_PUSH] = 0
        else:
            values[SettingCodes.MAX_CONCURRENT_STREAMS] = limits.streams_max
        made.local_settings = Settings(client=self._is_client, initial_values=values)
        made.max_inbound_frame_size = limits.frame_bytes_max
        made.decoder.max_header_list_size = limits.header_bytes_max
        made.initiate_connection()
        made.increment_flow_control_window(limits.connection_window_bytes - 65_535)
        # h2 would end the connection of a peer that opens too many calls, even before it has seen our settings.
        # `_note_request` refuses the calls instead.
        made.local_settings.max_concurrent_streams = STREAM_ID_MAX
        made.local_settings.acknowledge()
        return made

    # Receiving.

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Takes received bytes. Raises ConnectionFailed, after the GOAWAY that tells the peer why is in `out`."""
        self.heard_s = now_s
        if self._pinged_s is not None:
            # Any byte shows that the peer is alive.
            self._pinged_s, self._ping_from_s = None, now_s
        found: list[Event] = []
        try:
            self._guard.now_s = now_s
            for event in self._h2.receive_data(data):
                take = _TAKEN.get(type(event))
                if take is not None:
                    take(self, event, now_s, found)
        except Flood as error:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, str(error).encode())
            raise ConnectionFailed("flood", str(error)) from error
        except ProtocolError as error:
            # h2 has framed its GOAWAY already.
            raise ConnectionFailed("protocol", f"{type(error).__name__}: {error}") from error
        finally:
            self._take_frames()
        # The connection's window is given back at once, in few frames.
        if self._connection_due_bytes * 4 >= self._limits.connection_window_bytes:
            due, self._connection_due_bytes = self._connection_due_bytes, 0
            self._h2.increment_flow_control_window(due)
            self._take_frames()
        return found

    def _note_request(self, event: h2.events.RequestReceived, now_s: float, found: list[Event]) -> None:
        stream_id = event.stream_id
        if len(self.calls) >= self._limits.streams_max or self.stage is DrainStage.LEAVING:
            self._guard.refused()
            self._quietly(self._h2.reset_stream, stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = dict(event.headers)
        if headers.get(b":method") != b"POST" or _CONTENT_TYPE.fullmatch(headers.get(b"content-type", b"")) is None:
            is_post = headers.get(b":method") == b"POST"
            status = b"415" if is_post else b"405"
            self._quietly(self._h2.send_headers, stream_id, [(b":status", status)], True)
            # The body of a request that was refused is not needed.
            self._quietly(self._h2.reset_stream, stream_id, ErrorCodes.NO_ERROR)
            return
        refused = None
        timeout_s = None
        encoding = headers.get(b"grpc-encoding", IDENTITY.encode()).decode("latin-1")
        try:
            if b"grpc-timeout" in headers:
                timeout_s = read_timeout(headers[b"grpc-timeout"])
            if encoding not in ACCEPTED:
                raise CallRefused(GrpcStatus.UNIMPLEMENTED, f"messages compressed with {encoding[:50]} cannot be read")
        except CallRefused as error:
            refused = error
        call = self._add_call(stream_id, headers, encoding, timeout_s, now_s)
        if refused is not None:
            self.finish(call, refused.status, refused.text)
        else:
            found.append(CallOpened(call))

    def _add_call(
        self, stream_id: int, metadata: dict[bytes, bytes], encoding: str, timeout_s: float | None, now_s: float
    ) -> CallMachine:
        reader = MessageReader(encoding, self._budget)
        call = self.calls[stream_id] = CallMachine(stream_id, metadata, self._limits.stream_window_bytes, reader)
        call.moved_s = now_s
        call.deadline_s = None if timeout_s is None else now_s + timeout_s
        return call

    def _note_response(
        self, event: h2.events.ResponseReceived | h2.events.TrailersReceived, now_s: float, found: list[Event]
    ) -> None:
        call = self.calls.get(event.stream_id)
        if call is not None and self._is_client:
            found.append(CallAnswered(call, dict(event.headers)))

    def _note_data(self, event: h2.events.DataReceived, now_s: float, found: list[Event]) -> None:
        self._connection_due_bytes += event.flow_controlled_length
        call = self.calls.get(event.stream_id)
        # The peer gets no more window for a call that is not read any more.
        if call is None or not call.reads:
            return
        call.note_window(-event.flow_controlled_length, now_s)
        call.window_due_bytes += event.flow_controlled_length - len(event.data)
        call.reader.feed(event.data)
        if not found or not isinstance(found[-1], CallArrived) or found[-1].call is not call:
            found.append(CallArrived(call))

    def _note_end(self, event: h2.events.StreamEnded, now_s: float, found: list[Event]) -> None:
        call = self.calls.get(event.stream_id)
        if call is None:
            return
        call.take(CallInput.PEER_ENDED)
        if call.reads:
            found.append(CallArrived(call, is_end=True))
        if call.state is CallProgress.CLOSED:
            self._forget(call, now_s)

    def _note_reset(self, event: h2.events.StreamReset, now_s: float, found: list[Event]) -> None:
        call = self.calls.get(event.stream_id)
        if call is None:
            return
        # A reset of a call that has ended costs nothing. A reset of a call that is served has cost work, so it counts.
        if call.state is not CallProgress.LINGERING and not self._is_client:
            self._guard.reset()
        # A code that RFC 9113 does not define is a plain number.
        code = event.error_code.name if isinstance(event.error_code, ErrorCodes) else event.error_code
        self._lose(call, f"the peer has reset the call ({code})", now_s, found)

    def _note_window(self, event: h2.events.WindowUpdated, now_s: float, found: list[Event]) -> None:
        if event.stream_id:
            call = self._blocked.pop(event.stream_id, None)
            if call is not None:
                self._sending[event.stream_id] = call
        else:
            self._unblock()

    def _note_settings(self, event: h2.events.RemoteSettingsChanged, now_s: float, found: list[Event]) -> None:
        encoder = self._h2.encoder
        if encoder.header_table_size > HEADER_TABLE_BYTES:
            encoder.header_table_size = HEADER_TABLE_BYTES
        self._unblock()

    def _note_ping_answer(self, event: h2.events.PingAckReceived, now_s: float, found: list[Event]) -> None:
        if event.ping_data == DRAIN_PING and self.stage is DrainStage.DRAINING:
            self._leave()

    def _note_goaway(self, event: h2.events.ConnectionTerminated, now_s: float, found: list[Event]) -> None:
        self.peer_leaves = True

    # Called by the code that handles a call.

    def begin(self, call: CallMachine, encoding: str) -> None:
        """Sends the headers of an answer at once. encoding: the encoding of its compressed messages."""
        headers = [(b":status", b"200"), (b"content-type", CONTENT_TYPE)]
        headers += [(b"grpc-encoding", encoding.encode()), ACCEPTED_HEADER]
        if not call.is_framed:
            call.is_framed = self._quietly(self._h2.send_headers, call.stream_id, headers)

    def ask(self, headers: Headers, timeout_s: float | None, now_s: float) -> CallMachine:
        """Opens a call at the server. Raises ProtocolError if the server allows no more calls."""
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, headers)
        self._take_frames()
        call = self._add_call(stream_id, dict(headers), IDENTITY, timeout_s, now_s)
        call.is_framed = True
        return call

    def send(self, call: CallMachine, pieces: list[bytes | memoryview], now_s: float) -> bool:
        """Adds bytes to send. Returns whether there is room for more; if not, CallRoom follows."""
        if not call.may_send:
            return True
        if not call.pending:
            call.moved_s = now_s
        call.add(pieces)
        if call.stream_id not in self._blocked:
            self._sending[call.stream_id] = call
        call.wants_room = call.wants_room or call.pending_bytes >= self._limits.pending_bytes_max
        return not call.wants_room

    def finish(self, call: CallMachine, status: GrpcStatus, text: str = "", *, at_once: bool = False) -> None:
        """Ends a call with its status, after all waiting bytes. at_once: drops these bytes. Safe to repeat."""
        if at_once:
            call.drop_pending()
        trailers = [(b"grpc-status", str(int(status)).encode())]
        if text:
            trailers.append((b"grpc-message", encode_message(text)))
        if status is GrpcStatus.UNIMPLEMENTED:
            trailers.append(ACCEPTED_HEADER)
        self._end_half(call, trailers)

    def end_half(self, call: CallMachine) -> None:
        self._end_half(call, [])

    def _end_half(self, call: CallMachine, trailers: Headers) -> None:
        if call.take(CallInput.FINISH):
            call.trailers = trailers
            # Further bytes of the peer are not read, unless they are the answer to a request of this side.
            if not self._is_client:
                self.stop_reading(call)
            if not call.pending or call.stream_id not in self._blocked:
                self._blocked.pop(call.stream_id, None)
                self._sending[call.stream_id] = call

    def stop_reading(self, call: CallMachine) -> None:
        call.reads = False
        call.reader.close()

    def reset(self, call: CallMachine, code: ErrorCodes, now_s: float) -> None:
        self._quietly(self._h2.reset_stream, call.stream_id, code)
        call.take(CallInput.RESET)
        self._forget(call, now_s)

    def absorbed(self, call: CallMachine, now_s: float, *, is_held: bool = False) -> None:
        """Gives back the window of the absorbed bytes. is_held: whether the handler takes nothing now."""
        if not call.reads:
            return
        call.window_due_bytes += call.reader.take_absorbed()
        # Each message must be complete within a time of its own, which is longer for a large message. The time is off
        # while the handler takes nothing or the peer may not send the rest, and then begins anew.
        reader, limits, waits = call.reader, self._limits, call.reader.must_wait
        if is_held or waits or not reader.missing_bytes:
            call.message_until_s = None
        elif call.message_until_s is None or call.message_timed != reader.begun:
            call.message_timed = reader.begun
            call.message_until_s = now_s + limits.message_s_max + reader.missing_bytes / limits.message_bytes_per_s
        if call.window_due_bytes * 4 >= call.window_bytes and not waits and not call.peer_ended:
            due, call.window_due_bytes = call.window_due_bytes, 0
            if self._quietly(self._h2.increment_flow_control_window, due, call.stream_id):
                call.note_window(due, now_s)

    def widen(self, call: CallMachine, window_bytes: int, now_s: float) -> None:
        if window_bytes <= call.window_bytes or call.peer_ended:
            return
        more_bytes = self._budget.widen(window_bytes - call.window_bytes)
        call.window_bytes += more_bytes
        if more_bytes and self._quietly(self._h2.increment_flow_control_window, more_bytes, call.stream_id):
            call.note_window(more_bytes, now_s)

    # Sending.

    def pump(self, now_s: float) -> list[Event]:
        """Frames the bytes that may be sent, as long as the socket keeps up. Returns which calls have room now."""
        found: list[Event] = []
        while self._sending and self.unsent_bytes < self._limits.unsent_bytes_max:
            stream_id, call = next(iter(self._sending.items()))
            del self._sending[stream_id]
            self._frame(call, now_s)
            # Every call that was refused room is told when it has room, even if its bytes are all framed.
            if call.wants_room and call.pending_bytes * 2 <= self._limits.pending_bytes_max:
                call.wants_room = False
                found.append(CallRoom(call))
        return found

    def note_sent(self, size_bytes: int, now_s: float) -> None:
        self.unsent_bytes -= size_bytes
        self._sent_s = now_s if self.unsent_bytes else None
        out = self.out
        while size_bytes:
            first_bytes = len(out[0])
            if first_bytes > size_bytes:
                out[0] = out[0][size_bytes:]
                return
            size_bytes -= first_bytes
            out.popleft()

    def _frame(self, call: CallMachine, now_s: float) -> None:
        stream_id, connection = call.stream_id, self._h2
        stream, frame_bytes_max = connection.streams[stream_id], connection.max_outbound_frame_size
        left_bytes = TURN_BYTES
        while call.pending and left_bytes > 0:
            room_bytes = min(stream.outbound_flow_control_window, connection.outbound_flow_control_window)
            if room_bytes <= 0:
                self._blocked[stream_id] = call
                return
            place_bytes = self._limits.unsent_bytes_max - self.unsent_bytes
            if place_bytes <= 0:
                break
            data = memoryview(call.cut(min(room_bytes, left_bytes, place_bytes), frame_bytes_max))
            size_bytes = len(data)
            call.moved_s = now_s
            # h2 would copy the data of each frame three times. So frames are written here, their data stay where they
            # are, and h2 only learns what they take from the two windows.
            stream.outbound_flow_control_window -= size_bytes
            connection.outbound_flow_control_window -= size_bytes
            left_bytes -= size_bytes
            for start in range(0, size_bytes, frame_bytes_max):
                piece = data[start : start + frame_bytes_max]
                # The head of the frame. Its type and flags are 0.
                self.out += ((len(piece) << 48 | stream_id).to_bytes(HEAD_BYTES, "big"), piece)
                self.unsent_bytes += HEAD_BYTES + len(piece)
        if call.pending:
            self._sending[stream_id] = call
        elif call.trailers is not None:
            self._frame_end(call, now_s)

    def _frame_end(self, call: CallMachine, now_s: float) -> None:
        trailers = call.trailers or []
        if self._is_client:
            self._quietly(self._h2.end_stream, call.stream_id)
        else:
            # Without headers before them, the trailers are the whole answer.
            if not call.is_framed:
                trailers = [(b":status", b"200"), (b"content-type", CONTENT_TYPE), *trailers]
            self._quietly(self._h2.send_headers, call.stream_id, trailers, True)
        call.take(CallInput.SENT)
        if call.state is CallProgress.CLOSED:
            self._forget(call, now_s)
        elif not self._is_client:
            call.linger_until_s = now_s + self._limits.linger_s

    # Time.

    def next_tick_s(self) -> float:
        limits = self._limits
        until_s = [
            self._ping_from_s + limits.ping_s if self._pinged_s is None else self._pinged_s + limits.ping_answer_s
        ]
        if not self.calls:
            until_s.append(self._used_s + limits.idle_s_max)
        if self.unsent_bytes and self._sent_s is not None:
            until_s.append(self._sent_s + limits.send_s_max)
        if self._drained_by_s is not None:
            until_s.append(self._drained_by_s)
        for call in self.calls.values():
            if call.pending and not self._is_client:
                until_s.append(call.moved_s + limits.send_s_max)
            until_s += [
                each for each in (call.deadline_s, call.linger_until_s, call.message_until_s) if each is not None
            ]
        return min(until_s)

    def tick(self, now_s: float) -> list[Event]:
        """Checks every deadline. Raises ConnectionFailed for a peer that is gone, stuck, or idle for too long."""
        found: list[Event] = []
        # The connection comes first: if it fails, no event is lost.
        self._tick_connection(now_s)
        for call in list(self.calls.values()):
            self._tick_call(call, now_s, found)
        self._take_frames()
        return found

    def _tick_call(self, call: CallMachine, now_s: float, found: list[Event]) -> None:
        if call.linger_until_s is not None and now_s >= call.linger_until_s:
            # The call ended long ago, and the peer still keeps its half open.
            self.reset(call, ErrorCodes.NO_ERROR, now_s)
            return
        status, send_s_max = GrpcStatus.DEADLINE_EXCEEDED, self._limits.send_s_max
        if call.deadline_s is not None and now_s >= call.deadline_s:
            call.deadline_s, reason = None, "the deadline of the call has passed"
        elif call.message_until_s is not None and now_s >= call.message_until_s:
            call.message_until_s, reason = None, "a message was not complete in time"
        elif call.pending and not self._is_client and now_s >= call.moved_s + send_s_max:
            # Bytes that wait for a window that the peer never opens would stay in memory for ever.
            status, reason = GrpcStatus.RESOURCE_EXHAUSTED, f"the peer took nothing for {send_s_max:g} s"
        else:
            return
        if self._is_client or not call.may_send:
            self.reset(call, ErrorCodes.CANCEL, now_s)
        else:
            self.finish(call, status, reason, at_once=True)
        found.append(CallLost(call, reason, status))

    def _tick_connection(self, now_s: float) -> None:
        # The sums are those of `next_tick_s`: else a clock that wakes at that time could find nothing due, for ever.
        limits = self._limits
        if self._drained_by_s is not None and now_s >= self._drained_by_s:
            self._leave()
        if not self.unsent_bytes:
            self._sent_s = None
        elif self._sent_s is None:
            self._sent_s = now_s
        elif now_s >= self._sent_s + limits.send_s_max:
            raise ConnectionFailed("stuck", f"the peer has taken nothing for {limits.send_s_max:g} s")
        if not self.calls and now_s >= self._used_s + limits.idle_s_max:
            self._h2.close_connection(ErrorCodes.NO_ERROR, b"idle")
            self._take_frames()
            raise ConnectionFailed("idle", f"no call was open for {limits.idle_s_max:g} s")
        # A peer that lost its power sends no end.
        if self._pinged_s is not None:
            if now_s >= self._pinged_s + limits.ping_answer_s:
                raise ConnectionFailed("silent", f"nothing came for {now_s - self.heard_s:.0f} s, not even to a PING")
        elif now_s >= self._ping_from_s + limits.ping_s:
            self._pinged_s = now_s
            self._h2.ping(b"alive? ?")

    # The end of the connection.

    def drain(self, now_s: float) -> None:
        """Asks the peer to open no more calls. Calls that the peer opens before it reads this request are served."""
        if self.stage is DrainStage.SERVING:
            self.stage = DrainStage.DRAINING
            self._drained_by_s = now_s + DRAIN_S
            self._h2.close_connection(ErrorCodes.NO_ERROR, last_stream_id=STREAM_ID_MAX)
            self._h2.ping(DRAIN_PING)
            self._take_frames()

    @property
    def is_done(self) -> bool:
        """Whether the connection can end: no call is served or will be served, and everything was sent."""
        served = [call for call in self.calls.values() if call.state is not CallProgress.LINGERING]
        return self.stage is DrainStage.LEAVING and not served and not self.unsent_bytes

    def lose(self, reason: str, now_s: float) -> list[Event]:
        found: list[Event] = []
        for call in list(self.calls.values()):
            self._lose(call, reason, now_s, found)
        return found

    def check(self) -> None:
        assert self.unsent_bytes == sum(map(len, self.out))
        for call in self.calls.values():
            call.check()
            waits = bool(call.pending) or (call.trailers is not None and call.state is not CallProgress.LINGERING)
            assert waits is (call.stream_id in self._sending or call.stream_id in self._blocked)
        assert not self._sending.keys() & self._blocked.keys()

    def _leave(self) -> None:
        self.stage, self._drained_by_s = DrainStage.LEAVING, None
        self._h2.close_connection(ErrorCodes.NO_ERROR)
        self._take_frames()

    def _lose(self, call: CallMachine, reason: str, now_s: float, found: list[Event]) -> None:
        # For the side that answers, a lingering call is over. For the side that asks, its answer is still to come.
        is_over = call.state is CallProgress.CLOSED or (call.state is CallProgress.LINGERING and not self._is_client)
        call.take(CallInput.RESET)
        self._forget(call, now_s)
        if not is_over:
            found.append(CallLost(call, reason))

    def _forget(self, call: CallMachine, now_s: float) -> None:
        self.calls.pop(call.stream_id, None)
        self._sending.pop(call.stream_id, None)
        self._blocked.pop(call.stream_id, None)
        self._budget.widen(self._limits.stream_window_bytes - call.window_bytes)
        call.window_bytes = self._limits.stream_window_bytes
        # A client may take the last messages after the end of the stream; a server drops the rest.
        if not self._is_client:
            self.stop_reading(call)
        self._used_s = now_s

    def _unblock(self) -> None:
        self._sending |= self._blocked
        self._blocked.clear()

    def _quietly(self, function: Callable[..., object], *arguments: object) -> bool:
        """Calls h2 for one stream. Returns False if the peer has reset that stream; the event of the reset follows."""
        try:
            function(*arguments)
        except (ProtocolError, KeyError):
            return False
        finally:
            # Frames are taken from h2 one by one: frames that gather there are copied several times.
            self._take_frames()
        return True

    def _take_frames(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self.out.append(data)
            self.unsent_bytes += len(data)


_TAKEN: Final[dict[type[object], Callable[..., None]]] = {
    h2.events.RequestReceived: Http2Machine._note_request,
    h2.events.ResponseReceived: Http2Machine._note_response,
    h2.events.TrailersReceived: Http2Machine._note_response,
    h2.events.DataReceived: Http2Machine._note_data,
    h2.events.StreamEnded: Http2Machine._note_end,
    h2.events.StreamReset: Http2Machine._note_reset,
    h2.events.WindowUpdated: Http2Machine._note_window,
    h2.events.RemoteSettingsChanged: Http2Machine._note_settings,
    h2.events.PingAckReceived: Http2Machine._note_ping_answer,
    h2.events.ConnectionTerminated: Http2Machine._note_goaway,
}
"""The method for each event of h2. Other events need nothing: h2 acknowledges settings and PINGs itself."""
