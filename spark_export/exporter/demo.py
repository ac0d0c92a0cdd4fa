"""The last step of `stream-node demo`: Spark exports a stream, is killed in the middle, goes on, and answers in SQL.

    python -m spark_export.exporter.demo FOLDER NODE STREAM

Prints one JSON object: the sizes and duration of the export, the rows that were exported before the kill, the query,
and the columns and rows of its result. If Java is missing, the object only has `skipped`, the reason why Spark cannot
run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_export.exporter.history import history_of
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.pipeline.bronze import BronzeTable, read_bronze
from spark_export.session import JavaMissing, find_java_home, open_session
from spark_export.tables.address import parse_place
from spark_export.tables.errors import ExportError
from spark_export.tables.log import open_table

STEPS = 4
"""About how many steps the export takes. The daemon is killed after the first one."""
POLL_S = 0.1
TIMEOUT_S = 600.0
"""How long one daemon may take, in seconds: a bound for a machine that does much else, not an estimate."""
QUERY = """\
SELECT partition, count(*) AS messages, count(DISTINCT data) AS distinct_lines,
       round(sum(octet_length(data)) / 1e6, 1) AS mb, max(octet_length(data)) AS longest
FROM messages GROUP BY partition ORDER BY partition"""


def export_and_ask(folder: Path, node: str, stream: str) -> dict[str, Any]:
    """Exports the stream, queries the table, and returns the JSON object that this module prints."""
    try:
        find_java_home()
    except JavaMissing as error:
        return {"skipped": str(error)}
    started_s = time.monotonic()
    total = sum(each.next_index for each in NodeSide(node).list_ends(Selection((stream,))))
    command = [sys.executable, "-m", "stream_node", "export", "daemon", str(folder), "--node", node, "--stream", stream]
    command += ["--every", "1s", "--rows-max", str(max(1, total // STEPS))]
    before = _run_until(command, folder, 1, signal.SIGKILL)
    _run_until(command, folder, total, signal.SIGTERM)
    seconds = time.monotonic() - started_s
    view = history_of(parse_place(folder)).load_view(0, 1)
    session = open_session()
    try:
        read_bronze(session, BronzeTable(str(folder))).createOrReplaceTempView("messages")
        answer = session.sql(QUERY)
        rows = answer.collect()
        return {
            "rows": sum(row["messages"] for row in rows),
            "rows_before_kill": before,
            "data_bytes": view.data_bytes,
            "file_bytes": view.file_bytes,
            "seconds": seconds,
            "query": QUERY,
            "columns": answer.columns,
            "answer": [list(row) for row in rows],
        }
    finally:
        session.stop()


def _run_until(command: list[str], folder: Path, rows: int, number: int) -> int:
    """Runs the daemon until the table has `rows` rows; ends it by the signal `number`. Returns the final row count."""
    deadline_s = time.monotonic() + TIMEOUT_S
    log = open_table(parse_place(folder))

    def exported() -> int:
        return sum(each.end for each in log.load().positions.values()) if log.exists() else 0

    told = folder.with_name(f"{folder.name}-daemon.log")
    with told.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True)
    try:
        while exported() < rows:
            if daemon.poll() is not None or time.monotonic() >= deadline_s:
                said = told.read_text(errors="replace").splitlines() or ["it said nothing"]
                raise ExportError(f"the daemon ended, or did not export the stream in {TIMEOUT_S:g} s: {said[-1]}")
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(POLL_S)
    finally:
        # The signal also ends the daemon's Java, as on a machine that loses its power.
        os.killpg(daemon.pid, number)
        daemon.wait()
    return exported()


if __name__ == "__main__":
    target, address, name = sys.argv[1:]
    sys.stdout.write(json.dumps(export_and_ask(Path(target), address, name)) + "\n")
