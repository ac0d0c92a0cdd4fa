"""GrpcConnection: moves the bytes of one connection between its socket and `Http2Machine`, and calls handlers.

It decides nothing about frames, windows or messages. `ServerConnection` answers calls: for each, a `Route` makes the
`CallHandler`, which uses its `GrpcCall`. The client half is in `block_node.grpc.client`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog
import trio

from block_node.grpc.http2.call_machine import CallMachine
from block_node.grpc.http2.http2_machine import (
    CallAnswered,
    CallArrived,
    CallLost,
    CallOpened,
    CallRoom,
    ConnectionFailed,
    Event,
    Http2Machine,
)
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import GZIP, IDENTITY, ZSTD, MessageBudget, compress, prefix_of_message
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from ockam.log_rate import LogRate
from ockam.quotas.usage import UNLIMITED, Usage

LAST_WORDS_S: Final = 1.0
"""How long a connection that fails may take to send its GOAWAY, and to read the bytes under way."""

COMPRESSED_BYTES_MIN: Final = 1024
"""Smaller messages are sent as they are."""

FAILED: Final = "the node could not answer; its log has the reason"

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class DoorCounts:
    """Counters of all connections of a door (`block_node.grpc`). calls: by the status of the call. closed: by the
    reason of the close."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        # Two rates, so that many lines about calls do not keep lines about connections out of the log.
        self.lines, self.call_lines = LogRate(), LogRate()


class CallHandler(Protocol):
    """Takes the messages of one call. Its methods are called in the trio thread, and never while one of them runs.
    They can raise CallRefused, which ends the call. No method is called after `ended`, or after the handler has ended
    the call. logs_end: whether the handler itself logs why it ends a call.
    """

    logs_end: bool = False

    def may_take(self) -> bool:
        """Whether the handler takes messages now. After False, it calls `GrpcCall.resume` when it can take them."""
        ...

    def take(self, message: bytes) -> None: ...

    def half_closed(self) -> None:
        """Called when the peer sends no more messages."""
        return

    def room(self) -> None:
        """Called after `GrpcCall.send` has returned False, when there is room."""
        return

    def ended(self, reason: str) -> None:
        """Called when the call is over, and the handler has not ended it."""
        return


class ServedCall:
    """A call with its handler. peer_ended: whether the event that ends the remote half was handled, after all earlier
    events. has_half_closed: whether the handler knows that no message follows."""

    def __init__(self, machine: CallMachine, handler: CallHandler) -> None:
        self.machine = machine
        self.handler = handler
        self.peer_ended = self.has_half_closed = False


class GrpcConnection:
    """One connection, from the end of its TLS handshake on. address: `host:port` of the peer, for the log.

    batch: makes the context in which the handlers take the messages of one read. usage: the peer's use of the node;
    above its limits, the connection is read more slowly.
    Invariant: `_served` has each call that is open for its handler.
    """

    def __init__(
        self,
        stream: SocketBytes,
        machine: Http2Machine,
        limits: Http2Limits,
        counts: DoorCounts,
        *,
        address: str,
        batch: Callable[[], AbstractContextManager[object]],
        usage: Usage = UNLIMITED,
    ) -> None:
        self._stream = stream
        self._usage = usage
        self._taken_messages = 0
        self._limits = limits
        self._counts = counts
        self._batch = batch
        self.address = address
        self._machine = machine
        self._served: dict[int, ServedCall] = {}
        self._resumed: dict[int, None] = {}
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._scope = trio.CancelScope()
        self._clock_scope = trio.CancelScope()
        self._closed_by: str | None = None

    @property
    def open_calls(self) -> int:
        return len(self._machine.calls)

    async def run(self) -> None:
        """Serves until either side ends the connection. After that, none of its handlers is called."""
        kind, reason = "peer", "the peer has closed the connection"
        try:
            with self._scope:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._run_clock)
                        nursery.start_soon(self._read)
                        await self._write()
                        kind, reason = "shutdown", "the node stops"
                        nursery.cancel_scope.cancel()
                    await self._say_end()
                except* ConnectionFailed as group:
                    # The tasks open no nurseries, so this group contains no other group.
                    failed = group.exceptions[0]
                    assert isinstance(failed, ConnectionFailed)
                    kind, reason = failed.kind, str(failed)
                    # The handlers learn of the end before the last frames go out: other peers may take over their work.
                    self._lose_calls(reason)
                    await self._say_end()
                except* (trio.BrokenResourceError, trio.ClosedResourceError):
                    kind, reason = "broken", "the connection is broken"
        finally:
            kind = self._closed_by or kind
            self._stream.close()
            self._counts.closed[kind] += 1
            if kind not in ("peer", "shutdown", "broken"):
                self._counts.lines.log(
                    logger.warning, "grpc_connection_closed", peer=self.address, kind=kind, reason=reason
                )
            self._lose_calls(reason)

    def drain(self) -> None:
        """Asks the peer to open no more calls, and ends the connection after the last call."""
        self._machine.drain(trio.current_time())
        self._wake.set()

    def close(self, reason: str) -> None:
        """Ends the connection at once. reason: a short, fixed word for counters."""
        self._closed_by = reason
        self._scope.cancel()

    # The three tasks.

    async def _read(self) -> None:
        while True:
            # Frames that h2 answers itself are not bounded by a window: a peer that takes no answers is not read.
            while self._machine.unsent_bytes > 2 * self._limits.unsent_bytes_max:
                self._sent = trio.Event()
                await self._sent.wait()
            data = await self._stream.receive_some()
            if not data:
                raise ConnectionFailed("peer", "the peer has closed the connection")
            self._take_events(self._machine.receive(data, trio.current_time()))
            taken, self._taken_messages = self._taken_messages, 0
            if self._usage.is_rated:
                self._usage.spend(taken, len(data), trio.current_time())
                await self._usage.wait_turn()

    async def _write(self) -> None:
        machine = self._machine
        while True:
            if self._resumed:
                # Handlers that hand on a large message part by part let other tasks run in between. A call that is
                # resumed meanwhile waits for the next turn, since `_read` may have handed on a part of its message in
                # this turn.
                resumed = list(self._resumed)
                await trio.lowlevel.checkpoint()
                with self._batch():
                    for stream_id in resumed:
                        self._resumed.pop(stream_id, None)
                        self._pull(stream_id)
                self._note_work()
            found = machine.pump(trio.current_time())
            if found:
                self._take_events(found)
            elif machine.out:
                # The clock must check in time whether the peer takes anything.
                look_s = trio.current_time() + self._limits.send_s_max
                self._clock_scope.deadline = min(self._clock_scope.deadline, look_s)
                sent = await self._stream.send_some(machine.out)
                machine.note_sent(sent, trio.current_time())
                if self._usage.is_rated:
                    self._usage.spend(0, sent, trio.current_time())
                self._sent.set()
            elif machine.is_done:
                return
            elif not self._wake.is_set():
                # Bytes that wait for a window must leave in time.
                self._clock_scope.deadline = min(self._clock_scope.deadline, machine.next_tick_s())
                await self._wake.wait()
            else:
                self._wake = trio.Event()

    async def _run_clock(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._machine.next_tick_s()) as self._clock_scope:
                await trio.sleep_forever()
            self._take_events(self._machine.tick(trio.current_time()))

    def _lose_calls(self, reason: str) -> None:
        self._take_events(self._machine.lose(reason, trio.current_time()))
        # The failure may have come before the event of a call that the peer had reset in the same read.
        for stream_id in list(self._served):
            self._end(stream_id, reason)

    async def _say_end(self) -> None:
        """Sends the last frames, and reads to the end: closing a socket with unread bytes would discard the frames."""
        with trio.move_on_after(LAST_WORDS_S), contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while self._machine.out:
                sent = await self._stream.send_some(self._machine.out)
                self._machine.note_sent(sent, trio.current_time())
            await self._stream.send_end()
            while await self._stream.receive_some():
                pass

    # Events of the machine.

    def _take_events(self, events: Iterable[Event]) -> None:
        with self._batch():
            for event in events:
                if isinstance(event, CallArrived):
                    served = self._served.get(event.call.stream_id)
                    if served is not None:
                        served.peer_ended = served.peer_ended or event.is_end
                    # A handler that hands on a large message does so once in each turn of the event loop.
                    if event.call.stream_id not in self._resumed:
                        self._pull(event.call.stream_id)
                elif isinstance(event, CallRoom):
                    self._run(event.call.stream_id, lambda served: served.handler.room())
                    # Received messages of this call may have waited for the room, too.
                    self.resume(event.call.stream_id)
                elif isinstance(event, CallLost):
                    self._counts.calls[event.status.name] += event.call.stream_id in self._served
                    if event.status is not GrpcStatus.CANCELLED:
                        self._tell_ended(event.call, event.status, event.reason)
                    self._end(event.call.stream_id, event.reason)
                    # Nobody takes the received bytes of its messages, so they must not stay in the budget.
                    self._machine.stop_reading(event.call)
                else:
                    self._take_headers(event)
        self._note_work()

    def _take_headers(self, event: CallOpened | CallAnswered) -> None:
        raise NotImplementedError

    def _pull(self, stream_id: int) -> None:
        self._run(stream_id, self._pull_messages)

    def _pull_messages(self, served: ServedCall) -> None:
        machine, reader = served.machine, served.machine.reader
        while takes := self._may_take(served):
            message = reader.next()
            if message is None:
                break
            self._taken_messages += 1
            served.handler.take(message)
        self._machine.absorbed(machine, trio.current_time(), is_held=not takes)
        # The end of the half comes after the last message.
        is_over = served.peer_ended and machine.reads
        if is_over and not served.has_half_closed and (reader.is_between or takes):
            served.has_half_closed = True
            self._end_half(served)

    def _may_take(self, served: ServedCall) -> bool:
        return served.machine.reads and served.handler.may_take()

    def _end_half(self, served: ServedCall) -> None:
        """Handles the end of the remote half. Raises CallRefused if a part of a message is missing."""
        if not served.machine.reader.is_between:
            raise CallRefused(GrpcStatus.INTERNAL, "the call ends within a message")
        served.handler.half_closed()

    def _run(self, stream_id: int, act: Callable[[ServedCall], None]) -> None:
        """Calls the handler of a call, if that is still open. An error of the handler ends its call only."""
        served = self._served.get(stream_id)
        if served is None:
            return
        try:
            act(served)
        except CallRefused as refused:
            self._finish(served.machine, refused.status, refused.text)
            self._end(stream_id, refused.text)
        except Exception as error:
            self._note_failure(served.machine, error)
            self._end(stream_id, "the node has failed")

    def _end(self, stream_id: int, reason: str) -> None:
        served = self._served.pop(stream_id, None)
        self._resumed.pop(stream_id, None)
        if served is not None:
            try:
                served.handler.ended(reason)
            except Exception as error:
                self._counts.lines.log(logger.error, "grpc_call_failed", peer=self.address, exc_info=error)

    def _note_failure(self, machine: CallMachine, error: Exception) -> None:
        path = machine.path[:200].decode("latin-1")
        self._counts.lines.log(logger.error, "grpc_call_failed", peer=self.address, method=path, exc_info=error)
        self._finish(machine, GrpcStatus.INTERNAL, FAILED, is_told=True)

    def _tell_ended(self, machine: CallMachine, status: GrpcStatus, reason: str) -> None:
        path = machine.path[:200].decode("latin-1")
        self._counts.call_lines.log(
            logger.info, "grpc_call_ended", peer=self.address, method=path, status=status.name, reason=reason
        )

    def _finish(
        self, machine: CallMachine, status: GrpcStatus, text: str, *, at_once: bool = False, is_told: bool = False
    ) -> None:
        """Ends a call. is_told: whether the reason is in the log already."""
        if machine.may_send:
            self._counts.calls[status.name] += 1
            if text and not is_told:
                self._tell_ended(machine, status, text)
        self._machine.finish(machine, status, text, at_once=at_once)
        self._note_work()

    def _note_work(self) -> None:
        self._wake.set()
        self._clock_scope.deadline = self._machine.next_tick_s()

    # Called by `GrpcCall`.

    def send(self, machine: CallMachine, pieces: list[bytes | memoryview]) -> bool:
        self._wake.set()
        return self._machine.send(machine, pieces, trio.current_time())

    def finish(self, machine: CallMachine, status: GrpcStatus, text: str, *, at_once: bool) -> None:
        served = self._served.pop(machine.stream_id, None)
        # Only a publisher's handler ends its call while the handler is being made, and it logs the reason.
        self._finish(machine, status, text, at_once=at_once, is_told=served is None or served.handler.logs_end)

    def resume(self, stream_id: int) -> None:
        self._resumed[stream_id] = None
        self._wake.set()

    def widen(self, machine: CallMachine, window_bytes: int) -> None:
        self._machine.widen(machine, window_bytes, trio.current_time())
        self._note_work()

    def replace(self, machine: CallMachine, make: Callable[[], CallHandler]) -> None:
        def replaced(served: ServedCall) -> None:
            served.handler = make()
            served.has_half_closed = False

        self._run(machine.stream_id, replaced)
        self.resume(machine.stream_id)

    def cancel(self, machine: CallMachine, status: GrpcStatus, text: str) -> None:
        if machine.stream_id in self._served:
            self._finish(machine, status, text, at_once=True)
            self._end(machine.stream_id, text)


class GrpcCall:
    """One call, as its handler answers it. peer: the peer, as the door describes it.

    encoding: the compression of large messages of the answer. may_wait: returns whether the call may wait in the middle
    of a message while the unfinished messages of all calls take too much memory.
    """

    def __init__(self, connection: GrpcConnection, machine: CallMachine, peer: object, prefers: Sequence[str]) -> None:
        """prefers: the encodings with which this side can compress, the best first. The first that the peer accepts is
        used; if it accepts none, messages are not compressed."""
        self._connection = connection
        self._machine = machine
        self.path, self.metadata = machine.path, machine.metadata
        self.peer = peer
        self.may_wait: Callable[[], bool] = lambda: True
        accepted = self.metadata.get(b"grpc-accept-encoding", b"").decode("latin-1")
        accepts = [each.strip() for each in accepted.split(",")]
        self.encoding = next((each for each in prefers if each in accepts and each in (ZSTD, GZIP)), IDENTITY)

    def send(self, *pieces: bytes | memoryview) -> bool:
        """Sends a message. Returns whether there is room for more; if not, `CallHandler.room` follows."""
        size_bytes = sum(map(len, pieces))
        if self.encoding != IDENTITY and size_bytes >= COMPRESSED_BYTES_MIN:
            packed = compress(b"".join(pieces), self.encoding)
            if len(packed) < size_bytes:
                return self._connection.send(self._machine, [prefix_of_message(len(packed), compressed=True), packed])
        return self.begin_message(size_bytes, *pieces)

    def begin_message(self, size_bytes: int, *pieces: bytes | memoryview) -> bool:
        """Begins a message of `size_bytes` bytes, which is not compressed, with its first bytes. Returns as `send`."""
        return self._connection.send(self._machine, [prefix_of_message(size_bytes), *pieces])

    def send_part(self, *pieces: bytes | memoryview) -> bool:
        """Sends the next bytes of the message that was begun. Returns as `send`."""
        return self._connection.send(self._machine, list(pieces))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """Ends the call after all messages that were sent. Safe to repeat."""
        self._connection.finish(self._machine, status, text, at_once=False)

    def abort(self, status: GrpcStatus, text: str) -> None:
        """Ends the call now, and drops the messages that wait for their peer. Safe to repeat."""
        self._connection.finish(self._machine, status, text, at_once=True)

    def cancel(self, status: GrpcStatus, text: str) -> None:
        """Ends the call now for a reason that its handler does not know, and tells the handler. Safe to repeat."""
        self._connection.cancel(self._machine, status, text)

    def resume(self) -> None:
        self._connection.resume(self._machine.stream_id)

    def widen(self, window_bytes: int) -> None:
        """Gives the call a larger window: the bytes that the peer may send before they are taken."""
        self._connection.widen(self._machine, window_bytes)

    def window_closed_s(self, now_s: float) -> float:
        """Returns the longest time for which the peer could send nothing, because the call's window stood at 0."""
        return self._machine.window_closed_s(now_s)

    def replace(self, make: Callable[[], CallHandler]) -> None:
        """Lets another handler take all further messages soon. make: makes that handler; not called if the call is
        over. Any error that `make` raises, such as CallRefused, ends the call."""
        self._connection.replace(self._machine, make)


class Route(NamedTuple):
    """One method of a service. open: makes the handler of a call; can raise CallRefused."""

    open: Callable[[GrpcCall], CallHandler]
    message_bytes_max: int


Routes: TypeAlias = Mapping[bytes, Route]


class ServerConnection(GrpcConnection):
    """A connection that a peer has opened. peer: handed to the handlers. prefers: see `GrpcCall`."""

    def __init__(
        self,
        stream: SocketBytes,
        routes: Routes,
        limits: Http2Limits,
        budget: MessageBudget,
        counts: DoorCounts,
        *,
        address: str,
        peer: object = None,
        prefers: Sequence[str] = (),
        batch: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        usage: Usage = UNLIMITED,
    ) -> None:
        machine = Http2Machine(limits, budget, trio.current_time())
        super().__init__(stream, machine, limits, counts, address=address, batch=batch, usage=usage)
        self._routes = routes
        self._prefers = prefers
        self.peer = peer

    def _may_take(self, served: ServedCall) -> bool:
        # A peer that asks and does not read the answers is not read, so that the answers stay bounded.
        return not served.machine.wants_room and super()._may_take(served)

    def _take_headers(self, event: CallOpened | CallAnswered) -> None:
        machine = event.call
        # The peer has reset the call within the same read: nobody would tell a handler that it is over.
        if not machine.may_send:
            return
        path = machine.path
        route = self._routes.get(path)
        if route is None:
            name = path[:200].decode("latin-1")
            self._finish(machine, GrpcStatus.UNIMPLEMENTED, f"{name} is not served here")
            return
        stream_id = machine.stream_id
        machine.reader.bytes_max = route.message_bytes_max
        machine.reader.when_room = lambda: self.resume(stream_id)
        call = GrpcCall(self, machine, self.peer, self._prefers)
        machine.reader.may_wait = lambda: call.may_wait()
        try:
            handler = route.open(call)
        except CallRefused as refused:
            self._finish(machine, refused.status, refused.text)
        except Exception as error:
            self._note_failure(machine, error)
        else:
            # The handler may have ended the call already.
            if machine.may_send:
                self._served[stream_id] = ServedCall(machine, handler)
            # The headers go out at once: some peers wait for them before they send.
            if machine.may_send or machine.pending:
                self._machine.begin(machine, call.encoding)


def guarded(call: GrpcCall, function: Callable[[T], None], ended: Callable[[], None]) -> Callable[[T], None]:
    """Returns a callback that calls the function. If the function raises, the call ends, and `ended` is called."""

    def run(result: T) -> None:
        try:
            function(result)
        except Exception:
            logger.exception("grpc_call_failed", method=call.path.decode("latin-1"))
            call.abort(GrpcStatus.INTERNAL, FAILED)
            ended()

    return run


class SingleRequest(CallHandler):
    """The base of handlers of calls with one request message. has_asked: whether the message has come."""

    has_asked = False

    def may_take(self) -> bool:
        return not self.has_asked

    def take(self, message: bytes) -> None:
        # The answer goes out at once, not when the peer ends its half: some peers keep their half open.
        self.has_asked = True
        self.answer(message)

    def answer(self, message: bytes) -> None:
        raise NotImplementedError

    def half_closed(self) -> None:
        if not self.has_asked:
            raise CallRefused(GrpcStatus.INVALID_ARGUMENT, "the call has no message")


class UnaryHandler(SingleRequest):
    def __init__(self, call: GrpcCall, answer: Callable[[bytes], bytes]) -> None:
        self._call = call
        self._make_answer = answer

    def answer(self, message: bytes) -> None:
        self._call.send(self._make_answer(message))
        self._call.finish()
