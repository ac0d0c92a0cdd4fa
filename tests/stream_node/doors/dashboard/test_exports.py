"""Goal: an operator sees what exports have done, and looking at an export never disturbs it.

Method: histories that the exporter's own class writes, shown by a real node over HTTP; sqlite3 adds up the same files
independently. A whole export is shown in test_numbers.py.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from spark_export.exporter import history as history_file
from spark_export.exporter.history import FILE, ExportHistory
from spark_export.tables.errors import ExportError
from spark_export.tables.model import Incarnation, IndexRange
from stream_client import connect
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node
from tests.style.tree import ROOT

S = 1_000_000
Work = Callable[[ExportHistory], None]


class Step:
    """A step as the exporter's history takes it."""

    def __init__(self, run: int, ranges: list[IndexRange]) -> None:
        self.run, self.ranges = run, ranges
        self.rows, self.lost = sum(each.rows for each in ranges), sum(each.lost for each in ranges)
        self.data_bytes, self.file_bytes, self.files = 9 * self.rows, 2048, len(ranges)


def with_history(folder: Path, work: Work) -> None:
    """Does something with the history of an export, as an exporter does. Makes the file if there is none."""
    folder.mkdir(exist_ok=True)

    history = ExportHistory(folder / FILE)
    history.begin("table-7", str(folder), "parquet", "export-lake-7")
    work(history)


def add_run(history: ExportHistory, ranges: list[IndexRange]) -> None:
    history.add_run(Step(len(ranges), ranges), time.time_ns() // 1_000 - 5 * S)  # type: ignore[arg-type]


def span(
    stream: str, begin: int, end: int, *, partition: int = 0, era: int = 0, made: int = 1, lost: int = 0
) -> IndexRange:
    return IndexRange(Incarnation(stream, partition, era, made), begin, end, lost=lost)


def fill(history: ExportHistory) -> None:
    """Two runs that are in the table, and one that failed; retention was ahead of the second."""
    add_run(history, [span("orders", 0, 40), span("gone", 0, 10, partition=1)])
    add_run(history, [span("orders", 45, 60, lost=5), span("gone", 0, 3, partition=1, era=1, made=2)])
    history.add_failure("<b>no space</b>", 301 * S)


def token_for(folder: Path, name: str) -> str:
    (folder / "data").mkdir(exist_ok=True)
    return create_token(folder / "data" / "tokens.json", name, int(time.time()))[0]


async def test_the_pages_show_runs_and_ranges(tmp_path: Path) -> None:
    """An operator sees the runs, the ranges and what waits, but no other file; others see nothing."""
    lake, stray = tmp_path / "lake", tmp_path / "stray"
    await trio.to_thread.run_sync(with_history, stray, fill)
    rules = [may(Right.OPERATE | Right.READ, who="token:watcher"), may(Right.CREATE | Right.WRITE, name="pushes")]
    write_rules(tmp_path / "access.toml", rules)
    text = token_for(tmp_path, "watcher")
    settings: dict[str, Any] = {
        "access_rules": str(tmp_path / "access.toml"),
        "export_folders": (str(lake), str(tmp_path / "none"), str(stray / FILE)),
    }
    async with http_node(tmp_path, **settings) as node, node.client() as stranger, node.client(token=text) as watcher:
        async with connect(node.running.address) as streams:
            orders = await streams.create("orders")
            for _ in range(65):
                await orders.push(b"x")
            made_us = (await orders.info()).created_us

        def fill_now(history: ExportHistory) -> None:
            add_run(history, [span("first", 0, 3)])
            fill(history)
            add_run(history, [span("orders", 60, 62, made=made_us)])

        await trio.to_thread.run_sync(with_history, lake, fill_now)
        listed = await get(watcher, "/exports")
        assert f"there is no history of exports at {tmp_path / 'none' / FILE}" in listed.text
        assert [each["folder"] for each in listed.links("/dashboard/export")] == [str(lake), str(stray / FILE)]
        page = await get(watcher, "/export", folder=str(lake))
        for part in (
            "consumer export-lake-7",
            # Stream, partition, from, to, rows, lost, runs, waiting.
            "orders 0 60 61 2 0 1 3",
            "orders 0 0 59 55 5 2 -",
            "gone 1 0 9 10 0 1 -",
            "gone era 1 1 0 2 3 0 1 -",
            "failed <b>no space</b>",
        ):
            assert part in page.text, part
        assert [each["run"] for each in page.links("/dashboard/export/run")] == ["5", "4", "3", "2", "1"]
        run = await get(watcher, "/export/run", folder=str(lake), run="3")
        assert "run 2 done" in run.text
        assert "after 5 s" in run.text
        assert "orders 0 45 59 15 5" in run.text
        assert "has no run 99" in (await get(watcher, "/export/run", 404, folder=str(lake), run="99")).text
        assert "failed <b>no space</b>" in (await get(watcher, "/export", folder=str(stray / FILE))).text
        for path in ("/export", "/export/run"):
            refused = await get(watcher, path, 404, folder=str(stray), run="1")
            assert "export_folders does not name" in refused.text
        for path in ("/exports", "/export", "/export/run"):
            closed = await get(stranger, path, 403, folder=str(lake), run="1")
            assert "export-lake" not in closed.text + closed.source
        assert "Exports" in (await get(watcher, "/streams")).text
        assert "Exports" not in (await get(stranger, "/streams")).text
    async with http_node(tmp_path / "other") as node, node.client() as client:
        assert "the setting export_folders" in (await get(client, "/exports", 404)).text
        assert "Exports" not in (await get(client, "")).text


def test_the_reader_agrees_with_plain_sql(tmp_path: Path) -> None:
    """Sums of the reader are those of sqlite3 over the runs, and the pages of runs are one row."""
    with_history(tmp_path, fill)

    def more(history: ExportHistory) -> None:
        for number in range(8):
            add_run(history, [span("s", number, number + 1, partition=each) for each in range(5)])

    with_history(tmp_path, more)
    history = ExportHistory(tmp_path / FILE)
    with closing(sqlite3.connect(history.path)) as plain:
        (rows,) = plain.execute("SELECT sum(end_index - begin_index) FROM ranges").fetchone()
        ids = [row[0] for row in plain.execute("SELECT id FROM runs ORDER BY id DESC")]
    assert sum(each.rows for each in history.load_partitions()) == rows == history.load_view(0, 1).rows
    pages = [history.load_view(first, 5) for first in range(0, 15, 5)]
    assert [run.id for page in pages for run in page.runs] == ids
    assert pages[0].run_count == len(ids)


def test_old_ranges_are_removed_and_the_sums_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: sums by hand over more runs than keep their ranges, one of them with a loss, and a stream made anew."""
    monkeypatch.setattr(history_file, "RANGES_RUNS", 3)

    def many(history: ExportHistory) -> None:
        for number in range(9):
            add_run(history, [span("s", 10 * number + (number > 4), 10 * number + 10, lost=int(number == 5))])
        add_run(history, [span("s", 0, 4, era=1, made=2)])

    with_history(tmp_path, many)
    history = ExportHistory(tmp_path / FILE)
    found = [(each.of.era, each.begin, each.end, each.rows, each.lost, each.runs) for each in history.load_partitions()]
    assert found == [(0, 0, 90, 86, 1, 9), (1, 0, 4, 4, 0, 1)]
    with closing(sqlite3.connect(history.path)) as plain:
        assert plain.execute("SELECT run_id FROM ranges ORDER BY run_id").fetchall() == [(8,), (9,), (10,)]
    assert history.load_view(0, 1).run_count == 10


def test_a_reading_leaves_the_exporter_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that takes too long ends, and the exporter then commits. The node's files are as before."""

    def many(history: ExportHistory) -> None:
        add_run(history, [span("s", 0, 9, partition=each) for each in range(20_000)])

    with_history(tmp_path, many)
    history = ExportHistory(tmp_path / FILE)
    before = history.path.read_bytes()
    monkeypatch.setattr(history_file, "READ_S_MAX", 1e-9)
    with pytest.raises(ExportError, match="cannot be read"):
        history.load_partitions()
    monkeypatch.undo()
    assert history.load_view(0, 5).rows == 180_000
    assert history.path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == [FILE]
    with_history(tmp_path, fill)
    assert history.load_view(0, 5).run_count == 4


def test_what_is_no_history_is_told(tmp_path: Path) -> None:
    """Each has its reason, and nothing is repaired or made."""
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_bytes(b"this is no database " * 500)
    for name in ("empty", "text", "none"):
        with pytest.raises(ExportError, match=r"cannot be read|there is no history"):
            ExportHistory(tmp_path / name).load_view(0, 1)
    assert sorted(os.listdir(tmp_path)) == ["empty", "text"]
    assert (tmp_path / "empty").read_bytes() == b""


def test_the_reader_needs_nothing_that_a_node_lacks(tmp_path: Path) -> None:
    """It reads a history in a process in which the packages of the extra `export` cannot be imported."""
    with_history(tmp_path, fill)
    code = f"""
import sys
for name in ("pyarrow", "pyspark", "aiosqlite", "greenlet", "adbc_driver_sqlite"):
    sys.modules[name] = None
from pathlib import Path
from spark_export.exporter.history import ExportHistory
print(ExportHistory(Path({str(tmp_path / FILE)!r})).load_view(0, 1).rows)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "68\n"
