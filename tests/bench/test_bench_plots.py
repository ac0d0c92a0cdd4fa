"""The script that draws the plots: each point is where its figure belongs."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

SCRIPT = Path(__file__).parents[2] / "bench" / "draw_plots.py"
SVG = "{http://www.w3.org/2000/svg}"


def _sample(system: str, window: int, per_second: float) -> dict[str, object]:
    return {
        **{"work": "push", "system": system, "window": window, "messages": per_second, "seconds": 1},
        **{"size_bytes": 100, "streams": 1, "clients": 1, "log_messages": 0, "p50_us": None},
    }


def test_points_are_medians_at_their_place_on_logarithmic_axes(tmp_path: Path) -> None:
    """Goal: a plot shows what was measured. Method: three decades of a known line; equal steps between its points."""
    samples = [_sample("stream-node", 10**power, 1000 * 10**power) for power in range(4)]
    samples += [_sample("stream-node", 10, 1.0), _sample("stream-node", 10, 1e9), _sample("redis", 1, 1e5)]
    source, target = tmp_path / "report.json", tmp_path / "plots"
    source.write_text(json.dumps({"samples": samples}))
    subprocess.run([sys.executable, SCRIPT, source, target], check=True)
    assert [path.name for path in target.iterdir()] == ["windows.svg"]
    plot = ElementTree.fromstring((target / "windows.svg").read_text())
    places = [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]), circle.findtext(f"{SVG}title") or "")
        for circle in plot.iter(f"{SVG}circle")
    ]
    ours = [(x, y) for x, y, said in places if said.startswith("stream-node: ")]
    assert len(ours) == 4
    steps = {(round(x2 - x1), round(y2 - y1)) for (x1, y1), (x2, y2) in pairwise(ours)}
    ((right, down),) = steps
    assert right > 0 > down
    assert "redis: 100,000 at 1" in [said for _, _, said in places]


def test_tables_have_the_medians_and_take_the_place_of_those_before(tmp_path: Path) -> None:
    nothing = {"p99_us": None, "p999_us": None, "server_cpu_s": 0.5, "server_memory_bytes": 2**20}
    samples = [
        {**_sample("stream-node", 10, per_second), **nothing, "fsyncs_per_second": 5.0} for per_second in (1, 5, 999)
    ]
    report = {
        **{
            "started": "then",
            "machine": "this",
            "sqlite": "3",
            "load": [1.0],
            "versions": {},
            "absent": ["nats: gone"],
        },
        **{"samples": samples, "codecs": [], "goals": [{"what": "x", "at_most": True, "wanted": 2, "measured": 3.0}]},
    }
    source, document = tmp_path / "report.json", tmp_path / "performance.md"
    source.write_text(json.dumps(report))
    document.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    for _ in range(2):
        subprocess.run([sys.executable, SCRIPT.with_name("write_tables.py"), source, document], check=True)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| stream-node | 5 | 0.0 | 100,000.0 | 1 | 5 |" in text
    assert "| x | at most 2 | 3.00 | **no** |" in text
    assert "Not measured: nats: gone" in text
