"""What a test does to, or asks of, a data directory that no node has open, and its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_storage.contract import Session
from tests.support.databases import open_database


@contextmanager
def open_session(directory: Path) -> Iterator[Session]:
    """A session that can write, outside a transaction."""
    database = open_database(directory)
    try:
        session = database.session()
        try:
            yield session
        finally:
            session.close()
    finally:
        database.close()


def truncate_before(directory: Path, name: str, index: int, partition: int = 0) -> None:
    """Delete the messages of a stream below this index, as a retention would."""
    with open_session(directory) as session:
        record = session.log.find_stream(name, partition)
        assert record is not None, f"there is no stream {name}/{partition}"
        session.begin()
        session.log.truncate_before(record.stream_id, index)
        session.commit()


def stored_messages(directory: Path, name: str, partition: int = 0) -> list[bytes]:
    """The data of all stored messages; their indexes must begin at 0 and have no gaps."""
    with open_session(directory) as session:
        record = session.log.find_stream(name, partition)
        assert record is not None, f"there is no stream {name}/{partition}"
        found: list[bytes] = []
        while page := session.log.read(record.stream_id, len(found), 1_000, 1 << 24):
            assert [row[0] for row in page] == list(range(len(found), len(found) + len(page)))
            found += [row[1] for row in page]
        assert len(found) == record.next_index
        return found


def overwrite(file: Path, content: bytes | bytearray) -> None:
    """Does what `file.write_bytes` does, but shortens the file after the new content is written.

    A file that is first emptied and then written is written to the disk as soon as it is closed (`auto_da_alloc` of
    ext4), which takes 3 ms.
    """
    with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as opened:
        opened.write(content)
        opened.truncate()
