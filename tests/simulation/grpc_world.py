"""One seeded run of a block node with its gRPC door: four consensus nodes of different speed, of which one dies at some
step and comes back, and one does not behave; plugins and disks that fail, and deaths of the node.

Between them is all of the product but the sockets. As in `tests.simulation.world`, everything random comes from the
seed.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import msgspec
import trio

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.settings import VerifierSettings
from block_node.events import (
    BackfilledBlockNotification,
    BlockOrigin,
    NewestBlockKnownToNetwork,
    Notification,
    PersistedNotification,
)
from block_node.facility import Facility, Plugin
from block_node.grpc.calls.publish import PublishCall
from block_node.grpc.calls.services import GrpcServices, block_methods
from block_node.grpc.client.consensus_machine import ConsensusLimits
from block_node.grpc.http2.call_machine import CallMachine
from block_node.grpc.http2.connection import CallHandler, DoorCounts, GrpcCall, Route, ServerConnection
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import PREFIX_BYTES, MessageBudget
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import read_message
from block_node.node import BlockNode, BlockNodeSettings
from block_node.publish.block_machine import PublishLimits, Stage
from block_node.publish.publish_machine import PublishMachine
from block_node.read.services import ReadServices
from ockam.actors.address import local
from ockam.actors.message import Origin
from ockam.actors.node import Node
from tests.simulation.auditor import BrokenPromise
from tests.simulation.block_auditor import BlockAuditor
from tests.simulation.block_world import LEVELS, bad_blocks, signing_keys, true_chain
from tests.simulation.consensus_node import ConsensusNode, Habits, raise_broken
from tests.simulation.disk import FaultyRunner
from tests.simulation.grpc_link import LinkEnd, make_link
from tests.simulation.world import Misfortune, Stuck
from tests.support.databases import open_database
from tests.support.virtual_time import run_seeded

VIRTUAL_TIMEOUT_S = 3_000.0
BLOCK_S_MAX = 10.0
ROOMY = PublishLimits(block_s_max=BLOCK_S_MAX, processing_s_max=20.0, resend_s=2.0, idle_s_max=120.0, slice_items_max=5)
CROWDED = msgspec.structs.replace(ROOMY, queued_bytes_max=6_000, ahead_blocks_max=3)
"""With these the node reads only from whoever has the lowest block, and consensus nodes wait for their windows."""
GRPC = GrpcLimits(publish_window_bytes=600)
HTTP2 = Http2Limits(stream_window_bytes=500)
CHECKED_S = 0.5
WINDOW_S_MAX = 0.25
"""Real publishers give up after half a second without a window (facts/grpc_peers.md §2, thread 5)."""
PAUSES_S = (0.0, 0.02, 0.1, 0.4)
"""Of the four consensus nodes, between two messages. The slowest needs less than half of a block's time."""
STEPS_MAX = 25
"""The steps of the life of a consensus node in which it sends the chain alone."""


class GrpcOutcome(msgspec.Struct, frozen=True):
    """What happened, to show that runs are not all alike, and that no check was idle."""

    checked: int
    deaths: int
    crashes: int
    refused_operations: int
    streams: int
    ends_read: int
    lies: int
    died: int
    unsent: int
    resends: int
    blocks_expired: int
    blocks_refused: int
    backfilled: int
    virtual_s: float


def run_grpc_seed(seed: int, directory: Path) -> GrpcOutcome:
    """Runs the world of one seed. Raises BrokenPromise or Stuck."""
    return run_seeded(seed, GrpcWorld(random.Random(seed), directory).run)


class Witness(Plugin):
    """Sees what becomes durable, and which block the network is said to have."""

    name = "witness"
    gating = False

    def __init__(self, facility: Facility, world: GrpcWorld) -> None:
        super().__init__(facility)
        self._world = world

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, NewestBlockKnownToNetwork):
            self._world.newest = max(self._world.newest, notification.block_number)
        elif isinstance(notification, PersistedNotification) and notification.succeeded:
            self._world.note_durable(notification)


class AuditedConnection(ServerConnection):
    """A connection of the node. The auditor sees each answer to a publisher before it goes out."""

    auditor: BlockAuditor
    link: LinkEnd

    def send(self, machine: CallMachine, pieces: list[bytes | memoryview]) -> bool:
        served = self._served.get(machine.stream_id)
        if served is None or isinstance(served.handler, PublishCall):
            message = b"".join(pieces)[PREFIX_BYTES:]
            self.auditor.leaving_grpc(message)
            if "end_stream" in read_message("PublishStreamResponse", message):
                self.link.carried_end = True
        return super().send(machine, pieces)


class GrpcWorld:
    """Consensus nodes, and one block node after another on one data directory."""

    def __init__(self, rng: random.Random, directory: Path) -> None:
        self._rng = rng
        self._directory = directory
        self._auditor = BlockAuditor(true_chain())
        self.counts = DoorCounts()
        self.closed_s_longest = 0.0
        self.is_crowded = rng.random() < 0.3
        self._limits = CROWDED if self.is_crowded else ROOMY
        self._delay_s_max = rng.choice((0.0, 0.02, 0.3))
        self._begins_at = rng.choice((0, 0, 0, 2, 4))
        self._block_s = rng.choice((0.0, 0.5, 2.0))
        self._done = trio.Event()
        self._node: tuple[trio.Nursery, GrpcServices, Node] | None = None
        self._links: list[LinkEnd] = []
        self._deaths = self._crashes = self._refused = self._backfilled = 0
        self._expired = self._blocks_refused = self._resends = 0
        self._durable = -1
        self.reborn_s: float | None = None
        self.newest = -1
        self._nodes = [self._make_consensus_node(*each) for each in self._draw_habits()]

    def _draw_habits(self) -> list[tuple[int, Habits]]:
        rng = self._rng
        pauses = rng.sample(PAUSES_S, len(PAUSES_S))
        dies_at = rng.randint(1, STEPS_MAX)
        return [
            (
                at,
                Habits(
                    pause_s=pause_s,
                    set_items=rng.choice((1, 3, 10)),
                    late_s=rng.choice((0.0, 0.3, 5.0)),
                    dies_at=dies_at if at == 0 else None,
                    lies=rng.choice((0.2, 0.7)) if at == 1 else 0.0,
                    is_blind=rng.random() < 0.3,
                ),
            )
            for at, pause_s in enumerate(pauses)
        ]

    def _make_consensus_node(self, at: int, habits: Habits) -> ConsensusNode:
        limits = ConsensusLimits(reset_s=self._rng.choice((8.0, 24 * 3_600.0)))
        rng = random.Random(self._rng.random())
        return ConsensusNode(f"cn{at}", self, rng, true_chain(), bad_blocks(), habits, limits, self._begins_at)

    @property
    def _honest(self) -> list[ConsensusNode]:
        return [node for node in self._nodes if node.behaves]

    async def run(self) -> GrpcOutcome:
        started_s = trio.current_time()
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish_all)
                await self._live_and_die()
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            safe = {node.name: node.machine.acknowledged for node in self._nodes}
            raise Stuck(f"after {VIRTUAL_TIMEOUT_S:g} virtual s consensus nodes know as safe {safe}")
        self._check_log()
        nodes = self._nodes
        return GrpcOutcome(
            checked=self._auditor.checked,
            deaths=self._deaths,
            crashes=self._crashes,
            refused_operations=self._refused,
            streams=sum(node.streams for node in nodes),
            ends_read=sum(node.ends_read for node in nodes),
            lies=sum(node.lies for node in nodes),
            died=sum(node.deaths for node in nodes),
            unsent=sum(node.unsent for node in nodes),
            resends=self._resends,
            blocks_expired=self._expired,
            blocks_refused=self._blocks_refused,
            backfilled=self._backfilled,
            virtual_s=trio.current_time() - started_s,
        )

    # The consensus nodes.

    async def _publish_all(self) -> None:
        """Those that behave finish; then the other one is given up, and the node is left alone for a while."""
        async with trio.open_nursery() as others:
            async with trio.open_nursery() as honest:
                for node in self._nodes:
                    (honest if node.behaves else others).start_soon(node.run, self._block_s)
            others.cancel_scope.cancel()
        for link in self._links:
            link.cut()
        await trio.sleep(self._limits.block_s_max + self._limits.processing_s_max + 2 * self._limits.tick_s)
        self._done.set()

    def connect(self, name: str) -> LinkEnd | None:
        if self._node is None:
            return None
        nursery, services, node = self._node
        here, there = make_link(self._rng, self._delay_s_max)

        def opened(open_: object, call: GrpcCall) -> CallHandler:
            assert callable(open_)
            handler: CallHandler = open_(services, call)
            return handler

        routes = {
            path: Route(partial(opened, method.open), method.message_bytes_max)
            for path, method in block_methods(GRPC).items()
        }
        connection = AuditedConnection(
            there,
            routes,
            HTTP2,
            MessageBudget(HTTP2.unfinished_bytes_max),
            self.counts,
            address=name,
            peer=Origin("grpc", f"{name}:1"),
            batch=node.batch,
        )
        connection.auditor, connection.link = self._auditor, here
        self._links.append(here)
        nursery.start_soon(connection.run)
        return here

    # The block node.

    def note_durable(self, notification: PersistedNotification) -> None:
        """Each block becomes durable once, and in order."""
        number = notification.block_number
        if notification.source is BlockOrigin.PUBLISHER and number <= self._durable:
            self._auditor.note(BrokenPromise(f"block {number} became durable after block {self._durable}"))
        self._durable = max(self._durable, number)

    async def _live_and_die(self) -> None:
        deaths_left = self._rng.choice((0, 0, 1, 2))
        while True:
            await self._live(self._rng.uniform(0.05, 30.0) if deaths_left else VIRTUAL_TIMEOUT_S)
            if self._done.is_set():
                return
            deaths_left -= 1
            self._deaths += 1
            await trio.sleep(self._rng.choice((0.0, 0.5, 3.0)))
            self.reborn_s = trio.current_time()

    async def _live(self, life_s: float) -> None:
        """One node from its start to its sudden death, or to the end of the run."""
        rng = self._rng
        database = open_database(self._directory)
        slow_disk_s, full_share = rng.choice((0.0, 0.01, 0.3)), rng.choice((0.0, 0.0, 0.0, 0.1))

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
                    BlockNodeSettings(publish=self._limits, verifier=VerifierSettings(levels=LEVELS)),
                    now_us=lambda: int(trio.current_time() * 1e6),
                    new_id=lambda: rng.randbytes(8).hex(),
                    address_books=AddressBooks.always(signing_keys().address_book),
                )
                read = ReadServices(node, block_node, version="", new_id=lambda: rng.randbytes(8).hex())
                services = GrpcServices(node, block_node, read, GRPC)
                self._auditor.attach(session)
                block_node.start()
                services.start()
                node.register([local("witness")], lambda: Witness(block_node.facility, self))
                self._node = nursery, services, node
                nursery.start_soon(self._crash_workers, node, rng.choice((0, 0, 0, 2)))
                nursery.start_soon(self._backfill, block_node)
                nursery.start_soon(self._watch, block_node)
                with trio.move_on_after(life_s):
                    await self._done.wait()
                self._check()
                self._note_life(block_node)
                self._node = None
                for link in self._links:
                    link.cut()
                self._links.clear()
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

    async def _crash_workers(self, node: Node, times: int) -> None:
        """Now and then a plugin fails; the node makes a new one."""
        for _ in range(times):
            await trio.sleep(round(self._rng.uniform(0.0, 20.0), 2))
            worker = node.find_worker(
                local(self._rng.choice(("block_persistence", "block_verification", "block_publish")))
            )
            if worker is not None:
                worker.context.guard(_fail)()
                self._crashes += 1

    async def _backfill(self, block_node: BlockNode) -> None:
        """Blocks that no consensus node has any more come from elsewhere, a while after the node knows of them."""
        rng = self._rng
        while True:
            await trio.sleep(rng.choice((1.0, 4.0)))
            publishing = block_node.publishing
            if publishing is None:
                continue
            number = publishing.machine.blocks.watermark.next_durable
            if number < min(self.newest, self._begins_at) and not block_node.facility.full:
                items = list(true_chain()[number].items)
                self._backfilled += 1
                block_node.facility.publish(BackfilledBlockNotification(number, items, sum(map(len, items))))

    # What must hold.

    async def _watch(self, block_node: BlockNode) -> None:
        stall = Stall(self._limits)
        while True:
            await trio.sleep(CHECKED_S)
            self._check()
            if block_node.publishing is not None:
                machine, now_s = block_node.publishing.machine, trio.current_time()
                self._auditor.check_in_flight(machine, self._limits, now_s)
                stall.check(machine, self._can_send(machine.blocks.watermark.next_durable), now_s)

    def _can_send(self, number: int) -> bool:
        """Whether a consensus node that behaves is in a stream, and has the block."""
        return any(node.machine.is_open and number in node.machine.blocks for node in self._honest)

    def _check(self) -> None:
        self._auditor.check_answers()
        raise_broken(self._honest)
        if self._node is not None:
            windows_s = self._node[1].statistics().window_closed_s
            self.closed_s_longest = max((self.closed_s_longest, *windows_s.values()))
        if not self.is_crowded and self.closed_s_longest > WINDOW_S_MAX:
            raise BrokenPromise(f"a window stood at 0 for {self.closed_s_longest:g} s while there was room")

    def _check_log(self) -> None:
        database = open_database(self._directory)
        try:
            session = database.read_session()
            self._auditor.check_log(session)
            session.close()
        finally:
            database.close()


class Stall:
    """Watches the lowest block that is not durable. While a consensus node that behaves could send it, nobody has it
    for longer than a block may take, and it is nobody's for no longer than the node waits before it asks again."""

    def __init__(self, limits: PublishLimits) -> None:
        self._limits = limits
        self._last: tuple[int, object] | None = None
        self._since_s = 0.0

    def check(self, machine: PublishMachine, can_be_sent: bool, now_s: float) -> None:
        number = machine.blocks.watermark.next_durable
        block = machine.blocks.get(number)
        # Whoever gives a block up and takes it again has another one of it.
        state = (number, None if block is None else (block, block.stage))
        if state != self._last or not can_be_sent:
            self._last, self._since_s = state, now_s
        limits = self._limits
        if block is None:
            # A consensus node ends the message that it sends now before it goes to another block.
            most_s = limits.resend_s + limits.block_s_max
        else:
            most_s = limits.block_s_max if block.stage is Stage.RECEIVING else limits.processing_s_max
        if now_s - self._since_s > most_s + 2 * limits.tick_s + CHECKED_S:
            raise BrokenPromise(f"block {number} stalls for {now_s - self._since_s:g} s in {block and block.stage}")


def _fail() -> None:
    raise Misfortune("as the seed wants it")
