"""Storage whose disk is full now and then. It loses nothing: what it refuses, it says so."""

from __future__ import annotations

import random
from typing import Any

from stream_storage.commit import fail_all
from stream_storage.contract import Operation
from stream_storage.errors import DiskFull
from tests.support.storage.inline_runner import InlineRunner


class FaultyRunner(InlineRunner):
    """An InlineRunner that finds no room for a share of its batches: for all of a batch, or for half of it.

    full_share: the probability of that, a batch. refused: how many operations got DiskFull.
    """

    def __init__(self, *arguments: Any, rng: random.Random, full_share: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rng = rng
        self._full_share = full_share
        self.refused = 0

    def commit(self, batch: list[Operation]) -> None:
        rng, refused = self._rng, list[Operation]()
        if rng.random() < self._full_share:
            refused = rng.choice((batch, [operation for operation in batch if rng.random() < 0.5]))
            fail_all(refused, DiskFull("no room to write, as the seed wants it"))
            self.refused += len(refused)
        super().commit([operation for operation in batch if operation.error is None])
