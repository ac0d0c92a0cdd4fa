"""Goal: the upkeep and the verification of a table of the user's own keep what is not the exporter's.

Method: tables of Delta and Iceberg with other columns than an export's, without a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa

from spark_export.exporter.history import history_of
from spark_export.exporter.upkeep import forget
from spark_export.exporter.verify import verify
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import TableRefused
from spark_export.tables.files import write_ranges
from spark_export.tables.log import CatalogChoice, TableLog, open_table
from spark_export.tables.model import Incarnation, IndexRange

LEAST = [pa.field("stream", pa.string()), pa.field("partition", pa.int32()), pa.field("index", pa.int64())]
AT = datetime(2026, 11, 1, tzinfo=UTC)


def messages(wanted: IndexRange) -> Iterator[Any]:
    indexes = range(wanted.begin, wanted.end)
    times = pa.array([AT for _ in indexes], pa.timestamp("us", "UTC"))
    keys, data = pa.array([b"k" for _ in indexes]), pa.array([b"d" for _ in indexes])
    headers = pa.array([[] for _ in indexes], ROWS.field("headers").type)
    columns = [pa.array(indexes, pa.int64()), times, keys, headers, data]
    yield pa.record_batch(columns, ["index", "timestamp", "key", "headers", "data"])


def export(log: TableLog, begin: int, end: int, stream: str = "s") -> None:
    plan = log.files_plan(log.load(), ROWS)
    log.append(plan, write_ranges([IndexRange(Incarnation(stream, 0, 0, 5), begin, end)], messages, plan))


def own_iceberg(folder: Path, columns: Any) -> tuple[TableLog, Any]:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="the extra `iceberg` is not installed")
    options = {"type": "sql", "uri": f"sqlite:///{folder}/own.sqlite", "warehouse": f"file://{folder}"}
    catalog = catalogs.load_catalog("own", **options)
    catalog.create_namespace("lake")
    catalog.create_table("lake.rows", columns)
    log = open_table(parse_place(folder), "iceberg", {}, CatalogChoice("own", options, "lake.rows"))
    log.create(ROWS)
    return log, catalog


def own_table(folder: Path, table_format: str, columns: list[pa.Field]) -> TableLog:
    if table_format == "iceberg":
        return own_iceberg(folder, pa.schema(columns))[0]
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    deltalake.DeltaTable.create(str(folder / "own"), pa.schema(columns))
    return open_table(parse_place(folder / "own"), "delta")


def test_a_compaction_keeps_the_users_own_columns(tmp_path: Path) -> None:
    """Goal: also those with the name of a column of other formats, or with types that no message has."""
    own = [pa.field("timestamp", pa.timestamp("us", "UTC")), pa.field("date", pa.date32())]
    log, catalog = own_iceberg(tmp_path, pa.schema([*LEAST, *own, pa.field("made", pa.timestamp("us"))]))
    for begin in (0, 5):
        export(log, begin, begin + 5)
    made = datetime(2001, 2, 3)
    row = {"stream": "t", "partition": 0, "index": 1, "timestamp": AT, "date": date(1999, 1, 1), "made": made}
    table = catalog.load_table("lake.rows")
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    assert log.compact() == 3
    found = catalog.load_table("lake.rows").scan().to_arrow().to_pylist()
    assert [(each["date"], each["made"]) for each in found if each["stream"] == "t"] == [(date(1999, 1, 1), made)]
    assert {each["date"] for each in found if each["stream"] == "s"} == {None}
    assert len(found) == 11
    assert verify(log).problems == ()


def test_a_delta_table_without_an_era_is_verified(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    deltalake.DeltaTable.create(str(tmp_path / "own"), pa.schema([*LEAST, pa.field("data", pa.binary())]))
    log = open_table(parse_place(tmp_path / "own"), "delta")
    export(log, 0, 10)
    verdict = verify(log)
    assert (verdict.rows, verdict.removed, verdict.problems) == (10, 0, ())


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_nothing_is_forgotten_in_a_table_without_keys(tmp_path: Path, table_format: str) -> None:
    """Goal: a refusal in words, before a record is made by which later messages would be left out."""
    log = own_table(tmp_path, table_format, [*LEAST, pa.field("data", pa.binary())])
    export(log, 0, 10)
    before = log.load()
    for key in (None, b"k"):
        with pytest.raises(TableRefused, match="has no column timestamp"):
            forget(log, history_of(parse_place(tmp_path)), "s", key)
    assert log.load() == before


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_stream_is_forgotten_in_a_table_without_keys(tmp_path: Path, table_format: str) -> None:
    """Goal: only what names the rows to erase must be in the table. Method: a table with times, of which a whole stream
    is erased; to erase the rows of one key is refused."""
    log, history = (
        own_table(tmp_path, table_format, [*LEAST, ROWS.field("timestamp")]),
        history_of(parse_place(tmp_path)),
    )
    export(log, 0, 10)
    with pytest.raises(TableRefused, match="has no column key"):
        forget(log, history, "s", b"k")
    assert forget(log, history, "s", None)["rows"] == 10


def test_deltas_upkeep_leaves_out_names_that_are_no_folders(tmp_path: Path) -> None:
    """Goal: one stream with a long name does not keep all others from being merged. Method: deltalake writes merged
    rows into a folder of the stream's name, which is longer than a file system takes."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    log = open_table(parse_place(tmp_path / "lake"), "delta")
    log.create(ROWS)
    names = ["é" * 100, "x" * 248, "x" * 249]
    for name in names:
        export(log, 0, 5, name)
        export(log, 5, 10, name)
    assert (log.compact(), len(log.list_files()), log.compact()) == (2, 5, 0)
    rows = [(each["stream"], each["index"]) for batch in log.read(["stream", "index"]) for each in batch.to_pylist()]
    assert sorted(rows) == sorted((name, index) for name in names for index in range(10))


def test_deltas_rows_of_one_key_are_not_forgotten_in_a_name_that_is_no_folder(tmp_path: Path) -> None:
    """Goal: a refusal before a record is made, because deltalake could not write the rows of other keys again. Method:
    a stream with a long name; as a whole it can be forgotten."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    log = open_table(parse_place(tmp_path / "lake"), "delta")
    log.create(ROWS)
    export(log, 0, 5, "é" * 100)
    before = log.load()
    with pytest.raises(TableRefused, match="only the whole stream can be forgotten"):
        log.forget("é" * 100, b"k", 1 << 60)
    assert log.load() == before
    assert log.forget("é" * 100, None, 1 << 60) == 5
