"""Makes a log of millions of messages without a node: through the storage layer, in large transactions."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stream_storage.contract import Append
from stream_storage.sqlite.database import Database

STREAM = "bench.0"
COMMIT_MESSAGES = 100_000
CHECKPOINT_COMMITS = 10


def extend_log(data_dir: Path, messages: int, size_bytes: int) -> None:
    """Appends to STREAM until it has this many messages. No node may use the directory. Raises StorageError."""
    data = [os.urandom(size_bytes)] * COMMIT_MESSAGES
    database = Database.open(data_dir)
    try:
        session = database.session()
        session.begin()
        stream = session.log.ensure_stream(STREAM, 0, _now_us())
        session.commit()
        for commits, first_index in enumerate(range(stream.next_index, messages, COMMIT_MESSAGES), 1):
            session.begin()
            session.log.append([Append(stream.stream_id, first_index, _now_us(), data[: messages - first_index])])
            session.commit()
            if not commits % CHECKPOINT_COMMITS:
                session.checkpoint("TRUNCATE")
        session.close()
    finally:
        database.close()


def _now_us() -> int:
    return time.time_ns() // 1000
