"""Goal: a database of an older version is brought up to date after a backup; whatever interrupts that, the database has
one of the versions, nothing is lost, and the next start goes on.

Method: a chain of revisions that only these tests have; processes that are killed at every site of an upgrade; and
plain SQLite, which reads what is left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from stream_storage.errors import DatabaseTooNew, DatabaseTooOld, MigrationFailed, NoRoomToUpgrade, StorageBusy
from stream_storage.failpoint import SITES
from stream_storage.schema import metadata
from stream_storage.sqlite.backup import MANIFEST_NAME, BackupError
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.migrate import MIGRATIONS, Migrations, find_missing, migrate
from stream_storage.sqlite.schema import SCHEMA_VERSION, create_statements
from stream_storage.sqlite.session import SqliteSession
from tests.support.backups import WORDS, put, store, stored_streams
from tests.support.data_dir import stored_messages

# These modules, and what they import, define their tables.
for module in ("block_node.backfill.state", "block_node.persist.schema", "stream_node.node.services"):
    import_module(module)

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("upgrade_child.py")
CHAIN = Migrations("tests.stream_storage.revisions", 5)
KILLED = -signal.SIGKILL
TOTALS = {4: [(1, 11)], 5: [(1, 11, "words")]}
"""The rows of the table of the chain at each version: the words have 11 bytes."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of schema version 3, after a clean stop."""
    store(tmp_path / "data", "words", WORDS)
    assert SCHEMA_VERSION == 3, "give the chain of the tests the next numbers"
    return tmp_path / "data"


def open_child(directory: Path, head: int, site: str = "", *, verb: str = "", **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), str(head), *([verb] if verb else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "STREAM_NODE_FAILPOINT": site},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        **more,
    )


def run_child(directory: Path, head: int, site: str = "") -> tuple[int, str]:
    """The exit code of the child and what it printed."""
    with open_child(directory, head, site) as child:
        out, _ = child.communicate(timeout=60)
        return child.returncode, out


def version_and_totals(directory: Path) -> tuple[int, list[tuple[object, ...]]]:
    """What plain SQLite finds, which also checks that the words are there."""
    assert stored_streams(directory) == {"words": len(WORDS)}
    copied = Path(shutil.copytree(directory, directory.with_name("copied"), dirs_exist_ok=True))
    with closing(sqlite3.connect(copied / FILE_NAME)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        totals = connection.execute("SELECT * FROM totals").fetchall() if version > 3 else []
    shutil.rmtree(copied)
    return version, totals


def backups_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("backup-schema-*"))


def test_both_ways_to_the_newest_tables_lead_to_the_same_tables(tmp_path: Path) -> None:
    """A new file gets its tables from the metadata; an old one runs all revisions from the first one on. Alembic itself
    compares the second with the metadata."""
    with closing(sqlite3.connect(tmp_path / "old", isolation_level=None)) as connection:
        assert migrate(connection) == SCHEMA_VERSION
        # Tables that came later without a new version are made at each start.
        for statement in create_statements():
            connection.execute(statement)
    engine = create_engine(f"sqlite:///{tmp_path / 'old'}")
    with engine.connect() as alchemy:
        assert compare_metadata(MigrationContext.configure(alchemy), metadata) == []
    engine.dispose()


def test_the_revisions_are_one_chain_to_the_schema_version() -> None:
    assert [each.revision for each in find_missing(MIGRATIONS, 0)] == [f"{n:04}" for n in range(1, SCHEMA_VERSION + 1)]
    assert find_missing(MIGRATIONS, SCHEMA_VERSION) == []


def test_a_database_at_the_newest_version_loads_no_alembic_and_makes_no_backup(data: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stream_storage.sqlite.database import Database; "
        f"Database.open(Path({str(data)!r})).close(); "
        "sys.exit(any(name.split('.')[0] == 'alembic' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
    assert (done.returncode, backups_of(data)) == (0, [])


def test_an_upgrade_makes_a_backup_that_restores_and_runs_every_revision(data: Path, tmp_path: Path) -> None:
    Database.open(data, migrations=CHAIN).close()
    assert version_and_totals(data) == (5, TOTALS[5])
    (backup,) = backups_of(data)
    assert backup.name.startswith("backup-schema-3-2")
    assert {each.name for each in backup.iterdir()} == {FILE_NAME, MANIFEST_NAME}
    assert json.loads((backup / MANIFEST_NAME).read_bytes())["schema_version"] == 3
    with closing(sqlite3.connect(f"file:{backup / FILE_NAME}?immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        assert connection.execute("SELECT data FROM messages ORDER BY idx").fetchall() == [(each,) for each in WORDS]
    Database.open(data, migrations=CHAIN).close()
    assert backups_of(data) == [backup], "a database that is up to date is not copied again"
    put(backup, tmp_path / "restored")
    assert stored_messages(tmp_path / "restored", "words") == WORDS


@pytest.mark.parametrize(
    ("site", "version", "backups"),
    [
        ("within_upgrade_backup", 3, 0),
        ("before_upgrade_backup_named", 3, 0),
        ("after_upgrade_backup", 3, 1),
        ("before_revision_commit", 3, 1),
        ("after_revision_commit", 4, 1),
        ("before_revision_commit:2", 4, 1),
        ("after_revision_commit:2", 5, 1),
    ],
)
def test_a_kill_leaves_one_of_the_versions_and_the_next_start_goes_on(
    data: Path, site: str, version: int, backups: int
) -> None:
    assert run_child(data, 5, site) == (KILLED, "")
    assert version_and_totals(data) == (version, TOTALS.get(version, []))
    assert sum(not each.name.endswith(".part") for each in backups_of(data)) == backups
    Database.open(data, migrations=CHAIN).close()
    assert version_and_totals(data) == (5, TOTALS[5])
    left = backups_of(data)
    assert [each for each in left if each.name.endswith(".part")] == []
    # The same content is not kept twice: only a start at another version makes another backup.
    assert len(left) == (2 if version == 4 else 1)


def test_every_site_of_an_upgrade_is_killed_at_by_a_test() -> None:
    marks = test_a_kill_leaves_one_of_the_versions_and_the_next_start_goes_on.pytestmark  # type: ignore[attr-defined]
    killed = {case[0].split(":")[0] for case in marks[0].args[1]}
    assert killed == {site for site in SITES if "upgrade" in site or "revision" in site}


def test_a_revision_that_fails_changes_nothing_and_is_no_flood_of_backups(data: Path) -> None:
    for _ in range(3):
        with pytest.raises(MigrationFailed, match=r"schema version 4: OperationalError: no such table"):
            Database.open(data, migrations=Migrations("tests.stream_storage.broken_revisions", 4))
    assert version_and_totals(data) == (3, [])
    assert len(backups_of(data)) == 1
    Database.open(data).close()
    assert stored_messages(data, "words") == WORDS


def test_a_backup_that_differs_from_the_database_is_not_taken_for_the_new_one(data: Path) -> None:
    with pytest.raises(MigrationFailed):
        Database.open(data, migrations=Migrations("tests.stream_storage.broken_revisions", 4))
    store(data, "words", [b"four"])
    Database.open(data, migrations=CHAIN).close()
    held = [json.loads((each / MANIFEST_NAME).read_bytes())["messages"] for each in backups_of(data)]
    assert sorted(held) == [3, 4]


def test_of_two_processes_one_brings_the_database_up_to_date(data: Path) -> None:
    with open_child(data, 5, verb="hold", stdin=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        code, out = run_child(data, 5)
        assert (code, out.split()[0]) == (1, "DatabaseInUse")
        first.communicate(timeout=60)
    assert first.returncode == 0
    assert len(backups_of(data)) == 1


def test_processes_that_start_at_once_migrate_once(data: Path) -> None:
    children = [open_child(data, 5) for _ in range(2)]
    outs = [child.communicate(timeout=60)[0] for child in children]
    assert "open\n" in outs
    assert all(out == "open\n" or out.startswith("DatabaseInUse") for out in outs)
    assert version_and_totals(data) == (5, TOTALS[5])
    assert len(backups_of(data)) == 1


def test_a_newer_database_is_refused_with_the_way_back_which_works(data: Path) -> None:
    Database.open(data, migrations=CHAIN).close()
    (backup,) = backups_of(data)
    way = f"stream-node restore {backup} --data-dir {data} --over"
    for read_only in (False, True):
        with pytest.raises(DatabaseTooNew, match="go back to before the upgrade and lose") as caught:
            Database.open(data, read_only=read_only)
        assert str(caught.value).endswith(way)
        assert (caught.value.found, caught.value.supported, caught.value.backup) == (5, 3, backup)
    put(backup, data, over=True)
    assert stored_messages(data, "words") == WORDS
    # The backup of the version in the middle is no way back for the older program.
    shutil.rmtree(backup)
    assert run_child(data, 5, "after_revision_commit")[0] == KILLED
    Database.open(data, migrations=CHAIN).close()
    shutil.rmtree(next(each for each in backups_of(data) if "schema-3" in each.name))
    with pytest.raises(DatabaseTooNew) as caught:
        Database.open(data)
    assert caught.value.backup is None


def test_a_directory_with_nothing_but_backups_can_be_restored_to(data: Path) -> None:
    Database.open(data, migrations=CHAIN).close()
    (backup,) = backups_of(data)
    (data / FILE_NAME).unlink()
    put(backup, data)
    assert stored_messages(data, "words") == WORDS
    (data / "notes.txt").touch()
    (data / FILE_NAME).unlink()
    with pytest.raises(BackupError, match="not empty"):
        put(backup, data)


def test_an_upgrade_can_be_refused_and_then_writes_nothing(data: Path) -> None:
    before = {each.name: each.read_bytes() for each in data.iterdir()}
    with pytest.raises(DatabaseTooOld, match="start with --migrate, which makes a backup first") as caught:
        Database.open(data, migrate=False, migrations=CHAIN)
    assert (caught.value.found, caught.value.wanted) == (3, 5)
    assert {each.name: each.read_bytes() for each in data.iterdir()} == before
    Database.open(data, migrate=False).close()


def test_a_disk_without_room_for_the_backup_is_refused_first(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (data / FILE_NAME).read_bytes()
    monkeypatch.setattr(SqliteSession, "free_disk_bytes", lambda _: 1_000)
    with pytest.raises(NoRoomToUpgrade, match=r"of which 1000 are there; free space, or move") as caught:
        Database.open(data, migrations=CHAIN)
    assert caught.value.needed_bytes > len(before)
    assert ((data / FILE_NAME).read_bytes(), backups_of(data)) == (before, [])


def test_a_reader_that_keeps_the_log_is_told_to_end(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Database.open.__globals__["PRAGMAS"], "busy_timeout", 10)
    with closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as other:
        other.execute("CREATE TABLE of_another (a)")
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM messages").fetchone()
        with closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as writer:
            writer.execute("DROP TABLE of_another")
        with pytest.raises(StorageBusy):
            Database.open(data, migrations=CHAIN)
    assert backups_of(data) == []
