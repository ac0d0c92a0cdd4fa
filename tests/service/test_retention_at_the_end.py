"""Goal: a round of retention that comes while the node stops is no failure. Method: a directory on closed storage."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.node import Node
from stream_service.limits import StreamLimits
from stream_service.workers.clock import Clock
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.retention import RetentionWorker, register_retention
from stream_storage.sqlite.database import Database
from tests.support.served import wait_until
from tests.support.storage.inline_runner import InlineRunner

pytestmark = pytest.mark.usefixtures("each_database")


async def test_a_round_on_closed_storage_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0
    reclaim = RetentionWorker._reclaim

    def counted(self: RetentionWorker) -> None:
        nonlocal rounds
        rounds += 1
        reclaim(self)

    monkeypatch.setattr(RetentionWorker, "_reclaim", counted)
    database = Database.open(tmp_path)
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            runner = InlineRunner(database, nursery, batches=node)
            directory = StreamDirectory(
                node,
                runner,
                limits=StreamLimits(),
                clock=Clock(lambda: 0, trio.current_time),
                new_id=lambda: "id",
                default_retention=None,
            )
            await runner.aclose()
            register_retention(directory, 0.001)
            await wait_until(lambda: rounds)
            assert node.statistics().crashes == 0
            nursery.cancel_scope.cancel()
    finally:
        database.close()
