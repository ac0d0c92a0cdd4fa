"""The threads that wait for SQLite: one that writes, a few that read. They know nothing of trio.

A thread takes operations from its queue until it is told to stop, and hands back every one of them, done or
with an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue

import structlog

from storage.commit import apply_read, commit_batch, fail_all
from storage.contract import Operation
from storage.delivery import Deliver
from storage.errors import CommitInDoubt, DiskFull, StorageClosed, StorageError, storage_error
from storage.failpoint import failpoint
from storage.room import judge
from storage.session import SqliteSession

CHECKPOINT_BYTES = 8 * 1024 * 1024
CHECKPOINT_COMMITS = 1_000
"""The log is copied into the file after this much data or this many commits (about five pages each), when
nothing waits, or after four times as much, whatever waits."""
WAL_PAGES_MAX = 8_192
"""With this many pages (64 MiB) in the log although it was copied before, readers kept it from beginning
anew; then the next copy waits for them, for `CHECKPOINT_WAIT_MS` at most."""
CHECKPOINT_WAIT_MS = 100

EXTEND_AFTER_COMMITS = 16
"""A node that has done so many commits gets a log that is large from the beginning; one that does less needs none."""
EXTENDED_BYTES = 24 * 1024 * 1024
"""More than what `CHECKPOINT_COMMITS` commits of one push write."""
EXTEND_FREE_BYTES_MIN = 1024 * 1024 * 1024
"""With less free on the disk the log is left to grow as it needs."""

logger = structlog.get_logger(__name__)


class WritingThread(threading.Thread):
    """Owns the session that writes. Everything that waits when it looks becomes one transaction.

    deliver: called in this thread with each batch, in the order of submission.
    failure: why nothing is written any more, or None.
    Invariant: an operation that was submitted is delivered exactly once.
    """

    def __init__(self, session: SqliteSession, deliver: Deliver) -> None:
        super().__init__(name="storage-writer", daemon=False)
        self.failure: StorageError | None = None
        self.commits = 0
        self.operations = 0
        self.rows = 0
        self.commit_s_last = 0.0
        self.commit_s_total = 0.0
        self.commit_s_max = 0.0
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_s_last = 0.0
        self.wal_pages = 0
        self._session = session
        self._deliver = deliver
        self._queue: deque[Operation] = deque()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._woken = False
        self._stopping = False
        self._copied_bytes = 0
        self._copied_commits = 0
        self._tight = False
        self._extends = True

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, operation: Operation) -> None:
        """To be done when it is woken next. Called in one thread only, the one that calls `wake_up` and `stop`."""
        self._queue.append(operation)

    def stop(self) -> None:
        """Finish what was submitted, copy the log into the file, close the session, end."""
        self._stopping = True
        self.wake_up()

    def save_room(self, tight: bool) -> None:
        """Copy the log into the file after every commit, while the disk has little room: what stands in the log alone
        needs room in the file too, and may not find it later; a log that is copied is written over, and needs none.

        Called as `submit`."""
        if tight != self._tight:
            self._tight = tight
            self.wake_up()

    def wake_up(self) -> None:
        """Let `run` look again. The lock is a signal: held while there is nothing new.

        `run` clears the flag before it looks at the queue, so whoever finds the flag set knows that it will look.
        """
        if not self._woken:
            self._woken = True
            self._wake.release()

    def run(self) -> None:
        stopping = False
        while not stopping:
            self._wake.acquire()
            self._woken = False
            stopping = self._stopping
            batch = self._take()
            if batch:
                self._write(batch)
                self._deliver(batch)
            self._maybe_checkpoint()
            if self._extends and self.commits >= EXTEND_AFTER_COMMITS and not self._queue and not stopping:
                self._extend_wal()
        self._close()

    def _take(self) -> list[Operation]:
        queue = self._queue
        return [queue.popleft() for _ in range(len(queue))]

    def _write(self, batch: list[Operation]) -> None:
        """Commit, or fail all of the batch; nothing may leave it waiting, so even mistakes end here."""
        if self.failure is not None:
            fail_all(batch, StorageClosed(f"nothing is written any more, since {self.failure}"))
            return
        started_s = time.perf_counter()
        try:
            self.failure = commit_batch(self._session, batch)
            if self.failure is None and all(isinstance(operation.error, DiskFull) for operation in batch):
                self._write_again(batch)
        except BaseException as error:
            # A mistake of ours, in any step of the commit or behind it.
            self.failure = storage_error(error)
            fail_all(batch, CommitInDoubt(self.failure))
        if self.failure is not None:
            fail_all(batch, self.failure)
            logger.critical("writing_stopped", operations=len(batch), reason=str(self.failure))
            return
        done = [operation for operation in batch if operation.error is None]
        if done:
            self.commits += 1
            self.operations += len(done)
            self.rows += sum(operation.row_count() for operation in done)
            self.commit_s_last = time.perf_counter() - started_s
            self.commit_s_total += self.commit_s_last
            self.commit_s_max = max(self.commit_s_max, self.commit_s_last)

    def _write_again(self, batch: list[Operation]) -> None:
        """There is no room for the log to grow: copy it into the file, so that it begins anew, and try once more."""
        self._checkpoint()
        if self.failure is None:
            for operation in batch:
                operation.error = None
            self.failure = commit_batch(self._session, batch)

    def _maybe_checkpoint(self) -> None:
        grown_bytes = self._session.log.appended_bytes - self._copied_bytes
        commits = self.commits - self._copied_commits
        share = max(grown_bytes / CHECKPOINT_BYTES, commits / CHECKPOINT_COMMITS)
        if self.failure is None and (share >= 4 or (share >= 1 and not self._queue) or (self._tight and commits)):
            self._copied_bytes += grown_bytes
            self._copied_commits += commits
            self._checkpoint()

    def _checkpoint(self, *, truncate: bool = False) -> None:
        """Copy the log into the file. truncate: and give back its room, if readers let us."""
        started_s = time.perf_counter()
        failpoint("before_checkpoint")
        try:
            if self.wal_pages < WAL_PAGES_MAX and not truncate:
                self.wal_pages = self._session.checkpoint("PASSIVE").wal_pages
            else:
                with self._session.busy_timeout(CHECKPOINT_WAIT_MS):
                    self.wal_pages = self._session.checkpoint("TRUNCATE" if truncate else "RESTART").wal_pages
        except Exception as raised:
            error = judge(storage_error(raised), self._session)
            self.checkpoint_failures += 1
            if error.fatal:
                self.failure = error
            logger.error("checkpoint_failed", fatal=error.fatal, reason=str(error))
        failpoint("after_checkpoint")
        self.checkpoints += 1
        self.checkpoint_s_last = time.perf_counter() - started_s

    def _extend_wal(self) -> None:
        """Make the log large, once, where there is much room. It grows by itself where that fails, so only a disk that
        fails is told; where a quota leaves less room than the disk has, what has been taken is given back."""
        self._extends = False
        if self.failure is not None or self._tight:
            return
        try:
            if self._session.free_disk_bytes() >= EXTEND_FREE_BYTES_MIN:
                self._session.extend_wal(EXTENDED_BYTES)
        except OSError as error:
            logger.info("wal_not_extended", reason=str(error))
        except Exception as raised:
            failed = judge(storage_error(raised), self._session)
            if failed.fatal:
                self.failure = failed
                logger.critical("writing_stopped", operations=0, reason=str(failed))
                return
            logger.info("wal_not_extended", reason=str(failed))
            self._checkpoint(truncate=True)

    def _close(self) -> None:
        """Where the log cannot be copied it stays, and the next open copies it."""
        failpoint("before_close")
        try:
            if self.failure is None:
                self._session.checkpoint("TRUNCATE")
        except StorageError as error:
            self.checkpoint_failures += 1
            logger.error("checkpoint_failed", fatal=error.fatal, reason=str(error))
        _close_session(self._session)


class ReadingThread(threading.Thread):
    """Owns a session that cannot write. Several take from one queue, where None means: end.

    deliver: called in this thread with each operation, when it is done.
    """

    def __init__(
        self, number: int, session: SqliteSession, queue: SimpleQueue[Operation | None], deliver: Deliver
    ) -> None:
        super().__init__(name=f"storage-reader-{number}", daemon=False)
        self.operations = 0
        self._session = session
        self._queue = queue
        self._deliver = deliver

    def run(self) -> None:
        while (operation := self._queue.get()) is not None:
            try:
                apply_read(self._session, operation)
            except BaseException as error:
                operation.error = storage_error(error)
                logger.critical("read_failed", reason=str(error))
            self.operations += 1
            self._deliver([operation])
        _close_session(self._session)


def _close_session(session: SqliteSession) -> None:
    try:
        session.close()
    except StorageError as error:
        logger.error("close_failed", reason=str(error))
