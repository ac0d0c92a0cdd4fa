"""Opens the database of a data directory: takes the lock, checks the files, creates the tables and makes connections.

Most settings of SQLite belong to a connection and not to the file, so every connection is made and checked here."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import structlog

from ockam.files.durable_files import create_private, make_folder, make_private, sync
from stream_storage import errors
from stream_storage.contract import Session
from stream_storage.directory_lock import DirectoryLock, check_locks
from stream_storage.seal import SEALED
from stream_storage.sqlite.ballast import Ballast
from stream_storage.sqlite.checkpointer import Checkpointer, settle_log
from stream_storage.sqlite.errors import mapped, storage_error
from stream_storage.sqlite.leftovers import FILE_SUFFIXES, check_not_replaced, remove_parts, remove_scratch
from stream_storage.sqlite.migrate import MIGRATIONS, Migrations, version_of
from stream_storage.sqlite.schema import APPLICATION_ID, create_statements
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import find_broken, has_seal
from stream_storage.sqlite.wal.check import prepare_log, refuse_damaged

logger = structlog.get_logger(__name__)

FILE_NAME = "streams.sqlite"
PAGE_BYTES = 8192
"""With pages of 8 KiB, messages of 1 KiB take 1.16 times their size on disk; with 4 KiB, 1.35 times."""
BUSY_TIMEOUT_MS = 5_000
"""How long a connection waits for a lock of another process before StorageBusy is raised."""
CACHED_STATEMENTS = 256
"""How many prepared statements a connection keeps. The log uses about 45, and other packages more."""

PRAGMAS: Final[dict[str, int]] = {
    "busy_timeout": BUSY_TIMEOUT_MS,
    "foreign_keys": 1,
    "synchronous": 2,
    "journal_size_limit": 64 * 1024 * 1024,
    "wal_autocheckpoint": 0,
    "cache_size": -16 * 1024,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "secure_delete": 0,
}
"""The settings of every connection, as SQLite reports them.

synchronous 2 is FULL: COMMIT returns after the sync. A negative cache_size is in KiB. Some builds of SQLite have a
secure_delete of 1 and overwrite deleted data with zeros in the write-ahead log, so that a deletion would need as much
room as it frees."""
FILE_PRAGMAS: Final[dict[str, int | str]] = {"auto_vacuum": 2, "journal_mode": "wal"}
"""The settings of the file. auto_vacuum 2 is INCREMENTAL, which SQLite accepts only while the file is empty."""


class Database:
    """The database of one data directory. Open for writing, it holds the lock on the directory until `close`.

    Invariant: at most one session that writes is open, and each session is used by one thread at a time."""

    is_local = True
    owner = None

    def __init__(
        self, directory: Path, lock: DirectoryLock | None, *, migrate: bool = True, migrations: Migrations = MIGRATIONS
    ) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self.ballast = Ballast(directory)
        self._lock = lock
        self._migrate = migrate
        self._migrations = migrations
        self._writer: SqliteSession | None = None
        self._upkeep: Checkpointer | None = None
        self._distrusted = False

    @classmethod
    def open(
        cls, path: Path, *, read_only: bool = False, migrate: bool = True, migrations: Migrations = MIGRATIONS
    ) -> Database:
        """Opens the database of the data directory `path`, or creates it. Brings an older schema version up to date,
        after a backup (`stream_storage.sqlite.upgrade`). `read_only` takes no lock and creates nothing, as for a
        database that a node uses. Raises DatabaseInUse, DatabaseTooNew, DatabaseCorrupt, WalDamaged and other
        StorageErrors."""
        if read_only:
            database = cls(path, None, migrations=migrations)
            if not database.path.exists():
                raise errors.StorageError(errors.no_database(path))
            check_locks(path)
            refuse_damaged(database.path)
            connection = database._open_file()
            try:
                database._check_version(connection)
            finally:
                connection.close()
            return database
        # Take the lock first: until this process holds it, another node may change the files that the steps below read.
        # An existing folder keeps its permissions, see `_hide`.
        with mapped():
            make_folder(path, mode=0o700)
        lock = DirectoryLock(path)
        try:
            check_locks(path)
            database = cls(path, lock, migrate=migrate, migrations=migrations)
            database._clear_unfinished()
            database._hide()
            # Check the log before SQLite opens the file: SQLite stops reading the log at a damaged place and ignores
            # all commits after that place.
            prepare_log(database.path, rebooted=not lock.same_boot)
            # Commits that stay in the log after a clean stop are announced in the lock file.
            database._prepare(lock.left_unclean or (_has_log(database.path) and not lock.log_kept))
            lock.confirm_boot(emptied=not _has_log(database.path))
            return database
        except BaseException:
            # Nothing was recovered, so the next start must make the same checks as this start.
            lock.release_as_found()
            raise

    def session(self) -> SqliteSession:
        assert self._writer is None or self._writer.closed, "one session that writes is open already"
        assert self._lock is not None, "the database was opened for reading"
        self._writer = SqliteSession(self._connect(query_only=False), writes=True)
        return self._writer

    def read_session(self) -> SqliteSession:
        return SqliteSession(self._connect(query_only=True), writes=False)

    def close(self) -> None:
        """Releases the lock on the directory. All reading sessions must be closed already. Safe to repeat."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if self._writer is not None:
            self._writer.close()
        log_kept = _has_log(self.path)
        # Commits may stay in the log, for another program that reads: if the last checkpoint did not fail, they are
        # synced.
        is_settled = not log_kept or (self._upkeep is not None and self._upkeep.settled)
        lock.release(clean=is_settled and not self._distrusted, log_kept=log_kept)

    def upkeep(self, session: Session) -> Checkpointer:
        assert isinstance(session, SqliteSession), "the session is one of this database"
        self._upkeep = Checkpointer(session, self.ballast)
        return self._upkeep

    def distrust(self) -> None:
        """Makes the next `open` check the structure of the file. Called when the disk has failed."""
        self._distrusted = True

    def _prepare(self, unclean: bool) -> None:
        """Prepares the database file for writing: checks, upgrades and completes it."""
        # 1. `_inspect` refuses a database that this program does not know, before anything is written to the file. Then
        # it writes the settings that belong to the file.
        version = self._inspect()
        head = self._migrations.head
        if 0 < version < head and not self._migrate:
            raise errors.DatabaseTooOld(version, head)
        session = self.session()
        try:
            # 2. If a sync failed before an unclean stop, pages of the write-ahead log can be readable but not on the
            # disk. `settle_log` writes them once more, before any row is trusted.
            if unclean and version:
                check_structure(session.connection, self.path)
                settle_log(session, self.path)
            if 0 < version < head:
                # 3. An older database, after a backup. Imported here, since a database is usually up to date.
                from stream_storage.sqlite.upgrade import upgrade

                upgrade(session, self.path, self._migrations)
            # 4. With a wrong next index, or a stream that is not found, an index would be assigned twice. A table that
            # is missing is made only after this check of the list of tables.
            if version:
                check_tables(session.connection)
            create_schema(session, None if version else head)
        finally:
            session.close()
        with mapped():
            sync(self.directory)

    def _clear_unfinished(self) -> None:
        check_not_replaced(self.path)
        with mapped():
            # A survey of the write-ahead log leaves a hard link to the database. While it exists, deleting the database
            # frees no disk room.
            remove_scratch(self.path)
            if remove_parts(self.path):
                logger.warning("restore_was_interrupted", do="the database is as it was before; restore once more")

    @mapped()
    def _hide(self) -> None:
        """Makes the files readable for this user only, but not an existing folder, which may have other files."""
        for suffix in FILE_SUFFIXES:
            make_private(self.path.with_name(self.path.name + suffix))

    @mapped()
    def _inspect(self) -> int:
        """Returns the schema version of the file, or 0 for a new file, into which it writes FILE_PRAGMAS."""
        if not self.path.exists():
            create_private(self.path).close()
        connection = self._open_file()
        try:
            version = self._check_version(connection)
            if not version:
                connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
        if not version:
            # SQLite ends the change of the journal mode by removing a journal file. The removal must be on disk before
            # a write-ahead log begins. Otherwise, after a power cut, the old journal and the new log could both exist.
            sync(self.directory)
        return version

    def _check_version(self, connection: sqlite3.Connection) -> int:
        """Returns the schema version, or 0 if the database is empty. Raises DatabaseTooNew, DatabaseCorrupt."""
        with mapped():
            version = version_of(connection)
            application: int = connection.execute("PRAGMA application_id").fetchone()[0]
            tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
            raise errors.DatabaseCorrupt(
                f"{FILE_NAME} in the data directory is another program's database; choose another data directory"
            )
        if version > self._migrations.head:
            from stream_storage.sqlite.upgrade import find_way_back

            backup = find_way_back(self.directory, self._migrations.head)
            raise errors.DatabaseTooNew(version, self._migrations.head, backup)
        return version

    def _connect(self, *, query_only: bool) -> sqlite3.Connection:
        connection = self._open_file()
        settings = {**PRAGMAS, "query_only": int(query_only)}
        try:
            with mapped():
                for name, value in settings.items():
                    connection.execute(f"PRAGMA {name}={value}")
                for name, wanted in {**settings, **FILE_PRAGMAS}.items():
                    row = connection.execute(f"PRAGMA {name}").fetchone()
                    if row != (wanted,):
                        raise errors.StorageError(
                            f"the database cannot be used with {name}={wanted}, it says {row}; "
                            "use a local file system that has shared memory, and a database that this program made"
                        )
        except BaseException:
            connection.close()
            raise
        return connection

    @mapped()
    def _open_file(self) -> sqlite3.Connection:
        mode = "ro" if self._lock is None else "rwc"
        try:
            location = quote(str(self.path.absolute()))
        except UnicodeEncodeError as error:
            raise errors.StorageError(
                f"the name of the data directory {str(self.directory)!a} is not UTF-8; choose another one"
            ) from error
        return sqlite3.connect(
            f"file:{location}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
            timeout=PRAGMAS["busy_timeout"] / 1000,
        )


@mapped()
def _has_log(path: Path) -> bool:
    """Returns whether the write-ahead log has content. SQLite removes the log after a clean stop."""
    log = path.with_name(path.name + "-wal")
    try:
        return log.stat().st_size > 0
    except FileNotFoundError:
        return False


CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The largest file whose structure is checked after an unclean stop. A larger one would take minutes."""

TABLES_CHECKED_S_MAX = 10.0
"""The longest check of tables at a start. Those of 100,000 streams and as many positions take two seconds."""
NEEDED = ("streams", "lease_fences", "lease_floor", "worker_places")
"""A damaged row of these tables ends the start: the node would give an index or a fence twice. A damaged row of another
table fails the requests for it until it is set anew; a damaged row of a publisher is left out."""
PROGRESS_STEPS = 100_000
"""The number of steps of SQLite between two readings of the clock, some milliseconds."""


def check_structure(connection: sqlite3.Connection, file: Path) -> None:
    size_bytes = file.stat().st_size
    if size_bytes > CHECKED_BYTES_MAX:
        logger.warning("structure_not_checked", size_bytes=size_bytes, do="run `stream-node verify` when it suits")
        return
    with mapped():
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise errors.DatabaseCorrupt(errors.corrupt_text(problem))


def create_schema(session: SqliteSession, version: int | None) -> None:
    """Creates missing tables in one transaction. Raises StorageReadOnly if this user may only read the database.
    version: the schema version of a new file, which also gets APPLICATION_ID; None for an existing file."""
    _check_writable(session)
    session.begin()
    with mapped():
        for statement in create_statements():
            session.connection.execute(statement)
        if version is not None:
            session.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            session.connection.execute(f"PRAGMA user_version={version}")
    session.commit()


@mapped()
def _check_writable(session: SqliteSession) -> None:
    """Raises StorageReadOnly if a trial write fails. It is undone, so nothing comes into the write-ahead log."""
    session.begin()
    try:
        (version,) = session.connection.execute("PRAGMA user_version").fetchone()
        session.connection.execute(f"PRAGMA user_version={version}")
    finally:
        session.rollback()


def check_tables(connection: sqlite3.Connection, seconds_max: float = TABLES_CHECKED_S_MAX) -> None:
    """Checks the list of tables, and all tables whose rows have seals, with their indexes. Ends with a warning after
    `seconds_max`. Raises DatabaseCorrupt."""
    deadline_s = time.monotonic() + seconds_max
    # SQLite calls this function while a statement runs, and ends the statement if the result is true.
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, PROGRESS_STEPS)
    try:
        # The list of tables comes first: a table that it lacks would be made anew, and empty.
        for table in ("sqlite_master", *SEALED):
            if table in SEALED and not has_seal(connection, table):
                continue
            # A seal shows a changed row, but not a missing one, or one that a damaged index hides: the node would begin
            # the stream anew. So SQLite checks the order of the rows, and compares each index with its table.
            (problem,) = connection.execute(f"PRAGMA integrity_check('{table}')").fetchone()
            if problem != "ok":
                raise errors.DatabaseCorrupt(errors.corrupt_text(f"table {table}: {problem.splitlines()[-1]}"))
            for problem in find_broken(connection, table) if table in SEALED else ():
                if table in NEEDED:
                    raise errors.DatabaseCorrupt(errors.corrupt_text(problem))
                logger.error("row_damaged", reason=problem, do="run `stream-node verify`; requests for this row fail")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise storage_error(error) from error
        logger.warning("tables_not_checked", seconds=seconds_max, do="run `stream-node verify` when it suits")
    finally:
        connection.set_progress_handler(None, 0)
