"""Starts the services for readers of blocks: `block_subscribe`, `block_get` and `block_status`. `AccessService` answers
at `block_get`, and `StatusService` at `block_status`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import structlog

from block_node.node import BlockNode
from block_node.persist.chain_log import BlockNumberUnknown, ReadBlocks
from block_node.persist.mark import PART_BYTES_MAX
from block_node.persist.ranges import BlockRanges
from block_node.persist.store import ChainStore
from block_node.protocol_reading import (
    GET,
    STATUS,
    BlockPart,
    BlockRange,
    GetBlock,
    GetStatus,
    PluginVersion,
    StatusDetail,
    StatusResponse,
)
from block_node.read.feed import SubscribeLimits
from block_node.read.subscribe import SubscribeService, SubscribeStatistics
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import AnsweringWorker, Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload
from stream_storage.errors import DatabaseCorrupt

NUMBER_LATEST = 2**64 - 1
"""The number that means "unknown" in the reference block node, and the latest block in a request."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
ANSWER_OVERHEAD_BYTES = 512
"""The bytes of a frame that an answer needs in addition to the bytes of the block."""
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""With more unsent bytes on a connection, its requests wait until some of them are sent."""
BACKLOG_RETRY_S = 0.02
WAITING_MAX = 1_000
"""With more waiting requests, the service pauses its mailbox, and connections stop reading."""

logger = structlog.get_logger(__name__)


class BlockAccessStatistics(msgspec.Struct, frozen=True):
    answers: dict[str, int]
    sent_bytes: int


class AccessService(Worker):
    """The worker that answers at `block_get`: it sends a stored block in portions, one for each request, so that a
    block of any size is sent in bounded memory. Source of the answers: facts/block_node.md §1.5 and A1.

    Invariant: at most one read from the store is in progress. The request of this read is not in `_waiting`.
    """

    def __init__(self, store: ChainStore) -> None:
        self._store = store
        self._waiting: deque[tuple[Message, GetBlock]] = deque()
        self._reading = False
        self._retrying = False
        self._answers: dict[str, int] = {}
        self._sent_bytes = 0

    def started(self) -> None:
        self.context.pause()
        self._store.when_open(self.context.guard(self.context.resume))

    def receive(self, run: Sequence[Message]) -> None:
        for message in run:
            try:
                self._waiting.append((message, GET.decode_request(message.payload)))
            except ProtocolError as error:
                self.reply(message, error_payload(str(error)))
        self._go_on()

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_READ, self._store.chain)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)

    def statistics(self) -> BlockAccessStatistics:
        return BlockAccessStatistics(dict(self._answers), self._sent_bytes)

    def hand_over(self) -> list[Message]:
        """Returns the requests that are served no more. A block that is being read is still sent."""
        waiting = [message for message, _ in self._waiting]
        self._waiting.clear()
        return waiting

    def _go_on(self) -> None:
        """Answers waiting requests, until a read begins, or all wait for connections with too many unsent bytes."""
        # A request moves to the end of the queue if its connection has too many unsent bytes. The loop stops when this
        # is true of every waiting request.
        behind = 0
        while self._waiting and not self._reading and behind < len(self._waiting):
            message, request = self._waiting.popleft()
            if message.origin.is_behind(BACKLOG_BYTES_MAX):
                self._waiting.append((message, request))
                behind += 1
                continue
            behind = 0
            self._serve(message, request)
        # Nothing says when a connection has sent its bytes, so the service tries again.
        if behind and not self._retrying:
            self._retrying = True
            self.context.call_later(BACKLOG_RETRY_S, self._retry)
        if len(self._waiting) > WAITING_MAX:
            self.context.pause()
        else:
            self.context.resume()

    def _retry(self) -> None:
        self._retrying = False
        self._go_on()

    def _serve(self, message: Message, request: GetBlock) -> None:
        asked, available = request.block_number, self._store.available
        if request.latest == (asked is not None):
            self._refuse(message, request, GetStatus.INVALID_REQUEST)
            return
        latest = request.latest or asked == NUMBER_LATEST
        number = available.last if latest else asked
        if number is None or number not in available:
            self._refuse(message, request, GetStatus.NOT_AVAILABLE)
            return
        self._reading = True
        # An answer must fit into one frame of the connection, with its routes.
        room_bytes = message.origin.frame_bytes_max - ANSWER_OVERHEAD_BYTES
        room_bytes -= sum(len(hop.value) for hop in message.return_route)
        size_bytes = max(1, min(ANSWER_BYTES_MAX, room_bytes))
        part = request.offset // PART_BYTES_MAX
        read = self.context.guard(lambda operation: self._read(operation, message, request, size_bytes))
        self._store.read(number, part, size_bytes + PART_BYTES_MAX, read)

    def _read(self, operation: ReadBlocks, message: Message, request: GetBlock, bytes_max: int) -> None:
        self._reading = False
        error = operation.error
        if isinstance(error, BlockNumberUnknown):
            self._refuse(message, request, GetStatus.NOT_AVAILABLE)
        elif error is not None:
            logger.error("block_not_read", block=operation.number, reason=str(error))
            # Damaged bytes are no fault of the reader: the status says that the block should be here.
            damaged = isinstance(error, DatabaseCorrupt)
            self._refuse(message, request, GetStatus.NOT_FOUND if damaged else GetStatus.ERROR)
        elif not operation.found or request.offset > operation.found[0].place.size_bytes:
            self._refuse(message, request, GetStatus.INVALID_REQUEST)
        else:
            # The store reads whole parts, and the offset lies within the first of them.
            found = operation.found[0]
            start = request.offset - found.first_part * PART_BYTES_MAX
            data = b"".join(found.parts)[start : start + bytes_max]
            place = found.place
            self._sent_bytes += len(data)
            self._answer(
                message,
                BlockPart(
                    request.request_id,
                    GetStatus.SUCCESS,
                    place.number,
                    place.size_bytes,
                    request.offset,
                    place.root,
                    data,
                ),
            )
        self._go_on()

    def _refuse(self, message: Message, request: GetBlock, status: GetStatus) -> None:
        self._answer(message, BlockPart(request.request_id, status, 0, 0, 0, b"", b""))

    def _answer(self, message: Message, part: BlockPart) -> None:
        self._answers[part.status.name] = self._answers.get(part.status.name, 0) + 1
        self.reply(message, GET.encode_response(part))


SUBSCRIBE_ADDRESS, GET_ADDRESS, STATUS_ADDRESS = "block_subscribe", "block_get", "block_status"

RANGES_MAX = 100_000
"""The maximum number of ranges in one answer. Readers need the highest ones first."""
RANGE_BYTES = 16
DETAIL_OVERHEAD_BYTES = 2_048
"""The bytes of a frame that an answer needs in addition to the ranges and the address book."""


class ReadStatistics(msgspec.Struct, frozen=True):
    subscribe: SubscribeStatistics
    access: BlockAccessStatistics


class ReadServices:
    """The three services for readers. address_book: a serialized `NodeAddressBook`, which `block_status` returns."""

    def __init__(
        self,
        node: Node,
        blocks: BlockNode,
        *,
        version: str,
        new_id: Callable[[], str],
        limits: SubscribeLimits | None = None,
        address_book: bytes | None = None,
    ) -> None:
        self._node = node
        self.blocks = blocks
        self.version = version
        self._new_id = new_id
        self._limits = limits
        self.address_book = address_book

    def start(self) -> None:
        register = self._node.register
        register(
            [local(SUBSCRIBE_ADDRESS)],
            lambda: SubscribeService(
                self.blocks.facility, self._node, self.blocks.store, new_id=self._new_id, limits=self._limits
            ),
        )
        register([local(GET_ADDRESS)], lambda: AccessService(self.blocks.store))
        register([local(STATUS_ADDRESS)], lambda: StatusService(self))

    def close(self) -> list[Message]:
        """Ends the services, because another node serves the chain now. Returns the requests that were not served."""
        access = self._node.find_worker(local(GET_ADDRESS))
        waiting = access.hand_over() if isinstance(access, AccessService) else []
        for address in (GET_ADDRESS, SUBSCRIBE_ADDRESS, STATUS_ADDRESS):
            waiting += self._node.retire(local(address))
        return waiting

    def statistics(self) -> ReadStatistics:
        subscribe = self._node.find_worker(local(SUBSCRIBE_ADDRESS))
        access = self._node.find_worker(local(GET_ADDRESS))
        assert isinstance(subscribe, SubscribeService), "another worker has the service's address"
        assert isinstance(access, AccessService), "another worker has the service's address"
        return ReadStatistics(subscribe.statistics(), access.statistics())

    def plugins(self) -> dict[str, str]:
        return {inlet.name: self.version for inlet in self.blocks.facility.statistics().inlets}

    def next_expected(self) -> int | None:
        publishing = self.blocks.publishing
        return None if publishing is None else publishing.machine.blocks.next_block


class StatusService(AnsweringWorker):
    """The worker that answers at `block_status` (facts/block_node.md §1.6, T1 and T2). The answer describes the stored
    blocks, never the configuration: a reference block node once reported its configured first block as its last one,
    and its publishers stopped (§7.3).
    """

    def __init__(self, services: ReadServices) -> None:
        self._services = services
        self._store = services.blocks.store

    def started(self) -> None:
        self.context.pause()
        self._store.when_open(self.context.guard(self.context.resume))

    def answer(self, message: Message) -> None:
        request = STATUS.decode_request(message.payload)
        available = self._store.available
        response = StatusResponse(
            request.request_id,
            available.first,
            available.last,
            True,
            self._services.next_expected(),
            self._detail(message) if request.detail else None,
        )
        self.reply(message, STATUS.encode_response(response))

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_READ | Right.BLOCK_PUBLISH | Right.OPERATE, self._store.chain)

    def _detail(self, message: Message) -> StatusDetail:
        book = self._services.address_book
        # A frame may be too small for the address book: the ranges are more important.
        room_bytes = message.origin.frame_bytes_max - DETAIL_OVERHEAD_BYTES - len(book or b"")
        if room_bytes < 0:
            book, room_bytes = None, message.origin.frame_bytes_max - DETAIL_OVERHEAD_BYTES
        ranges_max = max(1, min(RANGES_MAX, room_bytes // RANGE_BYTES // 2))
        return StatusDetail(
            self._services.version,
            [PluginVersion(name, version) for name, version in sorted(self._services.plugins().items())],
            _newest(self._store.available, ranges_max),
            _newest(self._store.ever_stored, ranges_max),
            book,
        )


def _newest(ranges: BlockRanges, ranges_max: int) -> list[BlockRange]:
    return [BlockRange(each.first, each.last) for each in list(ranges)[-ranges_max:]]
