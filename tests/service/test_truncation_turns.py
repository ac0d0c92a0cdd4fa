"""Goal: deleting in many streams at once holds up nobody's pushes, and deleting in one stream keeps up with its pushes.

Method: whole nodes with small limits, in which each step of a deletion is noted with the transaction that it was in.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from stream_service.limits import StreamLimits
from stream_service.operations import truncate_step
from stream_service.workers import admin, stream_services
from stream_service.workers.stream_services import TruncationTurns
from stream_storage import storage_threads
from stream_storage.commit import commit_batch
from stream_storage.contract import Operation, Session, StreamRecord
from stream_storage.errors import StorageError
from tests.support.served import served

pytestmark = pytest.mark.usefixtures("each_database")

STREAMS, MESSAGES, TOGETHER = 40, 25, 60


async def test_a_transaction_deletes_few_messages_however_many_streams_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a round of retention over many streams is many short transactions. Method: forty streams that all have 24
    messages too many."""
    together: Counter[int] = Counter()
    batches: list[int] = []

    def noted(session: Session, **limits: Any) -> tuple[int, StreamRecord]:
        step = truncate_step(session, **limits)
        together[len(batches)] += step[0]
        return step

    def numbered(session: Session, batch: list[Operation]) -> StorageError | None:
        batches.append(len(batch))
        return commit_batch(session, batch)

    monkeypatch.setattr(storage_threads, "commit_batch", numbered)
    monkeypatch.setattr(admin, "truncate_step", noted)
    monkeypatch.setattr(stream_services, "TruncationTurns", lambda messages_max: TruncationTurns(TOGETHER))
    async with served(tmp_path, retention_messages=1, retention_interval_s=0.5) as server:
        peer = await server.peer()
        routes = [await peer.create(f"s{number}") for number in range(STREAMS)]
        for route in routes:
            await peer.push_all(route, [b"x"] * MESSAGES)
        with trio.fail_after(30):
            while sum(together.values()) < STREAMS * (MESSAGES - 1):
                await trio.sleep(0.05)
    assert max(together.values()) <= TOGETHER
    assert sum(together.values()) == STREAMS * (MESSAGES - 1)


async def test_a_step_deletes_more_than_was_pushed_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: retention keeps up with each publisher. Method: pushes of thousands beside the retention; steps get
    larger than the limit of a step, and only as large as all steps together may be."""
    steps: list[int] = []

    def noted(session: Session, **limits: Any) -> tuple[int, StreamRecord]:
        step = truncate_step(session, **limits)
        steps.append(step[0])
        return step

    monkeypatch.setattr(admin, "truncate_step", noted)
    async with served(tmp_path, retention_messages=1, retention_interval_s=0.05) as server:
        peer = await server.peer()
        route = await peer.create("s")
        with trio.fail_after(60):
            while max(steps, default=0) <= StreamLimits().truncate_step_messages:
                await peer.push_all(route, [b"x"] * 5_000)
    assert max(steps) <= StreamLimits().truncating_messages


def test_steps_begin_in_their_order_within_the_limit_and_a_large_one_alone() -> None:
    """Method: random steps that end in any order, beside a sum of what is under way."""
    rng = random.Random(5)
    for _ in range(200):
        turns, begun, under_way = TruncationTurns(10), list[int](), dict[int, int]()
        sizes = [rng.randint(1, 14) for _ in range(30)]

        def begin(
            number: int, begun: list[int] = begun, under_way: dict[int, int] = under_way, sizes: list[int] = sizes
        ) -> None:
            begun.append(number)
            under_way[number] = sizes[number]
            assert sum(under_way.values()) <= 10 or len(under_way) == 1

        asked = 0
        while len(begun) < 30 or under_way:
            if asked < 30 and (rng.random() < 0.5 or not under_way):
                turns.begin(sizes[asked], partial(begin, asked))
                asked += 1
            elif under_way:
                number = rng.choice(list(under_way))
                del under_way[number]
                turns.end(sizes[number])
        assert begun == list(range(30))
