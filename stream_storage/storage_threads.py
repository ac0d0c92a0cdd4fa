"""The threads of a node that touch the database: one WritingThread, and several ReadingThreads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import structlog

from stream_storage.commit import apply_read, commit_batch, fail_all
from stream_storage.contract import Append, CommitTimes, Operation, Session, Upkeep
from stream_storage.errors import CommitInDoubt, DiskFull, StorageBusy, StorageClosed, StorageError
from stream_storage.failpoint import failpoint
from stream_storage.histogram import COUNTS, SECONDS, Histogram

logger = structlog.get_logger(__name__)


class WritingThread(threading.Thread):
    """The writing thread, and the only session that writes. All waiting operations become one transaction.

    post: hands a finished batch over, in the order of submission.
    Invariant: each submitted operation is passed to `post` or returned by `commit_here`, exactly once. The thread that
        holds `_at_work` uses the session and takes from the queue, so transactions have the order of submission."""

    def __init__(
        self,
        session: Session,
        upkeep: Upkeep,
        post: Callable[[list[Operation]], None],
        times_appends: bool = False,
    ) -> None:
        super().__init__(name="storage-writer", daemon=False)
        self._times_appends = times_appends
        # The reason why nothing is written any more, and how often the queue was emptied.
        self.failure: StorageError | None = None
        self.passes = 0
        self.commits = 0
        self.operations = 0
        self.rows = 0
        self.commit_s_last = 0.0
        self.commit_s_total = 0.0
        self.commit_s_max = 0.0
        # The distributions of transactions, from their first operation to the end of the sync; of commits alone; and of
        # the messages in transactions.
        self.commit_seconds = Histogram(SECONDS)
        self.sync_seconds = upkeep.sync_seconds
        self.batch_rows = Histogram(COUNTS)
        self.upkeep = upkeep
        self._session = session
        self._post = post
        self._queue: deque[Operation] = deque()
        self._signal = threading.Lock()
        self._signal.acquire()
        self._at_work = threading.Lock()
        self._signalled = False
        self._stopping = False
        self._tight = False
        self.gave_up_ballast = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def first_waiting(self) -> Operation | None:
        # The writing thread may empty the queue at any moment.
        try:
            return self._queue[0]
        except IndexError:
            return None

    def submit(self, operation: Operation) -> None:
        """Adds an operation to the queue, which the thread empties at the next `wake_up`. For the trio thread."""
        self._queue.append(operation)

    def wake_up(self) -> None:
        """Makes `run` read the queue again."""
        # `run` sleeps by acquiring this lock. A `threading.Event` would do the same, but it is written in Python and
        # makes a lock for each wait.
        if not self._signalled:
            self._signalled = True
            self._signal.release()

    def commit_here(self) -> list[Operation] | None:
        """Commits the waiting operations in the trio thread, and returns them. Returns None if the writing thread is at
        work, or if another program holds the database: only the writing thread may wait for that program."""
        if not self._at_work.acquire(blocking=False):
            return None
        try:
            batch = self._take()
            if batch:
                with self.upkeep.without_waiting():
                    self._write(batch)
                if isinstance(batch[0].error, StorageBusy):
                    for operation in batch:
                        operation.error = None
                    self._queue.extendleft(reversed(batch))
                    return None
                # The writing thread copies the log, so that no other task waits for the copy.
                if self.upkeep.is_due(self.commits, tight=self._tight):
                    self.wake_up()
            return batch
        finally:
            self._at_work.release()

    def save_room(self, tight: bool) -> None:
        """Switches the saving of disk room on or off: while the disk is tight, the log is copied after every commit. A
        commit in the log needs room in the database file later, and the disk can have none then."""
        if tight != self._tight:
            self._tight = tight
            self.wake_up()

    def stop(self) -> None:
        """Makes the thread finish all submitted operations, copy the log, close the session, and end."""
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
            with self._at_work:
                batch = self._take()
                if batch:
                    self._write(batch)
                    self._post(batch)
                # The thread may sleep for long, so it must not keep stored messages in memory.
                batch = []
                # The checkpoint comes after the batch is posted, so that no confirm waits for it.
                if self.failure is None and not stopping:
                    self.failure = self.upkeep.after_commit(self.commits, waiting=bool(self._queue), tight=self._tight)
            self.passes += 1
        failpoint("before_close")
        if self.failure is None:
            self.upkeep.close()
        _close_session(self._session)

    def _take(self) -> list[Operation]:
        queue = self._queue
        return [queue.popleft() for _ in range(len(queue))]

    def _write(self, batch: list[Operation]) -> None:
        if self.failure is not None:
            fail_all(batch, StorageClosed(f"nothing is written any more, since {self.failure}"))
            return
        began_ns = time.time_ns() if self._times_appends else 0
        started_s = time.perf_counter()
        try:
            self.failure = commit_batch(self._session, batch)
            # 1. A disk without room may still have room in the log: a checkpoint frees it, and the batch is tried
            # again.
            if self.failure is None and all(isinstance(operation.error, DiskFull) for operation in batch):
                self._write_again(batch)
            # 2. Deletes and saved positions get the ballast. Pushes do not, or it would be used up without freeing
            # anything.
            needed = [each for each in batch if each.needs_little and isinstance(each.error, DiskFull)]
            if self.failure is None and needed and self.upkeep.give_up_ballast():
                self.gave_up_ballast = True
                self._write_again(needed)
        except BaseException as error:
            # The code of storage has a mistake. The exception may have come after the commit, so nobody knows which
            # operations are stored.
            self.failure = self._session.error_of(error)
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
            if self._times_appends:
                times = CommitTimes(began_ns, time.time_ns(), rows)
                for operation in done:
                    if isinstance(operation, Append):
                        operation.commit = times

    def _write_again(self, batch: list[Operation]) -> None:
        """Commits operations once more, after the log is copied, so that the commit can overwrite it."""
        self.failure = self.upkeep.make_room()
        if self.failure is None:
            for operation in batch:
                operation.error = None
            self.failure = commit_batch(self._session, batch)


class ReadingThread(threading.Thread):
    """A reading thread, with a session that cannot write. All reading threads take operations from one queue, in which
    each None ends one thread."""

    def __init__(
        self,
        number: int,
        session: Session,
        queue: SimpleQueue[Operation | None],
        post: Callable[[list[Operation]], None],
    ) -> None:
        super().__init__(name=f"storage-reader-{number}", daemon=False)
        self.operations = 0
        self._session = session
        self._queue = queue
        self._post = post

    def run(self) -> None:
        operation = self._queue.get()
        while operation is not None:
            try:
                apply_read(self._session, operation)
            except BaseException as error:
                # The code of storage has a mistake. The thread must go on, or all later reads would wait for ever.
                operation.error = self._session.error_of(error)
                logger.critical("read_failed", reason=str(error))
            self.operations += 1
            self._post([operation])
            # The thread may sleep for long, so it must not keep a page in memory that is answered.
            del operation
            operation = self._queue.get()
        _close_session(self._session)


def _close_session(session: Session) -> None:
    try:
        session.close()
    except StorageError as error:
        logger.error("close_failed", reason=str(error))
