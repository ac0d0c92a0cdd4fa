"""Compares this checkout with an older one, in turn, so that the ratios hold on a noisy machine.

    python -m bench.compare --before ../before --rounds 10

Each checkout runs with its own environment (`.venv`), its own nodes and its own clients. In every round each piece of
work is done once on both sides; the side that begins changes from round to round. A first round warms both sides up and
is not counted. The data of the nodes lies under the working directory and is removed at the end.

Two processes of the same program differ by some percent for as long as they run: the seed of their hashes and the
places of their objects differ. So differences of a few percent need `--starts`, which starts all processes anew several
times.

Read the ratios of processor time first: they vary by one or two percent, times on the clock by ten or more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import comb
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.compare_side import WORKS, Measured

HERE = Path(__file__).resolve().parents[1]
ENVIRONMENT_PREFIX = "STREAM_NODE_"
WIDTH = 180
"""Columns of the table when it goes into a file or a pipe."""

Pair = tuple[Measured, Measured]
"""The measurements of one round: before, after."""


class SideFailed(Exception):
    """A side of the comparison ended early. Its own error stands above, on stderr."""


class Ratio(NamedTuple):
    """The ratios after / before of a figure: one for each round, or the median of the rounds of each start.

    middle: the median of these ratios. low, high: their quartiles. sure: see `median_interval`.

    A round measures both sides within seconds, so noise of the machine that lasts longer cancels out in its ratio.
    """

    before: float
    after: float
    middle: float
    low: float
    high: float
    sure: tuple[float, float] | None


class Compared(NamedTuple):
    """One row of the result. rate: messages a second; the others: microseconds of processor time a message."""

    work: str
    rate: Ratio | None
    node_cpu_us: Ratio | None
    client_cpu_us: Ratio | None


class Side:
    """A checkout that is measured, in a process of its own. A context manager: the process ends with the block."""

    def __init__(self, checkout: Path, place: Path, times: int = 1) -> None:
        """place: the folder under which its nodes put their data. times: how often pushes and pulls are done for one
        measurement."""
        self.checkout = checkout.resolve()
        self._times = times
        self._place = place
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Side:
        python = self.checkout / ".venv" / "bin" / "python"
        if not python.exists():
            raise typer.BadParameter(f"{self.checkout} has no .venv; make one there: make venv")
        # The settings of whoever runs the bench must not change the nodes that it compares.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        environment |= {"PYTHONPATH": str(self.checkout), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(
            [str(python), "-P", str(Path(__file__).with_name("compare_side.py")), str(self.checkout), str(self._times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._place,
            env=environment,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def measure(self, work: str) -> Measured:
        """Has the work done once. Raises SideFailed."""
        assert self._process is not None, "the side is open"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SideFailed(f"{self.checkout}: {work!r} failed")
        return msgspec.json.decode(answer, type=Measured)


def measure_in_turn(before: Side, after: Side, works: Sequence[str], rounds: int) -> dict[str, list[Pair]]:
    """Returns the measurements of all rounds, by work. Raises SideFailed."""
    found: dict[str, list[Pair]] = {work: [] for work in works}
    for round_ in range(rounds + 1):
        for work in works:
            if round_ % 2:
                second = after.measure(work)
                first = before.measure(work)
            else:
                first = before.measure(work)
                second = after.measure(work)
            if round_:
                found[work].append((first, second))
            _tell(f"round {round_} of {rounds}: {work}")
    return found


def compared(work: str, starts: Sequence[Sequence[Pair]]) -> Compared:
    """Returns the row of one work. starts: the rounds of each start of the processes."""
    return Compared(
        work,
        ratio(starts, lambda measured: measured.messages / measured.seconds),
        ratio(starts, lambda measured: measured.node_cpu_s / measured.messages * 1e6),
        ratio(starts, lambda measured: measured.client_cpu_s / measured.messages * 1e6),
    )


def ratio(starts: Sequence[Sequence[Pair]], figure: Callable[[Measured], float]) -> Ratio | None:
    """Returns the ratios of a figure. None: there is no node, or it used less time than can be measured."""
    pairs = [pair for start in starts for pair in start]
    before, after = [figure(first) for first, _ in pairs], [figure(second) for _, second in pairs]
    if not all(before):
        return None
    by_start = [[figure(second) / figure(first) for first, second in start] for start in starts]
    # The rounds of one start are no independent measurements of the program.
    ratios = by_start[0] if len(by_start) == 1 else [median(rounds) for rounds in by_start]
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (ratios[0],) * 3
    return Ratio(median(before), median(after), middle, low, high, median_interval(ratios))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns two of the values. The median of the distribution from which the values come lies between the two with a
    confidence of 95 percent, whatever the distribution is. None for fewer than six values.

    The number of values below the true median has a binomial distribution with the probability 1/2.
    Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    outside, left_out = 0.0, -1
    for below in range(len(values)):
        outside += comb(len(values), below) / 2 ** len(values)
        if outside > 0.025:
            break
        left_out = below
    if left_out < 0:
        return None
    in_order = sorted(values)
    return in_order[left_out], in_order[-1 - left_out]


def show(rows: Sequence[Compared], console: Console) -> None:
    """Prints the table. A rate above 1 and a processor time below 1 are better than before."""
    table = Table()
    table.add_column("work")
    for heading in ("messages/s", "node CPU µs a message", "client CPU µs a message"):
        table.add_column(f"{heading}\nbefore → after", justify="right")
        table.add_column("ratio (quartiles)\nmedian with 95 %", justify="right")
    for row in rows:
        cells = []
        for each, form in ((row.rate, ",.0f"), (row.node_cpu_us, ",.2f"), (row.client_cpu_us, ",.2f")):
            if each is None:
                cells += ["", ""]
                continue
            cells.append(f"{each.before:{form}} → {each.after:{form}}")
            sure = "" if each.sure is None else f"\n{each.sure[0]:.3f} to {each.sure[1]:.3f}"
            cells.append(f"{each.middle:.3f} ({each.low:.2f} to {each.high:.2f}){sure}")
        table.add_row(row.work, *cells)
    console.print(table)


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def main(
    before: Annotated[Path, typer.Option(help="The other checkout, with an environment of its own in .venv.")],
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured.")] = 10,
    only: Annotated[str, typer.Option(help="Only works whose name contains this text.")] = "",
    times: Annotated[int, typer.Option(min=1, help="How often pushes and pulls are done for one measurement.")] = 1,
    starts: Annotated[
        int, typer.Option(min=1, help="How often all processes are started; each time for all rounds.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Compare this checkout with another one: rates, and processor time of node and client for each message."""
    works = [work for work in WORKS if only in work]
    if not works:
        raise typer.BadParameter(f"no work contains {only!r}; there are: {'; '.join(WORKS)}")
    found = []
    for _ in range(starts):
        with ExitStack() as stack:
            sides = []
            for checkout in (before, HERE):
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir="."))
                sides.append(stack.enter_context(Side(checkout, Path(place), times)))
            try:
                found.append(measure_in_turn(sides[0], sides[1], works, rounds))
            except SideFailed as error:
                sys.exit(f"compare: {error}")
    rows = [compared(work, [start[work] for start in found]) for work in works]
    if as_json:
        sys.stdout.write(json.dumps([msgspec.to_builtins(row) for row in rows]) + "\n")
        return
    show(rows, Console(width=None if sys.stdout.isatty() else WIDTH))


if __name__ == "__main__":
    typer.run(main)
