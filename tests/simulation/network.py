"""Routes that drop, delay, duplicate and reorder messages, between clients that live and a node that may not."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec
import trio

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker


class Faults(msgspec.Struct, frozen=True):
    """Probabilities of one message, and the longest delay in virtual seconds. Delays are drawn with ties."""

    drop: float
    duplicate: float
    delay_s_max: float

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        return cls(rng.choice((0.0, 0.05, 0.3)), rng.choice((0.0, 0.1)), rng.choice((0.0, 0.01, 0.5)))


class Network:
    """Carries messages to the node of the moment, and its answers back to clients by their addresses.

    on_arrival: called with each message that a living node is about to get.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        rng: random.Random,
        faults: Faults,
        on_arrival: Callable[[Message], None] = lambda message: None,
    ) -> None:
        self._nursery = nursery
        self._rng = rng
        self._faults = faults
        self._on_arrival = on_arrival
        self._lanes: dict[Address, deque[Message]] = defaultdict(deque)
        self._receivers: dict[Address, Callable[[Message], None]] = {}
        self._node: Node | None = None

    def attach(self, node: Node | None) -> None:
        """From now on messages reach this node; None while there is none."""
        self._node = node
        if node is not None:
            for address in self._receivers:
                node.register([address], lambda: Gate(self))

    def join(self, address: Address, receive: Callable[[Message], None]) -> None:
        """A client: answers to this address come to `receive`."""
        self._receivers[address] = receive
        if self._node is not None:
            self._node.register([address], lambda: Gate(self))

    def to_node(self, message: Message, *, in_order: bool = False) -> None:
        """in_order: behind everything that its sender has sent so."""
        for _ in range(self._draw_copies()):
            if in_order:
                self._lanes[message.return_route[0]].append(message)
                self._nursery.start_soon(self._deliver_oldest, message.return_route[0])
            else:
                self._nursery.start_soon(self._deliver_later, lambda: self._arrive(message))

    def to_client(self, message: Message) -> None:
        for _ in range(self._draw_copies()):
            self._nursery.start_soon(self._deliver_later, lambda: self._receivers[message.onward_route[0]](message))

    def _draw_copies(self) -> int:
        if self._rng.random() < self._faults.drop:
            return 0
        return 2 if self._rng.random() < self._faults.duplicate else 1

    async def _deliver_later(self, deliver: Callable[[], object]) -> None:
        await trio.sleep(round(self._rng.random() * self._faults.delay_s_max, 2))
        deliver()

    async def _deliver_oldest(self, sender: Address) -> None:
        """Whichever message this was started for: as many are delivered as were sent, the oldest first."""
        await self._deliver_later(lambda: self._arrive(self._lanes[sender].popleft()))

    def _arrive(self, message: Message) -> None:
        if self._node is not None:
            self._on_arrival(message)
            self._node.send(message)


class Gate(Worker):
    """A client's address on the node: whatever is routed to it leaves through the network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def handle(self, message: Message) -> None:
        self._network.to_client(message)
