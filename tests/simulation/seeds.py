"""Runs the worlds of many seeds, and tells how to repeat one that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

REPLAY = "STREAM_NODE_SEED"
"""The variable that names the only seed to be run."""

Outcome = TypeVar("Outcome")


def run_or_tell(run: Callable[[int, Path], Outcome], seed: int, directory: Path, test: str) -> Outcome:
    """Runs the world of a seed. An error says how `test` repeats it."""
    try:
        return run(seed, directory)
    except BaseException as error:
        error.add_note(f"replay: {REPLAY}={seed} python -m pytest tests/simulation -k {test}")
        raise


def run_seeds(
    run: Callable[[int, Path], object],
    seeds: range,
    ground: Path,
    wanted: Iterable[tuple[str, int]],
    *,
    each: int = 100,
) -> None:
    """Runs the seeds, or only that of REPLAY. run: `run_or_tell` of one world.

    wanted: so much must happen at least in `each` of the seeds, or they would show little.
    """
    chosen = os.environ.get(REPLAY)
    if chosen is not None:
        run(int(chosen), ground / chosen)
        return
    outcomes = [run(seed, ground / str(seed)) for seed in seeds]
    for what, at_least in wanted:
        assert each * sum(getattr(outcome, what) for outcome in outcomes) >= at_least * len(seeds), what
