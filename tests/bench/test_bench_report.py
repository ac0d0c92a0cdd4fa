"""Figures made of samples: percentiles, ratios of rounds, goals."""

from __future__ import annotations

import io

from rich.console import Console

from bench.goals import goals
from bench.plan import MIB
from bench.report import OURS, CodecSample, Goal, Report, Sample, percentiles, ratios
from bench.show import show
from bench.works import export, security


def _push(system: str, round_: int, per_second: float, window: int = 1_000) -> Sample:
    return Sample(work="push", system=system, round=round_, window=window, messages=100, seconds=100 / per_second)


def _report(*samples: Sample) -> Report:
    return Report(started="", machine="", sqlite="", quick=False, samples=list(samples))


def _measured(report: Report, what: str) -> Goal:
    (found,) = [goal for goal in goals(report) if what in goal.what]
    return found


def test_percentiles_are_by_nearest_rank() -> None:
    assert percentiles(range(1, 1001)) == {"p50_us": 500, "p99_us": 990, "p999_us": 999}
    assert percentiles(range(1, 101)) == {"p50_us": 50, "p99_us": 99, "p999_us": 100}
    assert percentiles([7.0]) == {"p50_us": 7.0, "p99_us": 7.0, "p999_us": 7.0}
    assert percentiles([]) == {}


def test_ratios_are_of_samples_of_one_round() -> None:
    ours = [_push(OURS, 0, 20), _push(OURS, 1, 300), _push(OURS, 2, 40), _push(OURS, 3, 999)]
    theirs = [_push("valkey", 0, 10), _push("valkey", 1, 100), _push("valkey", 2, 10)]
    assert ratios(ours, theirs, lambda sample: sample.per_second) == [2, 3, 4]
    assert ratios(ours, [], lambda sample: sample.per_second) == []


def test_a_round_too_short_for_a_clock_gives_no_ratio() -> None:
    """Goal: a sample of a quick run, in which no tick of processor time passed, is "not measured", and no error."""
    turned = [
        Sample(work=security.TURNED, system=system, window=1_000, messages=100, seconds=0.01, server_cpu_s=cpu_s)
        for system, cpu_s in ((OURS, 0.0), (security.RULED, 0.01))
    ]
    assert _measured(_report(*turned), "of a push under rules").met is None


def test_a_goal_is_met_missed_or_not_measured() -> None:
    what = "window 1,000, to those of valkey"
    assert _measured(_report(_push(OURS, 0, 15), _push("valkey", 0, 10)), what).met is True
    assert _measured(_report(_push(OURS, 0, 12), _push("valkey", 0, 10)), what).met is False
    assert _measured(_report(_push(OURS, 0, 12)), what).met is None
    rounds = [_push(OURS, 0, 10), _push(OURS, 1, 16), _push(OURS, 2, 30)]
    goal = _measured(_report(*rounds, *(_push("valkey", number, 10) for number in range(3))), what)
    assert (goal.measured, goal.spread, goal.met) == (1.6, (1, 3), True)
    assert Goal("a time", True, 2.0, 1.5).met is True
    assert Goal("a time", True, 2.0, 2.5).met is False


def test_memory_is_held_against_its_start() -> None:
    grown = [
        Sample(work="memory", system=OURS, messages=messages, seconds=1, server_memory_bytes=size * MIB)
        for messages, size in ((0, 60), (10, 90), (10, 80))
    ]
    goal = _measured(_report(*grown), "grew by over 20 messages")
    assert (goal.measured, goal.met) == (30, True)


def test_an_idle_connection_costs_its_share() -> None:
    idle = [
        Sample(work="idle connections", system=OURS, clients=clients, messages=0, seconds=0, server_memory_bytes=size)
        for clients, size in ((0, 1_000_000), (100, 1_000_000 + 100 * 40 * 1024))
    ]
    goal = _measured(_report(*idle), "idle connections")
    assert (goal.measured, goal.met) == (40, False)


def test_an_export_to_s3_is_judged_by_its_rate() -> None:
    """Goal: the time counts, with the S3 server on the same cores; processor time does not."""
    disk = Sample(work=export.WORK, system=export.SMALL_ENGINE_DELTA, messages=10, seconds=1, cpu_s=2.0)
    stored = Sample(work=export.WORK, system=export.TO_S3, messages=10, seconds=2, cpu_s=0.1, server_cpu_s=0.1)
    goal = _measured(_report(disk, stored), "to an S3 server")
    assert (goal.wanted, goal.measured, goal.met, goal.spread) == (0.8, 0.5, False, (0.5, 0.5))


def test_what_was_measured_is_shown() -> None:
    report = _report(_push(OURS, 0, 2_000), _push(OURS, 1, 4_000), _push("valkey", 0, 1_000))
    report.codecs += [CodecSample(OURS, 0, 5e6, 4e6), CodecSample("pybare", 0, 1e6, 1e6)]
    report.absent.append("nats: nats-server is not installed")
    report.goals = list(goals(report))
    out = io.StringIO()
    show(report, Console(file=out, width=250))
    shown = out.getvalue()
    assert "3,000" in shown
    assert "absent: nats" in shown
    assert "PushRequests encoded, to pybare" in shown
    assert "to those of nats" not in shown
