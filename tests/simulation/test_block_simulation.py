"""Goal: no acknowledged block is ever lost or changed, acknowledgements never pass a hole, no block stays in flight, a
healthy publisher always makes progress, and a subscriber gets each block once and in order, whatever other publishers,
the network, the disk and backfill do, and nodes die of.

Method: whole block nodes in virtual time, a seed each. A failure prints the line that replays it. That the simulation
is not blind is shown by the mistakes planted at the end: one of the first seeds must notice each, and by the promise
that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from block_node.events import PersistedNotification, VerificationNotification
from block_node.item_splitting import ItemBatch
from block_node.persist.plugin import Persistence
from block_node.protocol import Acknowledgement, PublishResponse
from block_node.publish.block_machine import BlockChange, BlockInFlight, Blocks, Then
from block_node.publish.block_machine import Stage as BlockStage
from block_node.publish.publish_machine import PublishMachine
from block_node.publish.service import PublishSession
from block_node.read.subscribe import SubscribeSession
from tests.simulation import seeds
from tests.simulation.block_world import BlockOutcome, run_block_seed
from tests.simulation.noticing import assert_caught

SEEDS = range(40)
MANY_SEEDS = range(1_000)
PLANTED_SEEDS = range(40)

Plant = Callable[[pytest.MonkeyPatch], None]


def run_or_tell(seed: int, directory: Path) -> BlockOutcome:
    return seeds.run_or_tell(run_block_seed, seed, directory, "test_every_block_seed")


WANTED = (
    ("checked", 2_000),
    ("deaths", 75),
    ("crashes", 150),
    ("refused_operations", 90),
    ("streams_ended", 200),
    ("blocks_expired", 1),
    ("blocks_refused", 8),
    ("resends", 60),
    ("subscriptions", 180),
    ("withdrawn", 30),
)
"""At least so much must happen in each hundred of the seeds, or they would show little."""


@pytest.mark.slow
def test_every_block_seed_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, SEEDS, ground, WANTED)


@pytest.mark.soak
def test_every_one_of_many_block_seeds_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, MANY_SEEDS, ground, WANTED)


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("each_database", ["postgres"], indirect=True)
def test_some_block_seeds_keep_every_promise_on_postgresql(ground: Path) -> None:
    for seed in SEEDS[:8]:
        run_or_tell(seed, ground / str(seed))


@pytest.mark.parametrize("seed", [3, pytest.param(101, marks=pytest.mark.soak)])
def test_a_block_seed_replays_to_the_same_outcome(ground: Path, seed: int) -> None:
    first, second = (run_or_tell(seed, ground / name) for name in ("first", "second"))
    assert first == second


def plant_an_acknowledgement_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = Persistence._verified

    def verified_and_told(self: Persistence, result: VerificationNotification) -> None:
        if result.success:
            self.facility.publish(PersistedNotification(result.block_number, True, result.source))
        verified(self, result)

    monkeypatch.setattr(Persistence, "_verified", verified_and_told)


def plant_an_acknowledgement_past_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    respond = PublishSession.respond

    def tell_the_highest(self: PublishSession, response: PublishResponse) -> None:
        """Acknowledge all that is on its way above, whether what is below it has come or not."""
        if isinstance(response, Acknowledgement):
            response = Acknowledgement(self._machine.blocks.view.frontier - 1)
        respond(self, response)

    monkeypatch.setattr(PublishSession, "respond", tell_the_highest)


def plant_a_block_that_is_forgotten_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Blocks.step

    def leave_it(self: Blocks, block: BlockInFlight, change: BlockChange) -> tuple[Then, ...]:
        """The publisher has gone, or has had its time; nobody takes the block back, nor looks at the invariant."""
        given_up = (
            BlockChange.PUBLISHER_LEFT,
            BlockChange.PUBLISHER_WENT_ON,
            BlockChange.TIMED_OUT,
            BlockChange.EVICTED,
        )
        if block.stage is not BlockStage.RECEIVING or change not in given_up:
            return step(self, block, change)
        block.deadline_s = float("inf")
        return ()

    monkeypatch.setattr(Blocks, "step", leave_it)
    monkeypatch.setattr(PublishMachine, "check", lambda self: None)


def plant_a_bad_block_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("block_node.blocks.verifier.check_record_proof", lambda *arguments, **options: None)


def plant_items_that_are_given_before_they_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    send = SubscribeSession._send_items

    def send_as_verified(self: SubscribeSession, number: int, chunk: ItemBatch, *, verified: bool) -> None:
        send(self, number, chunk, verified=True)

    monkeypatch.setattr(SubscribeSession, "is_early", True)
    monkeypatch.setattr(SubscribeSession, "_send_items", send_as_verified)


def plant_a_bad_block_that_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def say_nothing(self: SubscribeSession) -> None:
        self._early_attempt = None

    monkeypatch.setattr(SubscribeSession, "_withdraw", say_nothing)


def plant_a_subscription_that_begins_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back is given what comes next, not what it missed."""
    started = SubscribeSession.started

    def start_at_the_end(self: SubscribeSession) -> None:
        last = self._service.store.available.last
        if last is not None and self._feed.next_block is not None:
            self._feed.next_block = max(self._feed.next_block, last)
        started(self)

    monkeypatch.setattr(SubscribeSession, "started", start_at_the_end)


@pytest.mark.parametrize(
    ("plant", "saying"),
    [
        pytest.param(plant_an_acknowledgement_before_the_commit, "is not stored", id="before-the-commit"),
        pytest.param(plant_an_acknowledgement_past_a_hole, "is not stored", id="past-a-hole"),
        pytest.param(plant_a_block_that_is_forgotten_in_flight, "is in flight for", id="forgotten-in-flight"),
        pytest.param(plant_a_bad_block_that_passes, "another root", id="bad-block"),
        pytest.param(plant_items_that_are_given_before_they_are_verified, "is not stored", id="given-too-early"),
        pytest.param(plant_a_bad_block_that_is_not_withdrawn, "is not what was published", id="not-withdrawn"),
        pytest.param(plant_a_subscription_that_begins_too_high, "came to a subscriber where", id="begins-too-high"),
    ],
)
def test_a_planted_mistake_is_caught(ground: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, saying: str) -> None:
    plant(monkeypatch)
    assert_caught(run_block_seed, PLANTED_SEEDS, ground, saying)
