"""Goal: the bench of a flood measures both identities on real nodes. Method: its smallest plan, as a program."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.goals import goals
from bench.plan import QUICK
from bench.report import OURS, Report
from bench.works import flood


@pytest.mark.soak
def test_a_flood_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way and window has times beside the flood and without it, and the goals have a figure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(flood, "WAYS", {OURS: flood.WAYS[OURS]})
    plan = msgspec.structs.replace(QUICK, single=20)
    report = Report(started="", machine="", sqlite="", quick=True)
    report.samples += flood.samples(plan, tmp_path)
    assert [(sample.system, sample.window) for sample in report.samples] == [
        (system, window) for window in flood.WINDOWS for system in (flood.ALONE, OURS)
    ]
    assert all(sample.p99_us for sample in report.samples)
    found = [goal for goal in goals(report) if "limits for the flooder" in goal.what]
    assert len(found) == len(flood.WINDOWS)
    assert all(goal.measured for goal in found)
    assert [path.name for path in tmp_path.iterdir()] == ["flood"]
