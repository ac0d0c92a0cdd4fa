"""Goal: no confirmed message is lost, moved or doubled, and order holds, whatever the network does and nodes die of.

Method: whole nodes in virtual time, a seed each. A failure prints the line that replays it. That the simulation is not
blind is shown by test_canaries.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.world import Outcome, run_seed

SEEDS = range(200)
REPLAY = "STREAM_NODE_SEED"


def run_or_tell(seed: int, directory: Path) -> Outcome:
    try:
        return run_seed(seed, directory)
    except BaseException as error:
        error.add_note(f"replay: {REPLAY}={seed} python -m pytest tests/simulation -k test_every_seed")
        raise


def seeds() -> list[int]:
    chosen = os.environ.get(REPLAY)
    return list(SEEDS) if chosen is None else [int(chosen)]


def test_every_seed_keeps_every_promise(ground: Path) -> None:
    outcomes = [run_or_tell(seed, ground / str(seed)) for seed in seeds()]
    if len(outcomes) == len(SEEDS):
        assert sum(outcome.deaths for outcome in outcomes) > 50
        assert sum(outcome.crashes for outcome in outcomes) > 50
        assert sum(outcome.refused for outcome in outcomes) > 100
        assert sum(outcome.confirmed for outcome in outcomes) > 2_000
        assert sum(outcome.once for outcome in outcomes) > 100
        assert sum(outcome.ordered for outcome in outcomes) > 1_000
        assert sum(outcome.seen for outcome in outcomes) > 1_000


@pytest.mark.parametrize("seed", [7, 51, 106])
def test_a_seed_replays_to_the_same_outcome(ground: Path, seed: int) -> None:
    first, second = (run_or_tell(seed, ground / name) for name in ("first", "second"))
    assert first == second
