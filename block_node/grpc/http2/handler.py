"""The interface between a connection and the handlers of its calls: `CallHandler`, `GrpcCall` and `Route`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog

from block_node.grpc.http2.call_machine import CallMachine
from block_node.grpc.http2.compression import GZIP, IDENTITY, ZSTD, compress
from block_node.grpc.http2.message_reader import prefix_of_message
from block_node.grpc.http2.status import CallRefused, GrpcStatus

COMPRESSED_BYTES_MIN: Final = 1024
"""Smaller messages are sent as they are."""

FAILED: Final = "the node could not answer; its log has the reason"

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class CallHandler(Protocol):
    """Takes the messages of one call. Its methods are called in the trio thread, and never while one of them runs.
    They can raise CallRefused, which ends the call. None is called after `ended`, or after the handler has ended the
    call. logs_end: whether it logs itself why it ends a call.
    """

    logs_end: bool = False

    def may_take(self) -> bool:
        """Whether the handler takes messages now. After False, it must call `GrpcCall.resume` when it does."""
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


class CallWire(Protocol):
    """The connection of a call, as `GrpcCall` uses it."""

    def send(self, stream_id: int, pieces: list[bytes | memoryview]) -> bool: ...

    def finish(self, stream_id: int, status: GrpcStatus, text: str, *, at_once: bool) -> None: ...

    def resume(self, stream_id: int) -> None: ...

    def widen(self, stream_id: int, window_bytes: int) -> None: ...

    def replace(self, stream_id: int, make: Callable[[], CallHandler]) -> None: ...

    def cancel(self, stream_id: int, status: GrpcStatus, text: str) -> None: ...


class GrpcCall:
    """One call, as its handler answers it. peer: the other side, as the door describes it.

    encoding: the compression of large messages of the answer. may_wait: returns whether the call may wait in the middle
    of a message while the unfinished messages of all calls take too much memory.
    """

    def __init__(self, connection: CallWire, machine: CallMachine, peer: object, prefers: Sequence[str]) -> None:
        """prefers: the encodings with which this side compresses, the best first. The peer must accept one of them."""
        self._connection = connection
        self._machine = machine
        self._stream_id = machine.stream_id
        self.request = request = machine.request
        self.peer = peer
        self.may_wait: Callable[[], bool] = lambda: True
        self.encoding = next((each for each in prefers if each in request.accepts and each in (ZSTD, GZIP)), IDENTITY)

    def send(self, *pieces: bytes | memoryview) -> bool:
        """Sends a message. Returns whether there is room for more; if not, `CallHandler.room` follows."""
        size_bytes = sum(map(len, pieces))
        if self.encoding != IDENTITY and size_bytes >= COMPRESSED_BYTES_MIN:
            packed = compress(b"".join(pieces), self.encoding)
            if len(packed) < size_bytes:
                return self._connection.send(self._stream_id, [prefix_of_message(len(packed), compressed=True), packed])
        return self.begin_message(size_bytes, *pieces)

    def begin_message(self, size_bytes: int, *pieces: bytes | memoryview) -> bool:
        """Begins a message of `size_bytes` bytes, which is not compressed, with its first bytes. Returns as `send`."""
        return self._connection.send(self._stream_id, [prefix_of_message(size_bytes), *pieces])

    def send_part(self, *pieces: bytes | memoryview) -> bool:
        """Sends the next bytes of the message that was begun. Returns as `send`."""
        return self._connection.send(self._stream_id, list(pieces))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """Ends the call after all messages that were sent. Safe to repeat."""
        self._connection.finish(self._stream_id, status, text, at_once=False)

    def abort(self, status: GrpcStatus, text: str) -> None:
        """Ends the call now, and drops the messages that wait for their peer. Safe to repeat."""
        self._connection.finish(self._stream_id, status, text, at_once=True)

    def cancel(self, status: GrpcStatus, text: str) -> None:
        """Ends the call now for a reason that its handler does not know, and tells the handler. Safe to repeat."""
        self._connection.cancel(self._stream_id, status, text)

    def resume(self) -> None:
        self._connection.resume(self._stream_id)

    def widen(self, window_bytes: int) -> None:
        """Gives the call a larger window: the bytes that the peer may send before they are taken."""
        self._connection.widen(self._stream_id, window_bytes)

    def window_closed_s(self, now_s: float) -> float:
        """Returns the longest time for which the peer could send nothing, because the call's window stood at 0."""
        return self._machine.window_closed_s(now_s)

    def replace(self, make: Callable[[], CallHandler]) -> None:
        """Lets another handler take all further messages soon. make: makes that handler; not called if the call is
        over. Any error that `make` raises, such as CallRefused, ends the call."""
        self._connection.replace(self._stream_id, make)


class Route(NamedTuple):
    """One method of a service. open: makes the handler of a call; can raise CallRefused."""

    open: Callable[[GrpcCall], CallHandler]
    message_bytes_max: int


Routes: TypeAlias = Mapping[bytes, Route]


def guarded(call: GrpcCall, function: Callable[[T], None], ended: Callable[[], None]) -> Callable[[T], None]:
    """Returns a callback that calls the function. If the function raises, the call ends, and `ended` is called."""

    def run(result: T) -> None:
        try:
            function(result)
        except Exception:
            logger.exception("grpc_call_failed", method=call.request.path.decode("latin-1"))
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
