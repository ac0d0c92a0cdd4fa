"""Goal: a task of Spark writes exactly the rows that the table does not have, and refuses a gap. Method: the function
that a task runs, without Spark, on batches that are cut anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

from spark_export.exporter.spark_files import BATCH_PAGES, BATCH_ROWS, Starts, write_files, write_rows
from spark_export.tables.address import parse_place
from spark_export.tables.columns import HEADERS, ROWS
from spark_export.tables.errors import RangeIncomplete
from spark_export.tables.log import open_table
from spark_export.tables.model import Incarnation, IndexRange, Written

A, B = Incarnation("a", 0, 2, 7), Incarnation("b", 1, 0, 9)
US = 1_750_000_000_000_000


def batch(*places: tuple[str, int, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([None for _ in places], pa.binary()),
            "data": pa.array([b"%s %d" % (stream.encode(), index) for stream, _, index in places], pa.binary()),
            "stream": [stream for stream, _, _ in places],
            "partition": pa.array([partition for _, partition, _ in places], pa.int32()),
            "index": pa.array([index for _, _, index in places], pa.int64()),
            "timestamp": pa.array([US + index for _, _, index in places], ROWS.field("timestamp").type),
            "headers": pa.array([None for _ in places], HEADERS),
        }
    )


def written(folder: Path, batches: Iterator[pa.RecordBatch], starts: Starts) -> tuple[Written, list[bytes]]:
    log = open_table(parse_place(folder), "parquet")
    log.create(ROWS)
    plan = log.files_plan(log.load(), ROWS)
    found = write_rows(batches, plan, starts)
    log.append(plan, found)
    return found, sorted(value for part in log.read(["data"]) for value in part["data"].to_pylist())


def test_rows_that_the_table_has_are_left_out(tmp_path: Path) -> None:
    """A micro-batch that Spark repeats begins below the table's position."""
    starts = {A.place: IndexRange(A, 3, 9), B.place: IndexRange(B, 5, 7, lost=5)}
    batches = [batch(*(("a", 0, index) for index in range(1, 5))), batch(("a", 0, 5), ("b", 1, 5)), batch(("b", 1, 6))]
    with pytest.MonkeyPatch.context() as patch:
        # The table is a new one: what the ranges follow is not the claim here.
        patch.setattr("spark_export.tables.model.check_next", lambda state, ranges: None)
        found, rows = written(tmp_path, iter(batches), starts)
    assert rows == [b"a 3", b"a 4", b"a 5", b"b 5", b"b 6"]
    assert list(found.ranges) == [
        IndexRange(A, 3, 6, last_us=US + 5),
        IndexRange(B, 5, 7, lost=5, last_us=US + 6),
    ]


def test_the_setting_of_the_session_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: two writes in one session, of which the first one ends first; the session is a stand-in."""
    chosen: Any = {BATCH_ROWS: "10000"}
    conf = SimpleNamespace(get=chosen.get, set=chosen.__setitem__)
    rows, going = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf)), [threading.Event(), threading.Event()]
    entered = threading.Semaphore(0)

    def write(rows: Any, plan: Any, *more: Any) -> Written:
        assert chosen[BATCH_ROWS] == str(BATCH_PAGES)
        entered.release()
        assert going[plan].wait(10)
        return Written()

    monkeypatch.setattr("spark_export.exporter.spark_files._write_pages", write)
    with ThreadPoolExecutor(2) as threads:
        writes = []
        for number in range(2):
            writes.append(threads.submit(write_files, rows, number, {}))  # type: ignore[arg-type]
            assert entered.acquire(timeout=10)
        for event, each in zip(going, writes, strict=True):
            event.set()
            each.result(10)
    assert chosen == {BATCH_ROWS: "10000"}


def test_a_task_in_the_middle_of_a_range_records_no_loss(tmp_path: Path) -> None:
    log = open_table(parse_place(tmp_path), "parquet")
    log.create(ROWS)
    plan = log.files_plan(log.load(), ROWS)
    found = write_rows(iter([batch(("b", 1, 6))]), plan, {B.place: IndexRange(B, 5, 7, lost=5)})
    assert list(found.ranges) == [IndexRange(B, 6, 7, last_us=US + 6)]
    assert write_rows(iter([batch(("b", 1, 6))]), plan, {B.place: IndexRange(B, 7, 9)}) == Written([], [])
    log.abandon(plan)


@pytest.mark.parametrize("places", [[3, 5], [3, 4, 6], [4, 3], [3, 5, 4, 6]])
def test_a_gap_within_a_task_is_refused(tmp_path: Path, places: list[int]) -> None:
    """Nothing is left of a task that failed."""
    log = open_table(parse_place(tmp_path), "parquet")
    log.create(ROWS)
    plan = log.files_plan(log.load(), ROWS)
    with pytest.raises(RangeIncomplete, match="a/0"):
        write_rows(iter([batch(*(("a", 0, index) for index in places))]), plan, {A.place: IndexRange(A, 3, 9)})
    assert list(Path(plan.root).rglob("*.parquet")) == []
    log.abandon(plan)


def test_a_gap_between_two_tasks_is_refused(tmp_path: Path) -> None:
    log = open_table(parse_place(tmp_path), "parquet")
    log.create(ROWS)
    plan, starts = log.files_plan(log.load(), ROWS), {A.place: IndexRange(A, 0, 9)}
    parts = [write_rows(iter([batch(("a", 0, index))]), plan, starts) for index in (0, 2)]
    with pytest.raises(RangeIncomplete):
        log.append(plan, Written([*parts[0].files, *parts[1].files], [*parts[0].ranges, *parts[1].ranges]))
    log.abandon(plan)
