"""The runner with threads: grouping, parallel reads, checkpoints, the ends of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from stream_storage import storage_threads as threads_of_storage
from stream_storage.contract import Append, Operation, Session
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import CommitInDoubt, DiskFailed, StorageClosed, StorageError
from stream_storage.sqlite import checkpointer
from stream_storage.sqlite.bulk.arrow_thread import ArrowRead, ArrowThread
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner
from tests.stream_storage.runner_samples import Bench, Gate, ManualBatches
from tests.stream_storage.storage_samples import stored_data


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "data", streams=100)
    yield opened
    opened.close()


def storage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("storage-")]


async def test_whatever_waits_is_one_transaction_and_one_batch_of_the_node(bench: Bench) -> None:
    batches = ManualBatches(lambda: len(bench.done))
    gate = Gate()
    async with ThreadRunner(bench.database, batches=batches) as runner:
        runner.submit_write(bench.call(gate))
        batches.end()
        await gate.wait_entered()
        for stream in range(100):
            runner.submit_write(bench.append(0, b"a", stream=stream))
            runner.submit_write(bench.append(1, b"b", stream=stream))
        assert runner.statistics().writes_waiting == 200
        batches.end()
        gate.release()
        await runner.wait_idle()
        assert runner.statistics().commits == 2
    assert batches.completed == [1, 200]
    assert bench.errors() == [None] * 201
    assert all(stored_data(bench.database, stream_id) == [b"a", b"b"] for stream_id in bench.ids)


async def test_the_writing_thread_is_woken_when_nothing_more_is_submitted(bench: Bench) -> None:
    batches = ManualBatches()
    async with ThreadRunner(bench.database, batches=batches) as runner:
        for stream in range(100):
            runner.submit_write(bench.append(0, b"a", stream=stream))
        assert len(batches.later) == 1
        assert runner.statistics().writes_waiting == 100
        batches.end()
        await runner.wait_idle()
        assert runner.statistics().commits == 1
        runner.submit_write(bench.append(1, b"b"))
        batches.end()
    assert bench.errors() == [None] * 101


async def test_what_follows_a_lone_operation_is_written_while_its_answers_are_made(bench: Bench) -> None:
    """Goal: the writing thread does not wait for the end of a batch where only one operation came back. Method: a
    function that is to be called at that end, and is not, until the second append is on disk."""
    batches = ManualBatches()
    on_disk = threading.Event()

    def submit_next(done: Operation) -> None:
        bench.done.append(done)
        runner.submit_write(bench.append(1, b"b"))
        runner.submit_write(bench.call(lambda session: on_disk.set()))
        assert on_disk.wait(30)

    async with ThreadRunner(bench.database, batches=batches) as runner:
        runner.submit_write(Append(bench.ids[0], 0, 5, [b"a"], on_done=submit_next))
        batches.end()
        await runner.wait_idle()
    assert batches.later == []
    assert bench.errors() == [None] * 3


async def test_reads_run_beside_each_other_and_beside_a_write(bench: Bench) -> None:
    barrier = threading.Barrier(3)
    async with ThreadRunner(bench.database, reading_threads=2) as runner:
        runner.submit_write(bench.call(lambda session: barrier.wait(30)))
        runner.submit_read(bench.call(lambda session: barrier.wait(30)))
        runner.submit_read(bench.call(lambda session: barrier.wait(30)))
        await runner.wait_idle()
    assert bench.errors() == [None] * 3


async def test_closing_empties_the_log_and_ends_the_threads(bench: Bench) -> None:
    async with ThreadRunner(bench.database) as runner:
        assert len(storage_threads()) == 3
        assert not any(thread.daemon for thread in storage_threads())
        runner.submit_write(bench.append(0, b"x"))
    assert storage_threads() == []
    assert not bench.database.path.with_name("streams.sqlite-wal").exists()


async def test_closing_empties_the_log_beside_another_reader(bench: Bench) -> None:
    """SQLite itself empties the log only with the last connection, and here another one stays open."""
    reader = bench.database.read_session()
    async with ThreadRunner(bench.database) as runner:
        runner.submit_write(bench.append(0, b"x"))
    log = bench.database.path.with_name("streams.sqlite-wal")
    assert log.stat().st_size == 0
    reader.close()


async def test_two_may_close_at_once(bench: Bench) -> None:
    runner = ThreadRunner(bench.database)
    runner.submit_write(bench.append(0, b"x"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.aclose)
        nursery.start_soon(runner.aclose)
    assert bench.errors() == [None]


def test_threads_end_with_a_trio_run_that_did_not_close_them(bench: Bench) -> None:
    gate = Gate()

    async def forgetful() -> None:
        runner = ThreadRunner(bench.database)
        runner.submit_write(bench.call(gate))
        await gate.wait_entered()
        runner.submit_write(bench.append(0, b"x"))

    trio.run(forgetful)
    left = storage_threads()
    gate.release()
    for thread in left:
        thread.join(30)
    assert storage_threads() == []
    assert bench.done == []
    assert stored_data(bench.database, bench.ids[0]) == [b"x"]


async def test_a_mistake_in_the_thread_itself_fails_all_that_waits_and_all_that_comes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: Session, operations: list[Operation]) -> StorageError | None:
        gate(session)
        raise SystemExit("unforeseen")

    gate = Gate()
    monkeypatch.setattr(threads_of_storage, "commit_batch", broken)
    async with ThreadRunner(bench.database) as runner:
        runner.submit_write(bench.append(0, b"x"))
        await gate.wait_entered()
        runner.submit_write(bench.append(0, b"waiting", stream=1))
        gate.release()
        await runner.wait_idle()
        runner.submit_write(bench.append(0, b"later", stream=2))
        await runner.wait_idle()
        assert bench.errors() == [CommitInDoubt, StorageClosed, StorageClosed]
        assert "unforeseen" in str(runner.statistics().failure)


async def test_after_a_failed_disk_nothing_more_is_written_and_the_next_open_checks(bench: Bench) -> None:
    def fail(session: Session) -> None:
        raise DiskFailed("the disk is gone")

    async with ThreadRunner(bench.database) as runner:
        runner.submit_write(bench.append(0, b"before"))
        await runner.wait_idle()
        runner.submit_write(bench.call(fail))
        await runner.wait_idle()
        runner.submit_write(bench.append(1, b"after"))
        read = bench.call(lambda session: session.log.read(bench.ids[0], 0, 10, 100))
        runner.submit_read(read)
        await runner.wait_idle()
        assert [record[1] for record in read.result] == [b"before"]
    assert sorted(map(str, bench.errors())) == sorted(map(str, [None, DiskFailed, StorageClosed, None]))
    bench.close()
    assert (bench.directory / LOCK_NAME).read_bytes() != b""
    Database.open(bench.directory).close()
    assert (bench.directory / LOCK_NAME).read_bytes() == b""


@pytest.mark.parametrize(
    ("where", "value"), [("CHECKPOINT_BYTES", 10_000), ("CHECKPOINT_BYTES_MAX", 10_000), ("CHECKPOINT_COMMITS", 5)]
)
async def test_the_log_is_copied_into_the_file_after_so_much(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, value: int
) -> None:
    monkeypatch.setattr(checkpointer, where, value)
    async with ThreadRunner(bench.database) as runner:
        for number in range(60):
            runner.submit_write(bench.append(number, b"x" * 1000))
            await runner.wait_idle()
        assert 1 <= runner.statistics().checkpoints <= 12
        assert runner.statistics().wal_pages > 0


async def test_large_commits_are_copied_several_at_a_time(bench: Bench) -> None:
    """Goal: each copy also syncs the database file, so a few large commits do not have a copy each."""
    async with ThreadRunner(bench.database) as runner:
        for number in range(checkpointer.CHECKPOINT_COMMITS_MIN - 2):
            runner.submit_write(bench.append(number, bytes(checkpointer.CHECKPOINT_BYTES)))
            await runner.wait_idle()
            expected = (number + 1) * checkpointer.CHECKPOINT_BYTES // checkpointer.CHECKPOINT_BYTES_MAX
            assert runner.statistics().checkpoints <= expected


async def test_a_log_that_readers_keep_from_beginning_anew_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_COMMITS", 1)
    monkeypatch.setattr(checkpointer, "CHECKPOINT_WAIT_MS", 1)
    monkeypatch.setattr(checkpointer, "WAL_PAGES_MAX", 10)
    reader = bench.database.read_session()
    async with ThreadRunner(bench.database) as runner:
        reader.begin()
        assert reader.log.read(bench.ids[0], 0, 10, 10) == []
        for number in range(20):
            runner.submit_write(bench.append(number, b"x"))
            await runner.wait_idle()
        held = runner.statistics().wal_pages
        assert held > 10
        reader.rollback()
        number = 20
        # The thread of checkpoints gets its turns late on a busy machine, so the bound is a time.
        with trio.fail_after(60):
            while runner.statistics().wal_pages >= held:
                runner.submit_write(bench.append(number, b"x"))
                await runner.wait_idle()
                await trio.sleep(0.002)
                number += 1
        assert runner.statistics().checkpoint_failures == 0
    reader.close()
    assert bench.errors() == [None] * number


async def test_a_failed_checkpoint_is_counted_and_fails_no_operation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: object, mode: str) -> None:
        raise StorageError("no")

    monkeypatch.setattr(checkpointer, "CHECKPOINT_COMMITS", 0.1)
    async with ThreadRunner(bench.database) as runner:
        with monkeypatch.context() as patch:
            patch.setattr("stream_storage.sqlite.session.SqliteSession.checkpoint", fail)
            for number in range(3):
                runner.submit_write(bench.append(number, b"x"))
                await runner.wait_idle()
            assert runner.statistics().checkpoint_failures >= 2
    assert bench.errors() == [None] * 3


async def test_a_runner_that_cannot_connect_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(database: Database) -> None:
        raise StorageError("no more connections")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "read_session", refuse)
        with pytest.raises(StorageError, match="no more"):
            ThreadRunner(bench.database)
    assert storage_threads() == []
    async with ThreadRunner(bench.database):
        pass


async def test_a_bulk_read_for_which_there_is_no_thread_fails_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a process without room for one more thread fails the bulk read, and the runner still closes. Method: the
    start of the thread raises what Python raises; then, once more, it does not."""

    def refuse(thread: ArrowThread) -> None:
        raise RuntimeError("can't start new thread")

    with trio.fail_after(30):
        async with ThreadRunner(bench.database) as runner:
            with monkeypatch.context() as patch:
                patch.setattr(ArrowThread, "start", refuse)
                runner.submit_bulk(ArrowRead(bench.ids[0], 0, 1, 1_000, bench.done.append))
                await runner.wait_idle()
            assert "no thread for bulk reads" in str(bench.done.pop().error)
            runner.submit_bulk(ArrowRead(bench.ids[0], 0, 1, 1_000, bench.done.append))
            await runner.wait_idle()
            assert "no thread" not in str(bench.done.pop().error)
    assert storage_threads() == []


async def test_storage_for_which_there_is_no_thread_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a node that cannot start a thread says so and ends. Method: the system refuses the last thread; those
    that run would keep the process from ending."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "storage-reader-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StorageError, match="no thread"):
        ThreadRunner(bench.database)
    assert not storage_threads()


async def test_a_runner_closes_when_there_is_no_thread_to_wait_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a node also stops when the process has no room for one more thread. Method: the system refuses every
    further one."""

    def refuse(*arguments: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    async with ThreadRunner(bench.database) as runner:
        runner.submit_write(bench.append(0, b"a"))
        monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    assert bench.errors() == [None]
    assert not storage_threads()
