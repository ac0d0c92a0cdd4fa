"""One measurement each: pushes, latency, pulls. The node is a child process; this process is the client."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec

from stream_node.process import NodeProcess
from stream_service.client import connect

PAGE_MESSAGES = 1_000


class Rate(msgspec.Struct, frozen=True):
    """How many messages of `size_bytes` were handled in `seconds`."""

    what: str
    window: int
    messages: int
    size_bytes: int
    seconds: float
    per_second: float
    server_memory_bytes: int
    server_cpu_s: float


class Latency(msgspec.Struct, frozen=True):
    """Times of single pushes, each confirmed before the next, in microseconds."""

    what: str
    messages: int
    size_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float


async def push_rate(node: NodeProcess, *, messages: int, size_bytes: int, window: int, stream: str) -> Rate:
    """Durable pushes per second of one publisher with that many unconfirmed at most."""
    data = os.urandom(size_bytes)
    cpu_s = node.cpu_seconds()
    async with connect(node.address) as client:
        target = await client.create(stream)
        started_s = time.perf_counter()
        async with target.publisher(window) as publisher:
            pushes = [await publisher.push(data) for _ in range(messages)]
        seconds = time.perf_counter() - started_s
    failed = [push for push in pushes if push.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} pushes failed: {failed[0].error}")
    return _rate("push", node, messages, size_bytes, window, seconds, cpu_s)


async def push_latency(node: NodeProcess, *, messages: int, size_bytes: int) -> Latency:
    """How long one durable push takes, from the call to its confirm."""
    data = os.urandom(size_bytes)
    times_us = []
    async with connect(node.address) as client:
        target = await client.create("bench.latency")
        for _ in range(messages):
            started_ns = time.perf_counter_ns()
            await target.push(data)
            times_us.append((time.perf_counter_ns() - started_ns) / 1e3)
    times_us.sort()
    return Latency("push latency", messages, size_bytes, *(percentile(times_us, part) for part in (0.5, 0.99, 0.999)))


async def pull_rate(node: NodeProcess, *, messages: int, stream: str, size_bytes: int) -> Rate:
    """Stored messages pulled per second, a thousand a page, decoded to objects."""
    cpu_s = node.cpu_seconds()
    async with connect(node.address) as client:
        source = await client.create(stream)
        index = 0
        started_s = time.perf_counter()
        while index < messages:
            page = await source.pull(index, PAGE_MESSAGES)
            index = page[-1].index + 1
        seconds = time.perf_counter() - started_s
    return _rate("pull", node, messages, size_bytes, PAGE_MESSAGES, seconds, cpu_s)


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value below which that part of the ordered values lies (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _rate(
    what: str, node: NodeProcess, messages: int, size_bytes: int, window: int, seconds: float, cpu_before_s: float
) -> Rate:
    cpu_s = node.cpu_seconds() - cpu_before_s
    return Rate(what, window, messages, size_bytes, seconds, messages / seconds, node.memory_bytes(), cpu_s)
