"""Starts the services for readers of blocks: `block_subscribe`, `block_get` and `block_status`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from block_node.node import BlockNode
from block_node.read.access import AccessService, BlockAccessStatistics
from block_node.read.status import StatusService
from block_node.read.subscribe import SubscribeService, SubscribeStatistics
from block_node.read.subscription_plan import SubscribeLimits
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node

SUBSCRIBE_ADDRESS, GET_ADDRESS, STATUS_ADDRESS = "block_subscribe", "block_get", "block_status"


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
        register(
            [local(STATUS_ADDRESS)],
            lambda: StatusService(
                self.blocks.store,
                next_expected=self.next_expected,
                version=self.version,
                plugins=self.plugins,
                address_book=self.address_book,
            ),
        )

    def close(self) -> list[Message]:
        """Ends the services, because another node serves the chain from now on. `BlockNode.stop` must have ended the
        subscriptions before. Returns the requests that were not served, in order for each service."""
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
