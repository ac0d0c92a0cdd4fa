"""What deleting costs others: a truncation beside single pushes, and a retention by age beside a fast publisher."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import trio

from bench.big_log import STREAM, extend_log
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_client import Stream, connect
from stream_node.bench.run import percentile
from stream_node.node.config import ENVIRONMENT_PREFIX

TRUNCATED: Final = "deleting: a truncation beside single pushes to another stream"
RETAINED: Final = "deleting: a retention by age beside a publisher"
AGE_S: Final = 2
WINDOW: Final = 10_000
PUSH_S: Final = 0.003
LOOK_S: Final = 0.5


def samples(plan: Plan) -> Iterator[Sample]:
    for round_ in range(plan.rounds):
        with BenchNode() as node:
            node.stop()
            extend_log(node.data_dir, plan.truncated, plan.size_bytes)
            node.start()
            yield trio.run(_truncate, node, plan, round_)
        with BenchNode(environment={f"{ENVIRONMENT_PREFIX}RETENTION_AGE_S": str(AGE_S)}) as node:
            yield trio.run(_retain, node, plan, round_)


async def _truncate(node: BenchNode, plan: Plan, round_: int) -> Sample:
    """Truncates a long stream, while another client pushes one message after the other to another stream."""
    times_us: list[float] = []
    async with connect(node.address) as client, connect(node.address) as other, trio.open_nursery() as nursery:
        stream = await client.create(STREAM)
        nursery.start_soon(_push, await other.create("other"), bytes(plan.size_bytes), times_us)
        cpu_s, began_s = node.cpu_seconds(), time.monotonic()
        deleted = (await stream.truncate(plan.truncated)).deleted
        seconds = time.monotonic() - began_s
        nursery.cancel_scope.cancel()
    times_us.sort()
    return Sample(
        work=TRUNCATED,
        system=OURS,
        round=round_,
        size_bytes=plan.size_bytes,
        messages=deleted,
        seconds=seconds,
        p50_us=percentile(times_us, 500),
        p99_us=percentile(times_us, 990),
        p999_us=percentile(times_us, 999),
        server_cpu_s=node.cpu_seconds() - cpu_s,
    )


async def _push(stream: Stream, data: bytes, times_us: list[float]) -> None:
    while True:
        began_s = time.perf_counter()
        await stream.push(data)
        times_us.append(1e6 * (time.perf_counter() - began_s))
        await trio.sleep(PUSH_S)


async def _retain(node: BenchNode, plan: Plan, round_: int) -> Sample:
    """Pushes at full speed. p50_us: how much longer the oldest message was kept than its retention says, at most."""
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
