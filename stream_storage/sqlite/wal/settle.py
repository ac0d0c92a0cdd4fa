"""Makes the write-ahead log durable after a stop that was not clean.

If a sync failed before such a stop, pages of the log can be readable and not be on the disk, and a later sync does not
write them. So they are written once more: into the database file, or, while another program keeps the log, in place."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from stream_storage.errors import StorageError
from stream_storage.sqlite.checkpointer import CHECKPOINT_WAIT_MS
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.check import CHUNK_BYTES, wal_path

logger = structlog.get_logger(__name__)


def settle_log(session: SqliteSession, database: Path) -> None:
    """Copies the log into the database file and empties it, or writes its bytes again while another program reads.
    Raises StorageError."""
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
