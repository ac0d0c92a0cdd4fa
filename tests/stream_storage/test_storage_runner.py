"""The promises of `stream_storage.runner.Runner`, on both runners: order, grouping, failure, closing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from stream_storage.contract import Append, Operation, Session
from stream_storage.errors import (
    DiskFull,
    IndexConflict,
    OperationFailed,
    StorageClosed,
    StorageReadOnly,
    UnknownStreamId,
)
from stream_storage.runner import NoBatches
from stream_storage.sqlite.rows import connection_of
from tests.stream_storage.runner_samples import Bench, Gate, ManualBatches, open_runner
from tests.stream_storage.storage_samples import stored_data

pytestmark = pytest.mark.parametrize("kind", ["thread", "inline"])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "data", streams=4)
    yield opened
    opened.close()


async def test_operations_are_completed_in_the_order_of_submission(kind: str, bench: Bench) -> None:
    submitted: list[Operation] = []
    async with open_runner(kind, bench.database) as runner:
        for number in range(200):
            operation: Operation = bench.append(number // 4, b"%d" % number, stream=number % 4)
            if number % 7 == 3:
                operation = bench.call(lambda session: session.in_transaction)
            elif number % 7 > 3:
                operation = bench.append(number + 1000, b"conflict")
            submitted.append(operation)
            runner.submit_write(operation)
            if number % 50 == 0:
                await trio.lowlevel.checkpoint()
    assert bench.done == submitted


async def test_every_operation_of_a_run_is_stored(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        for number in range(100):
            for stream in range(4):
                runner.submit_write(bench.append(2 * number, b"%d" % number, b"x", stream=stream))
    assert bench.errors() == [None] * 400
    expected = [data for number in range(100) for data in (b"%d" % number, b"x")]
    assert all(stored_data(bench.database, stream_id) == expected for stream_id in bench.ids)


async def test_a_bad_operation_fails_alone(kind: str, bench: Bench) -> None:
    def mistaken(session: Session) -> None:
        session.log.append([Append(bench.ids[2], 0, 5, [b"must be undone"])])
        raise ValueError("a mistake")

    async with open_runner(kind, bench.database) as runner:
        for operation in (
            bench.append(0, b"a"),
            bench.append(5, b"conflict"),
            bench.append(1, b"b"),
            bench.call(mistaken),
            bench.call(lambda session: connection_of(session).execute("INSERT INTO nowhere VALUES (1)")),
            Append(99, 0, 5, [b"no stream"], on_done=bench.done.append),
            bench.append(0, b"c", stream=1),
        ):
            runner.submit_write(operation)
    assert bench.errors() == [
        None,
        IndexConflict,
        None,
        OperationFailed,
        OperationFailed,
        UnknownStreamId,
        None,
    ]
    assert isinstance(bench.done[3].error.__cause__, ValueError)  # type: ignore[union-attr]
    assert [stored_data(bench.database, i) for i in bench.ids[:3]] == [[b"a", b"b"], [b"c"], []]


async def test_when_the_commit_fails_all_fail_and_the_next_batch_is_stored(kind: str, bench: Bench) -> None:
    session = bench.database.session()
    session.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    session.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    session.close()
    async with open_runner(kind, bench.database) as runner:
        runner.submit_write(bench.append(0, b"lost"))
        runner.submit_write(bench.call(lambda session: connection_of(session).execute("INSERT INTO child VALUES (7)")))
        await runner.wait_idle()
        runner.submit_write(bench.append(0, b"kept"))
    assert bench.errors()[-1] is None
    assert bench.errors()[1] is OperationFailed
    assert stored_data(bench.database, bench.ids[0]) == [b"kept"]


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(kind: str, bench: Bench) -> None:
    def limit(pages: int) -> Operation:
        return bench.call(lambda session: connection_of(session).execute(f"PRAGMA max_page_count={pages}").fetchone())

    async with open_runner(kind, bench.database) as runner:
        runner.submit_write(limit(20))
        await runner.wait_idle()
        runner.submit_write(bench.append(0, b"small"))
        runner.submit_write(bench.append(0, b"x" * 1_000_000, stream=1))
        runner.submit_write(bench.append(1, b"small too"))
        await runner.wait_idle()
        assert bench.errors() == [None, None, DiskFull, None]
        assert bench.done[2].error is not None
        assert bench.done[2].error.retriable
        assert "free space" in str(bench.done[2].error)
        runner.submit_write(limit(2**30))
        runner.submit_write(bench.append(0, b"x" * 1_000_000, stream=1))
    assert bench.errors()[4:] == [None, None]
    assert stored_data(bench.database, bench.ids[0]) == [b"small", b"small too"]


async def test_a_read_sees_the_writes_handed_back_before_it(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        for number in range(20):
            runner.submit_write(bench.append(number, b"x"))
            await runner.wait_idle()
            read = bench.call(lambda session: session.log.read(bench.ids[0], 0, 100, 1000))
            runner.submit_read(read)
            await runner.wait_idle()
            assert len(read.result) == number + 1


async def test_a_failed_read_fails_alone_and_writes_nothing(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        runner.submit_read(bench.call(lambda session: session.log.read(77, 0, 1, 1)))
        await runner.wait_idle()
        runner.submit_read(bench.append(0, b"x"))
        await runner.wait_idle()
        runner.submit_read(bench.call(lambda session: 1 // 0))
        await runner.wait_idle()
        runner.submit_read(bench.call(lambda session: session.log.get_stream(bench.ids[0]).next_index))
        await runner.wait_idle()
        assert runner.statistics().failed == 3
        assert runner.statistics().reads == 4
    assert bench.errors() == [UnknownStreamId, StorageReadOnly, OperationFailed, None]


async def test_an_operation_outlives_the_task_that_submitted_it(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        with trio.CancelScope() as scope:
            runner.submit_write(bench.append(0, b"x"))
            scope.cancel()
            await runner.wait_idle()
        assert scope.cancelled_caught
        await runner.wait_idle()
        assert bench.errors() == [None]
    assert stored_data(bench.database, bench.ids[0]) == [b"x"]


async def test_closing_does_what_was_submitted_first(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        for number in range(50):
            runner.submit_write(bench.append(number, b"x"))
        await runner.aclose()
        assert bench.errors() == [None] * 50
        with pytest.raises(StorageClosed):
            runner.submit_write(bench.append(50, b"late"))
        with pytest.raises(StorageClosed):
            runner.submit_read(bench.call(lambda session: None))
        await runner.aclose()
    assert len(stored_data(bench.database, bench.ids[0])) == 50


async def test_closing_is_not_cut_short_by_cancellation(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        for number in range(5):
            runner.submit_write(bench.append(number, b"x"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await runner.aclose()
        assert bench.errors() == [None] * 5


async def test_a_callback_that_raises_does_not_keep_others_from_being_told(kind: str, bench: Bench) -> None:
    def raise_it(operation: Operation) -> None:
        raise RuntimeError("a mistake in a callback")

    async with open_runner(kind, bench.database) as runner:
        runner.submit_write(Append(bench.ids[0], 0, 5, [b"x"], on_done=raise_it))
        runner.submit_write(bench.append(1, b"y"))
        await runner.wait_idle()
        assert runner.statistics().callback_failures == 1
        assert runner.statistics().outstanding == 0
    assert bench.errors() == [None]


async def test_a_batch_is_completed_in_one_batch_of_the_node(kind: str, bench: Bench) -> None:
    """Goal: all operations of a transaction are completed inside one batch of the node, and a batch whose end raises is
    counted and stops nothing. Method: batches that count what is completed inside them, and whose first end raises."""
    completed: list[int] = []

    class Counting(NoBatches):
        @contextmanager
        def batch(self) -> Iterator[None]:
            before = len(bench.done)
            yield
            completed.append(len(bench.done) - before)
            if len(completed) == 1:
                raise RuntimeError("a mistake at the end of the batch")

    async with open_runner(kind, bench.database, Counting()) as runner:
        runner.submit_write(bench.append(0, b"x"))
        await runner.wait_idle()
        for number in range(1, 31):
            runner.submit_write(bench.append(number, b"x"))
        await runner.wait_idle()
        assert runner.statistics().callback_failures == 1
    assert sum(completed) == 31
    assert bench.errors() == [None] * 31


async def test_a_callback_that_raises_in_a_batch_of_the_node_keeps_nobody_from_being_told(
    kind: str, bench: Bench
) -> None:
    def raise_it(operation: Operation) -> None:
        raise RuntimeError("a mistake in a callback")

    batches = ManualBatches(lambda: len(bench.done))
    gate = Gate()
    async with open_runner(kind, bench.database, batches) as runner:
        if kind == "thread":
            runner.submit_write(bench.call(gate))
            batches.end()
            await gate.wait_entered()
        runner.submit_write(Append(bench.ids[0], 0, 5, [b"x"], on_done=raise_it))
        runner.submit_write(bench.append(1, b"y"))
        if kind == "thread":
            batches.end()
            gate.release()
        await runner.wait_idle()
        assert runner.statistics().callback_failures == 1
    assert batches.completed[-1] == 1
    assert set(bench.errors()) == {None}


async def test_a_callback_may_submit_more(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:

        def again(operation: Operation) -> None:
            bench.done.append(operation)
            if len(bench.done) < 5:
                runner.submit_write(Append(bench.ids[0], len(bench.done), 5, [b"x"], on_done=again))

        runner.submit_write(Append(bench.ids[0], 0, 5, [b"x"], on_done=again))
        await runner.wait_idle()
        assert len(bench.done) == 5
        assert bench.errors() == [None] * 5


async def test_statistics_count_what_was_done(kind: str, bench: Bench) -> None:
    async with open_runner(kind, bench.database) as runner:
        runner.submit_write(bench.append(0, b"x", b"y", b"z"))
        await runner.wait_idle()
        runner.submit_write(bench.append(0, b"conflict"))
        await runner.wait_idle()
        statistics = runner.statistics()
    assert (statistics.commits, statistics.operations, statistics.rows, statistics.failed) == (1, 1, 3, 1)
    assert (statistics.writes_waiting, statistics.reads_waiting, statistics.outstanding) == (0, 0, 0)
    assert statistics.failure is None
