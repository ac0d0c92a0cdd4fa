"""Goal: an export in steps needs no more memory at its end than at its beginning, however much is exported.

Method: the exporter in a child process that says its resident memory after each step; the rows by pyarrow alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow.dataset as dataset

from bench.works.export import PARTITIONS, STREAM, fill
from stream_node.node.process import NodeProcess

REPOSITORY = Path(__file__).parents[3]
MIB = 1024 * 1024
RUN_S_MAX = 1200.0


@pytest.mark.parametrize(
    ("rows", "rows_max", "growth_mib_max"),
    [(300_000, 20_000, 16), pytest.param(10_000_000, 500_000, 64, marks=pytest.mark.soak)],
)
def test_memory_is_flat_over_the_steps(tmp_path: Path, rows: int, rows_max: int, growth_mib_max: int) -> None:
    """growth_mib_max: how much more the last third of the steps may need than the first third. It is a part of what
    they export, so that an exporter that kept the rows of its steps would be found."""
    fill(tmp_path / "data", rows)
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        command = [sys.executable, "-m", "tests.spark_export.exporter.steps_child", str(tmp_path / "lake")]
        command += [node.address, STREAM, str(rows_max)]
        ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert node.stop() == 0
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    # `python -m bench.draw_memory` draws the plot of the documentation from this file.
    (tmp_path / "memory.json").write_text(json.dumps(told))
    assert [each[0] for each in told][-1] == rows
    assert len(told) >= rows // rows_max
    memory = [each[1] / MIB for each in told]
    third = len(memory) // 3
    grown = max(memory[-third:]) - max(memory[:third])
    assert grown < growth_mib_max, f"grew by {grown:.0f} MiB: {[round(each) for each in memory]}"
    table = dataset.dataset((tmp_path / "lake" / "messages").resolve(), format="parquet", partitioning="hive")
    counted = table.to_table(["partition", "index"]).group_by("partition")
    sums = counted.aggregate([("index", "count"), ("index", "count_distinct"), ("index", "max")]).sort_by("partition")
    each = rows // PARTITIONS
    assert [tuple(row.values()) for row in sums.to_pylist()] == [
        (partition, each, each, each - 1) for partition in range(PARTITIONS)
    ]
