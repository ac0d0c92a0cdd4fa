"""`publishBlockStream`: one publisher's call as a session of the publish machine.

The node answers as the reference block node does (facts/block_node.md §2), and keeps the promises of `PublishMachine`.
The machine decides; this module translates.

    PublishMachine               wire                                    the call
    Acknowledgement(N)           acknowledgement(N)                      goes on
    DuplicateBlock(N, last)      skip_block(N) if N is near `last`       goes on
                                 end_stream(DUPLICATE_BLOCK, last, N)    ends
    Behind(N, last, next)        node_behind_publisher(last)             goes on
                                 resend_block(next) soon after that      goes on
    SkipBlock, ResendBlock(N)    skip_block, resend_block(N)             goes on
    StreamEnded(code, last, N)   end_stream(code, last, N)               ends
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from block_node.grpc.calls.statistics import ANSWERS, COUNTED
from block_node.grpc.http2.connection import FAILED, CallHandler, GrpcCall
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import (
    PUBLISHED_SET,
    ItemSet,
    MessageFormatError,
    WireMessage,
    block_or_none,
    find_set,
    known_block,
    read_message,
    write_message,
)
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    EndStream,
    Piece,
    PublisherEndCode,
    PublishResponse,
    PublishStatus,
    ResendBlock,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.service import PublishService
from block_node.publish.session import HEADER_TAG, PublisherSession
from block_node.publish.session_machine import InvalidPublishRequest, PublisherState, SessionState
from ockam.actors.message import Origin
from ockam.protocol import ProtocolError

CORRELATION_ID: Final = b"hiero-correlation-id"
CORRELATION_CHARACTERS_MAX: Final = 64
OTHER_BYTES_MAX: Final = 16 * 1024
"""The largest request that is not one set of items alone. Such a request is read in one step of the event loop."""

PARTIES_MAX: Final = 10_000
"""The most parties that `BehindTold` remembers: far more than a network has consensus nodes."""
WINDOWS_MAX: Final = 100
"""The most parties whose windows the metrics name. Each party is one more time series of a collector."""


class PublishCall(PublisherSession, CallHandler):
    """The call of one publisher.

    Invariant: while `publisher.is_held` is True, no message of the call is taken, and its window is not given back.
    `_rest` has the items of the present request that were not handed on; its size counts in
    `PublishService.unread_bytes`. `_taken` counts the items since the last pause, and each
    `slice_bytes_max / slice_items_max` bytes of messages as one more item.
    """

    logs_end = True

    def __init__(
        self, call: GrpcCall, service: PublishService, origin: Origin, limits: GrpcLimits, others: DoorPublishers
    ) -> None:
        """others: all publishers of the door."""
        correlation = call.metadata.get(CORRELATION_ID, b"")[:CORRELATION_CHARACTERS_MAX].decode("latin-1")
        peer = f"{origin.peer} {correlation}".strip()
        admitted = service.admit(origin)
        publisher_id = 0 if isinstance(admitted, StreamEnded) else admitted
        publisher = PublisherState(publisher_id, False, trio.current_time(), f"gRPC {peer}")
        super().__init__(publisher, service.machine, service.mending, service.perform, origin.usage, peer)
        self._service = service
        self._call = call
        self._limits = limits
        self._is_lost = self._has_acknowledged = False
        self._others = others
        self._counted = others.counted
        self._begun_s = 0.0
        self.party = origin.party
        self._rest: ItemSet | None = None
        self._rest_bytes = self._taken = 0
        self._has_half_closed = False
        if isinstance(admitted, StreamEnded):
            # The publisher reads why, and tries another node.
            self._is_over = True
            self._log_end(admitted)
            self._send_end(admitted)
            return
        # A publisher that was admitted need not wait for its window.
        call.widen(limits.publish_window_bytes)
        call.may_wait = self._may_wait
        others.open[self] = None
        self._service.join(self)

    # Called by the connection.

    def may_take(self) -> bool:
        rest = self._rest
        may_read = self._service.may_begin if rest is None else self._service.may_go_on
        # The publisher is held before `may_read` asks the plugins for room: `admit`, which follows when there is room,
        # perhaps at once, resumes only held calls.
        self._hold(not self._is_over)
        if self.publisher.is_held and may_read(self.publisher):
            self._hold(False)
        if rest is not None and not self.publisher.is_held:
            self._handle(lambda: self._take_part(rest))
        may_take = self._rest is None and not self.publisher.is_held
        if may_take and self._taken >= self._service.limits.slice_items_max:
            # Many requests that came together, or compressed, are as much work as a large one.
            self._pause()
            return False
        return may_take

    def take(self, message: bytes) -> None:
        self._handle(lambda: self._take(message))

    def half_closed(self) -> None:
        # The publisher leaves only when the rest of its last request was handed on.
        self._has_half_closed = True
        if self._rest is None:
            self.leave()

    def ended(self, reason: str) -> None:
        self._is_lost = True
        self.leave()

    # Read by the door.

    @property
    def block_number(self) -> int | None:
        return self.publisher.session.block_number

    def window_closed_s(self) -> float:
        return self._call.window_closed_s(trio.current_time())

    # Called by the service.

    @property
    def reachable(self) -> bool:
        return not self._is_lost

    def _answer(self, response: PublishResponse) -> None:
        if isinstance(response, Acknowledgement):
            self._has_acknowledged = True
            self._send("acknowledgement", response.block_number)
        elif isinstance(response, DuplicateBlock):
            number, last_block = response.block_number, response.last_block
            if last_block - number <= self._limits.duplicate_window:
                self._send("skip_block", number)
            else:
                reason = f"block {number} is here, as all blocks up to {last_block}"
                self.end(PublishStatus.DUPLICATE_BLOCK, number, reason)
        elif isinstance(response, Behind):
            if self._others.told.may_tell(self.party, trio.current_time()):
                self._send("node_behind_publisher", block_or_none(response.last_block))
            else:
                self._send("resend_block", response.next_block)
        elif isinstance(response, SkipBlock):
            self._send("skip_block", response.block_number)
        elif isinstance(response, ResendBlock):
            self._send("resend_block", response.block_number)

    def _closed(self, ended: StreamEnded | None) -> None:
        self._drop_rest()
        self._others.leave(self)
        if ended is None:
            self._call.finish()
        else:
            self._send_end(ended)

    def admit(self) -> None:
        if self.publisher.is_held:
            self._hold(False)
            self._call.resume()

    def _may_wait(self) -> bool:
        """Whether the present request may wait for other publishers. False if it has the next block to verify, for
        which all others wait."""
        return self._hold(self.block_number != self._machine.blocks.next_to_verify)

    def _hold(self, is_held: bool) -> bool:
        """Notes whether the publisher is held back, which gives its block more time. Returns `is_held`."""
        self.publisher.is_held = is_held
        return is_held

    # Requests.

    def _handle(self, take: Callable[[], None]) -> None:
        """Hands on a message, or a part of it. Ends the stream if the message is wrong."""
        self.publisher.used_s = trio.current_time()
        current = self.block_number
        try:
            take()
        except (InvalidPublishRequest, MessageFormatError) as error:
            self.end(PublishStatus.INVALID_REQUEST, current, str(error))
        except ProtocolError as error:
            self.end(PublishStatus.ERROR, current, str(error))
        except Exception:
            # The publisher must read an EndOfStream before the end of the call. The connection logs the mistake.
            self.end(PublishStatus.ERROR, current, FAILED)
            raise
        self._service.perform()

    def _take(self, message: bytes) -> None:
        """Handles one message. Raises InvalidPublishRequest, MessageFormatError or ProtocolError for a wrong one."""
        limits = self._service.limits
        self._taken += 1 + len(message) * limits.slice_items_max // limits.slice_bytes_max
        found = find_set(message, PUBLISHED_SET)
        if found is not None:
            # `may_take` hands on the items before it lets the next request come.
            self._rest, self._rest_bytes = found, len(message)
            self._service.unread_bytes += self._rest_bytes
            return
        if len(message) > OTHER_BYTES_MAX:
            raise MessageFormatError(
                f"a request of {len(message)} bytes with something beside a set of items; at most {OTHER_BYTES_MAX}"
            )
        request = read_message("PublishStreamRequest", message)
        if "block_items" in request:
            self._take_items(request["block_items"].get("block_items", []))
        elif "end_of_block" in request:
            self._end_block(request["end_of_block"].get("block_number", 0))
        elif "end_stream" in request:
            self._counted["publisher_block_endstream_received"] += 1
            self.stream_end(_end_of(request["end_stream"]))
        else:
            # The reference block node answers a request of no known kind in the same way.
            raise ProtocolError("the request is of no known kind")

    def _take_part(self, rest: ItemSet) -> None:
        """Hands on the next items. The rest is left until other tasks of the node have run."""
        limits = self._service.limits
        begins_set = not rest.is_begun
        items, piece = rest.take(limits.slice_items_max, limits.slice_bytes_max)
        self._taken += len(items)
        self._take_items(items, piece, begins_set=begins_set)
        if self._is_over:
            return
        if rest.left_bytes:
            self._pause()
            return
        self._drop_rest()
        if self._has_half_closed:
            self.leave()

    def _pause(self) -> None:
        self._taken = 0
        self._call.resume()

    def _drop_rest(self) -> None:
        self._service.unread_bytes -= self._rest_bytes
        # After a large request, another publisher may begin one.
        if self._rest_bytes > self._service.limits.slice_bytes_max:
            self._machine.admit_due = True
        self._rest, self._rest_bytes = None, 0

    def _take_items(self, items: list[bytes], piece: Piece = Piece.WHOLE, *, begins_set: bool = True) -> None:
        # A later piece of an item may begin like a header by chance.
        begins = piece is Piece.WHOLE or piece is Piece.FIRST
        is_header = begins and bool(items) and items[0].startswith(HEADER_TAG)
        state = self.publisher.session.state
        is_dropped = bool(items) and not is_header and state is not SessionState.RECEIVING
        self._counted["publisher_stream_sets_dropped"] += is_dropped and begins_set
        # The rest of a block that was refused may still be under way, also after its end.
        if is_dropped and state is SessionState.IDLE:
            return
        self._counted["publisher_block_items_received"] += len(items) if begins and not is_dropped else 0
        if is_header:
            self._begun_s = trio.current_time()
        self.items(items, piece)
        if is_header and not self._has_acknowledged and self._machine.last_block is not None:
            # A publisher that begins with old blocks continues after this one (facts/grpc_peers.md §2, thread 4).
            self._service.perform()
            self.respond(Acknowledgement(self._machine.last_block))

    def _end_block(self, number: int) -> None:
        if number == self.block_number:
            self._counted["publisher_blocks_closed_complete"] += 1
            self._counted["publisher_receive_latency_ns"] += round((trio.current_time() - self._begun_s) * 1e9)
        self.block_end(number)

    # Answers.

    def _send(self, kind: str, block_number: int) -> None:
        if not self._is_over:
            self._send_answer(kind, {"block_number": block_number})

    def _send_answer(self, kind: str, fields: WireMessage) -> None:
        self._counted[ANSWERS[kind]] += 1
        self._call.send(write_message("PublishStreamResponse", {kind: fields}))

    def _send_end(self, ended: StreamEnded) -> None:
        self._counted["publisher_stream_errors"] += ended.status is not PublishStatus.SUCCESS
        self._counted["publisher_stall_timeouts_sent"] += ended.status is PublishStatus.TIMEOUT
        fields = {
            "status": int(ended.status),
            "block_number": block_or_none(ended.last_block),
            "proximate_block_number": ended.block_number or 0,
        }
        self._send_answer("end_stream", fields)
        # The message has no field for the reason.
        self._call.finish(GrpcStatus.OK, ended.reason)


class BehindTold:
    """Notes when each party was last told that the node is behind: a real publisher leaves if it is told so twice
    within a certain time (facts/grpc_peers.md §1.3), even on two streams. But it obeys every ResendBlock.

    Invariant: `_told_s` is in the order of its times, with at most PARTIES_MAX of them.
    """

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._told_s: dict[str, float] = {}

    def may_tell(self, party: str, now_s: float) -> bool:
        """Returns whether to tell the party now that the node is behind. If so, notes that it was told."""
        told_s = self._told_s.get(party)
        if told_s is not None and now_s - told_s < self._again_s:
            return False
        self._told_s.pop(party, None)
        self._told_s[party] = now_s
        if len(self._told_s) > PARTIES_MAX:
            del self._told_s[next(iter(self._told_s))]
        return True


class DoorPublishers:
    """The publishers of one door. counted: the counters of all its calls (`COUNTED`).

    Invariant: `_windows_s` has at most WINDOWS_MAX parties. The party that was noted last is at the end.
    """

    def __init__(self, again_s: float) -> None:
        self.told = BehindTold(again_s)
        self.counted = dict.fromkeys(COUNTED, 0)
        self.open: dict[PublishCall, None] = {}
        self._windows_s: dict[str, float] = {}

    def leave(self, publisher: PublishCall) -> None:
        """Forgets a publisher whose stream has ended, but keeps the time for which it could send nothing."""
        if publisher in self.open:
            del self.open[publisher]
            self._note_window(publisher)

    def windows_s(self) -> dict[str, float]:
        """Returns, by party, the longest time in seconds for which one of its publishers could send nothing."""
        for each in self.open:
            self._note_window(each)
        return dict(self._windows_s)

    def _note_window(self, publisher: PublishCall) -> None:
        closed_s = max(self._windows_s.pop(publisher.party, 0.0), publisher.window_closed_s())
        self._windows_s[publisher.party] = closed_s
        if len(self._windows_s) > WINDOWS_MAX:
            del self._windows_s[next(iter(self._windows_s))]


def _end_of(message: WireMessage) -> EndStream:
    code = message.get("end_code", 0)
    return EndStream(
        0,
        PublisherEndCode(code) if code in PublisherEndCode.__members__.values() else PublisherEndCode.UNKNOWN,
        known_block(message.get("earliest_block_number", 0)),
        known_block(message.get("latest_block_number", 0)),
    )


def refuse_not_ready() -> CallRefused:
    return CallRefused(GrpcStatus.UNAVAILABLE, "the node is starting; try again")
