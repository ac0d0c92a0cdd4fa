"""Goal: who reads in bulk stands back for who pushes, and is served all the same.

Method: the thread on a real file, its child, and a count of written messages that the test sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")

from bench.works.export import PARTITIONS, fill
from stream_storage.contract import Append, Operation
from stream_storage.sqlite.bulk.arrow_pages import ArrowPages, Columns
from stream_storage.sqlite.bulk.arrow_thread import BUSY_ROWS, ArrowRead, ArrowThread
from stream_storage.sqlite.database import Database

pytestmark = pytest.mark.spark

ROWS = 100


@contextmanager
def reading(
    tmp_path: Path, rows_written: Callable[[], int], rest: Callable[[float], object] | None
) -> Iterator[Callable[[], ArrowRead]]:
    """The thread at work; gives a function that has it read a stream, and returns when that is done."""
    fill(tmp_path, PARTITIONS * ROWS)
    done: SimpleQueue[Sequence[Operation]] = SimpleQueue()
    with closing(Database.open(tmp_path)) as database:
        thread = ArrowThread(database.path, done.put, rows_written, rest=rest)
        thread.start()

        def read() -> ArrowRead:
            thread.submit(ArrowRead(1, 0, ROWS, 1_000_000, lambda operation: None))
            (operation,) = done.get(timeout=30)
            assert isinstance(operation, ArrowRead)
            return operation

        try:
            yield read
        finally:
            thread.stop()
            thread.join()


def test_it_rests_while_many_messages_are_written(tmp_path: Path) -> None:
    written, rests = iter([0, BUSY_ROWS - 1, 100, 100 + BUSY_ROWS, 900, 900]), list[float]()
    with reading(tmp_path, lambda: next(written), rests.append) as read:
        for _ in range(3):
            answer = read().answer
            assert answer is not None
            assert answer.rows == ROWS
    (rest_s,) = rests
    assert rest_s > 0


def test_a_stop_ends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a page beside much writing, with a rest of hours behind it; a stop, and the thread is joined."""
    monkeypatch.setattr("stream_storage.sqlite.bulk.arrow_thread.REST_PAGES", 1e6)
    written = iter(range(0, 10 * BUSY_ROWS, BUSY_ROWS))
    with reading(tmp_path, lambda: next(written), None) as read:
        assert read().error is None


def test_a_message_that_is_stored_while_a_page_is_read_is_not_missing(tmp_path: Path) -> None:
    """Claim: a read at the end of a stream never takes a message that comes at that moment for a damaged one. Method:
    a push between the two statements of a page, which reads the rows first and then the bounds of the stream."""
    with closing(Database.open(tmp_path)) as database, closing(database.session()) as session:
        session.begin()
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        session.commit()
        pushes = [Append(stream_id, 0, 5, [b"a", b"b"])]

        class Pushed(ArrowPages):
            def _bounds(self, stream_id: int) -> tuple[int, int, int]:
                session.begin()
                session.log.append(pushes)
                session.commit()
                pushes.clear()
                return super()._bounds(stream_id)

        with Pushed(str(database.path)) as pages:
            page = pages.read(stream_id, 0, 100, 1_000, Columns())
        assert (page.start, page.rows, page.next_index) == (0, 1, 2)


def test_a_page_passes_over_all_deleted_messages_of_its_range(tmp_path: Path) -> None:
    """Claim: a read that begins before the first message of a stream does not need a page for each deleted one."""
    with closing(Database.open(tmp_path)) as database, closing(database.session()) as session:
        session.begin()
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        session.log.append([Append(stream_id, 0, 5, [b"x"] * 50)])
        session.log.truncate_before(stream_id, 40)
        session.commit()
        with ArrowPages(str(database.path)) as pages:
            page = pages.read(stream_id, 0, 30, 1_000_000, Columns())
        assert (page.start, page.rows) == (30, 0)
