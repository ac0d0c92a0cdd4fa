"""Goal: a group whose rows changed in the database, or that another node serves now, is read anew by whoever asks next,
whatever was under way for it when it was forgotten.

Method: a LeaseGroups on a real database whose operations the test does and completes one by one, so that the group is
forgotten in the middle of a write and in the middle of a read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from index_service.extensions import Lease, LeaseRequest, LeaseResponse
from index_service.fences import raise_fences
from index_service.lease_groups import LeaseGroups, Refusal
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases
from index_service.limits import LEASE_LIMITS, LeaseLimits
from stream_storage.commit import apply_read, commit_batch
from stream_storage.contract import Do, Engine, Operation, ignore_done
from stream_storage.runner import Runner
from tests.support.databases import open_database

pytestmark = pytest.mark.usefixtures("each_database")

RAISED = 1_000_000
PARTITIONS = 2


class SteppedRunner:
    """A `stream_storage.runner.Runner` that does and completes an operation when the test says so.

    writes, reads: the operations that are not completed.
    """

    def __init__(self, database: Engine) -> None:
        self.writes: list[Operation] = []
        self.reads: list[Operation] = []
        self._session = database.session()
        self._read_session = database.read_session()

    def submit_write(self, operation: Operation) -> None:
        self.writes.append(operation)

    def submit_read(self, operation: Operation) -> None:
        self.reads.append(operation)

    def read(self) -> list[Operation]:
        """Does the waiting reads without completing them."""
        reads, self.reads = self.reads, []
        for operation in reads:
            apply_read(self._read_session, operation)
        return reads

    def run(self) -> None:
        """Does and completes everything, also what is submitted meanwhile."""
        while self.writes or self.reads:
            writes, self.writes = self.writes, []
            assert commit_batch(self._session, writes) is None
            complete([*writes, *self.read()])

    def close(self) -> None:
        self._session.close()
        self._read_session.close()


def complete(operations: list[Operation]) -> None:
    for operation in operations:
        assert operation.error is None
        operation.on_done(operation)


class Groups:
    """The groups of a node. answers: what was answered to each request, in order."""

    def __init__(self, runner: SteppedRunner, limits: LeaseLimits = LEASE_LIMITS) -> None:
        self.runner = runner
        self.groups = LeaseGroups(cast(Runner, runner), limits, now_us=lambda: RAISED, monotonic_s=lambda: 0.0)
        self.answers: list[LeaseResponse | Refusal] = []
        self.requests = 0

    def ask(self, member_id: str, stream_name: str = "s", *holding: Lease) -> None:
        self.requests += 1
        request = LeaseRequest(self.requests, "c", stream_name, member_id, PARTITIONS, list(holding), False)
        self.groups.lease(request, self.answers.append)

    def answered(self) -> LeaseResponse | Refusal:
        (answer,) = self.answers
        self.answers.clear()
        return answer

    def fences(self) -> list[int]:
        answer = self.answered()
        assert isinstance(answer, LeaseResponse), answer
        return [lease.fence for lease in answer.leases]

    def raise_fences(self) -> None:
        """As a promotion of the stream does."""
        self.runner.submit_write(
            Do(
                lambda session: raise_fences(session, "s", RAISED),
                lambda done: self.groups.forget(lambda name: name == "s"),
            )
        )


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    database = open_database(tmp_path)
    runner = SteppedRunner(database)
    try:
        yield Groups(runner)
    finally:
        runner.close()
        database.close()


def test_a_group_that_writes_while_its_fences_are_raised_gives_only_higher_ones_later(groups: Groups) -> None:
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [1, 1]
    groups.raise_fences()
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [], "no save with the next ones would be taken"
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [RAISED + 1, RAISED + 1]


def test_a_group_that_was_read_before_its_fences_were_raised_is_read_again(groups: Groups) -> None:
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [1, 1]
    groups.groups.forget(lambda name: True)
    groups.ask("a")
    read_before = groups.runner.read()
    groups.raise_fences()
    groups.runner.run()
    complete(read_before)
    groups.runner.run()
    assert isinstance(groups.answered(), Refusal)
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [RAISED + 1, RAISED + 1]


def test_a_group_gives_fences_above_those_that_a_mirror_has_copied(groups: Groups) -> None:
    """The node has become a mirror. Its source has raised the fence of one partition, and nothing tells the group."""
    groups.ask("a")
    groups.runner.run()
    assert groups.fences() == [1, 1]
    groups.runner.submit_write(WriteLeases("c", "s", [StoredLease(0, RAISED, None)], 0, ignore_done))
    groups.runner.run()
    # A save with the fence of this partition is refused, so the member no longer names its lease.
    groups.ask("a", "s", Lease(1, 1))
    groups.runner.run()
    assert groups.fences() == [1]
    groups.ask("a", "s", Lease(1, 1))
    groups.runner.run()
    assert groups.fences() == [RAISED + 1, 1]


def test_who_waited_for_a_group_that_is_forgotten_can_ask_again(groups: Groups) -> None:
    """A refusal without an error would be answered as an invalid request, which ends the membership of a consumer."""
    groups.ask("a")
    groups.groups.forget(lambda name: name == "s")
    refusal = groups.answered()
    assert isinstance(refusal, Refusal)
    assert refusal.error is not None
    assert refusal.error.retriable
    groups.runner.run()
    assert groups.answers == []


def test_only_the_groups_that_are_meant_are_forgotten(groups: Groups) -> None:
    for name in ("s", "other"):
        groups.ask("a", name)
    groups.runner.run()
    groups.groups.forget(lambda name: name == "s")
    statistics = groups.groups.statistics()
    assert (statistics.groups, statistics.members, statistics.held) == (1, 1, PARTITIONS)
