"""`publishBlockStream`: one publisher's call as a session of the publish machine.

The answers are those of the reference block node (facts/block_node.md §2), with the promises of `PublishMachine` behind
them. The machine decides; this module translates.

    PublishMachine               wire                                    the call
    Acknowledgement(N)           acknowledgement(N)                      goes on
    DuplicateBlock(N, last)      skip_block(N) if N is near `last`       goes on
                                 end_stream(DUPLICATE_BLOCK, last, N)    ends
    Behind(N, last)              node_behind_publisher(last)             goes on
    SkipBlock, ResendBlock(N)    skip_block, resend_block(N)             goes on
    StreamEnded(code, last, N)   end_stream(code, last, N)               ends
"""

from __future__ import annotations

from typing import Final

import structlog

from block_node.grpc.http2.handler import GrpcCall
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import (
    MessageFormatError,
    WireMessage,
    block_or_none,
    known_block,
    read_items,
    read_message,
    write_message,
)
from block_node.grpc.request_cutter import RequestCutter
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    EndStream,
    PublisherEndCode,
    PublishResponse,
    PublishStatus,
    ResendBlock,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.intake import HEADER_TAG, PublisherIntake
from block_node.publish.service import PublishService
from block_node.publish.session_machine import InvalidPublishRequest, PublisherState, SessionState
from ockam.actors.message import Origin
from ockam.protocol import ProtocolError

CORRELATION_ID: Final = b"hiero-correlation-id"
CORRELATION_CHARACTERS_MAX: Final = 64

logger = structlog.get_logger(__name__)


class PublishCall:
    """One publisher (a `RunnerSession`, a `MendingSession` and a `CallHandler`).

    Invariant: while `publisher.is_held` is True, no message of the call is taken, and its window is not given back.
    """

    def __init__(self, call: GrpcCall, service: PublishService, origin: Origin, limits: GrpcLimits) -> None:
        """Raises CallRefused if no publisher may come now."""
        self._call = call
        self._limits = limits
        self._runner = service.runner
        self._machine = service.machine
        self._usage = origin.usage
        self._is_over = self._is_lost = self._has_acknowledged = False
        self._behind: tuple[int, float] | None = None
        correlation = call.request.metadata.get(CORRELATION_ID, b"")[:CORRELATION_CHARACTERS_MAX].decode("latin-1")
        self.peer = f"{origin.peer} {correlation}".strip()
        admitted = service.admit(origin)
        if isinstance(admitted, StreamEnded):
            # The publisher reads why, and tries another node.
            self._is_over = True
            self._send_end(admitted)
            self.publisher = PublisherState(0, False, self._runner.now_s())
            return
        self.publisher = PublisherState(admitted, False, self._runner.now_s())
        self._intake = PublisherIntake(self.publisher, self._runner, self, self.peer)
        # A publisher that was admitted need not wait for its window.
        call.widen(limits.publish_window_bytes)
        call.cut(RequestCutter())
        self._runner.join(self)

    # What the connection calls.

    def may_take(self) -> bool:
        if not self._is_over and not self._runner.may_read(self.publisher):
            self.publisher.is_held = True
        return not self.publisher.is_held

    def take(self, message: bytes) -> None:
        self.publisher.used_s = self._runner.now_s()
        current = self.publisher.session.block_number
        try:
            self._take(message)
        except (InvalidPublishRequest, MessageFormatError) as error:
            self._intake.end(PublishStatus.INVALID_REQUEST, current, str(error))
        except ProtocolError as error:
            self._intake.end(PublishStatus.ERROR, current, str(error))
        self._runner.perform()

    def half_closed(self) -> None:
        self._leave()

    def room(self) -> None:
        # Answers are small, and sent whether the publisher reads them or not; the connection bounds them.
        pass

    def ended(self, reason: str) -> None:
        self._is_lost = True
        self._leave()

    # What the runner and mending call.

    @property
    def reachable(self) -> bool:
        return not self._is_lost

    def respond(self, response: PublishResponse) -> None:
        if isinstance(response, Acknowledgement):
            self._has_acknowledged = True
            self._send("acknowledgement", response.block_number)
        elif isinstance(response, DuplicateBlock):
            self._respond_duplicate(response)
        elif isinstance(response, Behind):
            self._respond_behind(response)
        elif isinstance(response, SkipBlock):
            self._send("skip_block", response.block_number)
        elif isinstance(response, ResendBlock):
            self._send("resend_block", response.block_number)

    def close(self, ended: StreamEnded | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        # The quota is given back once, also if the session ends twice.
        self._usage.give_back("block_publish_sessions_max")
        self._runner.mending.leave(self)
        if ended is None:
            self._call.finish()
        else:
            self._send_end(ended)

    def leave(self) -> None:
        self._leave()

    def admit(self) -> None:
        if self.publisher.is_held:
            self.publisher.is_held = False
            self._call.resume()

    def mended(self, block_number: int) -> None:
        """Answers a duplicate whose block was taken, because its stored bytes were damaged or gone."""
        last_block = self._machine.last_block
        if last_block is not None:
            self.respond(DuplicateBlock(block_number, last_block))

    def not_mended(self, status: PublishStatus, block_number: int, reason: str) -> None:
        self._intake.end(status, block_number, reason)

    # Requests.

    def _take(self, message: bytes) -> None:
        """Handles one message. Raises InvalidPublishRequest, MessageFormatError or ProtocolError for a wrong one."""
        items = read_items(message)
        if items is not None:
            self._take_items(items)
            return
        request = read_message("PublishStreamRequest", message)
        if "block_items" in request:
            self._take_items(request["block_items"].get("block_items", []))
        elif "end_of_block" in request:
            self._intake.block_end(request["end_of_block"].get("block_number", 0))
        elif "end_stream" in request:
            self._intake.stream_end(_end_of(request["end_stream"]))
        else:
            # As the reference block node answers a request without any of its kinds.
            raise ProtocolError("the request is of no known kind")

    def _take_items(self, items: list[bytes]) -> None:
        is_header = bool(items) and items[0].startswith(HEADER_TAG)
        # The rest of a block that was refused may still be under way, also after its end.
        if items and not is_header and self.publisher.session.state is SessionState.IDLE:
            return
        # The machine hands on as much in one event as came in one call.
        size = self._runner.limits.slice_items_max
        for start in range(0, len(items), size) if len(items) > size else (0,):
            self._intake.items(items[start : start + size] if len(items) > size else items)
        if is_header and not self._has_acknowledged and self._machine.last_block is not None:
            # A publisher that begins with old blocks goes on behind this one (facts/grpc_peers.md §2, thread 4).
            self._runner.perform()
            self.respond(Acknowledgement(self._machine.last_block))

    # Answers.

    def _respond_duplicate(self, response: DuplicateBlock) -> None:
        number, last_block = response.block_number, response.last_block
        if self._runner.mending.takes(self, number):
            # The answer follows when the block has come and is stored again (`mended`).
            return
        if last_block - number <= self._limits.duplicate_window:
            self._send("skip_block", number)
        else:
            reason = f"block {number} is here, as all blocks up to {last_block}"
            self._intake.end(PublishStatus.DUPLICATE_BLOCK, number, reason)

    def _respond_behind(self, response: Behind) -> None:
        number, now_s = response.block_number, self._runner.now_s()
        before = self._behind
        if before is not None and before[0] == number and now_s - before[1] < self._limits.behind_again_s:
            return
        self._behind = (number, now_s)
        self._send("node_behind_publisher", block_or_none(response.last_block))

    def _send(self, kind: str, block_number: int) -> None:
        if not self._is_over:
            self._call.send(write_message("PublishStreamResponse", {kind: {"block_number": block_number}}))

    def _send_end(self, ended: StreamEnded) -> None:
        logger.info(
            "block_stream_ended",
            peer=self.peer,
            status=ended.status.name,
            block=ended.block_number,
            reason=ended.reason,
        )
        end = {
            "status": int(ended.status),
            "block_number": block_or_none(ended.last_block),
            "proximate_block_number": ended.block_number or 0,
        }
        self._call.send(write_message("PublishStreamResponse", {"end_stream": end}))
        # The message has no field for the reason.
        self._call.finish(GrpcStatus.OK, ended.reason)

    def _leave(self) -> None:
        if not self._is_over:
            self._intake.leave()


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
