"""The checks of `stream-node doctor` of the SQLite library, and of a second program that writes to the database."""

from __future__ import annotations

from pathlib import Path

from stream_node.care.findings import Finding, Values
from stream_storage.sqlite.database import FILE_NAME

WAL_RESET_FIXED = (3, 51, 3)
"""The first version of SQLite without the WAL-reset bug."""
SQLITE_BUGS: tuple[tuple[tuple[int, int, int], str], ...] = (
    (
        WAL_RESET_FIXED,
        "the WAL-reset bug, which damages a database that two connections checkpoint at once; "
        "in a node one alone does, so run no other program that writes to the database",
    ),
)
"""The known bugs of SQLite: the first version without the bug, and its effect. Source: SQLite's wal.html."""
LITESTREAM_FOLDER = f".{FILE_NAME}-litestream"


def check_sqlite(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    bugs = [bug for fixed, bug in SQLITE_BUGS if version < fixed]
    if bugs:
        return Finding("sqlite", "warning", f"{text} has {'; and '.join(bugs)}", {"version": text})
    return Finding("sqlite", "ok", f"{text}, no bug known here", {"version": text})


def check_litestream(directory: Path, version: tuple[int, int, int]) -> Finding:
    """Checks whether a Litestream may copy the database beside the node.
    It writes to the database and makes checkpoints, so it must never meet the WAL-reset bug."""
    folder, text = directory / LITESTREAM_FOLDER, ".".join(map(str, version))
    values: Values = {"folder": str(folder) if folder.is_dir() else None, "version": text}
    if not folder.is_dir():
        return Finding("litestream", "ok", "none copies the database", values)
    if version < WAL_RESET_FIXED:
        fixed = ".".join(map(str, WAL_RESET_FIXED))
        return Finding(
            "litestream",
            "wrong",
            f"{folder} is there, and SQLite {text} has the WAL-reset bug: two programs that checkpoint at once can "
            f"damage the database; run the node with SQLite {fixed} or newer, or end Litestream and remove that folder",
            values,
        )
    return Finding("litestream", "ok", f"copies the database; SQLite {text} bears a second program", values)
