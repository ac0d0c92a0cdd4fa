"""The last step of `stream-node demo`: exports a stream with Spark and queries the table in SQL, in one Spark session.

    python -m spark_export.exporter.demo FOLDER NODE STREAM

Prints one JSON object: the sizes and duration of the export, the query, and the columns and rows of its result. If Java
is missing, the object only has `skipped`, the reason why Spark cannot run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from spark_export.exporter.node_side import Selection
from spark_export.exporter.runs.job import ExportSettings, open_exporter
from spark_export.exporter.runs.run import ExportOutcome
from spark_export.exporter.runs.spark_engine import SparkEngine, no_output_of_java
from spark_export.java import JavaMissing, find_java_home
from spark_export.session import open_session

QUERY = """\
SELECT partition, count(*) AS messages, count(DISTINCT data) AS distinct_lines,
       round(sum(octet_length(data)) / 1e6, 1) AS mb, max(octet_length(data)) AS longest
FROM messages GROUP BY partition ORDER BY partition"""


def export_and_ask(folder: Path, node: str, stream: str) -> dict[str, Any]:
    """Exports the stream, queries the table, and returns the JSON object that this module prints.

    Raises ExportError, SourceError, ClientError.
    """
    try:
        find_java_home()
    except JavaMissing as error:
        return {"skipped": str(error)}
    with no_output_of_java():
        session = open_session()
    try:
        engine = SparkEngine("", None, {}, session=session)
        settings = ExportSettings(folder, node, selection=Selection((stream,)))

        async def main() -> ExportOutcome:
            async with open_exporter(settings, engine=engine) as exporter:
                return await exporter.run()

        outcome = asyncio.run(main())
        session.read.parquet(str(folder / "messages")).createOrReplaceTempView("messages")
        answer = session.sql(QUERY)
        return {
            "rows": outcome.rows,
            "data_bytes": outcome.data_bytes,
            "file_bytes": outcome.file_bytes,
            "seconds": outcome.seconds,
            "query": QUERY,
            "columns": answer.columns,
            "answer": [list(row) for row in answer.collect()],
        }
    finally:
        session.stop()


if __name__ == "__main__":
    target, address, name = sys.argv[1:]
    sys.stdout.write(json.dumps(export_and_ask(Path(target), address, name)) + "\n")
