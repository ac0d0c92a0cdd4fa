"""One seeded run of a block node: publishers that die, stall and lie, subscribers, backfill, a bad network, a disk,
and deaths.

As in `tests.simulation.world`, everything random comes from the seed.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import msgspec
import trio

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.errors import Level
from block_node.blocks.generator import ChainGenerator, GeneratedBlock, SigningKeys
from block_node.blocks.items import Item, ItemKind, item_kind
from block_node.blocks.settings import VerifierSettings
from block_node.events import BackfilledBlockNotification
from block_node.node import BlockNode, BlockNodeSettings
from block_node.publish.block_machine import PublishLimits
from block_node.read.feed import SubscribeLimits
from block_node.read.services import ReadServices
from ockam.actors.address import local
from ockam.actors.node import Node
from tests.simulation.block_auditor import BlockAuditor
from tests.simulation.block_network import BlockNetwork
from tests.simulation.block_publisher import HEALTHY, BlockPublisher, ClientPublisher, Habits
from tests.simulation.block_subscriber import BlockSubscriber
from tests.simulation.disk import FaultyRunner
from tests.simulation.network import Faults
from tests.simulation.world import Misfortune, Stuck
from tests.support.databases import open_database
from tests.support.virtual_time import run_seeded

VIRTUAL_TIMEOUT_S = 3_000.0
"""The slowest seeds need a tenth of it."""
CHAIN_BLOCKS = 10
LIMITS = PublishLimits(
    block_s_max=5.0,
    processing_s_max=20.0,
    resend_s=2.0,
    queued_bytes_max=6_000,
    ahead_blocks_max=6,
    idle_s_max=60.0,
    slice_items_max=5,
    slice_bytes_max=800,
)
READING_LIMITS = SubscribeLimits(window_bytes_min=500, slow_s_max=5.0, missing_s_max=5.0, duration_s_max=40.0)
LEVELS = Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.RECORD_PROOF
PLUGINS = ("block_persistence", "block_verification", "block_publish", "block_subscribe")


class BlockOutcome(msgspec.Struct, frozen=True):
    """What happened, to show that runs are not all alike, and that no check was idle."""

    checked: int
    deaths: int
    crashes: int
    refused_operations: int
    sessions: int
    streams_ended: int
    blocks_expired: int
    blocks_refused: int
    resends: int
    subscriptions: int
    withdrawn: int
    virtual_s: float


def run_block_seed(seed: int, directory: Path) -> BlockOutcome:
    """Run the world of one seed. Raises BrokenPromise or Stuck."""
    world = BlockWorld(random.Random(seed), directory)
    return run_seeded(seed, world.run)


@cache
def signing_keys() -> SigningKeys:
    return SigningKeys.generate(key_bits=2048)


@cache
def true_chain() -> tuple[GeneratedBlock, ...]:
    return tuple(ChainGenerator(signing_keys()).blocks(CHAIN_BLOCKS))


@cache
def bad_blocks() -> tuple[tuple[Item, ...], ...]:
    """The same blocks with another record file, which nobody has signed."""
    return tuple(
        tuple(
            item[:-1] + bytes((item[-1] ^ 1,)) if item_kind(item) == ItemKind.RECORD_FILE else item
            for item in block.items
        )
        for block in true_chain()
    )


class BlockWorld:
    """Publishers, of whom one is healthy, and one block node after another on one data directory."""

    def __init__(self, rng: random.Random, directory: Path) -> None:
        self._rng = rng
        self._directory = directory
        self._auditor = BlockAuditor(true_chain())
        self._publishers: list[BlockPublisher] = []
        self._subscribers: list[BlockSubscriber] = []
        self._done = trio.Event()
        self._deaths = self._crashes = self._refused = 0
        self._expired = self._blocks_refused = self._resends = 0

    async def run(self) -> BlockOutcome:
        started_s = trio.current_time()
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                network = BlockNetwork(nursery, self._rng, draw_faults(self._rng), self._auditor.leaving)
                for early in (False, True)[: self._rng.randint(0, 2)]:
                    nursery.start_soon(self._subscribe(network, early).run)
                nursery.start_soon(self._publish_all, network)
                await self._live_and_die(network)
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            safe = [publisher.acknowledged for publisher in self._publishers]
            got = [subscriber.next_block for subscriber in self._subscribers]
            raise Stuck(f"after {VIRTUAL_TIMEOUT_S:g} virtual s publishers know as safe {safe}, subscribers have {got}")
        self._check()
        return BlockOutcome(
            checked=self._auditor.checked,
            deaths=self._deaths,
            crashes=self._crashes,
            refused_operations=self._refused,
            sessions=sum(publisher.sessions for publisher in self._publishers),
            streams_ended=sum(publisher.refused for publisher in self._publishers),
            blocks_expired=self._expired,
            blocks_refused=self._blocks_refused,
            resends=self._resends,
            subscriptions=sum(subscriber.connections for subscriber in self._subscribers),
            withdrawn=sum(subscriber.withdrawn for subscriber in self._subscribers),
            virtual_s=trio.current_time() - started_s,
        )

    async def _publish_all(self, network: BlockNetwork) -> None:
        """The healthy publisher finishes; then the others are given up, and the node is left alone for a while."""
        rng = self._rng
        async with trio.open_nursery() as others:
            for _ in range(rng.randint(0, 3)):
                others.start_soon(self._add(network, Habits.draw(rng)).run)
            await trio.sleep(rng.choice((0.0, 0.0, 5.0)))
            # Its decisions are the client library's, or those of the other publishers without their faults.
            await (self._add(network, HEALTHY) if rng.random() < 0.3 else self._add_client(network)).run()
            others.cancel_scope.cancel()
        for publisher in self._publishers:
            publisher.vanish()
        await trio.sleep(LIMITS.block_s_max + LIMITS.processing_s_max + 2 * LIMITS.tick_s)
        for subscriber in self._subscribers:
            while subscriber.next_block < CHAIN_BLOCKS:
                await trio.sleep(1.0)
        self._done.set()

    def _subscribe(self, network: BlockNetwork, early: bool) -> BlockSubscriber:
        rng = random.Random(self._rng.random())
        self._subscribers.append(BlockSubscriber(network, rng, true_chain(), early=early))
        return self._subscribers[-1]

    def _add(self, network: BlockNetwork, habits: Habits) -> BlockPublisher:
        publisher = BlockPublisher(network, random.Random(self._rng.random()), true_chain(), bad_blocks(), habits)
        self._publishers.append(publisher)
        return publisher

    def _add_client(self, network: BlockNetwork) -> BlockPublisher:
        publisher = ClientPublisher(network, random.Random(self._rng.random()), true_chain())
        self._publishers.append(publisher)
        return publisher

    async def _live_and_die(self, network: BlockNetwork) -> None:
        deaths_left = self._rng.choice((0, 1, 3))
        while True:
            life_s = self._rng.uniform(0.05, 12.0) if deaths_left else VIRTUAL_TIMEOUT_S
            await self._live(network, life_s)
            if self._done.is_set():
                return
            deaths_left -= 1
            self._deaths += 1
            await trio.sleep(self._rng.choice((0.0, 0.5, 3.0)))

    async def _live(self, network: BlockNetwork, life_s: float) -> None:
        """One node from its start to its sudden death, or to the end of the run."""
        rng = self._rng
        database = open_database(self._directory)
        slow_disk_s, full_share = rng.choice((0.0, 0.01, 0.3)), rng.choice((0.0, 0.0, 0.1, 0.3))

        async def delay() -> None:
            await trio.sleep(round(rng.random() * slow_disk_s, 3))

        session = database.read_session()
        try:
            async with trio.open_nursery() as nursery:
                node = Node(nursery)
                runner = FaultyRunner(database, nursery, delay=delay, batches=node, rng=rng, full_share=full_share)
                block_node = BlockNode(
                    node,
                    runner,
                    BlockNodeSettings(publish=LIMITS, verifier=VerifierSettings(levels=LEVELS)),
                    now_us=lambda: int(trio.current_time() * 1e6),
                    new_id=lambda: rng.randbytes(8).hex(),
                    address_books=AddressBooks.always(signing_keys().address_book),
                )
                services = ReadServices(
                    node, block_node, version="", new_id=lambda: rng.randbytes(8).hex(), limits=READING_LIMITS
                )
                self._auditor.attach(session)
                block_node.start()
                services.start()
                network.attach(node)
                nursery.start_soon(self._crash_workers, node, rng.choice((0, 0, 1, 4)))
                nursery.start_soon(self._backfill, block_node, rng.choice((0, 0, 3, 12)))
                nursery.start_soon(self._watch, block_node)
                with trio.move_on_after(life_s):
                    await self._done.wait()
                self._auditor.check_answers()
                self._note_life(block_node)
                network.attach(None)
                self._auditor.attach(None)
                runner.crash()
                self._refused += runner.refused
                nursery.cancel_scope.cancel()
        finally:
            session.close()
            database.close()

    def _note_life(self, block_node: BlockNode) -> None:
        if block_node.publishing is None:
            return
        statistics = block_node.publishing.statistics()
        self._expired += statistics.in_flight.expired
        self._blocks_refused += statistics.refused_blocks
        self._resends += statistics.resends_asked
        if self._done.is_set():
            self._auditor.check_none_in_flight(block_node.publishing.machine)

    async def _watch(self, block_node: BlockNode) -> None:
        while True:
            await trio.sleep(1.0)
            self._auditor.check_answers()
            for subscriber in self._subscribers:
                subscriber.check()
            if block_node.publishing is not None:
                self._auditor.check_in_flight(block_node.publishing.machine, LIMITS, trio.current_time())

    async def _crash_workers(self, node: Node, times: int) -> None:
        """Now and then a plugin fails; the node makes a new one."""
        for _ in range(times):
            await trio.sleep(round(self._rng.uniform(0.0, 3.0), 2))
            worker = node.find_worker(local(self._rng.choice(PLUGINS)))
            if worker is not None:
                worker.context.guard(_fail)()
                self._crashes += 1

    async def _backfill(self, block_node: BlockNode, times: int) -> None:
        """Blocks come from elsewhere, about where the node is, good ones and bad ones."""
        for _ in range(times):
            await trio.sleep(round(self._rng.uniform(0.0, 2.0), 2))
            last = block_node.store.ever_stored.last
            number = min(max(0, (-1 if last is None else last) + self._rng.randint(-1, 3)), CHAIN_BLOCKS - 1)
            bad = self._rng.random() < 0.2
            items = list(bad_blocks()[number] if bad else true_chain()[number].items)
            if not block_node.facility.full:
                block_node.facility.publish(BackfilledBlockNotification(number, items, sum(map(len, items))))

    def _check(self) -> None:
        database = open_database(self._directory)
        try:
            session = database.read_session()
            self._auditor.check_log(session)
            session.close()
        finally:
            database.close()


def draw_faults(rng: random.Random) -> Faults:
    """Seldom is anything lost: it costs the publisher its session."""
    return Faults(rng.choice((0.0, 0.0, 0.02)), rng.choice((0.0, 0.1)), rng.choice((0.0, 0.01, 0.3)))


def _fail() -> None:
    raise Misfortune("as the seed wants it")
