"""Goal: no confirmed message is lost, moved or doubled in its index, whatever the network does and however nodes die.

Method: whole nodes in virtual time, a seed each. A failure prints the line that replays it. Two planted bugs must be
caught, or the simulation is blind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.contract import Append, Operation
from storage.inline_runner import InlineRunner
from stream_service.protocol import Status
from stream_service.workers.push_run import PushRun
from tests.simulation.auditor import BrokenPromise
from tests.simulation.world import Outcome, Stuck, run_seed

SEEDS = range(200)
REPLAY = "STREAM_NODE_SEED"


@pytest.fixture
def ground() -> Iterator[Path]:
    """Where the simulated nodes keep their files: in memory where the system has that; nothing here is about disks."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def run_or_tell(seed: int, directory: Path, **options: Any) -> Outcome:
    try:
        return run_seed(seed, directory, **options)
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
        assert sum(outcome.confirmed for outcome in outcomes) > 1_000


def test_a_seed_replays_to_the_same_outcome(ground: Path) -> None:
    first, second = (run_or_tell(7, ground / name) for name in ("first", "second"))
    assert first == second


def caught(run: Callable[[int], object]) -> int:
    """How many of the seeds notice a planted bug."""
    return sum(notices(run, seed) for seed in SEEDS[:60])


def notices(run: Callable[[int], object], seed: int) -> bool:
    try:
        run(seed)
    except BaseExceptionGroup as group:
        if group.subgroup((BrokenPromise, Stuck)) is None:
            raise
        return True
    except (BrokenPromise, Stuck):
        return True
    return False


def test_canary_confirm_before_commit_is_caught(ground: Path) -> None:
    class EagerRunner(InlineRunner):
        """Tells of appends as done when they are submitted; they commit later, if the node lives so long."""

        def submit_write(self, operation: Operation) -> None:
            if isinstance(operation, Append):
                on_done, operation.on_done = operation.on_done, lambda done: None
                super().submit_write(operation)
                on_done(operation)
            else:
                super().submit_write(operation)

    assert caught(lambda seed: run_seed(seed, ground / str(seed), EagerRunner)) > 0


def test_canary_an_index_used_twice_is_caught(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = PushRun._plain_answers

    def answers_of_one_index(self: PushRun, status: Status, index: int, step: int, route: Any) -> Any:
        return answers(self, status, index, 0, route)

    monkeypatch.setattr(PushRun, "_plain_answers", answers_of_one_index)
    assert caught(lambda seed: run_seed(seed, ground / str(seed))) > 0
