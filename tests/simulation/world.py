"""One seeded run: a whole node in virtual time with inline storage, users, a bad network, and a node that dies.

Everything random comes from the seed, the order in which trio runs ready tasks too, so that a failing seed replays.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from ockam.actors.node import Node
from stream_node.node.config import Config
from stream_node.node.services import Services, stored_streams
from stream_service.names import stream_address
from tests.simulation.auditor import Auditor
from tests.simulation.clients import Client, consume
from tests.simulation.disk import FaultyRunner
from tests.simulation.network import Faults, Network
from tests.simulation.publisher import Publisher
from tests.support.databases import open_database
from tests.support.virtual_time import run_seeded

VIRTUAL_TIMEOUT_S = 2_000.0
"""The slowest seeds need a tenth of it."""
STREAMS = ("s1", "s2")
TENDED_EVERY_S = 0.4
"""So often the node ends the workers that have nothing to do; `conftest.py` makes that happen without a wait."""

RunnerFactory = Callable[..., FaultyRunner]


class Outcome(msgspec.Struct, frozen=True):
    """What happened, to show that runs are not all alike, and that no check was idle.

    deaths: of nodes. crashes: of stream workers. refused: storage operations. For the next three see `Auditor`.
    """

    confirmed: int
    deaths: int
    crashes: int
    refused: int
    once: int
    ordered: int
    seen: int
    virtual_s: float


class Stuck(AssertionError):
    """The users did not finish in any reasonable virtual time: something was lost for good, or waits for ever."""


def run_seed(seed: int, directory: Path, make_runner: RunnerFactory = FaultyRunner) -> Outcome:
    """Run the world of one seed. Raises BrokenPromise or Stuck."""
    world = World(random.Random(seed), directory, make_runner)
    return run_seeded(seed, world.run)


class Misfortune(Exception):
    """The mistake that a stream worker makes because the seed wants it."""


class World:
    """Publishers and consumers of two streams, a network, and one node after another on one data directory."""

    def __init__(self, rng: random.Random, directory: Path, make_runner: RunnerFactory) -> None:
        self._rng = rng
        self._directory = directory
        self._make_runner = make_runner
        self._auditor = Auditor()
        self._users = 0
        self._done = trio.Event()
        self._deaths = 0
        self._crashes = 0
        self._refused = 0

    async def run(self) -> Outcome:
        started_s = trio.current_time()
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                network = Network(nursery, self._rng, Faults.draw(self._rng), self._auditor.arrivals.note)
                self._start_users(nursery, network)
                await self._live_and_die(network)
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            raise Stuck(f"{self._users} users still wait after {VIRTUAL_TIMEOUT_S:g} virtual seconds")
        self._check()
        auditor = self._auditor
        return Outcome(
            confirmed=sum(map(len, auditor.confirms.values())),
            deaths=self._deaths,
            crashes=self._crashes,
            refused=self._refused,
            once=auditor.once,
            ordered=auditor.ordered,
            seen=auditor.seen,
            virtual_s=trio.current_time() - started_s,
        )

    def _start_users(self, nursery: trio.Nursery, network: Network) -> None:
        rng = self._rng
        for number in range(rng.randint(1, 3)):
            in_order = rng.random() < 0.5
            client_rng = random.Random(rng.random())
            batched = number % 2 == 1
            client = Client(f"publisher{number}", network, client_rng, in_order=in_order, batched=batched)
            self._auditor.publishing += 1
            sequenced = rng.random() < 0.4
            if sequenced:
                self._auditor.stored_once.add(client.name)
            nursery.start_soon(self._publish, client, rng.choice(STREAMS), rng.choice((1, 8, 25)), sequenced)
        for number in range(rng.randint(0, 2)):
            client = Client(f"consumer{number}", network, random.Random(rng.random()))
            nursery.start_soon(self._consume, client, rng.choice(STREAMS))

    async def _publish(self, client: Client, stream: str, count: int, sequenced: bool) -> None:
        self._users += 1
        await Publisher(client, stream, count, self._auditor, sequenced=sequenced).run()
        self._auditor.publishing -= 1
        self._leave()

    async def _consume(self, client: Client, stream: str) -> None:
        self._users += 1
        await consume(client, stream, self._auditor)
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._done.set()

    async def _live_and_die(self, network: Network) -> None:
        deaths_left = self._rng.choice((0, 1, 3))
        while True:
            life_s = self._rng.uniform(0.05, 8.0) if deaths_left else VIRTUAL_TIMEOUT_S
            await self._live(network, life_s)
            if self._done.is_set():
                return
            deaths_left -= 1
            self._deaths += 1
            await trio.sleep(self._rng.choice((0.0, 0.5, 3.0)))

    async def _live(self, network: Network, life_s: float) -> None:
        """One node from its start to its sudden death, or to the end of the run."""
        rng = self._rng
        database = open_database(self._directory)
        slow_disk_s = rng.choice((0.0, 0.01, 0.3))
        full_share = rng.choice((0.0, 0.0, 0.1, 0.3))

        async def delay() -> None:
            await trio.sleep(round(rng.random() * slow_disk_s, 3))

        try:
            async with trio.open_nursery() as nursery:
                node = Node(nursery)
                runner = self._make_runner(
                    database,
                    nursery,
                    delay=delay,
                    batches=node,
                    rng=rng,
                    full_share=full_share,
                )
                services = Services(
                    node,
                    runner,
                    Config(retention_interval_s=TENDED_EVERY_S),
                    now_us=lambda: int(trio.current_time() * 1e6),
                    new_id=lambda: rng.randbytes(8).hex(),
                )
                services.start(stored_streams(database))
                network.attach(node)
                nursery.start_soon(self._crash_workers, node, rng.choice((0, 0, 1, 4)))
                with trio.move_on_after(life_s):
                    await self._done.wait()
                network.attach(None)
                runner.crash()
                self._refused += runner.refused
                nursery.cancel_scope.cancel()
        finally:
            database.close()

    async def _crash_workers(self, node: Node, times: int) -> None:
        """Now and then a stream's worker fails; the node makes a new one."""
        for _ in range(times):
            await trio.sleep(round(self._rng.uniform(0.0, 2.0), 2))
            worker = node.find_worker(stream_address(self._rng.choice(STREAMS), 0))
            if worker is not None:
                worker.context.guard(_fail)()
                self._crashes += 1

    def _check(self) -> None:
        database = open_database(self._directory)
        try:
            self._auditor.check_log(database.read_session())
        finally:
            database.close()


def _fail() -> None:
    raise Misfortune("as the seed wants it")
