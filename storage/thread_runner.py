"""The storage runner of a node. One thread writes, a few threads read, and the trio thread never waits for the disk.

The path of a write, from the worker that submits it to the confirm:

    trio thread                                   writing thread

    1. submit_write: append to the queue
    2. _wake_writer: once, at the end    ──────▶  3. run: take everything that waits
       of the node's batch                        4. commit_batch: one transaction, one sync
    6. Completions.complete: open a      ◀──────  5. _post: hand over the whole batch
       batch, call each `on_done`
    7. `on_done` makes the confirms, which are sent when the batch ends

A read takes the same path through a reading thread, but each read is done alone, and steps 2 and 4 are skipped.

No timer delays a commit. While the writing thread commits, new operations collect in the queue. Together they become
the next transaction, so a slower disk leads to larger transactions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

import structlog
import trio

from storage.bulk.arrow_thread import ArrowRead, ArrowThread
from storage.checkpointer import Checkpointer
from storage.commit import apply_read, commit_batch, fail_all
from storage.contract import Operation
from storage.database import Database
from storage.errors import CommitInDoubt, DiskFull, StorageClosed, StorageError, storage_error
from storage.failpoint import failpoint
from storage.histogram import COUNTS, SECONDS, Histogram
from storage.runner import Batches, Completions, NoBatches, RunnerStatistics
from storage.session import SqliteSession

READING_THREADS = 2
"""The number of reading threads. If a long page of one consumer keeps one thread busy, the other thread serves all
other reads."""

logger = structlog.get_logger(__name__)


class StorageHistograms(NamedTuple):
    """The distributions that a runner counts since its start.

    commit_seconds: the times of transactions, from their first operation to the end of the sync.
    sync_seconds: the times of commits alone.
    batch_rows: the numbers of messages in transactions.
    """

    commit_seconds: Histogram
    sync_seconds: Histogram
    batch_rows: Histogram


class ThreadRunner:
    """A `storage.runner.Runner` with one writing thread and several reading threads.

    Must be created and used in the trio thread. Close the runner with `aclose`, or use it as an async context manager;
    the database stays open. If the trio run ends before the runner is closed, the threads still do all submitted
    operations before they end.

    Invariant: while `_wake_planned` is true, the open batch calls `_wake_writer` at its end.
    """

    def __init__(
        self, database: Database, *, batches: Batches | None = None, reading_threads: int = READING_THREADS
    ) -> None:
        """Opens the sessions and starts the threads.

        batches: the node that submits the operations, or None if no node is involved, as in some tests.
        reading_threads: the number of reading threads, at least 1.

        Raises StorageError if a connection cannot be opened.
        """
        assert reading_threads > 0, "a runner needs a thread that reads"
        self._batches: Batches = NoBatches() if batches is None else batches
        self._completions = Completions(self._batches)
        self._wake_planned = False
        self._completes_one = False
        self._database = database
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._reads: SimpleQueue[Operation | None] = SimpleQueue()
        sessions: list[SqliteSession] = []
        try:
            sessions.append(database.session())
            sessions += [database.read_session() for _ in range(reading_threads)]
        except BaseException:
            for session in sessions:
                session.close()
            raise
        self._writer = WritingThread(sessions[0], self._post)
        self._readers = [
            ReadingThread(number, session, self._reads, self._post) for number, session in enumerate(sessions[1:], 1)
        ]
        self._arrow: ArrowThread | None = None
        for thread in (self._writer, *self._readers):
            thread.start()
        trio.lowlevel.spawn_system_task(self._end_with_trio)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def submit_write(self, operation: Operation) -> None:
        self._completions.admit()
        self._writer.submit(operation)
        if self._completes_one:
            # This operation was submitted by the `on_done` of an operation that was alone in its transaction, so no
            # other operations are likely to join it. The writing thread commits it while the trio thread makes the
            # answers to the operation before.
            self._writer.wake_up()
        elif not self._wake_planned:
            # The rest of the batch may submit more operations, for other streams. All of them should become one
            # transaction.
            self._wake_planned = True
            self._batches.at_batch_end(self._wake_writer)

    def submit_read(self, operation: Operation) -> None:
        self._completions.admit()
        self._reads.put(operation)

    def submit_bulk(self, operation: ArrowRead) -> None:
        self._completions.admit()
        if self._arrow is None:
            self._arrow = ArrowThread(self._database.path, self._post, lambda: self._writer.rows)
            self._arrow.start()
        self._arrow.submit(operation)

    def save_room(self, tight: bool) -> None:
        """Switch the saving of disk room on or off. While it is on, the write-ahead log is copied into the database
        file after every commit, so that the log does not grow.

        tight: whether the disk has little room left, so that the saving is switched on.
        """
        self._writer.save_room(tight)

    @property
    def writing_passes(self) -> int:
        """How often the writing thread has emptied its queue since the start."""
        return self._writer.passes

    def wake_writer(self) -> None:
        """Make the writing thread do one more pass, also if nothing waits, so that a watchdog sees whether it lives."""
        self._writer.wake_up()

    async def wait_idle(self) -> None:
        await self._completions.wait_idle()

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            if self._completions.closed:
                # Another task is closing the runner already. Both tasks return when the threads have ended.
                await self._ended.wait()
                return
            self._completions.closed = True
            await self.wait_idle()
            # End the reading threads first: the writing thread empties the log when it ends, and an open reader would
            # prevent that.
            self._stop_reading()
            for reader in (*self._readers, *((self._arrow,) if self._arrow else ())):
                await trio.to_thread.run_sync(reader.join)
            self._writer.stop()
            await trio.to_thread.run_sync(self._writer.join)
            if self._writer.failure is not None:
                # After a fatal error the next open must check the file, as after a crash.
                self._database.distrust()
            self._ended.set()

    @property
    def histograms(self) -> StorageHistograms:
        writer = self._writer
        return StorageHistograms(writer.commit_seconds, writer.sync_seconds, writer.batch_rows)

    @property
    def is_writing(self) -> bool:
        """Whether the writing thread runs, and still writes."""
        return self._writer.is_alive() and self._writer.failure is None

    def statistics(self) -> RunnerStatistics:
        writer, checkpointer, completions = self._writer, self._writer.checkpointer, self._completions
        return RunnerStatistics(
            commits=writer.commits,
            operations=writer.operations,
            rows=writer.rows,
            reads=sum(reader.operations for reader in self._readers),
            bulk_pages=self._arrow.pages if self._arrow else 0,
            bulk_rows=self._arrow.rows if self._arrow else 0,
            failed=completions.failed,
            callback_failures=completions.callback_failures,
            writes_waiting=writer.waiting,
            reads_waiting=self._reads.qsize(),
            outstanding=completions.outstanding,
            commit_s_last=writer.commit_s_last,
            commit_s_total=writer.commit_s_total,
            commit_s_max=writer.commit_s_max,
            checkpoints=checkpointer.checkpoints,
            checkpoint_failures=checkpointer.checkpoint_failures,
            checkpoint_s_last=checkpointer.checkpoint_s_last,
            wal_pages=checkpointer.wal_pages,
            failure=None if writer.failure is None else str(writer.failure),
        )

    def _wake_writer(self) -> None:
        self._wake_planned = False
        self._writer.wake_up()

    def _post(self, operations: list[Operation]) -> None:
        """Hand operations over to the trio thread, which completes them. Called in a storage thread."""
        try:
            self._token.run_sync_soon(self._complete, operations)
        except trio.RunFinishedError:
            # The trio run ended before the runner was closed: no task is left that waits for these operations.
            logger.warning("nobody_to_tell", operations=len(operations))

    def _complete(self, operations: list[Operation]) -> None:
        self._completes_one = len(operations) == 1
        try:
            self._completions.complete(operations)
        finally:
            self._completes_one = False

    async def _end_with_trio(self) -> None:
        """Ends the threads if the trio run ends before the runner is closed. Runs as a system task of trio. Without
        this task, the process could not end."""
        try:
            await self._ended.wait()
        finally:
            if not self._completions.closed:
                self._completions.closed = True
                self._stop_reading()
                self._writer.stop()

    def _stop_reading(self) -> None:
        for _ in self._readers:
            self._reads.put(None)
        if self._arrow is not None:
            self._arrow.stop()


class WritingThread(threading.Thread):
    """The writing thread, which owns the only session that writes. All waiting operations become one transaction.

    post: a function that this thread calls with each finished batch, in the order of submission.
    failure: the reason why the thread does not write any more, or None if it writes.
    passes: how often the thread has emptied its queue.

    Invariant: each submitted operation is passed to `post` exactly once.
    """

    def __init__(self, session: SqliteSession, post: Callable[[list[Operation]], None]) -> None:
        super().__init__(name="storage-writer", daemon=False)
        self.failure: StorageError | None = None
        self.passes = 0
        self.commits = 0
        self.operations = 0
        self.rows = 0
        self.commit_s_last = 0.0
        self.commit_s_total = 0.0
        self.commit_s_max = 0.0
        self.commit_seconds = Histogram(SECONDS)
        self.batch_rows = Histogram(COUNTS)
        self.sync_seconds = session.sync_seconds
        self.checkpointer = Checkpointer(session)
        self._session = session
        self._post = post
        self._queue: deque[Operation] = deque()
        self._signal = threading.Lock()
        self._signal.acquire()
        self._signalled = False
        self._stopping = False
        self._tight = False

    @property
    def waiting(self) -> int:
        """The number of operations in the queue."""
        return len(self._queue)

    def submit(self, operation: Operation) -> None:
        """Add an operation to the queue. The thread empties the queue at the next `wake_up`. Called in the trio thread,
        like all public methods except `run`.
        """
        self._queue.append(operation)

    def wake_up(self) -> None:
        """Make `run` read the queue again.

        `_signal` is a lock that serves as a signal: `run` waits by acquiring the lock, and this method releases it. A
        `threading.Event` would do the same, but it is written in Python and makes a lock for each wait.
        """
        if not self._signalled:
            self._signalled = True
            self._signal.release()

    def save_room(self, tight: bool) -> None:
        """Switch the saving of disk room on or off. While it is on, the write-ahead log is copied into the database
        file after every commit.

        A commit that is only in the log needs room in the database file later, and the disk can have no room then.

        tight: whether the disk has little room left, so that the saving is switched on.
        """
        if tight != self._tight:
            self._tight = tight
            self.wake_up()

    def stop(self) -> None:
        """Make the thread finish all submitted operations, copy the log into the database file, close the session
        and end."""
        self._stopping = True
        self.wake_up()

    def run(self) -> None:
        stopping = False
        while not stopping:
            # Sleep until `wake_up`. Clear the flag before the queue is read: if an operation is submitted after this
            # line, its `wake_up` releases the signal again, and the next pass of the loop finds the operation.
            self._signal.acquire()
            self._signalled = False
            stopping = self._stopping
            # Take as many operations as wait at this moment. The trio thread may append more meanwhile.
            queue = self._queue
            batch = [queue.popleft() for _ in range(len(queue))]
            if batch:
                self._write(batch)
                self._post(batch)
            # Copy the log after the batch is posted, so that no confirm waits for the copy.
            if self.failure is None and not stopping:
                self.failure = self.checkpointer.after_commit(self.commits, waiting=bool(queue), tight=self._tight)
            self.passes += 1
        failpoint("before_close")
        if self.failure is None:
            self.checkpointer.close()
        _close_session(self._session)

    def _write(self, batch: list[Operation]) -> None:
        """Commit the batch, or set an error on each operation that is not stored.

        After an unexpected exception, each operation without an error gets CommitInDoubt.
        """
        if self.failure is not None:
            fail_all(batch, StorageClosed(f"nothing is written any more, since {self.failure}"))
            return
        started_s = time.perf_counter()
        try:
            self.failure = commit_batch(self._session, batch)
            if self.failure is None and all(isinstance(operation.error, DiskFull) for operation in batch):
                self._write_again(batch)
        except BaseException as error:
            # The code of storage has a mistake. The exception may have come after the commit, so nobody knows which
            # operations are stored.
            self.failure = storage_error(error)
            fail_all(batch, CommitInDoubt(self.failure))
        if self.failure is not None:
            fail_all(batch, self.failure)
            logger.critical("writing_stopped", operations=len(batch), reason=str(self.failure))
            return
        # Count only the operations that did not fail. If all operations of a batch failed, the batch has committed
        # nothing.
        done = [operation for operation in batch if operation.error is None]
        if done:
            self.commits += 1
            self.operations += len(done)
            rows = sum(operation.row_count() for operation in done)
            self.rows += rows
            self.commit_s_last = time.perf_counter() - started_s
            self.commit_s_total += self.commit_s_last
            self.commit_s_max = max(self.commit_s_max, self.commit_s_last)
            self.commit_seconds.add(self.commit_s_last)
            self.batch_rows.add(rows)

    def _write_again(self, batch: list[Operation]) -> None:
        """Commit a batch a second time, because the first commit found no room for a larger write-ahead log. Before
        that, copy the log into the database file, so that the commit can overwrite the log from its beginning."""
        self.failure = self.checkpointer.copy()
        if self.failure is None:
            for operation in batch:
                operation.error = None
            self.failure = commit_batch(self._session, batch)


class ReadingThread(threading.Thread):
    """A reading thread, which owns a session that cannot write. All reading threads take operations from one queue. The
    queue entry None ends one thread.

    post: a function that this thread calls with each finished operation.
    """

    def __init__(
        self,
        number: int,
        session: SqliteSession,
        queue: SimpleQueue[Operation | None],
        post: Callable[[list[Operation]], None],
    ) -> None:
        super().__init__(name=f"storage-reader-{number}", daemon=False)
        self.operations = 0
        self._session = session
        self._queue = queue
        self._post = post

    def run(self) -> None:
        while (operation := self._queue.get()) is not None:
            try:
                apply_read(self._session, operation)
            except BaseException as error:
                # The code of storage has a mistake. The thread must go on, or all later reads would wait for ever.
                operation.error = storage_error(error)
                logger.critical("read_failed", reason=str(error))
            self.operations += 1
            self._post([operation])
        _close_session(self._session)


def _close_session(session: SqliteSession) -> None:
    try:
        session.close()
    except StorageError as error:
        logger.error("close_failed", reason=str(error))
