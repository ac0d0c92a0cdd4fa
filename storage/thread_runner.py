"""ThreadRunner: the runner of a node. One thread writes, a few read, and the trio thread never waits for the disk.

The way of a write, from the worker that submits it to the confirm:

    trio thread                                   writing thread

    1. submit_write: append to the queue
    2. _wake_writer: once, at the end    ──────▶  3. run: take everything that waits
       of the node's batch                        4. commit_batch: one transaction, one sync
    6. Completions.complete: open a      ◀──────  5. _post: hand over the whole batch
       batch, call each `on_done`
    7. `on_done` sends the confirms; they leave when the batch ends

A read takes the same way through a reading thread, without steps 2 and 4, and alone.

There is no timer. While the writing thread commits, operations gather in the queue, and together they are the next
transaction: the slower the disk, the larger the group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import structlog
import trio

from storage.bulk.arrow_thread import ArrowRead, ArrowThread
from storage.checkpointer import Checkpointer
from storage.commit import apply_read, commit_batch, fail_all
from storage.contract import Operation
from storage.database import Database
from storage.errors import CommitInDoubt, DiskFull, StorageClosed, StorageError, storage_error
from storage.failpoint import failpoint
from storage.runner import Batches, Completions, NoBatches, RunnerStatistics
from storage.session import SqliteSession

READING_THREADS = 2
"""One more than a long page of one consumer can keep busy."""

logger = structlog.get_logger(__name__)


class ThreadRunner:
    """A `storage.runner.Runner` on one writing thread and several reading threads.

    Made and used in the trio thread. Closing it leaves the database open. Close it with `aclose`, or use it as an async
    context manager. If the trio run ends without that, the threads still do what was submitted, and end too.
    Invariant: `_wake_planned` is true if and only if `_wake_writer` is to be called at the end of the open batch.
    """

    def __init__(
        self, database: Database, *, batches: Batches | None = None, reading_threads: int = READING_THREADS
    ) -> None:
        """batches: the node that the operations belong to; None does without, as some tests.

        Raises StorageError where a connection cannot be made.
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
            # This follows the only operation of its transaction, so there are no others to be grouped with. The thread
            # commits it while the trio thread makes the answers to the one before.
            self._writer.wake_up()
        elif not self._wake_planned:
            # The rest of the batch may submit more, for other streams; all of that is to be one transaction.
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
        """Keep the write-ahead log short, and copied into the file, while the disk has little room left."""
        self._writer.save_room(tight)

    async def wait_idle(self) -> None:
        await self._completions.wait_idle()

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            if self._completions.closed:
                # Another task closes already; both return when the threads have ended.
                await self._ended.wait()
                return
            self._completions.closed = True
            await self.wait_idle()
            # The reading threads end first: the writing thread empties the log at its end, and a reader would prevent
            # that.
            self._stop_reading()
            for reader in (*self._readers, *((self._arrow,) if self._arrow else ())):
                await trio.to_thread.run_sync(reader.join)
            self._writer.stop()
            await trio.to_thread.run_sync(self._writer.join)
            if self._writer.failure is not None:
                # The next open has to check the file, as after a crash.
                self._database.distrust()
            self._ended.set()

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
        """In a storage thread: have the trio thread complete these operations."""
        try:
            self._token.run_sync_soon(self._complete, operations)
        except trio.RunFinishedError:
            # The trio run ended without closing the runner: no task is left that could be told.
            logger.warning("nobody_to_tell", operations=len(operations))

    def _complete(self, operations: list[Operation]) -> None:
        self._completes_one = len(operations) == 1
        try:
            self._completions.complete(operations)
        finally:
            self._completes_one = False

    async def _end_with_trio(self) -> None:
        """If nobody closes this runner, end its threads with the trio run, so that the process can end."""
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
    """The thread that owns the only session that writes. All operations that wait become one transaction.

    post: called in this thread with each batch, in the order of submission.
    failure: why the thread writes nothing any more, or None.
    Invariant: each operation that was submitted is posted exactly once.
    """

    def __init__(self, session: SqliteSession, post: Callable[[list[Operation]], None]) -> None:
        super().__init__(name="storage-writer", daemon=False)
        self.failure: StorageError | None = None
        self.commits = 0
        self.operations = 0
        self.rows = 0
        self.commit_s_last = 0.0
        self.commit_s_total = 0.0
        self.commit_s_max = 0.0
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
        """Operations in the queue."""
        return len(self._queue)

    def submit(self, operation: Operation) -> None:
        """Queue an operation until the thread is woken. Called in the trio thread, like all public methods."""
        self._queue.append(operation)

    def wake_up(self) -> None:
        """Make `run` look at the queue again.

        The lock is a signal: `run` waits by acquiring it, and it is released here. A `threading.Event` would do the
        same, but it is written in Python and makes a lock for each wait.
        """
        if not self._signalled:
            self._signalled = True
            self._signal.release()

    def save_room(self, tight: bool) -> None:
        """Copy the write-ahead log into the file after every commit, while the disk has little room.

        A commit that stands only in the log needs room in the file later, and may not find it then.
        """
        if tight != self._tight:
            self._tight = tight
            self.wake_up()

    def stop(self) -> None:
        """Finish what was submitted, copy the log into the file, close the session, end."""
        self._stopping = True
        self.wake_up()

    def run(self) -> None:
        stopping = False
        while not stopping:
            # Sleep until woken. The flag falls before the queue is read: if an operation comes after this line, its
            # `wake_up` releases the signal again, and the next turn finds the operation.
            self._signal.acquire()
            self._signalled = False
            stopping = self._stopping
            # Take what waits by its count, since the trio thread appends at the same time.
            queue = self._queue
            batch = [queue.popleft() for _ in range(len(queue))]
            if batch:
                self._write(batch)
                self._post(batch)
            # The log is copied after the batch is posted, so that no confirm waits for it.
            if self.failure is None and not stopping:
                self.failure = self.checkpointer.after_commit(self.commits, waiting=bool(queue), tight=self._tight)
        failpoint("before_close")
        if self.failure is None:
            self.checkpointer.close()
        _close_session(self._session)

    def _write(self, batch: list[Operation]) -> None:
        """Commit the batch, or give each of its operations an error: nothing may leave an operation without an end."""
        if self.failure is not None:
            fail_all(batch, StorageClosed(f"nothing is written any more, since {self.failure}"))
            return
        started_s = time.perf_counter()
        try:
            self.failure = commit_batch(self._session, batch)
            if self.failure is None and all(isinstance(operation.error, DiskFull) for operation in batch):
                self._write_again(batch)
        except BaseException as error:
            # A mistake of ours. It may have happened after the commit, so nobody knows what is stored.
            self.failure = storage_error(error)
            fail_all(batch, CommitInDoubt(self.failure))
        if self.failure is not None:
            fail_all(batch, self.failure)
            logger.critical("writing_stopped", operations=len(batch), reason=str(self.failure))
            return
        # Operations that failed alone do not count; a batch in which all failed has committed nothing.
        done = [operation for operation in batch if operation.error is None]
        if done:
            self.commits += 1
            self.operations += len(done)
            self.rows += sum(operation.row_count() for operation in done)
            self.commit_s_last = time.perf_counter() - started_s
            self.commit_s_total += self.commit_s_last
            self.commit_s_max = max(self.commit_s_max, self.commit_s_last)

    def _write_again(self, batch: list[Operation]) -> None:
        """The log found no room to grow: copy it into the file, so that it begins anew, and try the batch once more."""
        self.failure = self.checkpointer.copy()
        if self.failure is None:
            for operation in batch:
                operation.error = None
            self.failure = commit_batch(self._session, batch)


class ReadingThread(threading.Thread):
    """A thread that owns a session that cannot write. All reading threads take from one queue, where None means: end.

    post: called in this thread with each operation when it is done.
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
                # A mistake of ours. The thread goes on, or the other reads would wait for ever.
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
