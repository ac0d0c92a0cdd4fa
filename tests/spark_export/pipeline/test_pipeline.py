"""Goal: silver and gold say what the messages hold. Method: blocks and batches of our own makers, in an export's form.

A whole build with an embedded Spark; the tables are read back with pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from block_node.blocks.generator import START_SECONDS, BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.items import join_block
from block_node.blocks.keys import SigningKeys
from block_node.persist.mark import BlockMark, headers_of, key_of
from cardinal_streams.message.messages import encode
from cardinal_streams.message.types import Batch, BatchDeleteMsg, BatchMsg, Record, SubBatchMsg
from spark_export.exporter.hive_names import hive_folder
from spark_export.exporter.parquet_table import run_folder
from spark_export.exporter.write_files import ERA, FILE_SCHEMA, TableWriter
from spark_export.pipeline.jobs import build
from stream_service.stored import decode_extras

pytestmark = [pytest.mark.spark, pytest.mark.soak]

BASE_US = 1_750_000_000_000_000
CUT_BYTES = 700
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""For tables of a few rows, for which Spark's preparations are most of the time."""
Headers = list[dict[str, Any]]


class Export:
    """A folder as an export has it, filled by hand: each stream's messages are a second apart, in partition 0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, stream: str, messages: Sequence[tuple[int, bytes | None, Headers, bytes]]) -> None:
        """index, key, headers and data of each."""
        columns = {
            "partition": [0] * len(messages),
            "index": [each[0] for each in messages],
            "timestamp": [BASE_US + each[0] * 1_000_000 for each in messages],
            "key": [each[1] for each in messages],
            "headers": [each[2] or None for each in messages],
            "data": [each[3] for each in messages],
            ERA: [0] * len(messages),
        }
        folder = self.folder / "messages" / run_folder(1)
        (folder / "new").mkdir(parents=True)
        writer = TableWriter(folder / "new", "part")
        arrays = [pa.array(columns[field.name], field.type) for field in FILE_SCHEMA]
        writer.write(stream, 0, pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA))
        for entry in writer.close():
            place = folder / hive_folder(stream, entry.date)
            place.mkdir(parents=True)
            (folder / "new" / entry.path).rename(place / entry.path)
        (folder / "new").rmdir()


def block_messages() -> list[tuple[int, bytes | None, Headers, bytes]]:
    """Blocks 0, 1 and 3 of a chain, each cut into several messages.

    The node stored block 0 under another root that it may have; the first message of block 1 says which one it is.
    """
    wrong = bytes(48)
    first: GeneratedBlock | None = None
    messages: list[tuple[int, bytes | None, Headers, bytes]] = []
    for block in ChainGenerator(SigningKeys.generate(), shape=BlockShape(item_count=12)).blocks(4):
        if block.number == 2:
            continue
        data = join_block(block.items)
        parts = [data[at : at + CUT_BYTES] for at in range(0, len(data), CUT_BYTES)]
        for number, part in enumerate(parts):
            root = wrong if block.number == 0 else block.root
            mark = BlockMark(block.number, number, len(parts), len(block.items), len(data), root)
            others = (block.root,) if block.number == 0 else ()
            before = first.root if first is not None and (block.number, number) == (1, 0) else b""
            beside = decode_extras(headers_of(mark, others, before)).headers
            headers = [{"key": header.name, "value": header.value} for header in beside]
            messages.append((len(messages), key_of(block.number), headers, part))
        first = first or block
    return messages


def name_of(text: str) -> bytes:
    return text.encode().ljust(32, b"\0")


def cardinal_records() -> list[Record]:
    """a - b - c, and x beside b, which c made obsolete; b is announced by two producers."""

    def batch(name: str, parent: str, number: int, **updates: Any) -> Record:
        return encode(Batch(name_of(name), number, name_of(parent), number * 10, **updates))

    b = batch("b", "a", 2, counts={"state/": 2}, sub_batches={"logs/": name_of("s")})
    return [
        batch("a", "0", 1, values={"k": b"1"}, deletes=frozenset({"gone"})),
        batch("x", "a", 2),
        b,
        b,
        encode(BatchMsg(name_of("b"), "state/one", b"v")),
        encode(BatchDeleteMsg(name_of("b"), "state/two")),
        encode(SubBatchMsg(name_of("b"), name_of("s"), 0, ("logs/old",), {"logs/new": b"l"})),
        batch("c", "b", 3),
    ]


@pytest.fixture(scope="module")
def tables(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole build."""
    folder = tmp_path_factory.mktemp("pipeline")
    export = Export(folder / "lake")
    late = [{"key": "event_time_us", "value": b"%d" % (BASE_US + 119_500_000)}]
    wrong = [{"key": "event_time_us", "value": b"noon"}]
    export.add("orders", [(0, b"k", [], b"abc"), (1, None, wrong, b"\xff"), (120, None, late, b"defgh")])
    export.add("block_node.main", block_messages())
    export.add("topic.a", [(n, *(record[0], [], record[1])) for n, record in enumerate(cardinal_records())])
    session = spark.newSession()
    for name, value in SMALL.items():
        session.conf.set(name, value)
    build(session, export.folder, folder / "out", cardinal=r"topic\..*")
    return folder / "out" / "latest"


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
    assert sum(row["messages"] for row in rows(tables, "gold/latency", stream="main")) == 3


def test_batches_updates_and_reorgs(tables: Path) -> None:
    batches = {row["hash"].rstrip(b"\0").decode(): row for row in rows(tables, "silver/batches")}
    assert {name: (row["number"], row["reorged"]) for name, row in batches.items()} == {
        "a": (1, False),
        "b": (2, False),
        "x": (2, True),
        "c": (3, False),
    }
    updates = {(row["key"], row["value"], row["source"]) for row in rows(tables, "silver/updates")}
    assert updates == {
        ("k", b"1", "batch"),
        ("gone", None, "batch"),
        ("state/one", b"v", "message"),
        ("state/two", None, "message"),
        ("logs/new", b"l", "sub_batch"),
        ("logs/old", None, "sub_batch"),
    }
    assert {row["number"] for row in rows(tables, "silver/updates", source="message")} == {2}
    (reorg,) = rows(tables, "gold/reorgs")
    assert (reorg["stream"], reorg["fork_number"], reorg["depth"], reorg["blocks"]) == ("topic.a", 1, 1, 1)
