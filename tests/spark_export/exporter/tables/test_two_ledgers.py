"""Goal: a table has one ledger: no other one, neither new nor of another table, writes into it.

Method: tables in folders, with their ledgers inside or elsewhere (`--ledger`); another ledger is then named.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import ExportMismatch
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in

FORMATS = pytest.mark.parametrize("table_format", LIBRARIES)


def url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def formed(world: World, table_format: str) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    world.settings = replace(world.settings, format=table_format)


@FORMATS
def test_a_new_ledger_elsewhere_is_refused(world: World, table_format: str, tmp_path: Path) -> None:
    """Before, the run with the new ledger exported every message a second time into the table."""
    formed(world, table_format)
    world.push(20)
    world.run()
    with pytest.raises(ExportMismatch, match="leave --ledger out"):
        world.run(ledger=url(tmp_path / "other.sqlite"))
    assert rows_in(world) == world.stored()
    world.push(3)
    assert world.run().rows == 3
    assert rows_in(world) == world.stored()


@FORMATS
@pytest.mark.parametrize("second", ["none", "new", "of another table"])
def test_another_ledger_is_refused(world: World, table_format: str, second: str, tmp_path: Path) -> None:
    """The second ledger is one in the folder, a new one, or that of another table of the same stream."""
    formed(world, table_format)
    first, other = url(tmp_path / "first.sqlite"), url(tmp_path / "other.sqlite")
    world.push(20)
    world.run(ledger=first)
    if second == "of another table":
        beside = World(tmp_path / "beside", world.node, world.stream)
        formed(beside, table_format)
        beside.run(ledger=other)
    world.push(3)
    with pytest.raises(ExportMismatch, match="ledger"):
        world.run(ledger=None if second == "none" else other)
    assert len(rows_in(world)) == 20
    assert world.run(ledger=first).rows == 3
    assert rows_in(world) == world.stored()
    moved = world.folder.rename(tmp_path / "moved") if table_format != "iceberg" else world.folder
    world.push(2)
    assert world.run(ledger=first, folder=moved).rows == 2


@FORMATS
def test_a_lost_ledger_elsewhere_is_not_begun_anew(world: World, table_format: str, tmp_path: Path) -> None:
    formed(world, table_format)
    first = url(tmp_path / "first.sqlite")
    world.push(20)
    world.run(ledger=first)
    (tmp_path / "first.sqlite").unlink()
    with pytest.raises(ExportMismatch, match="ledger"):
        world.run(ledger=first)
    assert rows_in(world) == world.stored()
