"""Claim: the metrics have the names and types of specs/backfill.md, in a form that Prometheus reads."""

from __future__ import annotations

import re

from block_node.backfill.metrics import to_prometheus
from block_node.backfill.protocol import BackfillReport, BackfillSource

SPECIFIED = {
    "backfill_gaps_detected": ("counter", 1),
    "backfill_blocks_fetched": ("counter", 10),
    "backfill_blocks_stored": ("counter", 9),
    "backfill_fetch_errors": ("counter", 2),
    "backfill_status": ("gauge", 1),
    "backfill_queue_size": ("gauge", 30),
}
"""Of the specification's table, with the values of `ANSWER`."""
ANSWER = BackfillReport(
    request_id=1,
    state=1,
    queue=30,
    missing=31,
    gaps=[],
    held_bytes=4_000,
    under_way=2,
    eta_ms=1_500,
    newest_known=None,
    scans=5,
    runs=3,
    gaps_detected=1,
    blocks_fetched=10,
    blocks_stored=9,
    fetched_bytes=9_999,
    fetch_errors=2,
    persistence_failures=0,
    given_up=0,
    is_unknown=False,
    problem="",
    disagreements=[],
    sources=[
        BackfillSource("one:4000", 0, 0, 0, 0, 9, 1, 1_500, 5, 1_000, 2, ""),
        BackfillSource('odd "name"\\\n', 1, 3, 500, None, None, 0, None, 0, 0, 0, "unreachable"),
    ],
)
SAMPLE = re.compile(r'([a-z_]+)(?:\{source="((?:[^"\\]|\\["\\n])*)"\})? (-?[0-9.e+-]+)')


def read(text: str) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    """The type of each metric; its samples, by name and source. Every line must be one of the format's."""
    types: dict[str, str] = {}
    samples: dict[tuple[str, str], float] = {}
    helped = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped
            assert name not in types
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == helped, "samples stand below the type of their metric"
            assert (match[1], match[2] or "") not in samples
            samples[match[1], match[2] or ""] = float(match[3])
    return types, samples


def test_the_metrics_of_the_specification() -> None:
    types, samples = read(to_prometheus(ANSWER))
    assert {name: (types[name], samples[name, ""]) for name in SPECIFIED} == SPECIFIED


def test_progress_and_sources_are_metrics_too() -> None:
    _, samples = read(to_prometheus(ANSWER))
    assert samples["backfill_eta_seconds", ""] == 1.5
    assert samples["backfill_fetched_bytes", ""] == 9999
    assert samples["backfill_held_bytes", ""] == 4000
    odd = r"odd \"name\"\\\n"
    assert samples["backfill_source_healthy", "one:4000"] == 1
    assert samples["backfill_source_healthy", odd] == 0
    assert samples["backfill_source_failures", odd] == 3
    assert samples["backfill_source_latency_seconds", "one:4000"] == 0.0015
    assert ("backfill_source_latency_seconds", odd) not in samples
