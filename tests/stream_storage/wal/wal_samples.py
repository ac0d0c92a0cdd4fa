"""Data directories as a kill leaves them, and ways to damage their write-ahead logs."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stream_storage.contract import Append
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import verify
from tests.stream_storage.storage_samples import reading

WAL_NAME = FILE_NAME + "-wal"
FRAME_BYTES = 24 + 8192
ROWS = 3
NAMES = ("one", "two")


def data_of(commit: int, size: int = 200) -> list[bytes]:
    return [(b"commit %d row %d " % (commit, row)).ljust(size, b"~") for row in range(ROWS)]


def push(session: SqliteSession, commit: int, size: int = 200) -> None:
    """Make one commit with messages for both streams."""
    session.begin()
    ids = [session.log.ensure_stream(name, 0, 1).stream_id for name in NAMES]
    session.log.append([Append(stream_id, commit * ROWS, commit, data_of(commit, size)) for stream_id in ids])
    session.commit()


def killed(
    directory: Path, commits: int, *, size: int = 200, meanwhile: Callable[[SqliteSession, int], None] | None = None
) -> Path:
    """A directory with so many commits in its log, copied while it was open: as a killed process leaves it, with its
    lock file. meanwhile: called before each commit."""
    database = Database.open(directory / "living")
    session = database.session()
    for commit in range(commits):
        if meanwhile is not None:
            meanwhile(session, commit)
        push(session, commit, size)
    copied = shutil.copytree(directory / "living", directory / "killed")
    session.close()
    database.close()
    return copied


def change(directory: Path, *offsets: int, by: int = 0xA5) -> None:
    """Change bytes of the log; negative offsets count from its end.

    The default makes no byte of these samples 0: the byte that says how many pages a commit has would then say that the
    frame ends no commit, and an unfinished one at the end is no damage.
    """
    path = directory / WAL_NAME
    content = bytearray(path.read_bytes())
    for offset in offsets:
        content[offset] ^= by
    path.write_bytes(content)


def restarted(directory: Path) -> None:
    """Make the directory look as if the machine had been started anew: write another boot id into the lock file."""
    (directory / LOCK_NAME).write_bytes(b"1\nanother boot\n")


def stored_commits(directory: Path, size: int = 200) -> int:
    """Open a directory and count its commits. They must be whole and the first ones, and the database must verify."""
    database = Database.open(directory)
    try:
        with reading(database) as session:
            assert verify(session).problems == ()
            found = []
            for name in NAMES:
                record = session.log.find_stream(name, 0)
                found.append([] if record is None else session.log.read(record.stream_id, 0, 2**40, 2**40))
    finally:
        database.close()
    commits, rest = divmod(len(found[0]), ROWS)
    expected = [data for commit in range(commits) for data in data_of(commit, size)]
    assert rest == 0
    assert [[row[1] for row in rows] for rows in found] == [expected, expected]
    return commits


def frames_that_sqlite_reads(directory: Path) -> int:
    """The frame where SQLite's own recovery ends, read from the memory that processes share."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (frames,) = struct.unpack_from("=I", (directory / (FILE_NAME + "-shm")).read_bytes(), 16)
    return int(frames)


def contents(directory: Path) -> dict[str, bytes]:
    """The content of every file of a directory, without SQLite's shared memory."""
    return {each.name: each.read_bytes() for each in directory.iterdir() if each.is_file() and "-shm" not in each.name}
