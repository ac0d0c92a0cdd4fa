"""Starts the services for readers of blocks: `block_subscribe`, `block_get` and `block_status`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from block_node.node import BlockNode
from block_node.persist.ranges import BlockRanges
from block_node.protocol_reading import STATUS, BlockRange, PluginVersion, StatusDetail, StatusResponse
from block_node.read.access import AccessService, BlockAccessStatistics
from block_node.read.feed import SubscribeLimits
from block_node.read.subscribe import SubscribeService, SubscribeStatistics
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.rights import Demand, Right

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
