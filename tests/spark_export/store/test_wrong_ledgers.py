"""Goal: a table on a store is changed only with its own, present ledger; a lost one is never begun anew.

Method: exports to a real S3 server in each format; their ledger is replaced by a new one or an earlier copy, or lost.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportMismatch
from stream_node.node.process import NodeProcess
from tests.spark_export.store.log_world import runs, tables, world_of
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import S3Server


@pytest.fixture
def world(
    s3_server: S3Server,
    shared_node: NodeProcess,
    s3_environment: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> StoreWorld:
    return world_of(request.param, s3_server, shared_node, str(request.node.name), tmp_path)


@pytest.mark.parametrize("age", ["new", "earlier"])
@tables("parquet", "delta", "iceberg", usual="parquet delta")
def test_a_wrong_ledger_removes_nothing(world: StoreWorld, age: str, tmp_path: Path) -> None:
    """Goal: a new ledger, or an earlier copy of the table's own, is refused before anything is removed.

    Method: a file that another exporter has written and not published yet is in the store.
    """
    path = tmp_path / "first.sqlite"
    right = world.settings = replace(world.settings, ledger=f"sqlite+aiosqlite:///{path}")
    world.push(0)
    world.run()
    wrong = tmp_path / "wrong.sqlite"
    if age == "earlier":
        shutil.copy(path, wrong)
    runs(world, 1)
    folders = {"delta": "messages/run-000002", "iceberg": "messages/data/run-000002"}
    folder = folders.get(getattr(world, "format", ""), "data/run=000001")
    world.reader.create(f"{folder}/part-of-another.parquet", b"1")
    said = "is missing or empty" if age == "new" else "run 1: the table has it, and the ledger does not know"
    with pytest.raises(ExportMismatch, match=said):
        world.run(ledger=f"sqlite+aiosqlite:///{wrong}")
    assert f"{folder}/part-of-another.parquet" in world.objects("")
    world.settings = right
    world.assert_whole()


@tables("delta", "iceberg", usual="delta")
def test_a_table_whose_ledger_is_lost_is_refused(world: StoreWorld) -> None:
    runs(world, 1)
    world.reader.delete(["_export/ledger.sqlite"])
    with pytest.raises(ExportMismatch, match=r"holds a table, and _export/ledger\.sqlite is missing"):
        world.run()
    assert len(world.rows()) == 50
