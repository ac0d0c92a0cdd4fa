"""Goal: both sides together: members that pause, over a bad network, of nodes that die, never share a partition.

Method: whole nodes on SQLite in virtual time, the client's own lease machine, a seed each. A failure names its seed.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import msgspec
import pytest
import trio

from index_service.extensions import LEASE, WAITING_LEASE, WaitingLeaseRequest
from index_service.worker import IndexService
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from stream_client.share.lease_machine import LeaseClientMachine
from tests.index_service.index_node import SERVICE
from tests.simulation.network import Faults, Network
from tests.support.databases import open_database
from tests.support.storage.inline_runner import InlineRunner
from tests.support.virtual_time import run_seeded

pytestmark = pytest.mark.usefixtures("each_database")

SEEDS = range(15)
PARTITIONS = 5
CHAOS_S = 80.0
PEACE_S = 400.0
"""After the last death and pause everything must be held at some moment of this time, however many answers are lost."""


class Member:
    """A consumer that renews when it is due, and stands still now and then, with its leases."""

    def __init__(self, name: str, network: Network, rng: random.Random) -> None:
        self.machine = LeaseClientMachine("c", "s", name, PARTITIONS)
        self._address = local(name)
        self._network = network
        self._rng = rng
        self._waits = rng.random() < 0.5
        self._arrived: deque[Message] = deque()
        self.calm = False
        network.join(self._address, self._arrived.append)

    async def run(self) -> None:
        rng = self._rng
        while True:
            now_s = trio.current_time()
            while self._arrived:
                protocol = WAITING_LEASE if self._waits else LEASE
                self.machine.answer(protocol.decode_response(self._arrived.popleft().payload), now_s)
            for partition in self.machine.asked_back(now_s):
                if rng.random() < 0.7:
                    self.machine.give_back(partition)
            if now_s >= self.machine.next_due_s():
                plain = self.machine.request(now_s)
                request = LEASE.encode_request(plain)
                # A younger member's requests wait at the node, if its machine says so.
                if self._waits:
                    wait_ms = round(self.machine.wait_s(now_s) * 1000)
                    fields = msgspec.structs.asdict(plain)
                    request = WAITING_LEASE.encode_request(WaitingLeaseRequest(**fields, wait_ms=wait_ms))
                self._network.to_node(Message((SERVICE,), (self._address,), request))
            pauses = not self.calm and rng.random() < 0.02
            await trio.sleep(rng.choice((6.0, 11.0, 25.0)) if pauses else 0.25)


class World:
    """Members, their network, and one node after another."""

    def __init__(self, rng: random.Random, directory: Path, ttl_honoured: bool) -> None:
        self._rng = rng
        self._directory = directory
        self._ttl_honoured = ttl_honoured
        self._used: dict[tuple[int, int], str] = {}
        self._members: dict[str, Member] = {}
        self.deaths = 0

    async def run(self) -> None:
        rng = self._rng
        async with trio.open_nursery() as nursery:
            network = Network(nursery, rng, Faults.draw(rng))
            for number in range(rng.randint(2, 4)):
                member = self._members[f"m{number}"] = Member(f"m{number}", network, random.Random(rng.random()))
                nursery.start_soon(member.run)
            ends_s = trio.current_time() + CHAOS_S
            while trio.current_time() < ends_s:
                await self._live(network, rng.uniform(1.0, 40.0))
                self.deaths += 1
                await trio.sleep(rng.choice((0.0, 0.5, 3.0)))
            for member in self._members.values():
                member.calm = True
            assert await self._live(network, PEACE_S, until_all_held=True), "partitions are left to nobody"
            nursery.cancel_scope.cancel()

    async def _live(self, network: Network, life_s: float, *, until_all_held: bool = False) -> bool:
        """One node's life, watched; whether everything was held at some moment."""
        database = open_database(self._directory)
        try:
            async with trio.open_nursery() as nursery:
                node = Node(nursery)
                runner = InlineRunner(database, nursery, batches=node)
                service = IndexService(runner, lambda: 0)
                if not self._ttl_honoured:
                    service.groups._served_since_s = lambda stream_name: float("-inf")
                service.register(node)
                network.attach(node)
                all_held = False
                with trio.move_on_after(life_s):
                    while not (until_all_held and all_held):
                        await trio.sleep(0.2)
                        all_held |= self._audit() == PARTITIONS
                network.attach(None)
                runner.crash()
                nursery.cancel_scope.cancel()
        finally:
            database.close()
        return all_held

    def _audit(self) -> int:
        """How many partitions are held. Asserts that each has one holder, and each fence one for ever."""
        now_s = trio.current_time()
        held: dict[int, str] = {}
        for name, member in self._members.items():
            for partition in member.machine.held(now_s):
                assert partition not in held, f"{name} and {held[partition]} process partition {partition}"
                held[partition] = name
                fence = member.machine.find_fence(partition, now_s)
                assert fence is not None
                assert self._used.setdefault((partition, fence), name) == name
        return len(held)


def run_seed(seed: int, directory: Path, *, ttl_honoured: bool = True) -> int:
    """The deaths of that seed's nodes."""
    world = World(random.Random(seed), directory, ttl_honoured)
    try:
        run_seeded(seed, world.run)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world.deaths


@pytest.mark.slow
def test_members_and_nodes_keep_their_promises_together(tmp_path: Path) -> None:
    assert sum(run_seed(seed, tmp_path / str(seed)) for seed in SEEDS) > 2 * len(SEEDS)


def test_a_node_that_forgets_old_leases_at_its_start_is_caught(tmp_path: Path) -> None:
    overlap = pytest.RaisesExc(AssertionError, match="process partition")
    with pytest.RaisesGroup(overlap, flatten_subgroups=True):
        for seed in SEEDS:
            run_seed(seed, tmp_path / str(seed), ttl_honoured=False)
