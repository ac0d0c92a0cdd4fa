"""Whether the simulation notices a planted mistake, and by the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.simulation.auditor import BrokenPromise
from tests.simulation.world import Stuck

Run = Callable[[int, Path], object]
"""Runs the world of a seed in a directory of its own. Raises BrokenPromise or Stuck."""


def find_notice(run: Run, seed: int, directory: Path) -> str | None:
    """What this seed has against the node; None where it sees nothing wrong."""
    try:
        run(seed, directory)
    except BaseExceptionGroup as group:
        first: BaseException | None = group.subgroup((BrokenPromise, Stuck))
        if first is None:
            raise
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        return str(first)
    except (BrokenPromise, Stuck) as broken:
        return str(broken)
    return None


def assert_caught(run: Run, seeds: Iterable[int], ground: Path, saying: str, first: int | None = None) -> None:
    """One of these seeds must say it. first: the one that did when it was last looked for; it costs least to begin
    there."""
    notices = []
    for seed in dict.fromkeys([*([] if first is None else [first]), *seeds]):
        notice = find_notice(run, seed, ground / str(seed))
        if notice is not None and saying in notice:
            return
        notices.append(notice)
    pytest.fail(f"no seed says {saying!r}; they say {set(notices)}")
