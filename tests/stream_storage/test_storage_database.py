"""Opens data directories: the lock, versions, settings of connections, unclean stops, and refusals."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stream_storage.contract import Append
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import (
    DatabaseCorrupt,
    DatabaseInUse,
    DatabaseTooNew,
    DiskFailed,
    DiskFull,
    DiskReadFailed,
    OperationFailed,
    StorageBusy,
    StorageError,
    StorageReadOnly,
    WriteFailed,
)
from stream_storage.schema import metadata
from stream_storage.sqlite.database import FILE_NAME, FILE_PRAGMAS, PAGE_BYTES, PRAGMAS, Database
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.rows import connection_of
from stream_storage.sqlite.schema import SCHEMA_VERSION
from tests.stream_storage.storage_samples import make_stream, reading, stored_data, writing


def test_a_new_directory_is_made_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data dir %?#"
    database = Database.open(path)
    stream_id = make_stream(database, [b"a"])
    database.close()
    database.close()
    assert sorted(entry.name for entry in path.iterdir()) == [LOCK_NAME, FILE_NAME]
    database = Database.open(path)
    assert stored_data(database, stream_id) == [b"a"]
    database.close()


def test_a_directory_in_use_is_refused_with_the_pid(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    with pytest.raises(DatabaseInUse, match="in use by this process") as caught:
        Database.open(tmp_path)
    assert (caught.value.pid, caught.value.path) == (os.getpid(), tmp_path)
    database.close()
    Database.open(tmp_path).close()


def test_a_directory_in_use_by_another_process_is_refused_until_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stream_storage.sqlite.database import Database\n"
        "Database.open(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(DatabaseInUse, match="stop it, or choose another") as caught:
            Database.open(tmp_path)
        assert caught.value.pid == process.pid
        process.kill()
    Database.open(tmp_path).close()


def test_an_owner_that_left_no_pid_is_another_process(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    (tmp_path / LOCK_NAME).write_bytes(b"")
    with pytest.raises(DatabaseInUse, match="another process") as caught:
        Database.open(tmp_path)
    assert caught.value.pid is None
    database.close()


def test_every_connection_has_the_settings(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    sessions = [database.session(), database.read_session(), database.read_session()]
    for session in sessions:
        found = {name: session.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}
        assert found == PRAGMAS
        assert session.connection.isolation_level is None
        for name, value in FILE_PRAGMAS.items():
            assert session.execute(f"PRAGMA {name}").fetchone()[0] == value
    queries_only = [session.execute("PRAGMA query_only").fetchone()[0] for session in sessions]
    assert queries_only == [0, 1, 1]
    for session in sessions:
        session.close()
    database.close()


def test_a_commit_never_copies_the_log_into_the_file(tmp_path: Path) -> None:
    """With its default settings, SQLite would copy the log after a thousand pages, and a commit would wait for that."""
    database = Database.open(tmp_path)
    session = database.session()
    before_bytes = database.path.stat().st_size
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.log.append([Append(stream_id, 0, 5, [b"x" * 4096] * 2_000)])
    session.commit()
    assert database.path.stat().st_size == before_bytes
    assert session.checkpoint("PASSIVE").copied_pages > 2_000
    assert database.path.stat().st_size > 8_000_000
    session.close()
    database.close()


def test_a_setting_that_does_not_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRAGMAS, "no_such_setting", 1)
    with pytest.raises(StorageError, match="no_such_setting=1, it says None"):
        Database.open(tmp_path)
    monkeypatch.delitem(PRAGMAS, "no_such_setting")
    monkeypatch.setitem(FILE_PRAGMAS, "journal_mode", "off")
    with pytest.raises(StorageError, match=r"journal_mode=off, it says .*wal"):
        Database.open(tmp_path)


def test_a_table_added_to_the_schema_later_is_made(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("DROP TABLE messages")
    connection.close()
    database = Database.open(tmp_path)
    make_stream(database, [b"a"])
    database.close()
    assert {"streams", "messages"} <= set(metadata.tables)


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    Database.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    for read_only in (False, True):
        with pytest.raises(DatabaseTooNew, match="install the newer program") as caught:
            Database.open(tmp_path, read_only=read_only)
        assert (caught.value.found, caught.value.supported) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(DatabaseCorrupt, match="another program's database; choose another"):
        Database.open(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(DatabaseCorrupt, match=r"restore a backup or start with another data directory"):
        Database.open(tmp_path)


def _leave_unclean(directory: Path) -> None:
    (directory / LOCK_NAME).write_bytes(b"4242\n")


def _damage_structure(directory: Path) -> None:
    """Overwrite the last pages of the file, which hold messages; the header, the schema and the streams stay."""
    database = Database.open(directory)
    make_stream(database, [b"%d" % number * 50 for number in range(500)])
    database.close()
    with (directory / FILE_NAME).open("r+b") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        start = size_bytes - 4 * PAGE_BYTES
        file.seek(start)
        file.write(b"\xff" * (size_bytes - start))


def test_a_damaged_database_is_refused_after_an_unclean_stop(tmp_path: Path) -> None:
    _damage_structure(tmp_path)
    Database.open(tmp_path).close()
    _leave_unclean(tmp_path)
    for _ in range(2):
        with pytest.raises(DatabaseCorrupt, match="restore a backup"):
            Database.open(tmp_path)


def test_an_unclean_stop_alone_is_recovered_from(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    stream_id = make_stream(database, [b"a"])
    database.close()
    _leave_unclean(tmp_path)
    database = Database.open(tmp_path)
    assert stored_data(database, stream_id) == [b"a"]
    database.close()
    assert (tmp_path / LOCK_NAME).read_bytes() == b""


def test_what_a_file_in_place_of_the_directory_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageReadOnly, match="is no directory"):
            Database.open(path)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(StorageError, match="data directory"):
        Database.open(tmp_path)
    (tmp_path / "other" / FILE_NAME).mkdir(parents=True)
    with pytest.raises(StorageReadOnly, match="cannot be written"):
        Database.open(tmp_path / "other")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems make no such folder")
def test_a_directory_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Claim: it is told, and no error of the program. Method: a name with the byte 0xff, which Linux allows."""
    with pytest.raises(StorageError, match="not UTF-8"):
        Database.open(tmp_path / os.fsdecode(b"\xff"))


def test_reading_only_needs_no_lock_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no database"):
        Database.open(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    database = Database.open(tmp_path)
    stream_id = make_stream(database, [b"a"])
    beside = Database.open(tmp_path, read_only=True)
    assert stored_data(beside, stream_id) == [b"a"]
    with writing(database) as session:
        session.log.append([Append(stream_id, 1, 5, [b"b"])])
        assert stored_data(beside, stream_id) == [b"a"]
    assert stored_data(beside, stream_id) == [b"a", b"b"]
    with pytest.raises(AssertionError):
        beside.session()
    beside.close()
    database.close()


def test_another_process_that_holds_the_database_makes_it_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRAGMAS, "busy_timeout", 1)
    database = Database.open(tmp_path)
    intruder = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    session = database.session()
    with pytest.raises(StorageBusy, match="held by another program") as caught:
        session.begin()
    assert caught.value.retriable
    intruder.close()
    session.begin()
    session.close()
    database.close()


def test_the_id_of_the_last_stream_survives_its_deletion_and_a_restart(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    stream_id = make_stream(database, [b"a"])
    with writing(database) as session:
        session.log.delete_stream(stream_id)
    database.close()
    database = Database.open(tmp_path)
    assert make_stream(database) == stream_id + 1
    database.close()


def test_the_attributes_of_a_stream_are_kept_for_others(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    stream_id = make_stream(database, [b"a"])
    with writing(database) as session:
        connection_of(session).execute("UPDATE streams SET attributes = ? WHERE id = ?", (b"kept", stream_id))
        session.log.append([Append(stream_id, 1, 5, [b"b"])])
    with reading(database) as session:
        assert connection_of(session).execute("SELECT attributes FROM streams").fetchall() == [(b"kept",)]
    database.close()


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/data")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (_os_error(errno.ENOSPC), DiskFull),
        (_os_error(errno.EDQUOT), DiskFull),
        (_os_error(errno.EACCES), StorageReadOnly),
        (_os_error(errno.EROFS), StorageReadOnly),
        (_os_error(errno.EIO), DiskFailed),
        (ValueError("a mistake"), OperationFailed),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), OperationFailed),
    ],
)
def test_errors_of_the_system_become_ours(raised: Exception, kind: type[StorageError]) -> None:
    error = storage_error(raised)
    assert type(error) is kind
    assert str(raised.args[-1] if kind is OperationFailed else "/data") in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "retriable", "fatal"),
    [
        (sqlite3.SQLITE_FULL, DiskFull, True, False),
        (sqlite3.SQLITE_IOERR_WRITE, WriteFailed, False, True),
        (sqlite3.SQLITE_IOERR_FSYNC, DiskFailed, False, True),
        (sqlite3.SQLITE_IOERR_READ, DiskReadFailed, False, False),
        (sqlite3.SQLITE_IOERR_CORRUPTFS, DiskReadFailed, False, False),
        (sqlite3.SQLITE_CORRUPT, DatabaseCorrupt, False, True),
        (sqlite3.SQLITE_NOTADB, DatabaseCorrupt, False, True),
        (sqlite3.SQLITE_READONLY_DBMOVED, StorageReadOnly, False, False),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StorageBusy, True, False),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, OperationFailed, False, False),
    ],
)
def test_errors_of_the_driver_become_ours(code: int, kind: type[StorageError], retriable: bool, fatal: bool) -> None:
    raised = sqlite3.OperationalError("as the driver says it")
    raised.sqlite_errorcode, raised.sqlite_errorname = code, "SQLITE_NAME"
    error = storage_error(raised)
    assert (type(error), error.retriable, error.fatal) == (kind, retriable, fatal)
    assert "as the driver says it (SQLITE_NAME)" in str(error)


def test_errors_of_ours_stay_as_they_are() -> None:
    error = DiskFull("full")
    assert storage_error(error) is error
