"""Goal: the metadata of an Iceberg table, which each commit writes again, stay small however many runs there are.

Method: some hundred commits with a smaller bound than the product's, whose metadata are measured on the disk.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

from spark_export.tables import iceberg
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.log import open_table
from spark_export.tables.model import Commit, Incarnation, IndexRange, Written

RUNS, PARTITIONS = 100, 20
KEEP_S = 5 * 86_400.0


def test_the_metadata_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 10)
    log = open_table(parse_place(tmp_path), "iceberg")
    log.create(ROWS)
    sizes, counts = list[int](), list[int]()
    for run in range(RUNS):
        ranges = [IndexRange(Incarnation("s", part, 0, 5), run + 1, run + 1, lost=1) for part in range(PARTITIONS)]
        log.append(log.files_plan(log.load(), ROWS), Written((), ranges))
        if run % 20 == 19:
            log.expire(KEEP_S)
            newest = max((tmp_path / "messages" / "metadata").glob("*.metadata.json"), key=lambda each: each.name)
            sizes.append(newest.stat().st_size)
            counts.append(len(json.loads(newest.read_bytes())["snapshots"]))
    assert counts == [10] * (RUNS // 20)
    # The numbers of the indexes have more digits than at first.
    assert sizes[-1] < sizes[0] * 1.2
    files = [*(tmp_path / "messages" / "metadata").iterdir()]
    assert len(files) < 100, "the manifest lists of expired snapshots are removed"
    state = log.load()
    assert (state.run, {each.end for each in state.positions.values()}) == (RUNS, {RUNS})


def test_the_newest_commit_comes_first_in_whatever_order_a_catalog_lists_them(tmp_path: Path) -> None:
    """Method: the snapshots of the loaded table in another order, as from catalogs that keep them by their ids."""
    log = iceberg.IcebergLog(parse_place(tmp_path), {})
    log.create(ROWS)
    for run in range(3):
        lost = [IndexRange(Incarnation("s", 0, 0, 5), run + 1, run + 1, lost=1)]
        log.append(log.files_plan(log.load(), ROWS), Written((), lost))
    log.load()
    first, second, third = log._table.metadata.snapshots
    log._table.metadata.snapshots[:] = [second, first, third]
    assert [each.run for each in log.commits() if isinstance(each, Commit)] == [3, 2, 1]
    assert [each.run for each in log.commits(second.sequence_number) if isinstance(each, Commit)] == [3]
