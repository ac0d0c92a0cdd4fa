"""Commits in the trio thread: when they begin and end, and that nothing is done in another order or lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

from stream_storage import failpoint, thread_runner
from stream_storage.contract import Session
from stream_storage.errors import UnknownStreamId
from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from stream_storage.sqlite.checkpointer import CHECKPOINT_COMMITS
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import SHORT_COMMITS_MIN, ShortCommits, ThreadRunner
from tests.stream_storage.runner_samples import Bench
from tests.stream_storage.short_commits_child import PATIENCE_S, Short, do
from tests.stream_storage.storage_samples import stored_data
from tests.support.command import ROOT

HERE = threading.main_thread().name
WRITER = "storage-writer"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "data", streams=2)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def every_commit_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test does not depend on the disk of the machine."""
    monkeypatch.setattr(thread_runner, "COMMIT_S_MAX", PATIENCE_S)


async def do_many(runner: ThreadRunner, count: int) -> list[str]:
    """Appends so many messages, one after the other. Returns the threads that did it."""
    return [await do(runner, Short(b"%d" % number)) for number in range(count)]


async def settle(runner: ThreadRunner) -> int:
    """Appends messages until the trio thread has committed ten in a row. Returns the number of messages.

    After the first short commits, the writing thread extends the write-ahead log, and commits what comes meanwhile."""
    in_a_row = count = 0
    while in_a_row < 10:
        thread = await do(runner, Short(b"%d" % count))
        in_a_row = in_a_row + 1 if thread == HERE else 0
        count += 1
        assert count < 1_000
    return count


def test_sixteen_short_commits_are_needed_again_after_each_long_one() -> None:
    short = ShortCommits()
    for _ in range(2):
        for _ in range(SHORT_COMMITS_MIN):
            assert not short.are_usual
            short.note(thread_runner.COMMIT_S_MAX)
        assert short.are_usual
        short.note(thread_runner.COMMIT_S_MAX * 1.01)


async def test_the_trio_thread_commits_after_sixteen_short_commits(bench: Bench) -> None:
    """Each commit counts in the statistics, and all messages are stored in order."""
    async with ThreadRunner(bench.database) as runner:
        assert await do_many(runner, SHORT_COMMITS_MIN) == [WRITER] * SHORT_COMMITS_MIN
        count = await settle(runner)
        found = runner.statistics()
        assert (found.commits, found.operations, found.outstanding) == (SHORT_COMMITS_MIN + count,) * 2 + (0,)
    stored = [*range(SHORT_COMMITS_MIN), *range(count)]
    assert stored_data(bench.database, bench.ids[0]) == [b"%d" % number for number in stored]


async def test_operations_that_wait_together_go_to_the_writing_thread(bench: Bench) -> None:
    """They are one transaction there. So do long ones."""
    async with ThreadRunner(bench.database) as runner:
        await settle(runner)
        commits = runner.statistics().commits
        together = [Short(b"a"), Short(b"b")]
        for operation in together:
            runner.submit_write(operation)
        await runner.wait_idle()
        assert [operation.thread for operation in together] == [WRITER, WRITER]
        assert runner.statistics().commits == commits + 1
        threads: list[str] = []
        runner.submit_write(bench.call(lambda session: threads.append(threading.current_thread().name)))
        await runner.wait_idle()
        assert threads == [WRITER]
        # Then the trio thread goes on.
        await settle(runner)


async def test_a_task_that_submits_meanwhile_joins_the_transaction(bench: Bench) -> None:
    """Goal: two clients that push at the same time share one sync. Method: a second task that is ready when the first
    one submits."""
    async with ThreadRunner(bench.database) as runner:
        await settle(runner)
        commits = runner.statistics().commits
        async with trio.open_nursery() as nursery:
            nursery.start_soon(do, runner, Short(b"a"))
            nursery.start_soon(do, runner, Short(b"b"))
        assert runner.statistics().commits == commits + 1


async def test_a_stalling_disk_stops_the_trio_thread_for_one_sync_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a disk that becomes slow holds up connections for one sync only. Method: every sync takes longer from some
    moment on; each commit notes its thread, and another task counts its turns during a commit."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.001)
            turns += 1

    async with ThreadRunner(bench.database) as runner:
        await settle(runner)
        monkeypatch.setattr(thread_runner, "COMMIT_S_MAX", 0.1)
        monkeypatch.setattr(failpoint, "_sync_delay_s", 0.3)
        threads = await do_many(runner, 3)
        assert threads == [HERE, WRITER, WRITER]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            await do(runner, Short(b"last"))
            nursery.cancel_scope.cancel()
        assert turns > 3


async def test_an_operation_that_fails_in_the_trio_thread_gets_its_error(bench: Bench) -> None:
    """The next one is stored."""

    class Failing(Short):
        def apply(self, session: Session) -> None:
            super().apply(session)
            raise UnknownStreamId(7)

    async with ThreadRunner(bench.database) as runner:
        count = await settle(runner)
        failing = Failing(b"failing")
        assert await do(runner, failing) == HERE
        assert isinstance(failing.error, UnknownStreamId)
        assert await do(runner, Short(b"next")) == HERE
    data = stored_data(bench.database, bench.ids[0])
    assert data[count:] == [b"next"]


async def test_a_program_that_holds_the_database_stops_the_writing_thread_only(bench: Bench) -> None:
    """Claim: connections are served while a push waits for another program. Method: another connection holds the lock
    of the file, and gives it back in the trio thread: one that waited for the lock could not do so."""
    async with ThreadRunner(bench.database) as runner:
        await settle(runner)
        with closing(sqlite3.connect(bench.database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = Short(b"waiting")
            runner.submit_write(waiting)
            await trio.testing.wait_all_tasks_blocked()
            other.execute("ROLLBACK")
            await runner.wait_idle()
        assert waiting.error is None
        assert waiting.thread == WRITER


async def test_the_write_ahead_log_is_copied_by_the_writing_thread(bench: Bench) -> None:
    async with ThreadRunner(bench.database) as runner:
        await settle(runner)
        threads = await do_many(runner, CHECKPOINT_COMMITS)
        assert threads.count(HERE) > CHECKPOINT_COMMITS // 2
        before_s = time.monotonic()
        while not runner.statistics().checkpoints:
            assert time.monotonic() - before_s < PATIENCE_S
            await trio.sleep(0.01)


async def test_other_connections_see_what_the_trio_thread_has_committed(bench: Bench) -> None:
    """The message is on disk when the operation is completed."""
    async with ThreadRunner(bench.database) as runner:
        count = await settle(runner)
        for number in range(1, 6):
            assert await do(runner, Short(b"x")) == HERE
            assert len(stored_data(bench.database, bench.ids[0])) == count + number


@pytest.mark.parametrize("site", ["before_begin", "after_rows_before_commit", "after_commit_before_confirm"])
def test_a_kill_in_the_trio_thread_loses_nothing_that_was_confirmed(tmp_path: Path, site: str) -> None:
    """Goal: nothing confirmed is lost. Method: a process is killed within its 600th commit, which is one of the trio
    thread; this process reads the database afterwards."""
    command = [sys.executable, "-m", "tests.stream_storage.short_commits_child", str(tmp_path)]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: f"{site}:600"}
    child = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert child.returncode == -signal.SIGKILL, child.stderr
    lines = child.stdout.splitlines()
    confirmed = [line.split() for line in lines if line.startswith("confirmed")]
    began = [line.split() for line in lines if line.startswith("began")]
    # The process that was killed before the beginning of a transaction has not noted its thread.
    assert len(began) == len(confirmed) + (site != "before_begin")
    assert [thread for _, _, thread in began][-5:] == [HERE] * 5
    with closing(Database.open(tmp_path)) as database:
        stream_id = 1
        stored = stored_data(database, stream_id)
    sent = [b"%d" % number for number in range(len(confirmed) + 1)]
    assert stored in (sent[:-1], sent)
    assert (stored == sent) == (site == "after_commit_before_confirm")
