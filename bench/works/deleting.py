"""Measures what deletions cost other clients: many messages deleted beside single pushes, and a retention by age
beside a fast publisher. Also measures how fast the file system gets the room of deleted messages back."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import trio

from bench.big_log import STREAM, extend_log
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_client import Retention, Stream, connect
from stream_node.bench.run import percentile
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_storage.sqlite.database import FILE_NAME

DELETED: Final = "deleting: messages of a stream beside single pushes to another stream"
FREED: Final = "deleting: room of deleted messages given back"
RETAINED: Final = "deleting: a retention by age beside a publisher"
AGE_S: Final = 2
WINDOW: Final = 10_000
PUSH_S: Final = 0.003
LOOK_S: Final = 0.5
FILE_LOOK_S: Final = 0.01
INTERVAL_S: Final = 1
QUIET_S: Final = 5.0
"""A file that keeps its size for this many seconds shrinks no more: a pass of retention comes after INTERVAL_S, and a
checkpoint, which makes the file shorter, after a hundred commits of the other client."""


async def _truncate(stream: Stream) -> None:
    await stream.truncate((await stream.info()).next_index)


async def _delete(stream: Stream) -> None:
    await stream.delete()


async def _retain_none(stream: Stream) -> None:
    """Has the node delete all but one message by retention, and waits for it."""
    info = await stream.set_retention(Retention(messages=1))
    while info.first_index < info.next_index - 1:
        await trio.sleep(FILE_LOOK_S)
        info = await stream.info()


WAYS: Final[dict[str, Callable[[Stream], Awaitable[None]]]] = {
    "truncation": _truncate,
    "delete": _delete,
    "retention": _retain_none,
}


def samples(plan: Plan) -> Iterator[Sample]:
    for round_ in range(plan.rounds):
        for way in WAYS:
            with BenchNode(environment={f"{ENVIRONMENT_PREFIX}RETENTION_INTERVAL_S": str(INTERVAL_S)}) as node:
                node.stop()
                extend_log(node.data_dir, plan.deleted, plan.size_bytes)
                node.start()
                yield from trio.run(_delete_beside, node, way, plan, round_)
        with BenchNode(environment={f"{ENVIRONMENT_PREFIX}RETENTION_AGE_S": str(AGE_S)}) as node:
            yield trio.run(_retain, node, plan, round_)


async def _delete_beside(node: BenchNode, way: str, plan: Plan, round_: int) -> list[Sample]:
    """Deletes the messages of a long stream, and waits until the file has shrunk, while another client pushes one
    message after the other to another stream."""
    times_us: list[float] = []
    sample = partial(Sample, system=f"{OURS}, {way}", round=round_)
    async with connect(node.address) as client, connect(node.address) as other, trio.open_nursery() as nursery:
        stream = await client.create(STREAM)
        nursery.start_soon(_push, await other.create("other"), bytes(plan.size_bytes), times_us)
        cpu_s, began_s = node.cpu_seconds(), time.monotonic()
        await WAYS[way](stream)
        seconds = time.monotonic() - began_s
        beside_us = sorted(times_us)
        deleted = sample(
            work=DELETED,
            size_bytes=plan.size_bytes,
            messages=plan.deleted,
            seconds=seconds,
            p50_us=percentile(beside_us, 500),
            p99_us=percentile(beside_us, 990),
            p999_us=percentile(beside_us, 999),
            worst_us=beside_us[-1],
            server_cpu_s=node.cpu_seconds() - cpu_s,
        )
        freed_bytes, freed_s = await _freed(trio.Path(node.data_dir, FILE_NAME))
        nursery.cancel_scope.cancel()
    return [deleted, *([sample(work=FREED, size_bytes=1, messages=freed_bytes, seconds=freed_s)] if freed_s else [])]


async def _freed(file: trio.Path) -> tuple[int, float]:
    """Watches the file until it shrinks no more. Returns by how many bytes it shrank, and the seconds; 0 if it did not
    shrink. If it shrinks in several steps, the first does not count, since it began at an unknown time. A single step
    counts from this call."""
    began_s = ended_s = time.monotonic()
    first_bytes = now_bytes = (await file.stat()).st_size
    steps = 0
    while time.monotonic() < ended_s + QUIET_S:
        await trio.sleep(FILE_LOOK_S)
        size_bytes = (await file.stat()).st_size
        if size_bytes < now_bytes:
            steps += 1
            if steps == 2:
                first_bytes, began_s = now_bytes, ended_s
            now_bytes, ended_s = size_bytes, time.monotonic()
    return first_bytes - now_bytes, ended_s - began_s


async def _push(stream: Stream, data: bytes, times_us: list[float]) -> None:
    while True:
        began_s = time.perf_counter()
        await stream.push(data)
        times_us.append(1e6 * (time.perf_counter() - began_s))
        await trio.sleep(PUSH_S)


async def _retain(node: BenchNode, plan: Plan, round_: int) -> Sample:
    """Pushes at full speed. p50_us: the longest time for which a message was kept beyond its retention."""
    late_s = 0.0
    async with connect(node.address) as client:
        stream = await client.create(STREAM)

        async def look() -> None:
            nonlocal late_s
            while True:
                await trio.sleep(LOOK_S)
                first_us = (await stream.info()).first_time_us
                if first_us is not None:
                    late_s = max(late_s, time.time() - first_us / 1e6 - AGE_S)

        data, pushed, began_s = [bytes(plan.size_bytes)] * 1_000, 0, time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            async with stream.publisher(WINDOW) as publisher:
                while time.monotonic() < began_s + plan.retained_seconds:
                    await publisher.push_many(data)
                    pushed += len(data)
            nursery.cancel_scope.cancel()
    return Sample(
        work=RETAINED,
        system=OURS,
        round=round_,
        window=WINDOW,
        size_bytes=plan.size_bytes,
        messages=pushed,
        seconds=time.monotonic() - began_s,
        p50_us=1e6 * late_s,
    )
