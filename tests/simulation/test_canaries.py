"""Goal: the simulation sees what it is there to see.

Method: plant a mistake in the node; one of the first seeds must notice it, and by the promise that it breaks. Each
mistake leaves the rest of the node consistent, so that no other check finds it by luck.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ockam.actors.address import Route
from ockam.actors.message import Message
from stream_service.extensions import BatchFailure
from stream_service.protocol import PushRequest
from stream_service.push_codec import encode_confirm
from stream_service.stored import StoredStream
from stream_service.workers import directory
from stream_service.workers.push_run import PushRun
from stream_service.workers.sequence_machine import PublisherSequences
from stream_service.workers.stream import StreamWorker
from stream_storage.contract import Append, Operation
from tests.simulation.disk import FaultyRunner
from tests.simulation.noticing import assert_caught
from tests.simulation.world import run_seed
from tests.support.storage.inline_runner import InlineRunner

SEEDS = range(60)

Plant = Callable[[pytest.MonkeyPatch], None]


def plant_a_failed_append_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    appended = StreamWorker._appended

    def appended_whatever_happened(self: StreamWorker, operation: Append) -> None:
        operation.error = None
        appended(self, operation)

    monkeypatch.setattr(StreamWorker, "_appended", appended_whatever_happened)


def answers_with_index(run: PushRun, index: int, route: Route) -> list[Message]:
    """Confirms of all requests of a run that say that each is stored at this index."""
    return [
        Message(message.return_route, route, encode_confirm(request.request_id, index))
        for message, request in zip(run.messages, run.requests, strict=True)
    ]


def plant_a_refusal_that_says_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: PushRun, route: Route, failure: BatchFailure) -> list[Message]:
        return answers_with_index(self, 0, route)

    monkeypatch.setattr(PushRun, "refused", refused)


def plant_every_third_push_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    add, numbers = PushRun.add, count(1)

    def add_again(self: PushRun, message: Message, request: PushRequest) -> None:
        add(self, message, request)
        if next(numbers) % 3 == 0:
            add(self, message, request)

    monkeypatch.setattr(PushRun, "add", add_again)


def plant_runs_stored_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    append = StreamWorker._append

    def append_backwards(self: StreamWorker, pushes: PushRun) -> None:
        for each in (pushes.messages, pushes.requests, pushes.data):
            each.reverse()
        append(self, pushes)

    monkeypatch.setattr(StreamWorker, "_append", append_backwards)


def plant_pulls_answered_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    append = StreamWorker._append

    def append_and_answer(self: StreamWorker, pushes: PushRun) -> None:
        append(self, pushes)
        self.pulls.answer()

    monkeypatch.setattr(StreamWorker, "_append", append_and_answer)


def plant_a_restart_from_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(StreamWorker):
        """After a crash it takes up what was true when its first life began."""

        def __init__(self, name: str, partition: int, stream: StoredStream | None, services: Any, removed: Any) -> None:
            known = first.setdefault((services, name), stream)
            super().__init__(name, partition, known, services, removed)

    first: dict[tuple[Any, str], StoredStream | None] = {}
    monkeypatch.setattr(directory, "StreamWorker", Forgetful)


def plant_numbers_forgotten_by_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublisherSequences, "remember", lambda self, stored: None)


def plant_numbers_learnt_of_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublisherSequences, "refused", lambda self: self.stored(0))


def plant_one_index_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PushRun, "_plain_answers", answers_with_index)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "saying", "first"),
    [
        pytest.param(plant_a_failed_append_confirmed, "stored None", 4, id="failed-append-confirmed"),
        pytest.param(plant_a_refusal_that_says_ok, "was confirmed for", 4, id="refusal-says-ok"),
        pytest.param(plant_every_third_push_stored_twice, "is stored 2 times", 0, id="stored-twice"),
        pytest.param(plant_runs_stored_backwards, "came before", 30, id="run-backwards"),
        pytest.param(plant_pulls_answered_before_the_commit, "pushed before it", 0, id="early-pull"),
        pytest.param(plant_a_restart_from_the_first_record, "users still wait", 36, id="stale-restart"),
        pytest.param(plant_numbers_forgotten_by_a_crash, "is numbered and stored 2 times", 24, id="forgotten-numbers"),
        pytest.param(plant_numbers_learnt_of_what_was_refused, "confirmed", 4, id="early-numbers"),
        pytest.param(plant_one_index_for_a_run, "was confirmed for", 0, id="one-index"),
    ],
)
def test_a_planted_mistake_is_caught(
    ground: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, saying: str, first: int
) -> None:
    plant(monkeypatch)
    assert_caught(run_seed, SEEDS, ground, saying, first)


def test_a_confirm_before_the_commit_is_caught(ground: Path) -> None:
    class EagerRunner(FaultyRunner):
        """Tells of appends as done when they are submitted; they commit later, if the node lives so long."""

        def submit_write(self, operation: Operation) -> None:
            if isinstance(operation, Append):
                on_done, operation.on_done = operation.on_done, lambda done: None
                super().submit_write(operation)
                on_done(operation)
            else:
                super().submit_write(operation)

        def commit(self, batch: list[Operation]) -> None:
            """Never refuses, so that nothing but the order of the two is wrong."""
            InlineRunner.commit(self, batch)

    assert_caught(partial(run_seed, make_runner=EagerRunner), SEEDS, ground, "confirmed")
