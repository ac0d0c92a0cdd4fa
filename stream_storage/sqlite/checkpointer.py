"""Decides when the write-ahead log (WAL) is copied into the database file, and copies it: a checkpoint.

SQLite's own checkpoints are off (`wal_autocheckpoint` is 0), since a commit would have to wait for them. The writing
thread calls the checkpointer between two commits."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from stream_storage.contract import Upkeep
from stream_storage.errors import StorageError
from stream_storage.failpoint import failpoint
from stream_storage.sqlite.ballast import Ballast
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.check import CHUNK_BYTES, wal_path

CHECKPOINT_BYTES = 512 * 1024
"""After CHECKPOINT_BYTES of data in CHECKPOINT_COMMITS_MIN commits, a checkpoint runs as soon as no operation waits.
Pushes wait for its end: 512 KiB take two milliseconds, and with 2 MiB the slowest hundredth of pushes took a third
longer. Large commits are copied several at a time, because each copy also syncs the database file."""
CHECKPOINT_COMMITS_MIN = 10
CHECKPOINT_BYTES_MAX = 4 * 1024 * 1024
"""After this many bytes of data, the number of commits does not count."""
CHECKPOINT_COMMITS = 100
"""After this many commits, the size of the data does not count: a commit of one byte writes some five pages."""
FORCED_SHARE = 2.0
"""After this many times the data or the commits that make a checkpoint due, it runs even while operations wait."""
WAL_PAGES_MAX = 8_192
"""If the WAL has this many pages (64 MiB), the next checkpoint waits for readers, at most CHECKPOINT_WAIT_MS. SQLite
overwrites the WAL from its beginning only after a checkpoint during which no reader needs old pages."""
CHECKPOINT_WAIT_MS = 100

EXTEND_AFTER_COMMITS = 16
"""After this many commits the WAL is extended to EXTENDED_BYTES, because syncing a file that grows takes twice as long.
A node with few commits needs no large WAL."""
EXTENDED_BYTES = 4 * 1024 * 1024
"""Room for more than CHECKPOINT_COMMITS commits of one push each."""
EXTEND_FREE_BYTES_MIN = 1024 * 1024 * 1024
"""If the disk has fewer free bytes, the WAL is not extended, and grows with the commits."""

logger = structlog.get_logger(__name__)


class Checkpointer(Upkeep):
    """Keeps the write-ahead log (WAL) of one writing session short, in the thread of that session. `copy` returns
    a fatal error or None, as `after_commit` does.

    Invariant: `_copied_bytes` and `_copied_commits` are the data and commits up to the last copy by `after_commit`."""

    def __init__(self, session: SqliteSession, ballast: Ballast | None = None) -> None:
        super().__init__(session.sync_seconds)
        # Whether `close` has made its checkpoint: then every commit is in the database file or in the WAL, and synced.
        self.settled = False
        self._session = session
        self._ballast = ballast
        self._copied_bytes = 0
        self._copied_commits = 0
        self._extends = True

    def is_due(self, commits: int, *, tight: bool) -> bool:
        return (
            self._share(commits) >= 1
            or (tight and commits > self._copied_commits)
            or (self._extends and commits >= EXTEND_AFTER_COMMITS)
        )

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Copies the WAL into the database file, and extends it, if that is due; while the disk is tight, after each
        commit."""
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
        """Returns how much was written since the last checkpoint, as a multiple of the data or commits that make one
        due."""
        grown_bytes = self._session.log.appended_bytes - self._copied_bytes
        grown_commits = commits - self._copied_commits
        return max(
            min(grown_bytes / CHECKPOINT_BYTES, grown_commits / CHECKPOINT_COMMITS_MIN),
            grown_bytes / CHECKPOINT_BYTES_MAX,
            grown_commits / CHECKPOINT_COMMITS,
        )

    def copy(self, *, truncate: bool = False) -> StorageError | None:
        """Copies the WAL into the database file. truncate: whether to empty it afterwards, if no reader needs it."""
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

    def make_room(self) -> StorageError | None:
        return self.copy()

    def give_up_ballast(self) -> bool:
        return self._ballast is not None and self._ballast.give_up()

    def without_waiting(self) -> AbstractContextManager[None]:
        return self._session.busy_timeout(0)

    def close(self) -> None:
        """Copies and empties the WAL before a clean stop. If that fails, the next opening does it. Waits at most
        CHECKPOINT_WAIT_MS for a program that reads: every commit in the WAL is synced, so it may stay there."""
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
        """Extends the WAL. Returns a fatal error, or None. Other errors are logged: the WAL grows with the commits."""
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


def settle_log(session: SqliteSession, database: Path) -> None:
    """Makes the write-ahead log durable after a stop that was not clean. Raises StorageError.

    If a sync failed before such a stop, pages of the log can be readable and not be on the disk, and a later sync does
    not write them. So they are written once more: into the database file, or, while another program keeps the log, in
    place."""
    with session.busy_timeout(CHECKPOINT_WAIT_MS):
        checkpoint = session.checkpoint("TRUNCATE")
    if not checkpoint.blocked:
        return
    # While this transaction is open, no program can add to the log or begin it anew.
    session.begin()
    try:
        _write_again(wal_path(database))
    finally:
        session.rollback()
    logger.info("log_kept", pages=checkpoint.wal_pages, reason="another program is reading the database")


@mapped()
def _write_again(log: Path) -> None:
    with log.open("rb+") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        for offset in range(0, size_bytes, CHUNK_BYTES):
            piece = os.pread(file.fileno(), CHUNK_BYTES, offset)
            if os.pwrite(file.fileno(), piece, offset) != len(piece):
                raise StorageError(f"a part of {log} could not be written again; free space, then start once more")
        os.fsync(file.fileno())
