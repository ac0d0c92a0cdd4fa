"""Goal: no confirmed message is lost, moved or doubled, and order holds, whatever the network does and nodes die of.

Method: whole nodes in virtual time, a seed each. A failure prints the line that replays it. That the simulation is not
blind is shown by test_canaries.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import seeds
from tests.simulation.world import Outcome, run_seed

SEEDS = range(24)
MANY_SEEDS = range(1_000)


def run_or_tell(seed: int, directory: Path) -> Outcome:
    return seeds.run_or_tell(run_seed, seed, directory, "test_every_seed")


WANTED = (
    ("deaths", 60),
    ("crashes", 110),
    ("refused", 150),
    ("confirmed", 1_700),
    ("once", 350),
    ("ordered", 1_000),
    ("seen", 2_000),
)
"""At least so much must happen in each hundred of the seeds, or they would show little."""


def test_every_seed_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, SEEDS, ground, WANTED)


@pytest.mark.soak
def test_every_one_of_many_seeds_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, MANY_SEEDS, ground, WANTED)


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("each_database", ["postgres"], indirect=True)
def test_some_seeds_keep_every_promise_on_postgresql(ground: Path) -> None:
    for seed in SEEDS[:12]:
        run_or_tell(seed, ground / str(seed))


@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (51, 106))])
def test_a_seed_replays_to_the_same_outcome(ground: Path, seed: int) -> None:
    first, second = (run_or_tell(seed, ground / name) for name in ("first", "second"))
    assert first == second
