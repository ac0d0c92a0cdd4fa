"""Goal: free pages go back to the disk, as many as asked for. Method: the size of a real file before and after."""

from __future__ import annotations

from pathlib import Path

from stream_storage.contract import Append
from stream_storage.sqlite.database import PAGE_BYTES, Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import verify

MESSAGES, MESSAGE_BYTES = 20_000, 1024


def reclaim(session: SqliteSession, pages: int, keep: int) -> int:
    """Do one step in its own transaction, and return how many pages are free afterwards."""
    session.begin()
    free = session.reclaim(pages, keep)
    session.commit()
    return free


def test_half_deleted_the_file_shrinks_to_a_little_above_what_is_left(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    session = database.session()
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 0).stream_id
    session.log.append([Append(stream_id, 0, 1, [bytes(MESSAGE_BYTES)] * MESSAGES)])
    session.commit()
    session.begin()
    session.log.truncate_before(stream_id, MESSAGES // 2)
    session.commit()
    session.checkpoint("TRUNCATE")
    before_bytes = database.path.stat().st_size

    free = reclaim(session, 0, 0)
    assert reclaim(session, 10, 0) == free - 10
    assert reclaim(session, 10**6, 100) == 100
    assert reclaim(session, 10, 100) == 100
    session.checkpoint("TRUNCATE")

    after_bytes = database.path.stat().st_size
    assert after_bytes <= before_bytes - (free - 100) * PAGE_BYTES
    assert after_bytes - 100 * PAGE_BYTES < 1.3 * MESSAGE_BYTES * MESSAGES / 2
    assert verify(session).sound
    session.close()
    database.close()
