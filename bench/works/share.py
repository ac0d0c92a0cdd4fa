"""Two consumers, each a process, that share the partitions of a stream and reach it through a forwarding node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trio

from bench.errors import BenchFailed
from bench.own import ROOT, Own
from bench.plan import Plan
from bench.processes import cpu_seconds
from bench.report import Sample
from bench.share_member import READY
from stream_client import connect
from stream_node.node.process import NodeProcess

WORK = "share"
STREAM, PARTITIONS, MEMBERS = "shared", 4, 2
FILL_WINDOW = 1_000
GO = b"go\n"


def samples(plan: Plan, owns: Sequence[Own]) -> Iterator[Sample]:
    """Messages a second of both consumers together, from their start until the last message was taken."""
    each = plan.shared_messages // PARTITIONS
    for own in owns:
        with own.node() as store:
            trio.run(_fill, store.address, each, plan.size_bytes)
            arguments = ("--allow-forward", store.address)
            place = Path(store.log_file).parent / "door"
            with NodeProcess(place, arguments=arguments, environment=own.environment) as door:
                for round_ in range(plan.rounds):
                    cpu_s = store.cpu_seconds() + cpu_seconds(door.pid)
                    seconds = _read(own, door.address, store.address, f"group.{round_}", each)
                    yield Sample(
                        work=WORK,
                        system=own.system,
                        round=round_,
                        size_bytes=plan.size_bytes,
                        clients=MEMBERS,
                        messages=each * PARTITIONS,
                        seconds=seconds,
                        server_cpu_s=store.cpu_seconds() + cpu_seconds(door.pid) - cpu_s,
                        server_memory_bytes=store.memory_bytes(),
                    )


async def _fill(address: str, messages: int, size_bytes: int) -> None:
    """Pushes the same number of messages to each partition."""
    data = bytes(size_bytes)
    async with connect(address) as client:
        stream = await client.create_partitioned(STREAM, PARTITIONS)
        for target in stream.partitions:
            async with target.publisher(FILL_WINDOW) as publisher:
                for _ in range(messages):
                    await publisher.push(data)


def _read(own: Own, door: str, store: str, group: str, messages: int) -> float:
    """The seconds from the start of the members to the last message that one of them took. Raises BenchFailed.

    messages: how many each partition has.
    """
    command = [sys.executable, "-m", "bench.share_member", door, store, STREAM, str(PARTITIONS), group]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT}
    members = [
        subprocess.Popen([*command, str(messages), str(MEMBERS)], env=own.variables(), **pipes) for _ in range(MEMBERS)
    ]
    try:
        # Both are connected and have their partitions before the clock starts.
        for member in members:
            if member.stdout.readline() != READY:  # type: ignore[union-attr]
                raise BenchFailed("a member of the group ended before it had its partitions")
        for member in members:
            member.stdin.write(GO)  # type: ignore[union-attr]
            member.stdin.flush()  # type: ignore[union-attr]
        told = [member.communicate()[0].split() for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()
    if any(member.returncode for member in members):
        raise BenchFailed("a member of the group failed")
    # The performance counter is the same for all processes of the machine.
    return max(int(ended) for _, ended in told) / 1e9 - min(int(started) for started, _ in told) / 1e9
