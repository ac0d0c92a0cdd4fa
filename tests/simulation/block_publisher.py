"""The simulated publishers of blocks: they follow the protocol, but for the faults that the seed gives them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import msgspec
import trio

from block_node.blocks.generator import GeneratedBlock
from block_node.blocks.items import Item
from block_node.client.publisher_machine import PublisherMachine
from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    Behind,
    BlockItems,
    DuplicateBlock,
    EndOfBlock,
    EndStream,
    OpenSession,
    PublisherEndCode,
    PublishRequest,
    ResendBlock,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from tests.simulation.block_network import BlockNetwork

PATIENCE_S = 12.0
"""Without an answer for so long, a publisher opens another session."""


class Habits(msgspec.Struct, frozen=True):
    """Probabilities a block: to die in it (by a word or without), to fall silent in it, to send a bad one, to send an
    older or a later one. doubles: of a message. pause_s_max: between two messages."""

    dies: float = 0.0
    stalls: float = 0.0
    spoils: float = 0.0
    repeats: float = 0.0
    jumps: float = 0.0
    doubles: float = 0.0
    pause_s_max: float = 0.05

    @classmethod
    def draw(cls, rng: random.Random) -> Habits:
        """One or two faults of any kind, often or seldom."""
        faults = rng.sample(("dies", "stalls", "spoils", "repeats", "jumps", "doubles"), rng.randint(1, 2))
        pause_s_max = rng.choice((0.01, 0.1, 1.0))
        return cls(**{fault: rng.choice((0.1, 0.4)) for fault in faults}, pause_s_max=pause_s_max)


HEALTHY = Habits()


class BlockPublisher:
    """Publishes the chain until all of it is acknowledged to it.

    Invariant: `acknowledged` is the highest block that the node said is safe; `cursor` is what is sent next.
    """

    _names = count()

    def __init__(
        self,
        network: BlockNetwork,
        rng: random.Random,
        chain: Sequence[GeneratedBlock],
        bad: Sequence[Sequence[Item]],
        habits: Habits,
    ) -> None:
        self._network = network
        self._rng = rng
        self._chain = chain
        self._bad = bad
        self._habits = habits
        self._address: Address | None = None
        self._session: Address | None = None
        self._sequence = 0
        self._sending: int | None = None
        self._heard = trio.Event()
        self._over = False
        self.cursor = 0
        self.acknowledged = -1
        self.sessions = 0
        self.refused = 0

    async def run(self) -> None:
        """Until everything is acknowledged."""
        while self.acknowledged < len(self._chain) - 1:
            await self._open()
            while not self._over and self.acknowledged < len(self._chain) - 1:
                if self.cursor < len(self._chain):
                    await self._publish_next()
                elif not await self._wait():
                    # What was sent and is not acknowledged may be lost.
                    self._over = True
            await self._close()

    def vanish(self) -> None:
        """Its connection is lost, wherever it was."""
        if self._address is not None:
            self._network.leave(self._address)
            self._address = self._session = None

    async def _open(self) -> None:
        """A session, from a connection of its own, however often that takes."""
        token = self._rng.randbytes(4)
        while True:
            self.sessions += 1
            self._sequence, self._session, self._over, self._sending = 0, None, False, None
            self._address = local(f"sim_block_publisher_{next(self._names)}")
            self._network.join(self._address, self._hear)
            self._send_to(local("block_publish"), OpenSession(token))
            await self._wait()
            if self._session is not None and not self._over:
                return
            await self._close()
            await trio.sleep(self._rng.choice((0.1, 1.0, 3.0)))

    async def _close(self) -> None:
        """The connection ends, with a word or without."""
        if self._session is not None and not self._over and self._rng.random() < 0.5:
            self._send(EndStream(self._next(), PublisherEndCode.RESET, 0, len(self._chain) - 1))
        await trio.sleep(self._pause_s())
        if self._address is not None:
            self._network.leave(self._address)
        self._address = self._session = None
        self._over = True

    async def _publish_next(self) -> None:
        """One block, or as much of it as the faults allow."""
        rng, habits = self._rng, self._habits
        number = self.cursor
        if rng.random() < habits.repeats:
            number = rng.randint(0, number)
        elif rng.random() < habits.jumps:
            number = min(number + rng.randint(1, 3), len(self._chain) - 1)
        items = self._bad[number] if rng.random() < habits.spoils else self._chain[number].items
        stop_at = rng.randint(1, len(items)) if rng.random() < habits.dies + habits.stalls else None
        self._sending = number
        self.cursor = number + 1
        at = 0
        while at < len(items):
            if self._over or self._sending != number:
                return
            if stop_at is not None and at >= stop_at:
                if rng.random() * (habits.dies + habits.stalls) < habits.dies:
                    self._over = True
                else:
                    await trio.sleep(rng.choice((4.0, 15.0)))
                return
            size = rng.randint(1, 4)
            self._send(BlockItems(self._next(), list(items[at : at + size])))
            at += size
            await trio.sleep(self._pause_s())
        if not self._over and self._sending == number:
            self._send(EndOfBlock(self._next(), number))
            self._sending = None

    def _hear(self, message: Message) -> None:
        response = PUBLISH.decode_response(message.payload)
        if isinstance(response, SessionOpened):
            if self._session is None:
                self._session = message.return_route[0]
                self._note_safe(response.last_block)
                self.cursor = response.next_block
        elif message.return_route[0] != self._session and not isinstance(response, StreamEnded):
            return
        elif isinstance(response, Acknowledgement):
            self._note_safe(response.block_number)
        elif isinstance(response, StreamEnded):
            self.refused += 1
            self._note_safe(response.last_block)
            self._over = True
        elif isinstance(response, SkipBlock):
            if self._sending == response.block_number:
                self._sending = None
        elif isinstance(response, DuplicateBlock):
            self._go_to(response.last_block + 1)
        elif isinstance(response, Behind):
            self._go_to(response.next_block)
        elif isinstance(response, ResendBlock):
            self._go_to(min(self.cursor, response.block_number))
        self._heard.set()

    def _note_safe(self, block_number: int | None) -> None:
        if block_number is not None and block_number > self.acknowledged:
            self.acknowledged = block_number

    def _go_to(self, block_number: int) -> None:
        if self._sending is None or self._sending != block_number:
            self._sending = None
            self.cursor = block_number

    async def _wait(self) -> bool:
        """For the next answer; False where none came."""
        self._heard = trio.Event()
        with trio.move_on_after(PATIENCE_S):
            await self._heard.wait()
            return True
        return False

    def _pause_s(self) -> float:
        return round(self._rng.random() * self._habits.pause_s_max, 2)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _send(self, request: PublishRequest) -> None:
        if self._session is not None:
            self._send_to(self._session, request)
            if self._rng.random() < self._habits.doubles:
                self._send_to(self._session, request)

    def _send_to(self, to: Address, request: PublishRequest) -> None:
        assert self._address is not None
        message = Message((to,), (self._address,), PUBLISH.encode_request(request))
        self._network.to_node(message, in_order=True)


class ClientPublisher(BlockPublisher):
    """A healthy publisher that decides as our own client does."""

    def __init__(self, network: BlockNetwork, rng: random.Random, chain: Sequence[GeneratedBlock]) -> None:
        super().__init__(network, rng, chain, (), HEALTHY)
        self._machine = PublisherMachine()
        for block in chain:
            self._machine.add(block.number)

    async def run(self) -> None:
        machine = self._machine
        while machine.kept:
            machine.session_begins()
            await self._open()
            while machine.kept and machine.ended is None and machine.needed is None:
                number = machine.next_block()
                if number is not None:
                    await self._publish_block(number)
                elif not await self._wait():
                    break
            await self._close()

    async def _publish_block(self, number: int) -> None:
        items = self._chain[number].items
        self._machine.begin(number)
        for at in range(0, len(items), 3):
            self._send(BlockItems(self._next(), list(items[at : at + 3])))
            await trio.sleep(self._pause_s())
            if self._machine.sending != number:
                return
        self._send(EndOfBlock(self._next(), number))
        self._machine.finish(number)

    def _hear(self, message: Message) -> None:
        response = PUBLISH.decode_response(message.payload)
        if isinstance(response, SessionOpened | StreamEnded) or message.return_route[0] == self._session:
            self._machine.take(response)
        super()._hear(message)
