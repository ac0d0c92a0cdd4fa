"""Goal: silver and gold say what the messages hold. Method: blocks and batches of our own makers, in an export's table;
the tables are read back with deltalake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from block_node.blocks.generator import START_SECONDS
from spark_export.pipeline.bronze import read_bronze
from spark_export.pipeline.run import Pipeline
from spark_export.pipeline.silver_cardinal import Topics
from spark_export.pipeline.step import Settings
from tests.spark_export.pipeline.lake import BASE_US, Lake, plain, read_rows
from tests.spark_export.pipeline.makers import Headers, block_messages, cardinal_records

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS = Topics(r"topic\..*")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, session: Any) -> Path:
    """The folder of all tables."""
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
    Pipeline(lake.table, lake.folder.parent / "out", Settings(TOPICS)).run(session)
    return lake.folder.parent / "out"


def rows(tables: Path, name: str, **where: Any) -> list[dict[str, Any]]:
    return [row for row in read_rows(tables, name) if all(row[key] == value for key, value in where.items())]


def test_messages_of_any_kind(tables: Path) -> None:
    found = {
        row["index"]: row
        for row in sorted(rows(tables, "silver/messages", stream="orders"), key=lambda row: row["index"])
    }
    assert [(row["text"], row["data_bytes"]) for row in found.values()] == [("abc", 3), (None, 1), ("defgh", 5)]
    assert [row["event_time"] is None for row in found.values()] == [True, True, False]


def test_rates_gaps_and_latency(tables: Path) -> None:
    rates = sorted(rows(tables, "gold/rates", stream="orders"), key=lambda row: row["minute"])
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
    assert sum(count for _, count in dict(blocks[0]["kinds"]).items()) == 12
    items = sorted(rows(tables, "silver/items", number=1), key=lambda row: row["position"])
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


def test_two_sessions_of_one_process_read_the_same_export(session: Any, tmp_path: Path) -> None:
    """Spark refuses to register a format in one session while the active session is another one that has it."""
    lake = Lake(tmp_path / "lake")
    lake.add_run({"orders": plain([(0, None, [], b"x")])})
    for each in (session, session.newSession()):
        assert read_bronze(each, lake.table).count() == 1
