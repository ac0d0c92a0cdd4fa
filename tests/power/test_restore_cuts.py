"""Goal: a `restore --over` that a power cut interrupts leaves the old database or the new one, whole, never neither.

Method: the command is recorded, and disks are rebuilt as cuts between and in its steps may leave them (`disks.py`).
What each holds is read with SQLite alone, and by the real code.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.verify import verify
from tests.power.power_child import message
from tests.power.recording import Event, Kind, Recording, need_recorder
from tests.power.states import examine, recorded

CHILD = Path(__file__).with_name("power_child.py")
OLD, NEW = 24, 9
"""How many messages the old and the new database have."""


@pytest.fixture(scope="module")
def restoring() -> list[Event]:
    """A backup of NEW messages is put over a data directory of OLD ones, most of them only in its write-ahead log."""
    need_recorder()

    def restore(recording: Recording) -> None:
        root = recording.root
        recording.run(CHILD, "fill", root / "source", "new", str(NEW))
        recording.run(CHILD, "command", "backup", root / "taken", "--data-dir", root / "source")
        recording.run(CHILD, "fill-and-die", root / "data", "old", str(OLD))
        assert (root / "data" / f"{FILE_NAME}-wal").stat().st_size > 0
        recording.mark("begin")
        recording.run(CHILD, "command", "restore", root / "taken", "--data-dir", root / "data", "--over", "--verify")
        recording.mark("done")

    return recorded(restore)


def contents(directory: Path) -> dict[str, list[bytes]]:
    """Every message by its stream, read with SQLite alone."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute(
            "SELECT name, data FROM streams JOIN messages ON messages.stream_id = streams.id ORDER BY streams.id, idx"
        ).fetchall()
    found: dict[str, list[bytes]] = {}
    for name, data in rows:
        found.setdefault(name, []).append(data)
    return found


def marked(events: list[Event]) -> tuple[int, int]:
    begin, done = (at for at, event in enumerate(events) if event.kind is Kind.MARK)
    return begin, done


def check(directory: Path, allowed: list[dict[str, list[bytes]]]) -> None:
    database = Database.open(directory)
    try:
        session = database.read_session()
        try:
            report = verify(session)
        finally:
            session.close()
    finally:
        database.close()
    assert report.problems == ()
    assert contents(directory) in allowed


def check_cuts(events: list[Event], disks: int, writes: int) -> None:
    """Cuts the power after every name, every sync and some writes, on some disks for each cut.

    writes: the distance of the writes after which the power is cut.
    """
    old = {"old": [message("old", index) for index in range(OLD)]}
    new = {"new": [message("new", index) for index in range(NEW)]}
    begin, done = marked(events)

    def either(folder: Path, cut: int) -> None:
        check(folder / "data", [new] if cut >= done else [old, new])

    steps = [at for at in range(begin, done + 1) if events[at].kind is not Kind.WRITTEN or at % writes == 0]
    examine(events, [(cut, cut + 5 * number) for cut in steps for number in range(disks)], either)
    examine(events, [(done, seed) for seed in range(8 * disks)], either)


@pytest.mark.slow
def test_every_cut_leaves_the_old_database_or_the_new_one(restoring: list[Event]) -> None:
    check_cuts(restoring, 1, 12)


@pytest.mark.soak
def test_every_cut_on_three_disks_leaves_the_old_database_or_the_new_one(restoring: list[Event]) -> None:
    check_cuts(restoring, 3, 4)
