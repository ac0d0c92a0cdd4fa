"""The simulated subscribers to blocks: they come back where they were, and check all that they are told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import trio

from block_node.blocks.generator import GeneratedBlock
from block_node.blocks.items import Item
from block_node.protocol_reading import (
    SUBSCRIBE,
    Received,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedBlockWithdrawn,
    SubscribedItems,
    SubscribeResponse,
    Unsubscribe,
)
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from tests.simulation.auditor import BrokenPromise
from tests.simulation.block_network import BlockNetwork

PATIENCE_S = 10.0
"""After so long without a word it subscribes again: its request, or the last answer, may have been lost."""
WINDOW_BYTES = 1


class BlockSubscriber:
    """Wants the whole chain, block by block, over whatever connections that takes.

    next_block: the one that comes next; all before it came whole, once, and as they were published.
    withdrawn: blocks that were taken back. connections: how many it needed.
    """

    _names = count()

    def __init__(
        self, network: BlockNetwork, rng: random.Random, chain: Sequence[GeneratedBlock], *, early: bool
    ) -> None:
        self._network = network
        self._rng = rng
        self._chain = chain
        self._early = early
        self._address: Address | None = None
        self._session: Address | None = None
        self._sequence = 0
        self._items: list[Item] = []
        self._taken_bytes = 0
        self._over = False
        self._heard = trio.Event()
        self._broken: BrokenPromise | None = None
        self.next_block = 0
        self.withdrawn = self.connections = 0

    async def run(self) -> None:
        """Until the whole chain has come."""
        while self.next_block < len(self._chain):
            self._begin()
            while not self._over and self.next_block < len(self._chain):
                self._heard = trio.Event()
                with trio.move_on_after(PATIENCE_S) as patience:
                    await self._heard.wait()
                self._over = self._over or patience.cancelled_caught
            self.vanish()
            await trio.sleep(self._rng.choice((0.0, 0.1, 1.0)))

    def vanish(self) -> None:
        """Its connection ends, now and then with a word."""
        if self._session is not None and self._rng.random() < 0.5:
            self._send(Unsubscribe(1))
        if self._address is not None:
            self._network.leave(self._address)
        self._address = self._session = None

    def check(self) -> None:
        """All that came was true. Raises BrokenPromise."""
        if self._broken is not None:
            raise self._broken

    def _begin(self) -> None:
        self.connections += 1
        self._session, self._sequence, self._taken_bytes, self._over = None, 0, 0, False
        self._items = []
        self._address = local(f"sim_block_subscriber_{next(self._names)}")
        self._network.join(self._address, self._hear)
        end = self._rng.choice((None, len(self._chain) - 1))
        request = Subscribe(1, self.next_block, end, self._early, WINDOW_BYTES)
        self._network.to_node(
            Message((local("block_subscribe"),), (self._address,), SUBSCRIBE.encode_request(request)), in_order=True
        )

    def _hear(self, message: Message) -> None:
        if message.onward_route[0] != self._address or self._over:
            return
        response = SUBSCRIBE.decode_response(message.payload)
        if self._session is None:
            self._session = message.return_route[0]
        if message.return_route[0] != self._session:
            # A request that was doubled has opened another subscription.
            return
        self._heard.set()
        if isinstance(response, Subscribed):
            return
        if response.sequence > self._sequence:
            # A message was lost on its way.
            self._over = True
        elif response.sequence == self._sequence:
            self._sequence += 1
            self._take(response)

    def _take(self, response: SubscribeResponse) -> None:
        if isinstance(response, SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn):
            if response.block_number != self.next_block:
                self._break(f"block {response.block_number} came to a subscriber where {self.next_block} is next")
            elif isinstance(response, SubscribedItems):
                self._take_items(response)
            elif isinstance(response, SubscribedBlockWithdrawn):
                self.withdrawn += 1
                self._items = []
            else:
                self._end_block(response)
        elif not isinstance(response, Subscribed):
            self._over = True

    def _take_items(self, response: SubscribedItems) -> None:
        if not response.verified and not self._early:
            self._break(f"items of block {response.block_number} came to a subscriber before they were verified")
        self._items += response.items
        self._taken_bytes += sum(map(len, response.items))
        self._send(Received(1, self._taken_bytes))

    def _end_block(self, end: SubscribedBlockEnd) -> None:
        true = self._chain[self.next_block]
        if (end.root, tuple(self._items)) != (true.root, true.items):
            self._break(f"block {end.block_number} came to a subscriber, and is not what was published")
        self._items = []
        self.next_block += 1

    def _send(self, request: Received | Unsubscribe) -> None:
        assert self._address is not None, "there is a connection"
        if self._session is not None:
            message = Message((self._session,), (self._address,), SUBSCRIBE.encode_request(request))
            self._network.to_node(message, in_order=True)

    def _break(self, what: str) -> None:
        self._broken = self._broken or BrokenPromise(what)
        self._over = True
