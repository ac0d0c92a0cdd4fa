"""A trio program whose every step follows from a seed, in a time that jumps to when something happens next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
import trio.testing

T = TypeVar("T")


def run_seeded(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """What `main` returns. The order in which trio runs tasks is the seed's too."""
    scheduling = vars(trio._core._run)
    scheduling["_r"].seed(seed)
    scheduling["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
