"""Checkpointer: decides when the write-ahead log is copied into the database file, and copies it.

SQLite never copies the log by itself here (`wal_autocheckpoint` is off), since a commit would then have to wait for it.
The writing thread calls the checkpointer between two commits.
"""

from __future__ import annotations

import time

import structlog

from storage.disk_diagnosis import diagnose
from storage.errors import StorageError, storage_error
from storage.failpoint import failpoint
from storage.session import SqliteSession

CHECKPOINT_BYTES = 8 * 1024 * 1024
CHECKPOINT_COMMITS = 1_000
"""The log is copied after this much data, or after this many commits (each writes about five pages), once no operation
waits. After four times as much it is copied even while operations wait."""
WAL_PAGES_MAX = 8_192
"""With this many pages (64 MiB), the log has been copied before and has not begun anew, since a reader still needed it.
The next copy waits for the readers, for `CHECKPOINT_WAIT_MS` at most."""
CHECKPOINT_WAIT_MS = 100

EXTEND_AFTER_COMMITS = 16
"""The log is made large after this many commits. A node that commits less does not need a large log."""
EXTENDED_BYTES = 24 * 1024 * 1024
"""The size of the log that was made large: more than `CHECKPOINT_COMMITS` commits of one push each write."""
EXTEND_FREE_BYTES_MIN = 1024 * 1024 * 1024
"""With less free room on the disk, the log is not made large: it grows as the commits need."""

logger = structlog.get_logger(__name__)


class Checkpointer:
    """Keeps the write-ahead log of one writing session short. Used in the thread of that session.

    checkpoints: copies that were tried; checkpoint_failures: those that failed.
    Each method returns the error after which nothing may be written any more, or None.
    Invariant: `_copied_bytes` and `_copied_commits` are what the session had written when the log was copied last.
    """

    def __init__(self, session: SqliteSession) -> None:
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_s_last = 0.0
        self.wal_pages = 0
        self._session = session
        self._copied_bytes = 0
        self._copied_commits = 0
        self._extends = True

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Copy the log if it is time; extend it if it is time.

        commits: made in this session so far. waiting: operations wait for the next commit. tight: the disk has little
        room left, so the log is copied after every commit: a log that has been copied is written over and takes no
        more.
        """
        failure = None
        grown_bytes = self._session.log.appended_bytes - self._copied_bytes
        grown_commits = commits - self._copied_commits
        share = max(grown_bytes / CHECKPOINT_BYTES, grown_commits / CHECKPOINT_COMMITS)
        if share >= 4 or (share >= 1 and not waiting) or (tight and grown_commits):
            self._copied_bytes += grown_bytes
            self._copied_commits += grown_commits
            failure = self.copy()
        # Only in a lull: the log is extended by a transaction of its own, and a push would wait for that.
        if failure is None and self._extends and commits >= EXTEND_AFTER_COMMITS and not waiting:
            self._extends = False
            if not tight:
                failure = self._extend()
        return failure

    def copy(self, *, truncate: bool = False) -> StorageError | None:
        """Copy the log into the file. truncate: cut the log to nothing too, if no reader needs it."""
        failure = None
        started_s = time.perf_counter()
        failpoint("before_checkpoint")
        try:
            if self.wal_pages < WAL_PAGES_MAX and not truncate:
                self.wal_pages = self._session.checkpoint("PASSIVE").wal_pages
            else:
                with self._session.busy_timeout(CHECKPOINT_WAIT_MS):
                    self.wal_pages = self._session.checkpoint("TRUNCATE" if truncate else "RESTART").wal_pages
        except Exception as raised:
            # What is committed is safe in the log, so a failed copy fails no operation.
            error = diagnose(storage_error(raised), self._session)
            self._note_failure(error)
            failure = error if error.fatal else None
        failpoint("after_checkpoint")
        self.checkpoints += 1
        self.checkpoint_s_last = time.perf_counter() - started_s
        return failure

    def close(self) -> None:
        """Empty the log before a clean stop. Where that fails the log stays, and the next open copies it."""
        try:
            self._session.checkpoint("TRUNCATE")
        except StorageError as error:
            self._note_failure(error)

    def _extend(self) -> StorageError | None:
        """Make the log large, once. A log that stays small grows by itself, so only a fatal error is returned."""
        try:
            if self._session.free_disk_bytes() >= EXTEND_FREE_BYTES_MIN:
                self._session.extend_wal(EXTENDED_BYTES)
        except OSError as raised:
            logger.info("wal_not_extended", reason=str(raised))
        except Exception as raised:
            error = diagnose(storage_error(raised), self._session)
            if error.fatal:
                logger.critical("writing_stopped", operations=0, reason=str(error))
                return error
            logger.info("wal_not_extended", reason=str(error))
            # A quota may leave less room than the disk has. The part of the log that was written takes room: give it
            # back.
            return self.copy(truncate=True)
        return None

    def _note_failure(self, error: StorageError) -> None:
        self.checkpoint_failures += 1
        logger.error("checkpoint_failed", fatal=error.fatal, reason=str(error))
