"""Goal: the declarative pipeline of `examples/pipeline` makes the tables of `stream-node pipeline`, run after run.

Method: one node with messages, blocks and batches; Spark's own command, twice; an export and its pipeline beside it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
pytest.importorskip("grpc", reason="the extra `spark-connect` is not installed")
pytest.importorskip("yaml", reason="the extra `spark-connect` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.exporter.node_side import Selection
from spark_export.pipeline.bronze import BronzeTable
from spark_export.pipeline.run import Pipeline
from spark_export.pipeline.silver_cardinal import Topics
from spark_export.pipeline.step import Settings
from stream_node.node.process import NodeProcess
from stream_service.extensions import Extras, Header, encode_extras
from stream_storage.contract import Append
from stream_storage.sqlite.database import Database
from tests.spark_export.exporter.export_world import World
from tests.spark_export.pipeline.lake import BASE_US, read_table
from tests.spark_export.pipeline.makers import Headers, block_messages, cardinal_records
from tests.spark_export.spark_connect import ROOT, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.soak]

TABLES = {
    "messages": "silver/messages",
    "blocks": "silver/blocks",
    "items": "silver/items",
    "batches": "silver/batches",
    "updates": "silver/updates",
    "rates": "gold/rates",
    "latency": "gold/latency",
    "index_gaps": "gold/index_gaps",
    "block_gaps": "gold/block_gaps",
    "reorgs": "gold/reorgs",
}
"""Of the declarative pipeline, and of ours."""
TOPICS = r"topic[.].*"
Messages = list[tuple[int, bytes | None, Headers, bytes]]


def store(data_dir: Path, streams: dict[str, Messages]) -> None:
    """Put messages into a log as the node does; some of its streams are not for clients to push to."""
    database = Database.open(data_dir)
    try:
        session = database.session()
        for name, messages in streams.items():
            session.begin()
            stream_id = session.log.ensure_stream(name, 0, 1).stream_id
            for number, (_, key, headers, data) in enumerate(messages):
                beside = Extras([Header(each["key"], each["value"]) for each in headers], None)
                stored = encode_extras(beside) if headers else None
                time_us = BASE_US + number * 1_000_000
                session.log.append([Append(stream_id, number, time_us, [data], [key], [stored])])
            session.commit()
        session.close()
    finally:
        database.close()


def rows(table: pa.Table) -> list[str]:
    """A table's rows as text, sorted, whatever the order of its columns and of maps.

    Times are in microseconds since 1970: Spark and deltalake write them in different types.
    """
    for place, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            times = table.column(place).cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            table = table.set_column(place, column.name, times)
    return sorted(repr(sorted((name, _plain(value)) for name, value in each.items())) for each in table.to_pylist())


def _plain(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, list) else value


def test_the_tables_are_those_of_the_other_pipeline(session: Any, tmp_path: Path) -> None:
    late: Headers = [{"key": "event_time_us", "value": b"%d" % (BASE_US - 500_000)}]
    records: Messages = [(n, *(record[0], [], record[1])) for n, record in enumerate(cardinal_records())]
    orders: Messages = [(n, b"k", late if n % 2 else [], b"x" * n) for n in range(20)]
    store(tmp_path / "data", {"orders": orders, "block_node.main": block_messages(), "topic.a": records})
    place = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", place)
    spec = place / "spark-pipeline.yml"
    spec.write_text(re.sub(r"(?m)^storage: .*", f"storage: file://{place}/storage", spec.read_text()))
    with NodeProcess(tmp_path / "data") as node:
        variables = {"STREAM_NODE_ADDRESS": node.address, "STREAM_NODE_CARDINAL": TOPICS}
        run_pipeline(place, **variables)
        world = World(tmp_path / "lake", node, "orders")
        world.push(30, partitions=2)
        run_pipeline(place, **variables)
        assert world.run(selection=Selection()).rows == 20 + 30 + len(block_messages()) + len(records)
    Pipeline(BronzeTable(str(world.folder)), tmp_path / "out", Settings(Topics(TOPICS))).run(session)
    for name, ours in TABLES.items():
        found = rows(pq.ParquetDataset(place / "spark-warehouse" / name).read())
        assert found == rows(read_table(tmp_path / "out", ours)), name
        assert found or name == "index_gaps", name
