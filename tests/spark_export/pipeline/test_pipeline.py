"""Goal: silver and gold say what the messages hold. Method: blocks and batches of our own makers, in an export's form;
the tables are read back with pyarrow. One test compares them with what Spark makes of the same export.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as pq

from block_node.blocks.generator import START_SECONDS
from spark_export.pipeline.increment import Settings, run_pipeline
from spark_export.pipeline.topics import Topics
from tests.spark_export.pipeline.lake import BASE_US, Headers, Lake, plain
from tests.spark_export.pipeline.makers import block_messages, cardinal_records

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""For tables of a few rows, for which Spark's preparations are most of the time."""
TOPICS = Topics(r"topic\..*")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("pipeline") / "lake")
    late = [{"key": "event_time_us", "value": b"%d" % (BASE_US + 119_500_000)}]
    wrong = [{"key": "event_time_us", "value": b"noon"}]
    records: list[tuple[int, bytes | None, Headers, bytes]] = [
        (n, record[0], [], record[1]) for n, record in enumerate(cardinal_records())
    ]
    lake.add_run(
        {
            "orders": plain([(0, b"k", [], b"abc"), (1, None, wrong, b"\xff"), (120, None, late, b"defgh")]),
            "block_node.main": plain(block_messages()),
            "topic.a": plain(records[:5]),
            "topic.b": plain((n, *record[1:]) for n, record in enumerate(records[5:])),
        }
    )
    return lake


@pytest.fixture(scope="module")
def tables(lake: Lake) -> Path:
    """The folder of all tables."""
    return run_pipeline(lake.folder, lake.folder.parent / "out", Settings(TOPICS)).folder


def rows(tables: Path, name: str, **where: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(tables.resolve() / name).to_pylist()
    return [row for row in found if all(row[key] == value for key, value in where.items())]


def test_messages_of_any_kind(tables: Path) -> None:
    found = {row["index"]: row for row in rows(tables, "silver/messages", stream="orders")}
    assert [(row["text"], row["data_bytes"]) for row in found.values()] == [("abc", 3), (None, 1), ("defgh", 5)]
    assert [row["event_time"] is None for row in found.values()] == [True, True, False]


def test_rates_gaps_and_latency(tables: Path) -> None:
    rates = rows(tables, "gold/rates", stream="orders")
    assert [(row["messages"], row["bytes"], row["max_bytes"]) for row in rates] == [(2, 4, 3), (1, 5, 5)]
    (gap,) = rows(tables, "gold/index_gaps", stream="orders")
    assert (gap["first"], gap["last"], gap["missing"]) == (2, 119, 118)
    (latency,) = rows(tables, "gold/latency", stream="orders")
    assert (latency["messages"], latency["p50_ms"], latency["max_ms"]) == (1, 500.0, 500.0)


def test_blocks_and_their_items(tables: Path) -> None:
    blocks = sorted(rows(tables, "silver/blocks"), key=lambda row: row["number"])
    assert [(row["chain"], row["number"], row["items"]) for row in blocks] == [("main", n, 12) for n in (0, 1, 3)]
    assert [int(row["event_time"].timestamp()) for row in blocks] == [START_SECONDS + 2 * n for n in (0, 1, 3)]
    assert blocks[1]["previous_root"] == blocks[0]["root"], "the root that block 1 says, not the one of the first guess"
    assert sum(count for _, count in blocks[0]["kinds"]) == 12
    items = rows(tables, "silver/items", number=1)
    assert [row["position"] for row in items] == list(range(12))
    assert (items[0]["kind"], items[-1]["kind"]) == ("header", "proof")
    (gap,) = rows(tables, "gold/block_gaps")
    assert (gap["chain"], gap["first"], gap["missing"]) == ("main", 2, 1)
    assert sum(row["messages"] for row in rows(tables, "gold/latency", stream="block_node.main")) == 3


def test_batches_updates_and_reorgs(tables: Path) -> None:
    batches = {row["hash"].rstrip(b"\0").decode(): row for row in rows(tables, "silver/batches")}
    assert {name: (row["number"], row["reorged"]) for name, row in batches.items()} == {
        "a": (1, False),
        "b": (2, False),
        "x": (2, True),
        "c": (3, False),
    }
    updates = {(row["key"], row["value"]) for row in rows(tables, "silver/updates")}
    assert updates == {
        ("k", b"1"),
        ("gone", None),
        ("state/one", b"v"),
        ("state/two", None),
        ("logs/new", b"l"),
        ("logs/old", None),
    }
    assert {row["number"] for row in rows(tables, "silver/updates", key="logs/new")} == {2}, "it came on another topic"
    (reorg,) = rows(tables, "gold/reorgs")
    assert (reorg["chain"], reorg["fork_number"], reorg["depth"], reorg["blocks"]) == (TOPICS.pattern, 1, 1, 1)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_makes_the_same_tables(spark: Any, lake: Lake, tables: Path) -> None:
    """The functions that take DataFrames, as the declarative pipeline uses them."""
    from spark_export.pipeline import gold, silver_cardinal
    from spark_export.pipeline.bronze import read_bronze
    from spark_export.pipeline.silver_blocks import silver_blocks, silver_items
    from spark_export.pipeline.silver_messages import silver_messages

    session = spark.newSession()
    for name, value in SMALL.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    bronze = read_bronze(session, lake.folder)
    messages, blocks = silver_messages(bronze), silver_blocks(bronze)
    whole = silver_cardinal.assembled_blocks(silver_cardinal.cardinal_messages(bronze, TOPICS))
    batches = silver_cardinal.silver_batches(whole)
    events = messages.select("stream", "timestamp", "event_time").unionByName(
        blocks.selectExpr("concat('block_node.', chain) AS stream", "timestamp", "event_time")
    )
    made = {
        "silver/messages": messages,
        "silver/blocks": blocks.drop("sizes"),
        "silver/items": silver_items(blocks),
        "silver/batches": batches,
        "silver/updates": silver_cardinal.silver_updates(whole, batches),
        "gold/rates": gold.rates(messages),
        "gold/latency": gold.latency(events),
        "gold/index_gaps": gold.gaps(messages, ["stream", "era", "partition"], "index"),
        "gold/block_gaps": gold.gaps(blocks, ["chain"], "number"),
        "gold/reorgs": gold.reorgs(batches),
    }
    for name, frame in made.items():
        found = frame.toArrow().to_pylist()
        expected = rows(tables, name)
        assert sorted(map(plain_row, found)) == sorted(map(plain_row, expected)), name
        assert found


def plain_row(row: dict[str, Any]) -> str:
    """A row as text, whatever the order of columns and of a map's entries."""
    return repr(sorted((name, sorted(value) if isinstance(value, list) else value) for name, value in row.items()))
