"""The simulated consensus nodes: `ConsensusMachine` decides, over real gRPC connections on simulated sockets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import msgspec
import trio

from block_node.blocks.generator import GeneratedBlock
from block_node.blocks.items import Item, make_header
from block_node.grpc.client.channel import AskedCall, AskingConnection
from block_node.grpc.client.consensus_machine import ConsensusLimits, ConsensusMachine, Heard, SendPosition
from block_node.grpc.http2.connection import DoorCounts
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import NO_BLOCK, WireMessage, read_message, write_message
from tests.simulation.auditor import BrokenPromise
from tests.simulation.grpc_link import LinkEnd

PACKAGE = "/org.hiero.block.api"
PUBLISH = f"{PACKAGE}.BlockStreamPublishService/publishBlockStream".encode()
STATUS = f"{PACKAGE}.BlockNodeService/serverStatus".encode()
STATUS_S_MAX = 1.0
"""A consensus node waits no longer for the status of a block node."""
CLIENT_LIMITS = Http2Limits(pending_bytes_max=1)
"""Each message waits for its window, as PBJ writes."""
BEHINDS_WITHIN_S = ConsensusLimits().behinds_within_s
KEPT_BLOCKS = 3
"""So many blocks stay after they were acknowledged."""

LIES = (*("spoil", "stall") * 4, "jump", "old", "no end", "foreign end", "twice", "loose", "garbage", "far")
FORBIDDEN = (Heard.BEHIND_TWICE, Heard.ENDED_TOO_OFTEN, Heard.WANTED_LATER, Heard.SLOW)
"""Why no consensus node that behaves may leave a block node that works."""


class Habits(msgspec.Struct, frozen=True):
    """pause_s: between two messages. set_items: in one message. late_s: how much later a block is there than elsewhere.

    dies_at: it dies at this step of its life. A step is a message, the opening of a stream, and its end.
    lies: the probability, a block, that it does not behave. is_blind: it begins with its newest block whatever the
    status of the block node says.
    """

    pause_s: float
    set_items: int
    late_s: float = 0.0
    dies_at: int | None = None
    lies: float = 0.0
    is_blind: bool = False


class Door(Protocol):
    """The block node of the moment, as a consensus node sees it. reborn_s: when it began after a death; None before."""

    reborn_s: float | None

    def connect(self, name: str) -> LinkEnd | None: ...


class Died(Exception):
    """The consensus node has come to the step at which it dies."""


class OneStatus:
    """The answer to `serverStatus`."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.next_expected: int | None = None

    def take(self, message: bytes) -> None:
        self.next_expected = read_message("ServerStatusResponse", message).get("next_expected_block", 0)

    def room(self) -> None:
        pass

    def done(self, status: GrpcStatus, text: str) -> None:
        self.answered.set()


class Stream:
    """The answers on one stream. is_over: whether the call has ended, or its connection."""

    def __init__(self, node: ConsensusNode) -> None:
        self._node = node
        self.has_room = self.has_heard_end = self.is_over = False

    def take(self, message: bytes) -> None:
        response = read_message("PublishStreamResponse", message)
        self.has_heard_end = self.has_heard_end or "end_stream" in response
        self._node.hear(response)

    def room(self) -> None:
        self.has_room = True
        self._node.wake()

    def done(self, status: GrpcStatus, text: str) -> None:
        self.is_over = True
        self._node.ended(self, status, text)


class ConsensusNode:
    """Sends each block of the chain from `begins_at` on when it is there, and is done when the last is acknowledged."""

    def __init__(
        self,
        name: str,
        door: Door,
        rng: random.Random,
        chain: Sequence[GeneratedBlock],
        bad: Sequence[Sequence[Item]],
        habits: Habits,
        limits: ConsensusLimits,
        begins_at: int,
    ) -> None:
        self._door = door
        self._rng = rng
        self._chain = chain
        self._bad = bad
        self._limits = limits
        self._begins_at = begins_at
        self._changed = trio.Event()
        self._link: LinkEnd | None = None
        self._call: AskedCall | None = None
        self._stream: Stream | None = None
        self._steps = 0
        self._dies_at = habits.dies_at
        self.name = name
        self.habits = habits
        self.machine = ConsensusMachine(limits)
        self.broken: str | None = None
        self.streams = self.deaths = self.ends_read = self.lies = self.unsent = 0

    @property
    def behaves(self) -> bool:
        return not self.habits.lies

    @property
    def is_done(self) -> bool:
        return self.machine.acknowledged == len(self._chain) - 1

    async def run(self, block_s: float) -> None:
        """A block every `block_s` seconds; until all of them are acknowledged."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._produce, block_s)
            while not self.is_done:
                try:
                    await self._live()
                except* Died:
                    await self._be_dead()
            nursery.cancel_scope.cancel()

    # What the connection tells.

    def wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def hear(self, response: WireMessage) -> None:
        now_s = trio.current_time()
        self.machine.take(response, now_s)
        self.machine.check()
        self.ends_read += "end_stream" in response
        left = None if self.machine.is_open else self.machine.left
        # A new node does not know what the one before has said.
        reborn_s = self._door.reborn_s
        is_excused = left is Heard.BEHIND_TWICE and reborn_s is not None and now_s - reborn_s < BEHINDS_WITHIN_S
        if self.behaves and left in FORBIDDEN and not is_excused:
            self.broken = self.broken or f"{self.name} behaved and left: {left and left.text}, at {response}"
        self.wake()

    def ended(self, stream: Stream, status: GrpcStatus, text: str) -> None:
        link = self._link
        if stream is self._stream and self.machine.is_open and not stream.has_heard_end and link is not None:
            # A call that the block node ends in order has a last message that says why.
            if status is GrpcStatus.OK:
                self.broken = self.broken or f"{self.name} was sent no EndOfStream: {text}"
            elif link.carried_end and not link.was_cut:
                self.broken = self.broken or f"{self.name} did not read the EndOfStream: {text}"
        if stream is self._stream:
            self.machine.lost(trio.current_time())
        self.wake()

    # Life.

    async def _produce(self, block_s: float) -> None:
        for number in range(self._begins_at, len(self._chain)):
            self.machine.produced(number)
            self.wake()
            await trio.sleep(block_s)
            if number == self._begins_at:
                await trio.sleep(self.habits.late_s)

    async def _live(self) -> None:
        while not self.is_done:
            now_s = trio.current_time()
            if not self.machine.may_open(now_s):
                await self._wait(self.machine.opens_s - now_s)
                continue
            link = self._door.connect(self.name)
            if link is None:
                await trio.sleep(self._rng.choice((0.5, 1.0, 3.0)))
                continue
            self._link = link
            async with trio.open_nursery() as nursery:
                connection = AskingConnection(link, "node", CLIENT_LIMITS, DoorCounts())
                nursery.start_soon(connection.run)
                await self._use(connection)
                nursery.cancel_scope.cancel()

    async def _use(self, connection: AskingConnection) -> None:
        """One stream on a connection of its own, from the status to the last word."""
        self._step()
        status = OneStatus()
        connection.ask(STATUS, status, b"")
        with trio.move_on_after(STATUS_S_MAX):
            await status.answered.wait()
        if status.next_expected is None:
            await trio.sleep(STATUS_S_MAX)
            return
        self._stream = Stream(self)
        self.streams += 1
        self._call = connection.ask(PUBLISH, self._stream)
        # Whoever has nothing left to send offers the last block, to hear that it is durable.
        begins = None if self.habits.is_blind else min(status.next_expected, len(self._chain) - 1)
        self.machine.opened(trio.current_time(), begins)
        while self.machine.is_open and not self.is_done:
            position = self.machine.position
            if position is None:
                await self._wait(self._limits.reset_s)
                self.machine.tick(trio.current_time())
            else:
                await self._send_block(position)
        self._step()
        farewell = self.machine.take_farewell()
        if self.machine.is_open:
            self.machine.lost(trio.current_time())
        if farewell is not None and not self._stream.is_over:
            self._call.send(write_message("PublishStreamRequest", farewell))
        if not self._stream.is_over:
            self._call.end()
        # The last bytes go out before the connection is closed.
        await trio.sleep(self._rng.choice((0.05, 0.5)))

    async def _send_block(self, position: SendPosition) -> None:
        if self._rng.random() < self.habits.lies:
            self.lies += 1
            await self._lie(position)
            return
        items, size = self._chain[position.block_number].items, self.habits.set_items
        for start in range(0, len(items), size):
            await trio.sleep(self.habits.pause_s)
            if self.machine.position != position or not await self._send_items(items[start : start + size]):
                return
        if self.machine.position == position and await self._send(
            {"end_of_block": {"block_number": position.block_number}}
        ):
            self.machine.finished(position, trio.current_time())
            self._drop_old()

    def _drop_old(self) -> None:
        acknowledged = self.machine.acknowledged
        if acknowledged is not None and acknowledged - KEPT_BLOCKS > self.machine.blocks.start:
            self.machine.dropped(acknowledged - KEPT_BLOCKS, trio.current_time())

    async def _send_items(self, items: Sequence[Item]) -> bool:
        return await self._send({"block_items": {"block_items": list(items)}})

    async def _send(self, request: WireMessage) -> bool:
        """Sends one message, and waits until it has gone. Returns False if the block is not to be gone on with."""
        self._step()
        stream, call = self._stream, self._call
        assert stream is not None
        assert call is not None
        if stream.is_over:
            return False
        message = write_message("PublishStreamRequest", request)
        stream.has_room = False
        if call.send(message):
            return True
        with trio.move_on_after(self.machine.send_s_max(len(message))):
            while not stream.has_room and not stream.is_over:
                await self._changed_or(None)
            return not stream.is_over
        self.unsent += 1
        self.machine.not_sent(trio.current_time())
        return False

    async def _wait(self, most_s: float) -> None:
        await self._changed_or(max(most_s, 0.0))

    async def _changed_or(self, most_s: float | None) -> None:
        with trio.move_on_after(float("inf") if most_s is None else most_s):
            await self._changed.wait()

    # Death.

    def _step(self) -> None:
        self._steps += 1
        if self._steps == self._dies_at:
            # Whoever is dead reads nothing more.
            self._stream = None
            raise Died

    async def _be_dead(self) -> None:
        """It loses its stream in one of four ways, and what it knew of the block node; its blocks were saved."""
        rng, link = self._rng, self._link
        self.deaths += 1
        self._dies_at = None
        assert link is not None
        rng.choice((link.cut, link.lose_power, link.close, link.cut))()
        blocks = self.machine.blocks
        self.machine = ConsensusMachine(self._limits)
        for number in blocks:
            self.machine.produced(number)
        await trio.sleep(rng.choice((0.0, 1.0, 20.0)))

    # Lies.

    async def _lie(self, position: SendPosition) -> None:
        """One of all that a block node must be able to bear."""
        rng, number = self._rng, position.block_number
        items = self._chain[number].items
        kind = rng.choice(LIES)
        if kind in ("spoil", "no end", "foreign end", "twice", "stall"):
            sent = self._bad[number] if kind == "spoil" else items
            cut = len(sent) if kind in ("spoil", "no end", "foreign end") else rng.randint(1, len(sent) - 1)
            if not await self._send_items(sent[:cut]):
                return
            if kind == "twice":
                await self._send_items(items[:cut])
            elif kind == "stall":
                await trio.sleep(rng.choice((3.0, 40.0)))
            elif kind != "no end":
                await self._send({"end_of_block": {"block_number": number + (kind == "foreign end")}})
        elif kind in ("jump", "old"):
            other = number + rng.choice((1, 2, 1_000_000)) if kind == "jump" else rng.randint(0, number)
            await self._send_items([make_header(other, (0, 78, 0), 1_750_000_000, 0), *items[1:3]])
        elif kind == "loose":
            await self._send_items(items[1:4])
        elif kind == "garbage":
            call = self._call
            assert call is not None
            if self._stream is not None and not self._stream.is_over:
                call.send(rng.choice((b"", b"\xff\xff", b"\x0a\x05\x0a\x09abc", rng.randbytes(20))))
        else:
            await self._send({"end_stream": {"end_code": 4, "latest_block_number": rng.choice((NO_BLOCK, number + 2))}})
        await trio.sleep(rng.choice((0.1, 1.0)))
        # It goes on as if it had sent the block, or with the same one.
        if rng.random() < 0.5:
            self.machine.finished(position, trio.current_time())


def raise_broken(nodes: Sequence[ConsensusNode]) -> None:
    for node in nodes:
        if node.broken is not None:
            raise BrokenPromise(node.broken)
