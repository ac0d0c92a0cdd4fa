"""Routes between publishers and the block node of the moment: in order as TCP keeps it, late, doubled, and lossy."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import trio

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.actors.node import Node
from tests.simulation.network import Faults, Network


class BlockNetwork(Network):
    """A Network that keeps the order of what goes to a client, and shows what leaves the node to `on_leaving`."""

    def __init__(
        self, nursery: trio.Nursery, rng: random.Random, faults: Faults, on_leaving: Callable[[Message], None]
    ) -> None:
        super().__init__(nursery, rng, faults)
        self._on_leaving = on_leaving
        self._to_clients: dict[Address, deque[Message]] = {}

    @property
    def node(self) -> Node | None:
        return self._node

    def leave(self, address: Address) -> None:
        """The client's connection is lost: the node notices that its address is gone."""
        self._receivers.pop(address, None)
        if self._node is not None:
            self._node.unregister(address)

    def to_client(self, message: Message) -> None:
        self._on_leaving(message)
        address = message.onward_route[0]
        for _ in range(self._draw_copies()):
            self._to_clients.setdefault(address, deque()).append(message)
            self._nursery.start_soon(self._deliver_later, lambda: self._to_clients_oldest(address))

    def _to_clients_oldest(self, address: Address) -> None:
        message = self._to_clients[address].popleft()
        receive = self._receivers.get(address)
        if receive is not None:
            receive(message)
