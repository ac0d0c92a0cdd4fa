"""Goal: holes shrink to nothing while one honest source has the blocks, whatever the other sources, the disk and
publishers do, plugins and nodes die of, and whoever removes blocks meanwhile; no block is asked for while it is under
way, none is stored that is not the chain's, none twice, and what is held in memory is bounded.

Method: whole block nodes in virtual time, a seed each, with sources that lie, forge, are slow, die and flap. A failure
prints the line that replays it. Mistakes planted at the end show that the simulation is not blind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from block_node.backfill.fill_machine import FillMachine
from block_node.backfill.filler import Filler
from block_node.persist.store import ChainStore
from tests.simulation import seeds
from tests.simulation.backfill_world import BackfillOutcome, run_backfill_seed
from tests.simulation.noticing import assert_caught

SEEDS = range(20)
PLANTED_SEEDS = range(30)

Plant = Callable[[pytest.MonkeyPatch], None]


def run_or_tell(seed: int, directory: Path) -> BackfillOutcome:
    return seeds.run_or_tell(run_backfill_seed, seed, directory, "test_every_backfill_seed")


WANTED = (
    ("missing", 350),
    ("fetches", 300),
    ("blocks_stored", 300),
    ("fetch_errors", 60),
    ("refused_operations", 20),
    ("deaths", 10),
    ("crashes", 20),
    ("removed", 100),
    ("published", 150),
    ("given_up", 10),
)
"""At least so much must happen in each forty of the seeds, or they would show little."""


@pytest.mark.slow
def test_every_backfill_seed_fills_every_hole(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, SEEDS, ground, WANTED, each=40)


@pytest.mark.soak
def test_every_one_of_many_backfill_seeds_fills_every_hole(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, range(1_000), ground, WANTED, each=40)


def test_a_backfill_seed_replays_to_the_same_outcome(ground: Path) -> None:
    first, second = (run_or_tell(5, ground / name) for name in ("first", "second"))
    assert first == second


def plant_a_filler_that_lets_requests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Filler) -> None:
        """What is not awaited any more is not ended."""
        self.machine.given_up.clear()

    monkeypatch.setattr(Filler, "_tidy", forget)


def plant_a_verifier_that_lets_anything_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("block_node.blocks.verifier.check_record_proof", lambda *arguments, **options: None)
    monkeypatch.setattr("block_node.verification._with_roots", lambda result, root: result)


def plant_a_machine_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put back is never asked for, as all requests are held by what follows it."""
    monkeypatch.setattr(FillMachine, "_unblock", lambda self: None)


def plant_a_buffer_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    grew = FillMachine.grew

    def grew_without_a_word(self: FillMachine, chunk_id: int, size_bytes: int) -> bool:
        grew(self, chunk_id, size_bytes)
        return True

    monkeypatch.setattr(FillMachine, "grew", grew_without_a_word)


def plant_a_store_that_overlooks_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainStore, "_note_damaged", lambda self, number, reason: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "saying", "first"),
    [
        pytest.param(plant_a_filler_that_lets_requests_go_on, "under way", 8, id="asked-twice"),
        pytest.param(plant_a_verifier_that_lets_anything_pass, "is not what was published", 24, id="forged"),
        pytest.param(plant_a_machine_that_waits_for_ever, "there are holes", 3, id="holes-stay"),
        pytest.param(plant_a_store_that_overlooks_damage, "there are holes", 9, id="damage-overlooked"),
        pytest.param(plant_a_buffer_without_a_bound, "bytes are held", 26, id="unbounded"),
    ],
)
def test_a_planted_mistake_is_caught(
    ground: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, saying: str, first: int
) -> None:
    plant(monkeypatch)
    assert_caught(run_backfill_seed, PLANTED_SEEDS, ground, saying, first)
