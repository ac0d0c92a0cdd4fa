"""Goal: who reads in bulk stands back for who pushes, and is served all the same.

Method: the thread on a real file, its child, and a count of written messages that the test sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")

from bench.works.export import PARTITIONS, fill
from stream_storage.contract import Append, Operation
from stream_storage.sqlite.bulk.arrow_pages import ArrowPages, Columns
from stream_storage.sqlite.bulk.arrow_thread import QUEUE_REST_S_MAX, ROW_REST_S, ArrowRead, ArrowThread
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


def test_it_rests_longer_when_more_messages_are_written(tmp_path: Path) -> None:
    """Method: pages beside no, one, and a million stored messages."""
    written, rests = iter([0, 0, 7, 8, 9, 1_000_009]), list[float]()
    with reading(tmp_path, lambda: next(written), rests.append) as read:
        for _ in range(3):
            answer = read().answer
            assert answer is not None
            assert answer.rows == ROWS
    of_one_s, of_a_million_s = rests
    assert of_one_s == ROW_REST_S
    assert ROW_REST_S < of_a_million_s <= QUEUE_REST_S_MAX


def test_waiting_reads_share_the_longest_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a read behind many others is not kept so long that its client asks a second time. Method: ten reads that
    wait before the thread starts, beside a node that stores a million messages during each."""
    monkeypatch.setattr("stream_storage.sqlite.bulk.arrow_thread.QUEUE_REST_S_MAX", 1e-6)
    fill(tmp_path, PARTITIONS * ROWS)
    done, rests = SimpleQueue[Sequence[Operation]](), list[float]()
    with closing(Database.open(tmp_path)) as database:
        thread = ArrowThread(database.path, done.put, count(step=1_000_000).__next__, rest=rests.append)
        for _ in range(10):
            thread.submit(ArrowRead(1, 0, ROWS, 1_000_000, lambda operation: None))
        thread.start()
        try:
            for _ in range(10):
                assert done.get(timeout=30)[0].error is None
        finally:
            thread.stop()
            thread.join()
    assert rests[:9] == [1e-6 / waiting for waiting in range(10, 1, -1)]


def test_a_stop_ends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a page beside much writing, with a rest of hours behind it; a stop, and the thread is joined."""
    for bound in ("REST_PAGES_MAX", "ROW_REST_S", "QUEUE_REST_S_MAX"):
        monkeypatch.setattr(f"stream_storage.sqlite.bulk.arrow_thread.{bound}", 1e6)
    with reading(tmp_path, count().__next__, None) as read:
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
