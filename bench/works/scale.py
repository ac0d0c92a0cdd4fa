"""Measures how the cost of a node's work grows: with the size of messages, streams, clients and logs.

It also measures group commit on a slow disk.

Each function yields samples as they are measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from bench.big_log import STREAM, extend_log
from bench.measure import (
    FANOUT_WINDOW,
    PAGE_MESSAGES,
    fanout,
    pull_latency,
    push_by_clients,
    push_rate,
    push_singly,
    sample_fields,
)
from bench.plan import MIB, Plan
from bench.report import OUR_DURABILITY, OURS, Sample
from bench.servers.bench_node import BenchNode
from ockam.transport.listener import connections_that_fit
from stream_client import connect
from stream_node.bench.run import Timed
from stream_storage.failpoint import DELAY_VARIABLE

Work = Callable[[str], Coroutine[Any, Any, Timed]]
WIDE_WINDOW = 10_000
WINDOW_A_STREAM = 100
UNCONFIRMED_BYTES_MAX = 64 * MIB
MEMORY_STEPS = 10
UNGROUPED = "one transaction a push"


def measure_node(node: BenchNode, action: Work, **fields: Any) -> Sample:
    """Does the work on a running node, from this process. fields: the other fields of the sample."""
    cpu_s = node.cpu_seconds()
    timed = trio.run(action, node.address)
    return _sample(node, timed, cpu_s, fields)


def measure_alone(action: Work, **fields: Any) -> Sample:
    """Does the work on a fresh node, whose syncs are counted."""
    with BenchNode() as node:
        cpu_s = node.cpu_seconds()
        timed = trio.run(action, node.address)
        sample = _sample(node, timed, cpu_s, fields)
        return _with_syncs(sample, node.finish())


def sizes(plan: Plan) -> Iterator[Sample]:
    """Pushes of small to large messages; fewer of the large ones."""
    for round_ in range(plan.rounds):
        for size_bytes in plan.sizes_bytes:
            window = max(1, min(1_000, UNCONFIRMED_BYTES_MAX // size_bytes))
            messages = max(10, min(plan.messages, plan.volume_bytes // size_bytes))
            work = partial(push_rate, messages=messages, size_bytes=size_bytes, window=window)
            yield measure_alone(work, work="push by size", round=round_, window=window, size_bytes=size_bytes)


def streams(plan: Plan) -> Iterator[Sample]:
    """One client pushes round robin to more and more streams. The number of unconfirmed pushes to all streams together
    stays the same: first a usual window, then one so wide that each of many streams has a usual window of its own."""
    for round_ in range(plan.rounds):
        for window in (min(WIDE_WINDOW, plan.messages), WINDOW_A_STREAM * max(plan.streams)):
            for count in plan.streams:
                work = partial(
                    push_rate,
                    messages=max(plan.messages, 2 * window),
                    size_bytes=plan.size_bytes,
                    window=window,
                    streams=count,
                )
                fields = {"round": round_, "window": window, "size_bytes": plan.size_bytes, "streams": count}
                yield measure_alone(work, work="push by streams", **fields)


def clients(plan: Plan) -> Iterator[Sample]:
    """More and more connections push to one stream."""
    for round_ in range(plan.rounds):
        for count in plan.clients:
            window = max(WIDE_WINDOW, count)
            work = partial(
                push_by_clients, messages=plan.messages, size_bytes=plan.size_bytes, window=window, clients=count
            )
            fields = {"round": round_, "window": window, "size_bytes": plan.size_bytes, "clients": count}
            yield measure_alone(work, work="push by clients", **fields)


def consumers(plan: Plan) -> Iterator[Sample]:
    """More and more consumers follow one publisher; messages are deliveries."""
    for round_ in range(plan.rounds):
        for count in plan.consumers:
            messages = max(plan.fanout_messages // count, 200)
            work = partial(fanout, messages=messages, size_bytes=plan.size_bytes, consumers=count)
            fields = {"round": round_, "window": FANOUT_WINDOW, "size_bytes": plan.size_bytes, "clients": count}
            yield measure_alone(work, work="fanout", **fields)


def memory(plan: Plan) -> Iterator[Sample]:
    """The resident memory of one node, before the first message and after each tenth of very many."""
    with BenchNode() as node:
        yield _sample(node, Timed(0, 0.0), node.cpu_seconds(), {"work": "memory", "size_bytes": plan.size_bytes})
        step = plan.memory // MEMORY_STEPS
        for number in range(MEMORY_STEPS):
            work = partial(push_rate, messages=step, size_bytes=plan.size_bytes, window=WIDE_WINDOW)
            fields = {"window": WIDE_WINDOW, "size_bytes": plan.size_bytes, "log_messages": number * step}
            yield measure_node(node, work, work="memory", **fields)


def idle_connections(plan: Plan) -> Iterator[Sample]:
    """The resident memory of a node without connections, and with many that have done something and now do nothing."""

    async def hold(address: str) -> Timed:
        async with AsyncExitStack() as stack:
            for _ in range(count):
                client = await stack.enter_async_context(connect(address))
                await client.create("bench")
            held.append(node.memory_bytes())
        return Timed(0, 0.0)

    count = min(plan.idle_connections, connections_that_fit(plan.idle_connections))
    held: list[int] = []
    with BenchNode() as node:
        # The first connection also pays for modules and caches that all connections share.
        trio.run(partial(push_rate, messages=1, size_bytes=1, window=1), node.address)
        before = _sample(node, Timed(0, 0.0), node.cpu_seconds(), {"work": "idle connections", "clients": 0})
        yield before
        after = measure_node(node, hold, work="idle connections", clients=count)
        yield msgspec.structs.replace(after, server_memory_bytes=held[0])


def slow_disk(plan: Plan) -> Iterator[Sample]:
    """Publishers that wait for each confirm, on a disk with a slow sync: with group commit and without, in turn."""
    environment = {DELAY_VARIABLE: str(plan.slow_sync_ms)}
    work = partial(push_singly, publishers=plan.slow_publishers, size_bytes=plan.size_bytes, for_s=plan.slow_seconds)
    for round_ in range(plan.rounds):
        for system in (OURS, UNGROUPED):
            with BenchNode(environment=environment, grouped=system == OURS) as node:
                fields = {"size_bytes": plan.size_bytes, "clients": plan.slow_publishers, "round": round_}
                durability = f"{OUR_DURABILITY}; each sync takes {plan.slow_sync_ms} ms longer"
                sample = measure_node(
                    node, work, work="slow disk", system=system, durability=durability, window=1, **fields
                )
                yield _with_syncs(sample, node.finish())


def logs(plan: Plan) -> Iterator[Sample]:
    """Single pulls from anywhere in a growing log, in turn with those from a small log; and pushes to its end."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as name:
        small, large = Path(name) / "small", Path(name) / "large"
        extend_log(small, plan.logs[0], plan.size_bytes)
        for stored in plan.logs[1:]:
            extend_log(large, stored, plan.size_bytes)
            with BenchNode(small) as small_node, BenchNode(large) as large_node:
                nodes = ((plan.logs[0], small_node), (stored, large_node))
                for round_ in range(plan.rounds):
                    for page_messages in (1, PAGE_MESSAGES):
                        for held, node in nodes:
                            yield _pulls(node, held, stored, round_, plan, page_messages)
                work = partial(push_rate, messages=plan.messages, size_bytes=plan.size_bytes, window=1_000)
                fields = {"window": 1_000, "size_bytes": plan.size_bytes, "log_messages": stored}
                yield measure_node(large_node, work, work="push by log", **fields)


def _pulls(node: BenchNode, held: int, largest: int, round_: int, plan: Plan, page_messages: int) -> Sample:
    """Measures pulls. held: the messages in the log of this node. largest: those in the larger log of this round."""
    cpu_s = node.cpu_seconds()
    timed = pull_latency(
        node.address,
        stream=STREAM,
        stored=held,
        pulls=max(10, plan.single // (4 if page_messages > 1 else 1)),
        page_messages=page_messages,
        seed=f"{held} {round_} {page_messages}",
    )
    system = OURS if held == largest else f"{OURS}, small log beside {largest:,}"
    fields = {"work": "pull by log", "system": system, "round": round_, "window": page_messages}
    return _sample(node, timed, cpu_s, {**fields, "size_bytes": plan.size_bytes, "log_messages": held})


def _sample(node: BenchNode, timed: Timed, cpu_before_s: float, fields: dict[str, Any]) -> Sample:
    filled = {"system": OURS, **sample_fields(timed), **fields}
    return Sample(server_cpu_s=node.cpu_seconds() - cpu_before_s, server_memory_bytes=node.memory_bytes(), **filled)


def _with_syncs(sample: Sample, fsyncs_per_second: float | None) -> Sample:
    return msgspec.structs.replace(sample, fsyncs_per_second=fsyncs_per_second)
