"""Goal: a disk that fills fails a run with one clear line; the table stays as it was, and the next run is whole.

Method: a small file system that is really full, under the command; at every distance from full there is.
"""

from __future__ import annotations

import gc
import json
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.scheduled import TRY_AGAIN, exit_code
from spark_export.tables.errors import ExportError
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_process import wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_daemon import PATIENCE_S, counted, daemon
from tests.support.small_disk import mounted_disk

LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
NO_ROOM_FOR = {"the rows": 1_000_000, "the table's log": 40_000, "anything": 0}
"""How much is free before the run, in bytes."""
CASES = [
    *[("parquet", what) for what in ("the rows", "anything")],
    ("iceberg", "the table's log"),
    *[pytest.param(name, "the rows", marks=pytest.mark.soak) for name in ("delta", "iceberg")],
]


LARGE = (400, 100_000)
"""Messages and their bytes: more than a file has waiting in memory, so that the disk fills while a task writes."""
SAID = ("no room in", "No space left", "disk is full", "disk I/O error")


@pytest.fixture
def small(tmp_path: Path, shared_node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[World]:
    """An export on a disk of its own."""
    with mounted_disk(tmp_path / "disk", "64m") as disk:
        yield World(disk / "lake", shared_node, str(request.node.name))
        # The catalog of Iceberg keeps its file open until it is collected.
        gc.collect()


def push_random(world: World, count: int, size: int) -> None:
    """Data that no codec makes smaller."""
    seeded = random.Random(count)
    with world.client() as client, client.create_partitioned(world.stream, 2).publisher() as publisher:
        for _ in range(count):
            publisher.push(seeded.randbytes(size))


def leave_free(world: World, free_bytes: int) -> Path:
    """A file that takes the rest of the disk."""
    ballast = world.folder.parent / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(ballast.parent).free - free_bytes)))
    return ballast


@pytest.mark.parametrize(("table_format", "what"), CASES)
def test_a_run_without_room_is_told_and_the_next_one_is_whole(small: World, table_format: str, what: str) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    small.settings = replace(small.settings, format=table_format)
    push_random(small, 20, 100)
    small.run()
    push_random(small, *(LARGE if what == "the rows" else (20, 100)))
    ballast = leave_free(small, NO_ROOM_FOR[what])
    for _ in range(2):
        with pytest.raises(ExportError) as failed:
            small.run()
        assert any(reason in str(failed.value) for reason in SAID), failed.value
        if "disk I/O error" not in str(failed.value):
            assert exit_code(failed.value) == TRY_AGAIN, failed.value
        assert small.verify(contents=False).rows == 20, "nothing of the run is in the table"
    ballast.unlink()
    small.run()
    verdict = small.verify()
    assert (verdict.problems, verdict.rows) == ((), len(small.stored()))
    assert list(small.folder.glob("staging/*")) == []


def test_an_export_that_cannot_even_begin_is_told(small: World) -> None:
    """Method: a new folder on a disk without a free byte; then the same with room."""
    push_random(small, 20, 100)
    ballast = leave_free(small, 0)
    with pytest.raises(ExportError, match=r"is full|unable to open database file|disk I/O error"):
        small.run()
    ballast.unlink()
    small.run()
    small.assert_whole()


def test_a_daemon_outlives_a_full_disk(small: World) -> None:
    """Goal: it goes on by itself when there is room, also where its metrics are on that disk too."""
    metrics = small.folder.parent / "export.prom"
    push_random(small, 20, 100)
    with daemon(small, metrics) as process:
        wait_until(lambda: counted(metrics, "rows_total") == 20, process, PATIENCE_S)
        ballast = leave_free(small, 0)
        push_random(small, *LARGE)
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "run failed":
                break
        ballast.unlink()
        wait_until(lambda: counted(metrics, "rows_total") == 20 + LARGE[0], process, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    small.assert_whole()
