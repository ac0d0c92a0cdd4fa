"""Goal: the daemon compacts and expires while it exports and readers read; no reader sees a torn table or an error.

Method: a daemon in a child process, a producer, and a reader of each format that reads again and again. The generation
that the reader has open is never made to look old, as the promise to keep it for a time is; all others are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.tables.compact import MERGE_BYTES_MAX, limit_merges, plan_merges
from tests.spark_export.exporter.export_world import World, rows_of
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in
from tests.spark_export.exporter.test_daemon import PATIENCE_S, counted, wait_until

ROUNDS = 8


@contextmanager
def keeping(world: World, metrics: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "stream_node", "export", "daemon", str(world.folder), "--master", "inline"]
    command += ["--node", world.node.address, "--stream", world.stream, "--every", "1s", "--compact-files", "3"]
    command += ["--metrics-file", str(metrics), "--format", world.settings.format]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Reader(threading.Thread):
    """Reads the table until told to stop, and checks that it is whole: every index from 0 on, once, and never fewer."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.done = threading.Event()
        self.opened = threading.Lock()
        self.reads = self.most = 0
        self.errors: list[BaseException] = []
        self._world = world

    def run(self) -> None:
        while not self.done.is_set():
            try:
                self._check(self._read())
            except BaseException as error:
                self.errors.append(error)
                return

    def _read(self) -> list[tuple[str, int, int, bytes]]:
        if self._world.settings.format != "parquet":
            return rows_in(self._world)
        # The lock stands for the time for which an opened generation is kept.
        with self.opened:
            return rows_of((self._world.folder / "messages").resolve())

    def _check(self, rows: list[tuple[str, int, int, bytes]]) -> None:
        found = defaultdict(list)
        for _, partition, index, _ in rows:
            found[partition].append(index)
        assert all(indexes == list(range(len(indexes))) for indexes in found.values())
        assert len(rows) >= self.most
        self.reads, self.most = self.reads + 1, len(rows)


@pytest.mark.parametrize("table_format", LIBRARIES)
def test_readers_read_through_compactions_and_expiry(world: World, tmp_path: Path, table_format: str) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    world.settings = replace(world.settings, format=table_format)
    metrics = tmp_path / "export.prom"
    world.push(10)
    world.run()
    reader = Reader(world)
    reader.start()
    with keeping(world, metrics) as process:
        for wanted in range(10, 10 * ROUNDS + 1, 10):
            world.push(10)
            wait_until(partial(has_exported, metrics, wanted))
            if table_format == "parquet":
                with reader.opened:
                    make_old(world)
        wait_until(lambda: counted(metrics, "compactions_total") >= 2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    reader.done.set()
    reader.join()
    assert reader.errors == []
    assert reader.reads > 2
    assert counted(metrics, "failed_upkeeps_total") == 0
    if table_format == "parquet":
        assert counted(metrics, "expired_total") >= 1
    assert rows_in(world) == world.stored()
    assert world.verify().problems == ()
    assert len(list((world.folder / "messages").resolve().rglob("*rewritten-*"))) >= 1


def has_exported(metrics: Path, rows: int) -> bool:
    return counted(metrics, "rows_total") >= rows


def make_old(world: World) -> None:
    """Makes every generation but the current one look as if it was replaced long ago."""
    current = (world.folder / "messages").resolve()
    long_ago_s = time.time() - 10 * 86_400
    for path in (world.folder / "generations").iterdir():
        # A generation above the current one is being made.
        if path.name < current.name:
            os.utime(path, (long_ago_s, long_ago_s))


def test_an_upkeep_merges_a_part_of_much_and_at_least_two_files() -> None:
    files = [RunFile(run, FileEntry(f"{run}", "s", 0, "2026-11-22", 1, 100, 10, "")) for run in range(1, 9)]
    groups = plan_merges(files, 3)
    assert [len(group) for group in groups] == [8]
    assert [[file.run_id for file in group] for group in limit_merges(groups, 350)] == [[1, 2, 3]]
    assert [[file.run_id for file in group] for group in limit_merges(groups, 1)] == [[1, 2]]
    assert limit_merges(groups, None) == groups
    assert plan_merges(files, 9) == []


def test_a_file_that_nothing_can_be_merged_with_is_left_alone() -> None:
    """Goal: an upkeep ends: files that compress well stay small, and are not merged with themselves again and again.

    Method: the plan for files of which no two fit into memory together, and for two small ones after them.
    """
    large = MERGE_BYTES_MAX * 2 // 3
    sizes = [large] * 20 + [100, 100]
    files = [RunFile(run, FileEntry(f"{run}", "s", 0, "2026-11-22", 1, size, 10, "")) for run, size in enumerate(sizes)]
    assert plan_merges(files[:20], 2) == []
    (part,) = plan_merges(files, 3)
    assert [file.run_id for file in part] == [19, 20, 21]
    assert plan_merges(files, 4) == []
