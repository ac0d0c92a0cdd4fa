"""The last step of the demo: Spark exports the stream to a table and queries the table, in a separate process.
If Spark is not installed, this step is skipped and reported so. The demo does not install Spark; `make demo` does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from stream_node.demo.proof import DemoFailed

TIMEOUT_S = 1_500.0


class DemoExport(msgspec.Struct, frozen=True):
    """The result of the export. columns, answer: the result of `query`, in SQL, on the table.

    rows_before_kill: the rows that the table had when the exporter was killed; another one exported the rest."""

    rows: int
    rows_before_kill: int
    data_bytes: int
    file_bytes: int
    seconds: float
    query: str
    columns: list[str]
    answer: list[list[int | float]]


def export(folder: Path, node: str, stream: str) -> DemoExport | str:
    """Exports the stream into the folder. Returns a text with the reason if Spark is not installed. Raises
    DemoFailed."""
    if importlib.util.find_spec("pyspark") is None:
        return "the extra `spark` is not installed (sh tools/spark.sh)"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spark_export.exporter.demo", str(folder), node, stream],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the export did not end in {TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise DemoFailed(f"the export failed: {lines[-1]}")
    report = json.loads(done.stdout.splitlines()[-1])
    if "skipped" in report:
        return str(report["skipped"])
    return msgspec.convert(report, DemoExport)
