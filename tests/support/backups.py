"""Taking and restoring backups of small databases, and databases as a kill leaves them."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from stream_node.care.restore import Present, restore
from stream_storage.contract import Append
from stream_storage.sqlite.backup import BackupManifest, back_up
from stream_storage.sqlite.database import FILE_NAME, Database
from tests.support.data_dir import open_session

NOW_US = 1_800_000_000_000_000
WORDS = [b"one", b"two", b"three"]


def quiet(what: str, done: int, total: int | None) -> None:
    """Nobody watches."""


def store(directory: Path, name: str, data: list[bytes]) -> None:
    with open_session(directory) as session:
        session.begin()
        record = session.log.ensure_stream(name, 0, NOW_US)
        session.log.append([Append(record.stream_id, record.next_index, NOW_US, data)])
        session.commit()


def kill_with_log(directory: Path, name: str, data: list[bytes]) -> None:
    """Store more, and leave the directory as a kill does: these messages are only in the write-ahead log."""
    database = Database.open(directory)
    session = database.session()
    session.begin()
    record = session.log.ensure_stream(name, 0, NOW_US)
    session.log.append([Append(record.stream_id, record.next_index, NOW_US, data)])
    session.commit()
    killed = {each.name: each.read_bytes() for each in directory.iterdir()}
    session.close()
    database.close()
    for each, content in killed.items():
        (directory / each).write_bytes(content)
    assert len(killed[FILE_NAME + "-wal"]) > 0


def stored_streams(directory: Path) -> dict[str, int]:
    """Streams and how many messages each has, with SQLite and nothing of ours; of a copy, which stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(directory, Path(folder) / "copied"))
        with closing(sqlite3.connect(copied / FILE_NAME)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            return dict(
                connection.execute(
                    "SELECT name, count(*) FROM streams JOIN messages ON stream_id = streams.id GROUP BY name"
                ).fetchall()
            )


def take(source: Path, target: Path, *, check: bool = False) -> BackupManifest:
    return back_up(source, target, now_us=NOW_US, check=check, progress=quiet)


def put(backup: Path, target: Path, *, over: bool = False, dry_run: bool = False, check: bool = True) -> Present:
    return restore(backup, target, check=check, over=over, dry_run=dry_run, progress=quiet)[1]


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}
