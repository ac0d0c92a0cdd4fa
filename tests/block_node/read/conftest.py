"""A world with the subscribe service, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from block_node.persist.store import BlockRetention
from block_node.read.feed import SubscribeLimits
from tests.block_node.persist.block_world import world
from tests.block_node.read.probe import Subscribers


class Clock:
    """now_s: whatever the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


Open: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Subscribers, Clock]]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_world(
        retention: BlockRetention | None = None, **limits: Any
    ) -> AsyncIterator[tuple[Subscribers, Clock]]:
        clock = Clock()
        async with world(tmp_path, retention) as made:
            yield Subscribers(made, SubscribeLimits(**{"tick_s": 0.02, **limits}), clock), clock

    return open_world
