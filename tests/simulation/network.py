"""Routes that drop, delay, duplicate and reorder messages, between clients that live and a node that may not."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import trio

from ockam.address import Address
from ockam.message import Message
from ockam.node import Node
from ockam.worker import Worker


class Faults(msgspec.Struct, frozen=True):
    """Probabilities of one message, and the longest delay in virtual seconds. Delays are drawn with ties."""

    drop: float
    duplicate: float
    delay_s_max: float

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        return cls(rng.choice((0.0, 0.05, 0.3)), rng.choice((0.0, 0.1)), rng.choice((0.0, 0.01, 0.5)))


class Network:
    """Carries messages to the node of the moment, and its answers back to clients by their addresses."""

    def __init__(self, nursery: trio.Nursery, rng: random.Random, faults: Faults) -> None:
        self._nursery = nursery
        self._rng = rng
        self._faults = faults
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

    def to_node(self, message: Message) -> None:
        self._carry(lambda: self._node.send(message) if self._node is not None else None)

    def to_client(self, message: Message) -> None:
        self._carry(lambda: self._receivers[message.onward_route[0]](message))

    def _carry(self, deliver: Callable[[], object]) -> None:
        rng, faults = self._rng, self._faults
        if rng.random() < faults.drop:
            return
        for _ in range(2 if rng.random() < faults.duplicate else 1):
            delay_s = round(rng.random() * faults.delay_s_max, 2)
            self._nursery.start_soon(self._deliver_later, delay_s, deliver)

    async def _deliver_later(self, delay_s: float, deliver: Callable[[], object]) -> None:
        await trio.sleep(delay_s)
        deliver()


class Gate(Worker):
    """A client's address on the node: whatever is routed to it leaves through the network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def handle(self, message: Message) -> None:
        self._network.to_client(message)
