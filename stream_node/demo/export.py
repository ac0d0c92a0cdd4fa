"""The demo's last step: Spark exports the stream, and answers a query over the table. It runs in a process of its own.

If Spark is not installed, the step is skipped with a word. The demo installs no Spark (`make demo` does).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from stream_node.demo.errors import DemoFailed

TIMEOUT_S = 300.0


class Exported(msgspec.Struct, frozen=True):
    """The outcome of the export, and a query over the table with its answer, row by row."""

    rows: int
    data_bytes: int
    file_bytes: int
    seconds: float
    query: str
    columns: list[str]
    answer: list[list[int | float]]


def export(folder: Path, node: str, stream: str) -> Exported | str:
    """Export, and return the outcome; or return the reason why Spark is not here. Raises DemoFailed if Spark fails."""
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
    return msgspec.convert(report, Exported)
