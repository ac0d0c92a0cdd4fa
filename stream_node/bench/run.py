"""`stream-node bench`: runs measurements, and shows or writes what they found."""

from __future__ import annotations

import os
import platform
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from rich.console import Console

from stream_node.bench import backfill, block, cardinal, compared, export, scale
from stream_node.bench.codec import compare
from stream_node.bench.errors import UnknownBench
from stream_node.bench.goals import goals
from stream_node.bench.peers import PEERS, Peer, maybe_peer
from stream_node.bench.plan import QUICK, Plan
from stream_node.bench.report import CodecSample, Report, Sample
from stream_node.bench.show import show

WIDTH = 180
"""Columns of a report that goes into a file or a pipe."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """peer: redis, nats, all or none of them. ceiling: a prototype to run in turn with us. output: a file that gets
    the report as JSON; keep: with what it has of works that are not measured now. messages, size_bytes: instead of the
    plan's."""

    peer: str | None = None
    ceiling: Path | None = None
    output: Path | None = None
    keep: bool = False
    quick: bool = False
    as_json: bool = False
    messages: int | None = None
    size_bytes: int | None = None


class Bench(msgspec.Struct, kw_only=True):
    """What the parts of a run share. place: a folder for packages that only the bench needs."""

    plan: Plan
    peers: list[Peer]
    ceiling: Path | None
    place: Path


def _scales(bench: Bench) -> Iterator[Sample]:
    plan = bench.plan
    for part in (
        scale.sizes,
        scale.streams,
        scale.clients,
        scale.memory,
        scale.idle_connections,
        scale.slow_disk,
        scale.logs,
    ):
        yield from part(plan)


PARTS: dict[str, Callable[[Bench], Iterator[Sample | CodecSample]]] = {
    "push": lambda bench: compared.pushes(bench.plan, bench.peers, bench.ceiling),
    "pull": lambda bench: compared.pulls(bench.plan, bench.peers),
    "latency": lambda bench: compared.latencies(bench.plan, bench.peers),
    "fanout": lambda bench: scale.consumers(bench.plan),
    "codec": lambda bench: compare(bench.plan.rounds, bench.place),
    "scale": _scales,
    "cardinal": lambda bench: cardinal.samples(bench.plan),
    "export": lambda bench: export.samples(bench.plan, bench.place),
    "block": lambda bench: block.samples(bench.plan),
    "backfill": lambda bench: backfill.samples(bench.plan),
}


def run_bench(what: str, options: Options) -> None:
    """Measure and show. Raises UnknownBench, PeerFailed."""
    if what != "all" and what not in PARTS:
        raise UnknownBench(f"no bench {what!r}; there are {', '.join(PARTS)} and all")
    if options.peer not in (None, "all", *PEERS):
        raise UnknownBench(f"no peer {options.peer!r}; there are {', '.join(PEERS)} and all")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}"
    report = Report(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        sqlite=sqlite3.sqlite_version,
        quick=options.quick,
    )
    report.load.append(os.getloadavg()[0])
    if what in ("all", "export") and not export.is_possible():
        report.absent.append("export: the extra `spark` is not installed (sh tools/spark.sh)")
    with ExitStack() as stack:
        # Ended by a signal, it still ends the servers that it has started, and removes their data.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _exit))
        bench = _prepare(report, options, stack)
        for name in PARTS if what == "all" else (what,):
            for sample in PARTS[name](bench):
                _take(report, sample)
    report.load.append(os.getloadavg()[0])
    if options.keep and options.output is not None and options.output.exists():
        _keep(report, msgspec.json.decode(options.output.read_bytes(), type=Report))
    report.goals = list(goals(report))
    encoded = msgspec.json.encode(report)
    if options.output is not None:
        options.output.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    if options.as_json:
        sys.stdout.write(encoded.decode() + "\n")
    else:
        show(report, Console(width=None if sys.stdout.isatty() else WIDTH))


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _prepare(report: Report, options: Options, stack: ExitStack) -> Bench:
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=".")))
    plan = QUICK if options.quick else Plan()
    if options.messages is not None:
        plan = msgspec.structs.replace(plan, messages=options.messages, single=min(plan.single, options.messages))
    if options.size_bytes is not None:
        plan = msgspec.structs.replace(plan, size_bytes=options.size_bytes)
    peers = []
    for name in PEERS if options.peer == "all" else filter(None, (options.peer,)):
        peer = maybe_peer(name, place, report.absent)
        if peer is not None:
            report.versions[name] = peer.version
            peers.append(stack.enter_context(peer))
    return Bench(plan=plan, peers=peers, ceiling=options.ceiling, place=place)


def _keep(report: Report, before: Report) -> None:
    """Add what an earlier report has of works that this one has not."""
    works = {sample.work for sample in report.samples}
    report.samples += [sample for sample in before.samples if sample.work not in works]
    report.codecs = report.codecs or before.codecs
    report.versions = {**before.versions, **report.versions}
    report.load = [*before.load, *report.load]
    report.quick |= before.quick


def _take(report: Report, sample: Sample | CodecSample) -> None:
    """Note a sample, and tell who waits that there is progress."""
    if isinstance(sample, CodecSample):
        report.codecs.append(sample)
        return
    report.samples.append(sample)
    if sys.stderr.isatty():
        sys.stderr.write(f"{sample.work}, {sample.system}, window {sample.window}: {sample.per_second:,.0f}/s\n")
