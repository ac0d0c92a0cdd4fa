"""The survey of a database that SQLite cannot read since pages are lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.wal.check import stream_ends


@pytest.mark.parametrize("row", [("words", 0, None, 4), ("words", 0, 1, "four"), (None, 0, 1, 4), (b"words", 0, 1, 4)])
def test_rows_that_never_were_any_cannot_be_told(tmp_path: Path, row: tuple[object, ...]) -> None:
    """Without its lost pages, a log may give rows with values of any type, and the next start must not fail on them."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE streams (name, partition, first_index, next_index)")
        connection.execute("INSERT INTO streams VALUES (?, ?, ?, ?)", row)
        connection.commit()
    with pytest.raises(sqlite3.DatabaseError, match="has the row"):
        stream_ends(tmp_path / FILE_NAME, ())
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
