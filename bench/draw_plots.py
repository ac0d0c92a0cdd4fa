"""Draws the plots of docs/performance.md, as SVG, from a report of `python -m bench --output`. It measures nothing.

    python -m bench.draw_plots bench/results/bench.json docs/plots

Each plot has logarithmic axes and a line for each system; a point is the median of its rounds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import matplotlib
import msgspec
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from bench.plan import MIB
from bench.report import Report, Sample

SIZE_INCHES = (7.0, 3.8)
# The same report makes the same file: no date, and ids that do not change. Text stays text, so that it can be searched.
matplotlib.rcParams.update({"svg.hashsalt": "stream-node", "svg.fonttype": "none"})
METADATA = {"Date": None}

Points = list[tuple[float, float]]


class Plot(NamedTuple):
    """One plot. work, also: the works whose samples it shows. across: the field along the x axis. up: returns the
    figure of a sample for the y axis, or None."""

    name: str
    title: str
    work: str
    across: str
    across_label: str
    up: Callable[[Sample], float | None]
    up_label: str
    also: str = ""


def _rate(sample: Sample) -> float | None:
    return sample.per_second or None


def _mib_rate(sample: Sample) -> float | None:
    return sample.bytes_per_second / MIB or None


def _p50(sample: Sample) -> float | None:
    return sample.p50_us


PLOTS = (
    Plot("windows", "Durable pushes by window", "push", "window", "unconfirmed pushes", _rate, "messages/s", "latency"),
    Plot("sizes", "Durable pushes by size", "push by size", "size_bytes", "bytes a message", _rate, "messages/s"),
    Plot("volume", "Durable bytes by size", "push by size", "size_bytes", "bytes a message", _mib_rate, "MiB/s"),
    Plot("streams", "Durable pushes by streams", "push by streams", "streams", "streams", _rate, "messages/s"),
    Plot("clients", "Durable pushes by clients", "push by clients", "clients", "connections", _rate, "messages/s"),
    Plot("fanout", "Deliveries by consumers", "fanout", "clients", "consumers", _rate, "deliveries/s"),
    Plot("logs", "Pulls from anywhere in a log", "pull by log", "log_messages", "stored messages", _p50, "p50 µs"),
)


def points_of(plot: Plot, samples: Sequence[Sample]) -> dict[str, Points]:
    """The points of each line, by its name, from left to right."""
    lines: dict[str, dict[float, list[float]]] = {}
    for sample in samples:
        figure = plot.up(sample)
        if sample.work in (plot.work, plot.also) and figure:
            lines.setdefault(_line(plot, sample), {}).setdefault(getattr(sample, plot.across), []).append(figure)
    return {
        name: sorted((across, median(figures)) for across, figures in by_across.items())
        for name, by_across in lines.items()
    }


def draw(plot: Plot, lines: dict[str, Points]) -> Figure:
    """The plot, with a marker at each point."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(title=plot.title, xlabel=plot.across_label, ylabel=plot.up_label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
        axis.set_minor_formatter(NullFormatter())
    # Whole decades, so that at least two ticks have a label however small the range of the figures is.
    heights = [math.log10(y) for points in lines.values() for _, y in points]
    axes.set_ylim(10.0 ** math.floor(min(heights)), 10.0 ** (math.floor(max(heights)) + 1))
    for name, points in lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=name)
    axes.grid(color="#ddd")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _line(plot: Plot, sample: Sample) -> str:
    """The name of a sample's line: the system; for pulls by log also the page; for pushes by streams the window."""
    system = sample.system.partition(",")[0]
    if plot.work == "push by streams":
        return f"{sample.window:,} unconfirmed"
    return f"{system}, {sample.window:,} a page" if plot.work == "pull by log" else system


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    samples = msgspec.json.decode(source.read_bytes(), type=Report).samples
    target.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        lines = points_of(plot, samples)
        if lines:
            draw(plot, lines).savefig(target / f"{plot.name}.svg", metadata=METADATA)


if __name__ == "__main__":
    main()
