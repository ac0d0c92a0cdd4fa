"""Draws the memory of an exporter over the steps of an export, as SVG. It measures nothing.

    python -m bench.draw_memory memory.json docs/plots/export-memory.svg

The soak test `tests/spark_export/exporter/test_memory.py` writes the JSON: a list of pairs, the exported rows and the
resident bytes after each step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bench.draw_plots import METADATA, SIZE_INCHES
from bench.plan import MIB


def draw_memory(steps: Sequence[tuple[int, int]]) -> Figure:
    """The plot, with a marker at each step; its y axis begins at 0."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(
        title="Memory of an exporter over its steps", xlabel="exported rows", ylabel="resident MiB"
    )
    axes.plot([rows for rows, _ in steps], [size / MIB for _, size in steps], marker="o", markersize=4)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.grid(color="#ddd")
    return figure


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw_memory(json.loads(source.read_text())).savefig(target, metadata=METADATA)
