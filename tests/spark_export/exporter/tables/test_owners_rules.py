"""Goal: upkeep and forgetting respect what the owner of a table has said of its earlier versions.

Method: tables of Delta and Iceberg that another program made, with properties of its own, without a node.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa

from spark_export.exporter.history import ExportHistory
from spark_export.exporter.upkeep import TableUpkeep, forget
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import ExportError
from spark_export.tables.files import write_ranges
from spark_export.tables.log import TableLog, open_table
from spark_export.tables.model import Incarnation, IndexRange
from tests.spark_export.exporter.tables.test_own_columns import export, messages, own_iceberg

DAY_S = 86_400.0


def own_delta(folder: Path, properties: dict[str, str | None]) -> TableLog:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    deltalake.DeltaTable.create(str(folder), ROWS, configuration=properties)
    return open_table(parse_place(folder), "delta")


def parquet_files(folder: Path) -> int:
    return sum(1 for each in folder.rglob("*.parquet") if "_delta_log" not in each.parts)


def forgotten(log: TableLog, folder: Path, keep_s: float | None = None) -> dict[str, Any]:
    return forget(log, ExportHistory(folder / "history.sqlite"), "s", b"k", keep_s=keep_s)


@pytest.mark.parametrize(
    ("said", "days"), [(None, 7), ("interval 30 days", 30), ("interval 1 week 2 days", 9), ("interval 36 hours", 1.5)]
)
def test_a_delta_table_says_how_long_files_are_kept(tmp_path: Path, said: str | None, days: float) -> None:
    name = "delta.deletedFileRetentionDuration"
    log = own_delta(tmp_path / "own", {} if said is None else {name: said})
    assert (log.is_own(), log.owners_rule().keep_s) == (False, days * DAY_S)
    made = open_table(parse_place(tmp_path / "made"), "delta")
    made.create(ROWS)
    assert (made.is_own(), made.owners_rule().keep_s) == (True, 0)


def test_what_is_no_interval_removes_nothing(tmp_path: Path) -> None:
    log = own_delta(tmp_path / "own", {"delta.deletedFileRetentionDuration": "interval 2 months"})
    with pytest.raises(ExportError, match=r"interval 2 months, which is no interval; nothing is removed"):
        log.expire(0)


def test_the_daemon_leaves_a_table_of_others_alone(tmp_path: Path) -> None:
    """Goal: it compacts and cleans where it was asked to, and then keeps the files for as long as their owner says."""
    log = own_delta(tmp_path / "own", {})
    for begin in range(0, 20, 5):
        export(log, begin, begin + 5)
    assert TableUpkeep(log).run().merged == 0
    asked = TableUpkeep(log, files_min=2, keep_s=0.0).run()
    assert (asked.merged, asked.files_after) == (4, 1)
    assert parquet_files(tmp_path / "own") == 5
    assert log.expire(0.0, exactly=True) == 4
    assert parquet_files(tmp_path / "own") == 1


def test_forgetting_names_what_keeps_the_rows(tmp_path: Path) -> None:
    log = own_delta(tmp_path / "own", {"delta.deletedFileRetentionDuration": "interval 30 days"})
    export(log, 0, 5)
    done = forgotten(log, tmp_path)
    assert (done["rows"], done["expired"]) == (5, 0)
    assert done["kept_by"] == "delta.deletedFileRetentionDuration = interval 30 days"
    again = forgotten(log, tmp_path, keep_s=0.0)
    assert (again["expired"], again["kept_by"]) == (1, "")
    assert parquet_files(tmp_path / "own") == 0


def test_iceberg_keeps_what_its_owner_says(tmp_path: Path) -> None:
    log, catalog = own_iceberg(tmp_path, ROWS)
    for begin in range(0, 20, 5):
        export(log, begin, begin + 5)
    table = catalog.load_table("lake.rows")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audit").commit()

    def say(**properties: str) -> None:
        with catalog.load_table("lake.rows").transaction() as change:
            change.set_properties({name.replace("_", "."): value for name, value in properties.items()})

    def count() -> int:
        return len(catalog.load_table("lake.rows").snapshots())

    assert not log.is_own()
    say(**{"history.expire.max-snapshot-age-ms": "86400000", "history.expire.min-snapshots-to-keep": "3"})
    assert log.owners_rule().keep_s == DAY_S
    log.expire(0)
    assert count() == 4
    say(**{"history.expire.max-snapshot-age-ms": "1"})
    log.expire(0)
    assert count() == 3
    say(gc_enabled="false")
    assert (log.expire(0, exactly=True), count()) == (0, 3)
    say(gc_enabled="true")
    done = forgotten(log, tmp_path, keep_s=0.0)
    assert (done["rows"], done["kept_by"], done["still_in"]) == (20, "", ["the tag audit"])
    catalog.load_table("lake.rows").manage_snapshots().remove_tag("audit").commit()
    assert forgotten(log, tmp_path, keep_s=0.0)["still_in"] == []
    assert count() == 1
    catalog.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_forgetting_where_the_clock_of_the_node_is_ahead(tmp_path: Path, is_known: bool) -> None:
    """Goal: no row stays because its time is later than the time here, also if the log has no times.

    Method: messages of tomorrow, exported by this version, or taken over from an earlier one.
    """
    log = open_table(parse_place(tmp_path / "lake"), "parquet")
    log.create(ROWS)
    ahead_us = time.time_ns() // 1000 + 86_400_000_000

    def late(wanted: IndexRange) -> Any:
        for batch in messages(wanted):
            times = pa.array([ahead_us + 7] * batch.num_rows, pa.timestamp("us", "UTC"))
            yield batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)

    of = Incarnation("s", 0, 0, 5)
    plan = log.files_plan(log.load(), ROWS)
    log.append(plan, write_ranges([IndexRange(of, 0, 5)], late, plan))
    assert log.load().positions[of].last_us == ahead_us + 7
    # The clock of the node is set back.
    export(log, 5, 8)
    if not is_known:
        file = tmp_path / "lake" / "messages" / "run=000002" / "_run.json"
        file.write_text(file.read_text().replace(str(log.load().positions[of].last_us), "0"))
        assert log.load().positions[of].last_us == 0
    done = forgotten(log, tmp_path)
    assert (done["rows"], done["until_us"] >= ahead_us + 7) == (8, True)
