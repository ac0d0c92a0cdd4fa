"""Simulated nodes that blocks are fetched from: an honest one, and others that lie, forge, are slow, die and flap."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import trio

from block_node.backfill.route_source import FetchListener, RootDone, StatusDone
from block_node.blocks.generator import ChainGenerator, GeneratedBlock
from block_node.blocks.items import Item, ItemKind, item_kind
from block_node.events import ITEM_OVERHEAD_BYTES
from block_node.persist.ranges import BlockRanges
from ockam.actors.node import Node
from tests.simulation.block_world import signing_keys

CHAIN_BLOCKS = 24
BEYOND = 1 << 40
"""What a liar claims to have beyond the chain."""


class SourceHabits(msgspec.Struct, frozen=True):
    """lies: claims what it does not have. Probabilities: forges, a block; dies, a request; flaps, a question.

    pace_s_max: between two blocks.
    """

    lies: bool = False
    forges: float = 0.0
    dies: float = 0.0
    flaps: float = 0.0
    pace_s_max: float = 0.02

    @classmethod
    def draw(cls, rng: random.Random) -> SourceHabits:
        """One or two vices, so that each is seen by itself too."""
        vices = rng.sample(("lies", "forges", "dies", "flaps", "pace_s_max"), rng.randint(1, 2))
        return cls(
            lies="lies" in vices,
            forges=rng.choice((0.05, 0.5, 1.0)) if "forges" in vices else 0.0,
            dies=rng.choice((0.3, 1.0)) if "dies" in vices else 0.0,
            flaps=rng.choice((0.3, 0.9)) if "flaps" in vices else 0.0,
            pace_s_max=rng.choice((1.0, 60.0)) if "pace_s_max" in vices else 0.02,
        )


HONEST = SourceHabits()


@cache
def true_chain() -> tuple[GeneratedBlock, ...]:
    return tuple(ChainGenerator(signing_keys()).blocks(CHAIN_BLOCKS))


@cache
def forged_chains() -> tuple[tuple[tuple[Item, ...], ...], ...]:
    """Two of them: the same blocks with record files that nobody has signed; and blocks that are signed and follow each
    other, as those of another network would."""
    unsigned = tuple(
        tuple(
            item[:-1] + bytes((item[-1] ^ 1,)) if item_kind(item) == ItemKind.RECORD_FILE else item
            for item in block.items
        )
        for block in true_chain()
    )
    other = tuple(block.items for block in ChainGenerator(signing_keys(), seed=1).blocks(CHAIN_BLOCKS))
    return unsigned, other


class Flight:
    """A request under way: the blocks from `next_block` to `last` are still to come of it."""

    def __init__(self, first: int, last: int, on_over: Callable[[Flight], None]) -> None:
        self.next_block, self.last = first, last
        self._on_over = on_over
        self.is_over = False

    def cancel(self) -> None:
        """Safe to repeat."""
        if not self.is_over:
            self.is_over = True
            self._on_over(self)


class SimulatedSource:
    """A `BlockSource`. on_fetch: told of every request before it begins; chain, bad: its blocks, true and forged."""

    def __init__(
        self,
        node: Node,
        nursery: trio.Nursery,
        rng: random.Random,
        habits: SourceHabits,
        has: BlockRanges,
        chain: Sequence[Sequence[Item]],
        bad: Sequence[Sequence[Item]],
        on_fetch: Callable[[Flight], None],
        on_over: Callable[[Flight], None],
    ) -> None:
        self._node = node
        self._nursery = nursery
        self._rng = rng
        self._habits = habits
        self._has = has
        self._chain = chain
        self._bad = bad
        self._on_fetch = on_fetch
        self._on_over = on_over

    def ask_status(self, on_done: StatusDone) -> None:
        self._nursery.start_soon(self._answer_status, on_done)

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        """A source knows the chain, whatever it sends."""

        async def answer() -> None:
            with self._node.batch():
                on_done(true_chain()[number].root if number in self._has else None, "")

        self._nursery.start_soon(answer)

    def fetch(self, first: int, last: int, listener: FetchListener) -> Flight:
        flight = Flight(first, last, self._on_over)
        self._on_fetch(flight)
        self._nursery.start_soon(self._send, flight, listener)
        return flight

    def close(self) -> None:
        pass

    async def _answer_status(self, on_done: StatusDone) -> None:
        await trio.sleep(self._pause_s())
        flaps = self._rng.random() < self._habits.flaps
        claims = self._has.copy()
        if self._habits.lies:
            claims.add(0, self._rng.choice((len(self._chain) - 1, BEYOND)))
        with self._node.batch():
            on_done(None if flaps else claims, "unreachable" if flaps else "")

    async def _send(self, flight: Flight, listener: FetchListener) -> None:
        rng, habits = self._rng, self._habits
        dies_at = rng.randint(flight.next_block, flight.last) if rng.random() < habits.dies else None
        while not flight.is_over:
            await trio.sleep(self._pause_s())
            number = flight.next_block
            if flight.is_over:
                return
            with self._node.batch():
                if number == dies_at or number not in self._has:
                    flight.cancel()
                    listener.ended("it ended", lied=number != dies_at)
                else:
                    self._send_block(flight, number, listener)

    def _send_block(self, flight: Flight, number: int, listener: FetchListener) -> None:
        items = list((self._bad if self._rng.random() < self._habits.forges else self._chain)[number])
        half = len(items) // 2
        for part in (items[:half], items[half:]):
            listener.grew(sum(map(len, part)) + ITEM_OVERHEAD_BYTES * len(part))
        flight.next_block += 1
        if number == flight.last:
            flight.cancel()
        listener.block(number, items)

    def _pause_s(self) -> float:
        return round(self._rng.random() * self._habits.pace_s_max, 2)
