"""A query that copies a stream, in a process of its own.

`python -m tests.spark_export.sink.sink_child ENDPOINT SOURCE TARGET FOLDER PLAN`

PLAN: `rows` copies each task's rows as they come, `shuffle` brings them together by key first. It ends when it has
copied all that was there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark_export import open_session
from tests.spark_export.spark_queries import run_query

ROWS_PER_BATCH = 6_000


def main(endpoint: str, source: str, target: str, folder: Path, plan: str) -> None:
    spark = open_session("local[2,8]", name="sink child", config={"spark.sql.shuffle.partitions": "3"})
    options = {"endpoint": endpoint, "subscribe": source, "startingOffsets": "earliest"}
    frame = (
        spark.readStream.format("stream_node")
        .options(columns="stream", **options, maxOffsetsPerTrigger=str(ROWS_PER_BATCH))
        .load()
    )
    frame = frame.select("key", "data")
    if plan == "shuffle":
        frame = frame.repartition("key")
    writer = frame.writeStream.format("stream_node").option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.options(endpoint=endpoint, stream=target, partitions="2")
    run_query(writer)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
