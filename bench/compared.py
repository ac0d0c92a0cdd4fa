"""Work that is measured in turn with other systems (A B A B), so that the ratios hold on a noisy machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.bench_node import BenchNode
from bench.errors import UnknownBench
from bench.measure import PAGE_MESSAGES, pull_rate, push_latency, push_latency_blocking, push_rate
from bench.peers import Peer
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.scale import measure_alone, measure_node
from stream_node.bench.loads import Timed

CEILING = "push_ceiling"
CEILING_BYTES = 100
BLOCKING = f"{OURS}, blocking client"
CEILING_LINE = re.compile(r"window\s+(\d+):\s+([\d,]+)")


def pushes(plan: Plan, peers: Sequence[Peer], ceiling: Path | None) -> Iterator[Sample]:
    """Durable pushes of one publisher, for every window of the plan."""
    for window in plan.windows:
        messages = max(plan.single, min(plan.messages, plan.single * window))
        fields = {"messages": messages, "size_bytes": plan.size_bytes, "window": window}
        for round_ in range(plan.rounds):
            work = partial(push_rate, messages=messages, size_bytes=plan.size_bytes, window=window)
            yield measure_alone(work, work="push", round=round_, window=window, size_bytes=plan.size_bytes)
            for peer in peers:
                yield peer.measure("push", round_, stream=peer.new_stream(), **fields)
            if ceiling is not None:
                yield run_ceiling(ceiling, round_, messages, window)


def latencies(plan: Plan, peers: Sequence[Peer]) -> Iterator[Sample]:
    """Single durable pushes, each confirmed before the next."""
    with BenchNode() as node:
        streams = [peer.new_stream() for peer in peers]
        for round_ in range(plan.rounds):
            fields = {"work": "latency", "round": round_, "window": 1, "size_bytes": plan.size_bytes}
            work = partial(push_latency, messages=plan.single, size_bytes=plan.size_bytes)
            yield measure_node(node, work, **fields)

            async def blocking(address: str) -> Timed:
                return push_latency_blocking(address, messages=plan.single, size_bytes=plan.size_bytes)

            yield measure_node(node, blocking, system=BLOCKING, **fields)
            for peer, stream in zip(peers, streams, strict=True):
                yield peer.measure(
                    "latency", round_, stream=stream, messages=plan.single, size_bytes=plan.size_bytes, window=1
                )


def pulls(plan: Plan, peers: Sequence[Peer]) -> Iterator[Sample]:
    """Stored messages read from the first to the last, a thousand a page."""
    fields = {"messages": plan.messages, "size_bytes": plan.size_bytes, "window": PAGE_MESSAGES}
    streams = [peer.new_stream() for peer in peers]
    for peer, stream in zip(peers, streams, strict=True):
        peer.measure("fill", 0, stream=stream, **fields)
    with BenchNode() as node:
        fill = partial(push_rate, messages=plan.messages, size_bytes=plan.size_bytes, window=PAGE_MESSAGES)
        measure_node(node, fill, work="fill")
        for round_ in range(plan.rounds):
            work = partial(pull_rate, messages=plan.messages)
            yield measure_node(node, work, work="pull", round=round_, window=PAGE_MESSAGES, size_bytes=plan.size_bytes)
            for peer, stream in zip(peers, streams, strict=True):
                yield peer.measure("pull", round_, stream=stream, **fields)


def run_ceiling(script: Path, round_: int, messages: int, window: int) -> Sample:
    """Run a prototype that prints lines like `window 100: 128,000 durable pushes/s`, in the working directory.

    Raises UnknownBench if the prototype prints no such line.
    """
    done = subprocess.run(
        [sys.executable, str(script), str(messages), str(window)],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "TMPDIR": str(Path.cwd())},
    )
    found = CEILING_LINE.search(done.stdout)
    if found is None:
        raise UnknownBench(f"{script} printed no line like 'window {window}: 100,000'")
    rate = float(found[2].replace(",", ""))
    return Sample(
        work="push",
        system=CEILING,
        round=round_,
        window=window,
        size_bytes=CEILING_BYTES,
        messages=messages,
        seconds=messages / rate,
    )
