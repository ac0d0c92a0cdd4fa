"""Draws the plots of docs/performance.md, as SVG, from a report of `python -m bench --output`. It measures nothing.

    python bench/draw_plots.py bench/results/bench.json docs/plots

Each plot has logarithmic axes and a line for each system; a point is the median of its rounds.
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 40, 50
COLOURS = ("#1b6ca8", "#c8553d", "#588b3f", "#8a5aa8", "#b88a1b")

Sample = dict[str, Any]
Points = list[tuple[float, float]]


class Plot(NamedTuple):
    """work: whose samples; across: the field along the x axis; up: the figure of a sample, None where it has none."""

    name: str
    title: str
    work: str
    across: str
    across_label: str
    up: Callable[[Sample], float | None]
    up_label: str


def _rate(sample: Sample) -> float | None:
    seconds: float = sample["seconds"]
    return sample["messages"] / seconds if seconds else None


def _mib_rate(sample: Sample) -> float | None:
    rate = _rate(sample)
    return None if rate is None else rate * sample["size_bytes"] / 2**20


def _p50(sample: Sample) -> float | None:
    p50_us: float | None = sample["p50_us"]
    return p50_us


PLOTS = (
    Plot("windows", "Durable pushes by window", "push", "window", "unconfirmed pushes", _rate, "messages/s"),
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
        if sample["work"] == plot.work and figure:
            lines.setdefault(_line(plot, sample), {}).setdefault(sample[plot.across], []).append(figure)
    return {
        name: sorted((across, median(figures)) for across, figures in by_across.items())
        for name, by_across in lines.items()
    }


def draw(plot: Plot, lines: dict[str, Points]) -> str:
    """The plot as SVG."""
    every = [point for points in lines.values() for point in points]
    x_decades = _decades([x for x, _ in every])
    y_decades = _decades([y for _, y in every])
    x_at = _scale(x_decades, LEFT, WIDTH - RIGHT)
    y_at = _scale(y_decades, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, plot.title, "start", "bold"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, plot.across_label),
        _text(LEFT - 8, TOP - 8, plot.up_label, "end"),
    ]
    for decade in range(x_decades[0], x_decades[1] + 1):
        x = x_at(10.0**decade)
        parts.append(_rule(x, TOP, x, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, _short(10.0**decade)))
    for decade in range(y_decades[0], y_decades[1] + 1):
        y = y_at(10.0**decade)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y))
        parts.append(_text(LEFT - 8, y + 4, _short(10.0**decade), "end"))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            said = html.escape(f"{name}: {y:,.0f} at {x:,.0f}")
            parts.append(
                f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"><title>{said}</title></circle>'
            )
        parts.append(_text(WIDTH - RIGHT + 12, TOP + 12 + 18 * number, name, "start", fill=colour))
    return "\n".join([*parts, "</svg>", ""])


def _line(plot: Plot, sample: Sample) -> str:
    """The line that a sample is on: that of its system; for pulls also of its page, for streams of its window."""
    system = str(sample["system"]).partition(",")[0]
    if plot.work == "push by streams":
        return f"{sample['window']:,} unconfirmed"
    return f"{system}, {sample['window']:,} a page" if plot.work == "pull by log" else system


def _decades(figures: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    return low, max(high, low + 1)


def _scale(decades: tuple[int, int], first: float, last: float) -> Callable[[float], float]:
    low, high = decades
    return lambda figure: first + (math.log10(figure) - low) / (high - low) * (last - first)


def _short(figure: float) -> str:
    for unit, divisor in (("M", 1e6), ("k", 1e3)):
        if figure >= divisor:
            return f"{figure / divisor:g}{unit}"
    return f"{figure:g}"


def _text(x: float, y: float, text: str, anchor: str = "middle", weight: str = "normal", fill: str = "#333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
        f"{html.escape(text)}</text>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    samples = json.loads(source.read_text())["samples"]
    target.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        lines = points_of(plot, samples)
        if lines:
            (target / f"{plot.name}.svg").write_text(draw(plot, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
