"""Runs the whole pipeline as one Spark job: reads the folder EXPORT of an export, and writes silver and gold tables
into the folder OUT.

    python -m spark_export.pipeline.jobs EXPORT OUT [--cardinal REGEX]

Each build writes a new folder in OUT/builds. OUT/latest is a link to the last complete build, and changes when a new
build is complete. Every build computes all tables again, because a reorg changes rows of earlier builds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_export.exporter.layout import point_to, remove_tree
from spark_export.pipeline import gold
from spark_export.pipeline.bronze import read_bronze
from spark_export.pipeline.silver_blocks import silver_blocks, silver_items
from spark_export.pipeline.silver_cardinal import cardinal_messages, mark_reorged, silver_batches, silver_updates
from spark_export.pipeline.silver_messages import silver_messages

LATEST, BUILDS = "latest", "builds"
KEPT_BUILDS = 2
"""The number of builds that are kept: the last build, and the previous build for programs that still read it."""


def build(spark: Any, export: Path, out: Path, *, cardinal: str | None = None) -> Path:
    """Builds all tables. Returns the folder with the tables, which are the folders `silver/NAME` and `gold/NAME`.

    cardinal: a regular expression; streams whose whole name matches are read as topics of Cardinal Streams. None: no
    tables of Cardinal Streams are built.
    """
    folder = out.absolute() / BUILDS / f"{time.time_ns():020d}"
    bronze = read_bronze(spark, export)
    with _kept(silver_messages(bronze)) as messages:
        _write(messages, folder, "silver/messages")
        _write(gold.rates(messages), folder, "gold/rates")
        _write(gold.gaps(messages, ["stream", "partition"], "index"), folder, "gold/index_gaps")
        blocks = silver_blocks(bronze)
        _write(blocks.drop("sizes"), folder, "silver/blocks")
        _write(silver_items(blocks), folder, "silver/items")
        _write(gold.gaps(blocks, ["chain"], "number"), folder, "gold/block_gaps")
        events = messages.select("stream", "timestamp", "event_time").unionByName(
            blocks.selectExpr("chain AS stream", "timestamp", "event_time")
        )
        _write(gold.latency(events), folder, "gold/latency")
    if cardinal is not None:
        _build_cardinal(bronze, folder, cardinal)
    point_to(out.absolute() / LATEST, folder)
    for old in sorted((out.absolute() / BUILDS).iterdir())[:-KEPT_BUILDS]:
        remove_tree(old)
    return folder


def _build_cardinal(bronze: Any, folder: Path, topics: str) -> None:
    from pyspark.sql import functions as f

    messages = cardinal_messages(bronze.where(f.regexp_like("stream", f.lit(f"^(?:{topics})$"))))
    with _kept(mark_reorged(silver_batches(messages))) as batches:
        _write(batches, folder, "silver/batches")
        _write(silver_updates(messages, batches), folder, "silver/updates")
        _write(gold.reorgs(batches), folder, "gold/reorgs")


@contextmanager
def _kept(frame: Any) -> Iterator[Any]:
    """Caches a DataFrame inside the `with` block, so that Spark computes the DataFrame once for all tables made from
    it.
    """
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _write(frame: Any, folder: Path, name: str) -> None:
    frame.write.mode("error").parquet(str(folder / name))


def main() -> None:
    from spark_export.session import open_session

    parser = argparse.ArgumentParser(description="Build silver and gold tables from an export.")
    parser.add_argument("export", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cardinal", metavar="REGEX")
    given = parser.parse_args()
    spark = open_session(name="stream-node pipeline")
    try:
        build(spark, given.export, given.out, cardinal=given.cardinal)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
