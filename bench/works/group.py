"""A consumer group as it grows, rests and loses a member: when its messages come, and what its leases cost the node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from bench.errors import BenchFailed
from bench.own import ROOT
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from bench.share_member import READY
from stream_client import StreamClient, connect
from stream_client.share.membership import LeaseMember

STARTED: Final = "group: from the start of its members to a message of each partition"
RESTED: Final = "group: the node, while nothing is pushed"
LEASED: Final = "group: the node, while its members hold their leases and read nothing"
KILLED: Final = "group: from a member's kill to the next message of its partitions"
NAME: Final = "group"
KILL_PARTITIONS: Final = 4
KILL_GROUP: Final = "killed"
PUSH_S: Final = 0.02


def samples(plan: Plan) -> Iterator[Sample]:
    members, partitions = plan.group_members, plan.group_members * 10
    for round_ in range(plan.rounds):
        with BenchNode() as node:
            yield from trio.run(start, node, members, partitions, plan.rest_seconds, round_)
        with BenchNode() as node:
            trio.run(_make, node.address, KILL_PARTITIONS)
            # The member that is killed reads nothing: it only holds its partitions.
            arguments = (node.address, "", NAME, str(KILL_PARTITIONS), KILL_GROUP, "1", "2")
            command = [sys.executable, "-m", "bench.share_member", *arguments]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as member:
                try:
                    yield trio.run(_kill, node, member, round_)
                finally:
                    member.kill()


async def _make(address: str, partitions: int) -> None:
    """Makes the stream, with a message in each partition."""
    async with connect(address) as client:
        stream = await client.create_partitioned(NAME, partitions)
        async with trio.open_nursery() as nursery:
            for target in stream.partitions:
                nursery.start_soon(target.push, b"first")


async def start(node: BenchNode, members: int, partitions: int, rest_s: float, round_: int) -> list[Sample]:
    """Measures the start of members with a connection each, and their rest; then the rest of as many members that only
    hold their leases and read nothing. Each partition has one message."""
    await _make(node.address, partitions)
    seen = Seen(partitions)
    cpu_s, started_s = node.cpu_seconds(), time.monotonic()
    async with trio.open_nursery() as nursery:
        for _ in range(members):
            nursery.start_soon(_take, node.address, "bench", seen)
        await seen.all.wait()
        first_s = time.monotonic() - started_s
        sample = partial(Sample, system=OURS, round=round_, clients=members, streams=partitions, messages=partitions)
        started = sample(
            work=STARTED,
            seconds=first_s,
            server_cpu_s=node.cpu_seconds() - cpu_s,
        )
        # The shares become even before the rest is timed.
        await trio.sleep(first_s)
        rested = await _rest(node, rest_s, sample, RESTED)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        held, are_even = [0] * members, trio.Event()
        for number in range(members):
            nursery.start_soon(_hold, node.address, partitions, held, number, are_even)
        await are_even.wait()
        leased = await _rest(node, rest_s, sample, LEASED)
        nursery.cancel_scope.cancel()
    return [started, rested, leased]


async def _rest(node: BenchNode, rest_s: float, sample: Callable[..., Sample], work: str) -> Sample:
    cpu_s, rested_s = node.cpu_seconds(), time.monotonic()
    await trio.sleep(rest_s)
    return sample(
        work=work,
        seconds=time.monotonic() - rested_s,
        server_cpu_s=node.cpu_seconds() - cpu_s,
        server_memory_bytes=node.memory_bytes(),
    )


class Seen:
    """The partitions that have given a message, each with the time of its first one."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.begin()

    def begin(self) -> None:
        self.at_s: dict[int, float] = {}
        self.all = trio.Event()

    def note(self, partition: int) -> None:
        self.at_s.setdefault(partition, time.monotonic())
        if len(self.at_s) == self._partitions:
            self.all.set()


async def _take(address: str, group: str, seen: Seen) -> None:
    """One member of a group, with a connection of its own."""
    async with connect(address) as client:
        stream = await client.get_stream(NAME)
        async with stream.shared_consumer(group) as consumer:
            async for partition, _ in consumer:
                seen.note(partition)


async def _hold(address: str, partitions: int, held: list[int], number: int, are_even: trio.Event) -> None:
    """One member that renews its leases, gives back what others should have, and reads nothing. held: the number of
    partitions that each member has; `are_even` is set when each has its share."""
    async with connect(address) as client:
        member = LeaseMember(client, "leases")

        def changed() -> None:
            leases, asked_back = member.check()
            held[number] = len(leases)
            for partition in asked_back:
                member.give_back(partition)
            if min(held) == partitions // len(held):
                are_even.set()

        member.join(NAME, partitions, changed)
        await trio.sleep_forever()


async def _kill(node: BenchNode, member: subprocess.Popen[bytes], round_: int) -> Sample:
    """Kills one of two members, each with half of the partitions. The other one is in this process."""
    assert member.stdout is not None
    seen = Seen(KILL_PARTITIONS)
    async with connect(node.address) as client, trio.open_nursery() as nursery:
        nursery.start_soon(_take, node.address, KILL_GROUP, seen)
        if await trio.to_thread.run_sync(member.stdout.readline) != READY:
            raise BenchFailed("a member of the group ended before it had its partitions")
        # At first, one of the two had all partitions. Only what comes from now on counts.
        seen.begin()
        nursery.start_soon(_push, client)
        await trio.sleep(10 * PUSH_S)
        kept, killed_s = set(seen.at_s), time.monotonic()
        member.kill()
        await seen.all.wait()
        nursery.cancel_scope.cancel()
    taken_over_s = max(at_s for partition, at_s in seen.at_s.items() if partition not in kept) - killed_s
    return Sample(
        work=KILLED, system=OURS, round=round_, clients=2, streams=KILL_PARTITIONS, messages=1, seconds=taken_over_s
    )


async def _push(client: StreamClient) -> None:
    stream = await client.get_stream(NAME)
    while True:
        for target in stream.partitions:
            await target.push(b"x")
        await trio.sleep(PUSH_S)
