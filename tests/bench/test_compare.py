"""The comparison of two checkouts: its order, its figures, and one real run of a side."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from bench.compare import HERE, Side, SideFailed, compared, measure_in_turn, median_interval, ratio, show
from bench.compare_side import Measured


class FakeSide:
    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def measure(self, work: str) -> Measured:
        self._log.append(f"{self._name} {work}")
        return Measured(100, len(self._log), 0.0, 1.0)


def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    log: list[str] = []
    before, after = (cast(Side, FakeSide(name, log)) for name in ("before", "after"))
    found = measure_in_turn(before, after, ["push", "pull"], rounds=1)
    assert log == [
        *("before push", "after push", "before pull", "after pull"),
        *("after push", "before push", "after pull", "before pull"),
    ]
    assert {work: [tuple(each.seconds for each in pair) for pair in pairs] for work, pairs in found.items()} == {
        "push": [(6, 5)],
        "pull": [(8, 7)],
    }


def _measured(seconds: float) -> Measured:
    return Measured(messages=100, seconds=seconds, node_cpu_s=0.0, client_cpu_s=seconds)


def test_a_ratio_is_that_of_the_medians_beside_the_quartiles_of_the_rounds() -> None:
    pairs = [(_measured(seconds), _measured(seconds * factor)) for seconds, factor in ((1, 2), (2, 2), (9, 3))]
    found = ratio([pairs], lambda measured: measured.seconds)
    assert found is not None
    assert (found.before, found.after, found.middle) == (2, 4, 2)
    assert (found.low, found.high) == (2, 2.5)
    assert ratio([pairs], lambda measured: measured.node_cpu_s) is None


def test_of_several_starts_each_has_one_ratio() -> None:
    """Goal: many rounds of one pair of processes do not count as many comparisons of two programs."""
    starts = [[(_measured(1.0), _measured(factor))] * rounds for factor, rounds in ((1.0, 1), (1.1, 9), (1.3, 1))]
    found = ratio(starts, lambda measured: measured.seconds)
    assert found is not None
    assert (found.middle, found.low, found.high) == pytest.approx((1.1, 1.05, 1.2))
    assert found.sure is None


def test_the_interval_of_the_median_has_its_confidence() -> None:
    """Method: samples of a skewed distribution whose median is known; the interval must hold it in 95 % of them."""
    numbers = random.Random(5)
    for size in (6, 10, 40):
        held = 0
        for _ in range(2000):
            interval = median_interval([2 ** numbers.gauss(0, 1) for _ in range(size)])
            assert interval is not None
            held += interval[0] <= 1 <= interval[1]
        # With few values there are few intervals to choose from: that of 10 values has 97.9 %.
        assert 0.94 <= held / 2000 <= 0.985
    assert median_interval([1.0] * 5) is None


@pytest.mark.parametrize(("size", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (50, (18, 33))])
def test_the_interval_of_the_median_has_the_ranks_of_the_printed_tables(size: int, ranks: tuple[int, int]) -> None:
    assert median_interval(range(size, 0, -1)) == ranks


def test_a_row_shows_what_was_measured() -> None:
    out = io.StringIO()
    row = compared("push, window 1", [[(_measured(2.0), _measured(1.0))]])
    show([row], Console(file=out, width=180))
    shown = out.getvalue()
    assert "50 → 100" in shown
    assert "2.000 (2.00 to 2.00)" in shown
    assert row.node_cpu_us is None


def test_a_row_of_many_rounds_shows_the_interval_of_the_median() -> None:
    out = io.StringIO()
    pairs = [(_measured(1.0), _measured(1.0 + each / 100)) for each in range(6)]
    show([compared("push, window 1", [pairs])], Console(file=out, width=180))
    assert "1.000 to 1.050" in out.getvalue()


@pytest.mark.slow
def test_a_checkout_measures_itself(tmp_path: Path) -> None:
    """Goal: a side has figures of its node and of its client. Method: this checkout; one work with a node."""
    if not (HERE / ".venv" / "bin" / "python").exists():
        pytest.skip("this checkout has no environment in .venv")
    with Side(HERE, tmp_path, times=2) as side:
        measured = side.measure("push, window 1")
        assert measured.messages == 2 * 500
        assert min(measured.seconds, measured.node_cpu_s, measured.client_cpu_s) > 0
        with pytest.raises(SideFailed):
            side.measure("no such work")
    assert list(tmp_path.iterdir()) == []
