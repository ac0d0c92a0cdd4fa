"""Goal: an operator sees what exports have done, and looking at an export never disturbs it.

Method: ledgers that the exporter's own class writes, shown by a real node over HTTP; sqlite3 adds up the same ledgers
independently. A whole export is shown in test_numbers.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from spark_export.exporter.errors import ExportMismatch, LedgerError
from spark_export.exporter.ledger import view as ledger_view
from spark_export.exporter.ledger.ledger import Ledger, open_ledger
from spark_export.exporter.model import FileEntry, Range, RunState
from stream_client import connect
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node
from tests.style.tree import ROOT

S = 1_000_000
RUN_STATES = (RunState.WRITING, RunState.WRITTEN, RunState.PUBLISHED, RunState.SAVED)
Work = Callable[[Ledger], Awaitable[None]]


def with_ledger(folder: Path, work: Work) -> None:
    """Does something with the ledger of an export, as an exporter does. Makes the ledger if there is none."""

    folder.mkdir(exist_ok=True)

    async def main() -> None:
        identity = ("parquet", lambda table: "export-lake-7")
        async with open_ledger(folder / "ledger.sqlite", identity=identity, now_us=S) as ledger:
            await work(ledger)

    asyncio.run(main())


async def add_run(ledger: Ledger, ranges: list[Range], *, until: RunState = RunState.SAVED, at_s: int = 100) -> int:
    run = await ledger.begin_run(ranges, at_s * S)
    for state in RUN_STATES[: RUN_STATES.index(until) + 1]:
        if state is RunState.WRITTEN:
            files = [
                FileEntry(f"{each.stream}.parquet", each.stream, each.era, "2026-11-21", each.rows, 9, 2048, "0" * 64)
                for each in ranges
            ]
            await ledger.record_written(run, 1, files)
        else:
            await ledger.advance(run, state, now_us=(at_s + 5) * S if state is RunState.SAVED else None)
    return run


def span(stream: str, start: int, end: int, *, partition: int = 0, era: int = 0, made: int = 1, lost: int = 0) -> Range:
    return Range(stream, partition, era, made, start, end, 9, lost)


async def fill(ledger: Ledger) -> None:
    """Two runs that are in the table, one that failed, and one that is under way; retention was ahead of the second."""
    await add_run(ledger, [span("orders", 0, 40), span("gone", 0, 10, partition=1)])
    await add_run(ledger, [span("orders", 45, 60, lost=5), span("gone", 0, 3, partition=1, era=1, made=2)], at_s=200)
    failed = await ledger.begin_run([span("orders", 60, 70)], 300 * S)
    await ledger.record_abandoned(failed, 301 * S, "<b>no space</b>")
    await add_run(ledger, [span("orders", 60, 80)], until=RunState.WRITING, at_s=400)


def token_for(folder: Path, name: str) -> str:
    (folder / "data").mkdir(exist_ok=True)
    return create_token(folder / "data" / "tokens.json", name, int(time.time()))[0]


async def test_the_pages_show_runs_and_ranges(tmp_path: Path) -> None:
    """An operator sees the runs, the ranges and what waits, but no other file; others see nothing."""
    lake, stray = tmp_path / "lake", tmp_path / "stray"
    await trio.to_thread.run_sync(with_ledger, stray, fill)
    rules = [may(Right.OPERATE | Right.READ, who="token:watcher"), may(Right.CREATE | Right.WRITE, name="pushes")]
    write_rules(tmp_path / "access.toml", rules)
    text = token_for(tmp_path, "watcher")
    settings: dict[str, Any] = {
        "access_rules": str(tmp_path / "access.toml"),
        "export_folders": (str(lake), str(tmp_path / "none")),
    }
    async with http_node(tmp_path, **settings) as node, node.client() as stranger, node.client(token=text) as watcher:
        async with connect(node.running.address) as streams:
            orders = await streams.create("orders")
            for _ in range(65):
                await orders.push(b"x")
            made_us = (await orders.info()).created_us

        async def fill_now(ledger: Ledger) -> None:
            await add_run(ledger, [span("first", 0, 3)])
            await fill(ledger)
            await add_run(ledger, [span("orders", 60, 62, made=made_us)], at_s=500)

        await trio.to_thread.run_sync(with_ledger, lake, fill_now)
        listed = await get(watcher, "/exports")
        assert f"{tmp_path / 'none'} holds no export: there is no ledger.sqlite" in listed.text
        assert [each["folder"] for each in listed.links("/dashboard/export")] == [str(lake)]
        page = await get(watcher, "/export", folder=str(lake))
        for part in (
            "consumer export-lake-7",
            # Stream, partition, from, to, rows, lost, runs, waiting.
            "orders 0 0 61 57 5 3 3",
            "gone 1 0 9 10 0 1 -",
            "gone era 1 1 0 2 3 0 1 -",
            "abandoned <b>no space</b>",
            "5 writing",
        ):
            assert part in page.text, part
        assert [each["run"] for each in page.links("/dashboard/export/run")] == ["6", "5", "4", "3", "2", "1"]
        run = await get(watcher, "/export/run", folder=str(lake), run="3")
        assert "run 3 saved" in run.text
        assert "after 5 s" in run.text
        assert "orders 0 45 59 15 5" in run.text
        assert "has no run 99" in (await get(watcher, "/export/run", 404, folder=str(lake), run="99")).text
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
    """Sums of the reader are those of sqlite3 over the published runs, and the pages of runs are one row."""
    with_ledger(tmp_path, fill)

    async def more(ledger: Ledger) -> None:
        for number in range(8):
            await add_run(ledger, [span("s", number, number + 1, partition=each) for each in range(5)])

    with_ledger(tmp_path, more)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as plain:
        (rows,) = plain.execute(
            "SELECT sum(end_index - start_index) FROM ranges JOIN runs ON id = run_id WHERE state = 'saved'"
        ).fetchone()
        ids = [row[0] for row in plain.execute("SELECT id FROM runs ORDER BY id DESC")]
    found = ledger_view.read_partitions(tmp_path)
    assert sum(each.rows for each in found) == rows == ledger_view.read_export(tmp_path, 0, 1).table_rows
    pages = [ledger_view.read_export(tmp_path / "ledger.sqlite", first, 5) for first in range(0, 15, 5)]
    assert [run.run_id for page in pages for run in page.runs] == ids
    assert pages[0].run_count == len(ids)


def test_a_reading_leaves_the_exporter_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that takes too long ends, and the exporter then commits. The node's files are as before."""

    async def many(ledger: Ledger) -> None:
        await add_run(ledger, [span("s", 0, 9, partition=each) for each in range(20_000)])

    with_ledger(tmp_path, many)
    before = (tmp_path / "ledger.sqlite").read_bytes()
    monkeypatch.setattr(ledger_view, "READ_S_MAX", 1e-9)
    with pytest.raises(LedgerError, match="stream-node export history"):
        ledger_view.read_partitions(tmp_path)
    assert ledger_view.read_export(tmp_path, 0, 5).table_rows == 180_000
    assert (tmp_path / "ledger.sqlite").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["ledger.sqlite"]
    with_ledger(tmp_path, fill)
    assert ledger_view.read_export(tmp_path, 0, 5).run_count == 5


def test_what_is_no_ledger_is_told(tmp_path: Path) -> None:
    """Each has its reason, and nothing is repaired or made."""
    with_ledger(tmp_path / "good", fill)
    good = tmp_path / "good" / "ledger.sqlite"
    for name, change, reason in (
        ("other", "PRAGMA application_id = 7", "another program's database"),
        ("later", "PRAGMA user_version = 99", "a later version"),
    ):
        shutil.copy(good, tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as changed:
            changed.execute(change)
        with pytest.raises(ExportMismatch, match=reason):
            ledger_view.read_export(tmp_path / name, 0, 1)
    (tmp_path / "empty").touch()
    with pytest.raises(ExportMismatch, match="no export has run yet"):
        ledger_view.read_export(tmp_path / "empty", 0, 1)
    (tmp_path / "text").write_bytes(b"this is no database " * 500)
    with pytest.raises(LedgerError, match="not a database"):
        ledger_view.read_export(tmp_path / "text", 0, 1)
    with pytest.raises(ExportMismatch, match=r"there is no ledger\.sqlite"):
        ledger_view.read_partitions(tmp_path)
    with closing(sqlite3.connect(good, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="look again"):
            ledger_view.read_run(good, 1, 5)
    assert ledger_view.read_run(good, 1, 1) is not None


def test_a_ledger_in_the_middle_of_a_change_is_left_to_its_exporter(tmp_path: Path) -> None:
    """The copy of a ledger during a commit has a journal that only a writer may undo."""
    with_ledger(tmp_path / "good", fill)
    good, torn = tmp_path / "good" / "ledger.sqlite", tmp_path / "torn.sqlite"
    with closing(sqlite3.connect(good, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.executemany(
            "INSERT INTO ranges VALUES (4, 'x', ?, 0, 0, 0, 1, 1, 0)", ((number,) for number in range(5_000))
        )
        shutil.copy(good, torn)
        shutil.copy(f"{good}-journal", f"{torn}-journal")
        writer.execute("ROLLBACK")
    before = torn.read_bytes()
    with pytest.raises(LedgerError, match="an exporter was interrupted"):
        ledger_view.read_export(torn, 0, 1)
    assert torn.read_bytes() == before


def test_the_reader_needs_nothing_that_a_node_lacks(tmp_path: Path) -> None:
    """It reads a ledger in a process in which the packages of the extra `spark` cannot be imported."""
    with_ledger(tmp_path, fill)
    code = f"""
import sys
for name in ("pyarrow", "pyspark", "aiosqlite", "greenlet", "adbc_driver_sqlite"):
    sys.modules[name] = None
from pathlib import Path
from spark_export.exporter.ledger import view as ledger_view
print(ledger_view.read_export(Path({str(tmp_path)!r}), 0, 1).table_rows)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "68\n"
