"""A child process that exports a stream in steps, and prints after each step the rows so far and its resident memory.

python -m tests.spark_export.exporter.steps_child FOLDER NODE STREAM ROWS_MAX
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import Selection
from spark_export.exporter.planning import ExportStep
from spark_export.exporter.run import Exporter

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def main(folder: str, node: str, stream: str, rows_max: str) -> None:
    rows = 0

    def told(step: ExportStep) -> None:
        nonlocal rows
        rows += step.rows
        sys.stdout.write(json.dumps([rows, resident_bytes()]) + "\n")

    settings = ExportSettings(Path(folder), node, selection=Selection((stream,)), rows_max=int(rows_max))
    with Exporter(settings) as exporter:
        exporter.run(on_step=told)


if __name__ == "__main__":
    main(*sys.argv[1:])
