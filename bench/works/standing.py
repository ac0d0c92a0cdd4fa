"""A node that does nothing: its start and end, its memory and that of partitions, and the time of short commands.

It also measures what partitions that only exist cost the pushes to others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from bench.compared import MANY_WINDOW
from bench.measure import sample_fields
from bench.own import ROOT, Own
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_client import connect
from stream_node.bench.run import Timed
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_storage.sqlite.database import Database

STARTED: Final = "standing: from the start of a node until it listens"
STOPPED: Final = "standing: from SIGTERM until a node has ended"
OPENED: Final = "standing: partitions that were opened"
COMMAND: Final = "standing: a command"
AMONG: Final = "push to some of the streams that exist"
WITH_HTTP: Final = f"{OURS} with HTTP"
HELP, PUSH_LINE = "stream-node --help", "stream-node push of one line"
SETTLE_S: Final = 0.5
"""The time between the start of a node and the look at its memory."""
COMMANDS: Final = 5
"""How often each command is run in each round."""
SETTINGS: Final = {
    # Without byte code, each start would compile all modules, which takes as long again.
    "PYTHONDONTWRITEBYTECODE": "",
    f"{ENVIRONMENT_PREFIX}STREAMS_MAX": "1000000",
}


def samples(plan: Plan) -> Iterator[Sample]:
    """Samples of short commands, and of starts and ends of nodes: empty nodes with HTTP and without, and a node with
    many partitions, of which some are opened."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as name:
        full = Path(name) / "full"
        _make_streams(full, plan.existing)
        with BenchNode(environment=SETTINGS):
            """The first start writes the byte code."""
        for round_ in range(plan.rounds):
            yield from _life(OURS, None, 0, plan, round_)
            yield from _life(WITH_HTTP, None, 0, plan, round_)
            yield from _life(OURS, full, plan.existing, plan, round_)
            yield from _commands(round_)


def among(plan: Plan, owns: Sequence[Own]) -> Iterator[Sample]:
    """Durable pushes of one client to 1,000 streams in turn, on a node that has no others and on one that has many."""
    pushed = min(1_000, plan.many_streams[0])
    load: dict[str, Any] = {"messages": plan.messages, "seconds": plan.seconds, "size_bytes": plan.size_bytes}
    load |= {"window": min(MANY_WINDOW, plan.messages), "streams": pushed}
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as name:
        for streams in (pushed, plan.existing):
            _make_streams(Path(name) / str(streams), streams)
        for round_ in range(plan.rounds):
            for own in owns:
                for streams in (pushed, plan.existing):
                    place = Path(name) / "pushed"
                    shutil.copytree(Path(name) / str(streams), place)
                    with BenchNode(place, environment={**own.environment, **SETTINGS}) as node:
                        sample = own.measure(node, "push_in_turn", work=AMONG, round_=round_, stream="bench", **load)
                    shutil.rmtree(place)
                    yield msgspec.structs.replace(sample, streams=streams)


def _make_streams(data_dir: Path, count: int) -> None:
    """Makes a database with `count` empty streams, without a node."""
    database = Database.open(data_dir)
    try:
        session = database.session()
        session.begin()
        for number in range(count):
            session.log.ensure_stream(f"bench.{number}", 0, time.time_ns() // 1000)
        session.commit()
        session.close()
    finally:
        database.close()


def _life(system: str, data_dir: Path | None, streams: int, plan: Plan, round_: int) -> Iterator[Sample]:
    """One life of a node. In a node with streams, some are opened."""
    environment = {**SETTINGS, **({f"{ENVIRONMENT_PREFIX}HTTP": "127.0.0.1:0"} if system == WITH_HTTP else {})}
    sample = partial(Sample, system=system, round=round_, streams=streams, messages=0)
    began_s = time.perf_counter()
    with BenchNode(data_dir, environment=environment) as node:
        started_s = time.perf_counter() - began_s
        time.sleep(SETTLE_S)
        memory_bytes = node.memory_bytes()
        yield sample(work=STARTED, seconds=started_s, server_cpu_s=node.cpu_seconds(), server_memory_bytes=memory_bytes)
        if streams:
            opened = min(plan.opened, streams)
            seconds, grown_bytes = trio.run(_open, node, opened)
            yield sample(work=OPENED, seconds=seconds, clients=opened, server_memory_bytes=grown_bytes)
        began_s = time.perf_counter()
        node.stop()
        yield sample(work=STOPPED, seconds=time.perf_counter() - began_s)


async def _open(node: BenchNode, count: int) -> tuple[float, int]:
    """Asks `count` streams for their descriptions. Returns the time that it took, and by how many bytes the node
    grew."""
    async with connect(node.address) as client:
        # The first request also pays for modules and caches that all streams share.
        await (await client.create("bench.0")).info()
        memory_bytes, began_s = node.memory_bytes(), time.perf_counter()
        for number in range(1, count + 1):
            await (await client.create(f"bench.{number}")).info()
        return time.perf_counter() - began_s, node.memory_bytes() - memory_bytes


def _commands(round_: int) -> Iterator[Sample]:
    with BenchNode(environment=SETTINGS) as node:
        for system, arguments in ((HELP, ("--help",)), (PUSH_LINE, ("push", "bench", "--node", node.address))):
            times_us: list[float] = []
            command = [sys.executable, "-m", "stream_node", *arguments]
            for _ in range(COMMANDS):
                began_ns = time.perf_counter_ns()
                subprocess.run(
                    command,
                    check=True,
                    input=b"a line\n",
                    capture_output=True,
                    cwd=ROOT,
                    env={**os.environ, **SETTINGS},
                )
                times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
            timed = Timed(COMMANDS, sum(times_us) / 1e6, times_us)
            yield Sample(work=COMMAND, system=system, durability="", round=round_, **sample_fields(timed))
