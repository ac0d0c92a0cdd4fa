"""The plots and tables of docs/performance.md: each point and each cell is the figure of its samples."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from bench.report import Report

ROOT = Path(__file__).parents[2]


def _sample(system: str, window: int, per_second: float) -> dict[str, object]:
    return {
        **{"work": "push", "system": system, "window": window, "messages": int(per_second), "seconds": 1},
        **{"size_bytes": 100, "streams": 1, "clients": 1, "log_messages": 0, "p50_us": None},
    }


def _report(samples: list[dict[str, object]]) -> dict[str, object]:
    return {"started": "then", "machine": "this", "sqlite": "3", "quick": False, "load": [1.0], "samples": samples}


def _run(module: str, *arguments: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", f"bench.{module}", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT)


def _decades() -> list[dict[str, object]]:
    """Ours on a straight line over four decades, the second point as the median of three; one point of another."""
    samples = [_sample("stream-node", 10**power, 1000 * 10**power) for power in range(4)]
    samples += [_sample("stream-node", 10, 1), _sample("stream-node", 10, 1e9), _sample("redis", 1, 1e5)]
    return samples


def test_points_are_medians_at_their_place_on_logarithmic_axes() -> None:
    """Goal: a plot shows what was measured. Method: three decades of a known line; equal steps between its points."""
    # matplotlib takes half a second, and every process of a parallel run imports this module.
    from bench.draw_plots import PLOTS, draw, points_of

    report = msgspec.convert(_report(_decades()), type=Report)
    plot = next(plot for plot in PLOTS if plot.name == "windows")
    points = points_of(plot, report.samples)
    assert points == {"stream-node": [(1, 1e3), (10, 1e4), (100, 1e5), (1_000, 1e6)], "redis": [(1, 1e5)]}
    figure = draw(plot, points)
    figure.draw_without_rendering()
    axes: Any = figure.axes[0]
    drawn = {line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines}
    assert drawn == points
    places = [axes.transData.transform(point) for point in drawn["stream-node"]]
    steps = [(right[0] - left[0], right[1] - left[1]) for left, right in pairwise(places)]
    assert all(step == pytest.approx(steps[0]) and min(step) > 0 for step in steps)
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (
        *("Durable pushes by window", "unconfirmed pushes", "messages/s"),
    )


def test_a_report_becomes_one_file_for_each_plot_that_has_samples(tmp_path: Path) -> None:
    """Goal: `make bench` changes files only where figures changed. Method: draw twice, and compare the bytes."""
    source = tmp_path / "report.json"
    source.write_text(json.dumps(_report(_decades())))
    for target in (tmp_path / "once", tmp_path / "again"):
        _run("draw_plots", source, target)
        assert [path.name for path in target.iterdir()] == ["windows.svg"]
    drawn, again = ((tmp_path / name / "windows.svg").read_bytes() for name in ("once", "again"))
    assert drawn == again
    texts = {
        "".join(text.itertext()).strip() for text in ElementTree.fromstring(drawn).iter() if text.tag.endswith("}text")
    }
    assert {"Durable pushes by window", "stream-node", "redis"} <= texts


def test_tables_have_the_medians_and_take_the_place_of_those_before(tmp_path: Path) -> None:
    nothing = {"p99_us": None, "p999_us": None, "server_cpu_s": 0.5, "server_memory_bytes": 2**20}
    samples = [
        {**_sample("stream-node", 10, per_second), **nothing, "fsyncs_per_second": 5.0} for per_second in (1, 5, 999)
    ]
    report = {
        **_report(samples),
        **{"versions": {}, "absent": ["nats: gone"], "codecs": []},
        **{"goals": [{"what": "x", "at_most": True, "wanted": 2, "measured": 3.0}]},
    }
    source, document = tmp_path / "report.json", tmp_path / "performance.md"
    source.write_text(json.dumps(report))
    document.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    for _ in range(2):
        _run("write_tables", source, document)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| stream-node | 5 | 0.0 | 100,000.0 | 1 | 5 |" in text
    assert "| x | at most 2 | 3.00 | **no** |" in text
    assert "Not measured: nats: gone" in text
