"""Goal: the bench of workers measures nodes that really have so many processes, and counts the time of all of them.

Method: one short measurement of each kind, whose figures are looked at for being there only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.works.workers import measure, streams_of


def test_each_worker_gets_a_stream() -> None:
    assert len(set(streams_of(2))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "direct"), [pytest.param(1, False, marks=pytest.mark.soak), (2, True)])
def test_a_measurement_has_a_rate_and_the_time_of_the_node(
    workers: int, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = measure(workers, seconds=0.3, direct=direct)
    assert found.rate > 0
    assert found.cpu_us > 0
    assert found.capacity > 0
