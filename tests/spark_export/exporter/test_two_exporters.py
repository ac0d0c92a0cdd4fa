"""Goal: of two exporters with the same plan, one has made the run. The other one counts nothing, and leaves no file.

Method: tables of each format without a node, commits whose answer gets lost, and two exporters of one node.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa

from spark_export.exporter.history import ExportHistory, history_of
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import PositionsMoved
from spark_export.tables.files import write_ranges
from spark_export.tables.log import CommitConflict, TableLog, open_table
from spark_export.tables.model import FilesPlan, Incarnation, IndexRange, Written
from tests.spark_export.exporter.export_world import LIBRARIES, World

OF = Incarnation("s", 0, 0, 5)


def messages(wanted: IndexRange) -> Iterator[Any]:
    rows: list[dict[str, Any]] = [
        {"index": index, "timestamp": 1_790_000_000_000_000 + index, "key": None, "headers": [], "data": b"%d" % index}
        for index in range(wanted.begin, wanted.end)
    ]
    names = ["index", "timestamp", "key", "headers", "data"]
    yield from pa.Table.from_pylist(rows, pa.schema([ROWS.field(name) for name in names])).to_batches()


def planned(log: TableLog, begin: int, end: int) -> tuple[FilesPlan, Written]:
    plan = log.files_plan(log.load(), ROWS)
    return plan, write_ranges([IndexRange(OF, begin, end)], messages, plan)


def indexes(log: TableLog) -> list[int]:
    return sorted(index for batch in log.read(["index"]) for index in batch["index"].to_pylist())


@pytest.fixture(params=LIBRARIES)
def logs(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[TableLog, TableLog]:
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    one, other = (open_table(parse_place(tmp_path / "lake"), request.param) for _ in range(2))
    one.create(ROWS)
    return one, other


def test_the_slower_exporter_does_not_claim_the_rows_of_the_faster_one(
    logs: tuple[TableLog, TableLog], tmp_path: Path
) -> None:
    one, other = logs
    first, second = planned(one, 0, 5), planned(other, 0, 5)
    assert one.append(*first).run == 1
    before = {each.address for each in one.list_files()}
    with pytest.raises(PositionsMoved, match="another exporter"):
        other.append(*second)
    other.abandon(second[0], second[1].files)
    assert (indexes(one), {each.address for each in one.list_files()}) == ([*range(5)], before)
    assert {path.name for path in tmp_path.rglob("part-*.parquet")} == {each.rpartition("/")[2] for each in before}
    # A run that only records a loss has no files, and is told apart as well.
    lost = [IndexRange(OF, 7, 7, lost=2)]
    plans = [log.files_plan(log.load(), ROWS) for log in logs]
    assert one.append(plans[0], Written((), lost)).run == 2
    with pytest.raises(PositionsMoved):
        other.append(plans[1], Written((), lost))
    other.abandon(plans[1])


def test_a_run_whose_answer_was_lost_is_found_again(
    logs: tuple[TableLog, TableLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: also where other commits came in between: another run, and a compaction that replaced the run's files."""
    one, other = logs
    one.append(*planned(one, 0, 5))
    commit = one._commit

    def answer_lost(*given: Any) -> None:
        commit(*given)
        monkeypatch.undo()
        other.append(*planned(other, 10, 12))
        if one.format != "parquet":
            other.compact()
        raise CommitConflict("the answer was lost")

    monkeypatch.setattr(one, "_commit", answer_lost)
    done = one.append(*planned(one, 5, 10))
    assert done.run == 2
    assert one.load().run == 3
    assert indexes(one) == [*range(12)]


def test_two_exporters_of_a_node_count_the_rows_once(each_format: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: outcome and history have each row once. Method: one exports while the other has written its files."""
    world, faster = each_format, list[int]()
    world.push(20)

    def at(step: str) -> None:
        if step == "tasks_done":
            monkeypatch.undo()
            with ThreadPoolExecutor(1) as threads:
                faster.append(threads.submit(world.run).result().rows)

    monkeypatch.setattr("spark_export.exporter.run.failpoint", at)
    slower = world.run()
    assert (faster, slower.rows, slower.steps, slower.run_id) == ([20], 0, 0, None)
    view = history_of(world.settings.place()).load_view(0, 10)
    assert sorted((each.state, each.rows) for each in view.runs) == [("done", 20), ("failed", 0)]
    assert view.rows == 20
    names = {each.address.rpartition("/")[2] for each in world.log().list_files()}
    assert {path.name for path in world.folder.rglob("part-*.parquet")} == names
    world.assert_whole()


def test_two_processes_make_the_history_at_once(tmp_path: Path) -> None:
    """Goal: both records are in it. Method: two connections that begin together, at some new files."""

    def begin(path: Path, name: str, barrier: threading.Barrier) -> None:
        barrier.wait()
        ExportHistory(path).add_failure(name, 0)

    with structlog.testing.capture_logs() as logged:
        for number in range(10):
            path, barrier = tmp_path / f"{number}.sqlite", threading.Barrier(2)
            with ThreadPoolExecutor(2) as threads:
                for done in [threads.submit(begin, path, name, barrier) for name in ("one", "other")]:
                    done.result()
            assert {each.error for each in ExportHistory(path).load_runs(9)} == {"one", "other"}, logged
    assert logged == []
