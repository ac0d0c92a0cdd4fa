"""One seeded run of a block node that has holes: sources of all kinds, a bad disk, deaths, and blocks that vanish.

As in `tests.simulation.block_world`, everything random comes from the seed.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import msgspec
import trio

from block_node.backfill.fill_machine import FillMachine
from block_node.backfill.settings import BackfillSettings, SourceSetting
from block_node.backfill.state import BackfillState
from block_node.backfill.worker import BackfillService
from block_node.blocks.address_book import AddressBooks
from block_node.blocks.settings import VerifierSettings
from block_node.events import BackfilledBlockNotification, NewestBlockKnownToNetwork
from block_node.node import BlockNode, BlockNodeSettings
from block_node.persist.plugin import BlockScan
from block_node.persist.ranges import BlockRanges
from ockam.actors.address import local
from ockam.actors.node import Node
from stream_storage.contract import Session
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.rows import connection_of
from tests.simulation.auditor import BrokenPromise
from tests.simulation.backfill_sources import (
    BEYOND,
    CHAIN_BLOCKS,
    HONEST,
    Flight,
    SimulatedSource,
    SourceHabits,
    forged_chains,
    true_chain,
)
from tests.simulation.block_auditor import BlockAuditor
from tests.simulation.block_network import BlockNetwork
from tests.simulation.block_publisher import HEALTHY, BlockPublisher
from tests.simulation.block_world import LEVELS, LIMITS, draw_faults, signing_keys
from tests.simulation.disk import FaultyRunner
from tests.simulation.world import Misfortune, Stuck
from tests.support.virtual_time import run_seeded

VIRTUAL_TIMEOUT_S = 6_000.0
"""The slowest seeds need a part of it."""
LAST = CHAIN_BLOCKS - 1
WATCH_S = 5.0
PLUGINS = ("block_persistence", "block_verification", "block_publish", "block_backfill_worker")


class BackfillOutcome(msgspec.Struct, frozen=True):
    """What happened, to show that runs are not all alike, and that no check was idle."""

    missing: int
    fetches: int
    blocks_stored: int
    fetch_errors: int
    refused_operations: int
    deaths: int
    crashes: int
    removed: int
    published: int
    given_up: int
    virtual_s: float


def run_backfill_seed(seed: int, directory: Path) -> BackfillOutcome:
    """Run the world of one seed. Raises BrokenPromise or Stuck."""
    world = BackfillWorld(random.Random(seed), directory)
    return run_seeded(seed, world.run)


class BackfillWorld:
    """One node after another on one data directory, of a chain of which at least one block is there."""

    def __init__(self, rng: random.Random, directory: Path) -> None:
        self._rng = rng
        self._directory = directory
        self._auditor = BlockAuditor(true_chain())
        self._habits = [HONEST, *(SourceHabits.draw(rng) for _ in range(rng.randint(0, 4)))]
        self._has = [BlockRanges([(0, LAST)]), *(self._draw_blocks() for _ in self._habits[1:])]
        self._settings = BackfillSettings(
            block_node_sources=tuple(f"node{at}:1@{rng.randint(0, 2)}" for at in range(len(self._habits))),
            fetch_batch_size=rng.choice((1, 4, 100)),
            max_incoming_buffer_size=rng.choice((10_000, 1_000_000)),
            concurrent_fetches=rng.randint(1, 4),
            fetch_timeout_secs=20.0,
            greedy=rng.random() < 0.5,
        )
        self._flights: list[Flight] = []
        self._service: BackfillService | None = None
        self._broken: BrokenPromise | None = None
        self._last_words = ""
        self._done = trio.Event()
        self._publisher: BlockPublisher | None = None
        self._has_publisher = rng.random() < 0.4
        self._mischief_left = 0 if self._has_publisher else rng.choice((0, 2, 4))
        self._missing = self._fetches = self._stored = self._errors = self._refused = 0
        self._deaths = self._crashes = self._removed = self._removed_parts = self._given_up = 0
        # In half of the runs the index keeps its rows, and only the bytes go. The other draws stay as they are.
        self._robs = random.Random(repr(rng.getstate()[1][:3])).random() < 0.5
        self._robbed: set[int] = set()

    async def run(self) -> BackfillOutcome:
        started_s = trio.current_time()
        await self._live(VIRTUAL_TIMEOUT_S, prepare=True)
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                network = BlockNetwork(nursery, self._rng, draw_faults(self._rng), lambda message: None)
                if self._has_publisher:
                    self._publisher = BlockPublisher(network, self._rng, true_chain(), (), HEALTHY)
                    nursery.start_soon(self._publisher.run)
                await self._live_and_die(network)
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            raise Stuck(f"there are holes after {VIRTUAL_TIMEOUT_S:g} virtual seconds: {self._last_words}")
        self._check_end()
        return BackfillOutcome(
            missing=self._missing,
            fetches=self._fetches,
            blocks_stored=self._stored,
            fetch_errors=self._errors,
            refused_operations=self._refused,
            deaths=self._deaths,
            crashes=self._crashes,
            removed=self._removed,
            published=0 if self._publisher is None else self._publisher.acknowledged + 1,
            given_up=self._given_up,
            virtual_s=trio.current_time() - started_s,
        )

    def _draw_blocks(self) -> BlockRanges:
        has = BlockRanges([(0, LAST)])
        for _ in range(self._rng.randint(0, 3)):
            first = self._rng.randint(0, LAST)
            has.discard(first, first + self._rng.randint(0, 8))
        return has

    async def _live_and_die(self, network: BlockNetwork) -> None:
        deaths_left = self._rng.choice((0, 1, 3))
        while True:
            await self._live(self._rng.uniform(0.05, 90.0) if deaths_left else VIRTUAL_TIMEOUT_S, network)
            if self._done.is_set():
                return
            deaths_left -= 1
            self._deaths += 1
            await trio.sleep(self._rng.choice((0.0, 0.5, 30.0)))

    async def _live(self, life_s: float, network: BlockNetwork | None = None, *, prepare: bool = False) -> None:
        """One node from its start to its sudden death, or to the end of the run. prepare: it only gets some blocks."""
        rng = self._rng
        database = Database.open(self._directory)
        slow_disk_s, full_share = rng.choice((0.0, 0.01, 0.3)), rng.choice((0.0, 0.0, 0.1, 0.3))

        async def delay() -> None:
            await trio.sleep(round(rng.random() * slow_disk_s, 3))

        session = database.read_session()
        try:
            async with trio.open_nursery() as nursery:
                node = Node(nursery)
                runner = FaultyRunner(
                    database,
                    nursery,
                    delay=delay,
                    batches=node,
                    rng=rng,
                    full_share=0.0 if prepare else full_share,
                )
                block_node = BlockNode(
                    node,
                    runner,
                    BlockNodeSettings(publish=LIMITS, verifier=VerifierSettings(levels=LEVELS)),
                    now_us=lambda: int(trio.current_time() * 1e6),
                    new_id=lambda: rng.randbytes(8).hex(),
                    address_books=AddressBooks.always(signing_keys().address_book),
                )
                block_node.start()
                if self._robs and not prepare:
                    node.register([local("block_scan")], lambda: BlockScan(block_node.store, 1_000_000))
                if prepare:
                    await self._prepare(block_node)
                else:
                    self._start_backfill(node, block_node, runner, nursery)
                    if network is not None:
                        network.attach(node)
                    nursery.start_soon(self._crash_workers, node, rng.choice((0, 0, 1, 4)))
                    nursery.start_soon(self._make_mischief, block_node)
                    nursery.start_soon(self._watch, session)
                    with trio.move_on_after(life_s):
                        await self._done.wait()
                    self._note_life()
                if network is not None:
                    network.attach(None)
                runner.crash()
                self._refused += runner.refused
                nursery.cancel_scope.cancel()
        finally:
            self._last_words = "" if self._service is None else str(self._service.state.statistics())
            self._service = None
            self._flights.clear()
            self._auditor.check_log(session, frozenset(() if self._done.is_set() else self._robbed))
            session.close()
            database.close()

    def _start_backfill(self, node: Node, block_node: BlockNode, runner: FaultyRunner, nursery: trio.Nursery) -> None:
        numbers = iter(range(len(self._habits)))

        def make_source(setting: SourceSetting) -> SimulatedSource:
            at = next(numbers)
            return SimulatedSource(
                node,
                nursery,
                self._rng,
                self._habits[at],
                self._has[at],
                [block.items for block in true_chain()],
                forged_chains()[at % 2],
                self._fetching,
                self._flights.remove,
            )

        state = BackfillState(
            node,
            block_node,
            runner,
            self._settings,
            new_id=lambda: self._rng.randbytes(8).hex(),
            tie=self._rng.random,
            make_source=make_source,
        )
        self._service = BackfillService(node, block_node, state)
        self._service.start()

    async def _prepare(self, block_node: BlockNode) -> None:
        """The beginning of the chain, of which some blocks are removed again."""
        ready = trio.Event()
        block_node.when_ready(ready.set)
        await ready.wait()
        top = self._rng.randint(0, LAST)
        for block in true_chain()[: top + 1]:
            items = list(block.items)
            block_node.facility.publish(BackfilledBlockNotification(block.number, items, sum(map(len, items))))
        while block_node.store.ever_stored.count() <= top:
            await trio.sleep(0.1)
        for _ in range(self._rng.randint(0, 4)):
            self._remove_some(block_node)
        self._missing = CHAIN_BLOCKS - (top + 1) + self._removed

    def _remove_some(self, block_node: BlockNode) -> None:
        """By another connection, as somebody would who knows no better. One block is left at least."""
        first = self._rng.randint(0, LAST)
        last = min(LAST, first + self._rng.randint(0, 6))
        with sqlite3.connect(self._directory / "streams.sqlite", isolation_level=None) as connection:
            there = [row[0] for row in connection.execute("SELECT number FROM block_index")]
            gone = [number for number in there if first <= number <= last]
            if self._robs:
                gone = gone if len(self._robbed.union(gone)) < len(there) else []
                for number in gone:
                    place = "SELECT first_index, first_index + parts FROM block_index WHERE number = ?"
                    bounds = connection.execute(place, (number,)).fetchone()
                    connection.execute("DELETE FROM messages WHERE idx >= ? AND idx < ?", bounds)
                self._robbed.update(gone)
                self._removed += len(gone)
            elif len(gone) < len(there):
                for number in gone:
                    rows = connection.execute("DELETE FROM block_index WHERE number = ? RETURNING parts", (number,))
                    self._removed_parts += rows.fetchone()[0]
                self._removed += len(gone)
        connection.close()

    @property
    def _machines(self) -> list[FillMachine]:
        return [] if self._service is None else list(self._service.state.machines.values())

    def _fetching(self, flight: Flight) -> None:
        """A request begins: what it asks for is asked of nobody else, nor being stored."""
        wanted = range(flight.next_block, flight.last + 1)
        for other in self._flights:
            if other.next_block <= flight.last and flight.next_block <= other.last:
                self._note_broken(f"{wanted} is asked for while {other.next_block} to {other.last} is under way")
        for machine in self._machines:
            if any(number in wanted for number in machine.delivered):
                self._note_broken(f"{wanted} is asked for while a part of it is being stored")
        self._fetches += 1
        self._flights.append(flight)

    def _note_broken(self, text: str) -> None:
        """Nothing is raised here, where the node would take it for a mistake of a worker; `_watch` does."""
        self._broken = self._broken or BrokenPromise(text)

    async def _crash_workers(self, node: Node, times: int) -> None:
        for _ in range(times):
            await trio.sleep(round(self._rng.uniform(0.0, 30.0), 2))
            worker = node.find_worker(local(self._rng.choice(PLUGINS)))
            if worker is not None:
                worker.context.guard(_fail)()
                self._crashes += 1

    async def _make_mischief(self, block_node: BlockNode) -> None:
        """Blocks vanish; somebody tells of a newer block, and does not always know better."""
        while self._mischief_left:
            await trio.sleep(round(self._rng.uniform(0.0, 100.0), 2))
            self._mischief_left -= 1
            if self._rng.random() < 0.6:
                self._remove_some(block_node)
            else:
                number = self._rng.choice((LAST, BEYOND))
                block_node.facility.publish(NewestBlockKnownToNetwork(number))

    async def _watch(self, session: Session) -> None:
        """Until no block is missing, and none will be removed any more."""
        limit_bytes = 2 * self._settings.max_incoming_buffer_size
        while not self._done.is_set():
            await trio.sleep(WATCH_S)
            if self._broken is not None:
                raise self._broken
            for machine in self._machines:
                try:
                    machine.check()
                except AssertionError as error:
                    raise BrokenPromise(str(error)) from error
            held_bytes = sum(machine.held_bytes for machine in self._machines)
            if held_bytes > limit_bytes:
                raise BrokenPromise(f"{held_bytes} bytes are held")
            if not self._mischief_left and not self._is_publishing and self._is_whole(session):
                self._done.set()

    def _is_whole(self, session: Session) -> bool:
        """Whether every block is in the index, and each has its bytes, also where somebody took them."""
        execute = connection_of(session).execute
        blocks, parts = execute("SELECT count(*), coalesce(sum(parts), 0) FROM block_index").fetchone()
        messages = execute("SELECT count(*) FROM messages").fetchone()[0]
        damaged = execute("SELECT count(*) FROM block_damaged").fetchone()[0]
        return (blocks, messages, damaged) == (CHAIN_BLOCKS, parts + self._removed_parts, 0)

    @property
    def _is_publishing(self) -> bool:
        return self._publisher is not None and self._publisher.acknowledged < LAST

    def _note_life(self) -> None:
        assert self._service is not None
        counters = self._service.state.counters
        self._stored += counters.blocks_stored
        self._errors += counters.fetch_errors
        self._given_up += counters.given_up

    def _check_end(self) -> None:
        """Every block is stored once, but for those that were removed, which are twice in the stream."""
        with sqlite3.connect(self._directory / "streams.sqlite") as connection:
            parts = connection.execute("SELECT sum(parts) FROM block_index").fetchone()[0]
            messages = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        connection.close()
        if messages != parts + self._removed_parts:
            raise BrokenPromise(f"{messages} parts are stored, of blocks with {parts + self._removed_parts}")


def _fail() -> None:
    raise Misfortune("as the seed wants it")
