"""A streaming query in a process of its own: `python -m tests.spark_export.streaming_child ENDPOINT STREAM FOLDER`.

Each micro-batch overwrites its own folder, so that a batch that is repeated after a kill is there once. It ends when it
has read all that was there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spark_export import open_session
from tests.spark_export.spark_queries import run_query


def main(endpoint: str, stream: str, folder: Path) -> None:
    spark = open_session("local[2,4]", name="streaming child")

    def keep(batch: Any, number: int) -> None:
        batch.select("partition", "index").write.mode("overwrite").parquet(str(folder / f"out/batch={number:06d}"))

    options = {"endpoint": endpoint, "subscribe": stream, "startingOffsets": "earliest"}
    frame = (
        spark.readStream.format("stream_node").options(columns="stream", **options, maxOffsetsPerTrigger="20000").load()
    )
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    run_query(writer.foreachBatch(keep))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
