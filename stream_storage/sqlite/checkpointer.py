"""Decides when the write-ahead log (WAL) is copied into the database file, and copies it.

Such a copy is a checkpoint. SQLite's own checkpoints are off (`wal_autocheckpoint` is 0), since a commit would have to
wait for them. Instead, the writing thread calls the checkpointer between two commits.
"""

from __future__ import annotations

import time

import structlog

from stream_storage.errors import StorageError
from stream_storage.failpoint import failpoint
from stream_storage.histogram import Histogram
from stream_storage.sqlite.ballast import Ballast
from stream_storage.sqlite.session import SqliteSession
from stream_storage.upkeep import UpkeepStatistics

CHECKPOINT_BYTES = 512 * 1024
CHECKPOINT_COMMITS_MIN = 10
"""After CHECKPOINT_BYTES of data in at least CHECKPOINT_COMMITS_MIN commits, a checkpoint copies the WAL into the
database file as soon as no operation waits.

The pushes that come during a checkpoint wait for its end. A copy of 512 KiB takes two milliseconds; with copies of
2 MiB, the slowest hundredth of pushes took a third longer. Large commits are copied several at a time, because each
copy also syncs the database file."""
CHECKPOINT_BYTES_MAX = 4 * 1024 * 1024
"""After this many bytes of data, the number of commits does not count."""
CHECKPOINT_COMMITS = 100
"""After this many commits, the size of the data does not count: even a commit of one byte writes about five pages."""
FORCED_SHARE = 2.0
"""After this many times these numbers of bytes and commits, the checkpoint runs even while operations wait."""
WAL_PAGES_MAX = 8_192
"""If the WAL has at least this many pages (64 MiB), the next checkpoint waits for readers, at most CHECKPOINT_WAIT_MS.

SQLite can overwrite the WAL from its beginning only after a checkpoint during which no reader needs old pages. A WAL of
this size usually means that readers have prevented this so far.
"""
CHECKPOINT_WAIT_MS = 100

EXTEND_AFTER_COMMITS = 16
"""The number of commits after which the WAL is made larger in advance (EXTENDED_BYTES), because syncing a file that
grows takes twice as long. A node with few commits needs no large WAL."""
EXTENDED_BYTES = 4 * 1024 * 1024
"""The size to which the WAL is extended in advance. It has room for more than CHECKPOINT_COMMITS commits of one
push each."""
EXTEND_FREE_BYTES_MIN = 1024 * 1024 * 1024
"""If the disk has fewer free bytes than this number, the WAL is not extended. The WAL then grows with the commits."""

logger = structlog.get_logger(__name__)


class Checkpointer:
    """Keeps the write-ahead log (WAL) of one writing session short. Must be used in the thread of that session.

    checkpoints: the number of checkpoints that were tried.
    checkpoint_failures: the number of checkpoints that failed.
    checkpoint_s_last: the duration of the last checkpoint, in seconds.
    wal_pages: the number of pages in the WAL at the last checkpoint.
    settled: whether `close` was called and its checkpoint did not fail, so that every commit is in the database file or
        in the WAL, and synced.

    The methods `after_commit` and `copy` return None, or a fatal error, after which the session must not write
    any more.
    Invariant: `_copied_bytes` and `_copied_commits` are the bytes and commits that the session had written when
    `after_commit` last started a checkpoint.
    """

    def __init__(self, session: SqliteSession, ballast: Ballast | None = None) -> None:
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_s_last = 0.0
        self.wal_pages = 0
        self.settled = False
        self._session = session
        self._ballast = ballast
        self._copied_bytes = 0
        self._copied_commits = 0
        self._extends = True

    def is_due(self, commits: int, *, tight: bool) -> bool:
        """Returns whether `after_commit` has something to do if no operation waits."""
        return (
            self._share(commits) >= 1
            or (tight and commits > self._copied_commits)
            or (self._extends and commits >= EXTEND_AFTER_COMMITS)
        )

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Copy the WAL into the database file if a checkpoint is due, and extend the WAL if an extension is due.

        commits: the number of commits in this session so far.
        waiting: whether operations wait for the next commit.
        tight: whether the disk has little room left. If so, the WAL is copied after every commit: later commits can
            then overwrite the WAL, and the WAL does not grow.
        """
        failure = None
        share = self._share(commits)
        if share >= FORCED_SHARE or (share >= 1 and not waiting) or (tight and commits > self._copied_commits):
            self._copied_bytes = self._session.log.appended_bytes
            self._copied_commits = commits
            failure = self.copy()
        # The log is extended only while no operation waits: extending takes a transaction, and a push would have to
        # wait for its end.
        if failure is None and self._extends and commits >= EXTEND_AFTER_COMMITS and not waiting:
            self._extends = False
            if not tight:
                failure = self._extend()
        return failure

    def _share(self, commits: int) -> float:
        """Returns how much of the data and commits after which a checkpoint is due have gathered; 1 means that it is
        due."""
        grown_bytes = self._session.log.appended_bytes - self._copied_bytes
        grown_commits = commits - self._copied_commits
        return max(
            min(grown_bytes / CHECKPOINT_BYTES, grown_commits / CHECKPOINT_COMMITS_MIN),
            grown_bytes / CHECKPOINT_BYTES_MAX,
            grown_commits / CHECKPOINT_COMMITS,
        )

    def copy(self, *, truncate: bool = False) -> StorageError | None:
        """Copy the WAL into the database file.

        truncate: whether to shorten the WAL to zero bytes afterwards, if no reader needs the WAL.
        """
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
            # Committed operations are safe in the log, so a failed copy makes no operation fail.
            error = self._session.error_of(raised)
            self._note_failure(error)
            failure = error if error.fatal else None
        failpoint("after_checkpoint")
        self.checkpoints += 1
        self.checkpoint_s_last = time.perf_counter() - started_s
        return failure

    @property
    def sync_seconds(self) -> Histogram:
        return self._session.sync_seconds

    def make_room(self) -> StorageError | None:
        return self.copy()

    def give_up_ballast(self) -> bool:
        return self._ballast is not None and self._ballast.give_up()

    def statistics(self) -> UpkeepStatistics:
        return UpkeepStatistics(self.checkpoints, self.checkpoint_failures, self.checkpoint_s_last, self.wal_pages)

    def close(self) -> None:
        """Copy the WAL into the database file and empty the WAL, before a clean stop. If the copy fails, the WAL keeps
        its content, and the next open of the database copies it.

        While another program reads the database, the WAL cannot be emptied. The stop does not wait for such a program
        longer than CHECKPOINT_WAIT_MS: each commit in the WAL was synced before it was confirmed.
        """
        try:
            with self._session.busy_timeout(CHECKPOINT_WAIT_MS):
                checkpoint = self._session.checkpoint("TRUNCATE")
        except StorageError as error:
            self._note_failure(error)
            return
        self.settled = True
        if checkpoint.blocked:
            logger.info("log_kept", pages=checkpoint.wal_pages, reason="another program is reading the database")

    def _extend(self) -> StorageError | None:
        """Extend the WAL to EXTENDED_BYTES. Returns a fatal error, or None. Other errors are only logged, since a WAL
        that was not extended grows with the commits."""
        try:
            if self._session.free_disk_bytes() >= EXTEND_FREE_BYTES_MIN:
                self._session.extend_wal(EXTENDED_BYTES)
        except OSError as raised:
            logger.info("wal_not_extended", reason=str(raised))
        except Exception as raised:
            error = self._session.error_of(raised)
            if error.fatal:
                logger.critical("writing_stopped", operations=0, reason=str(error))
                return error
            logger.info("wal_not_extended", reason=str(error))
            # A quota may allow less room than the disk has. The part of the log that was already extended takes room,
            # so give that room back.
            return self.copy(truncate=True)
        return None

    def _note_failure(self, error: StorageError) -> None:
        self.checkpoint_failures += 1
        logger.error("checkpoint_failed", fatal=error.fatal, reason=str(error))
