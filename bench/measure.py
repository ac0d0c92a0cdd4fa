"""The work that is measured, done to a node by our own clients. It starts no servers and compares nothing.

The loads of `stream-node bench` are used where they fit; the rest is work that only the goals ask for.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import trio

from bench.report import percentiles
from stream_client import Stream, blocking, connect
from stream_node.bench import run as loads
from stream_node.bench.run import TIMED_EVERY_MAX, TIMED_MIN, Load, Timed, watch

PAGE_MESSAGES: Final = 1_000
FANOUT_WINDOW: Final = 100
STREAM: Final = "bench.0"
"""The stream of one publisher, and the first stream of a publisher that pushes to many."""


def sample_fields(timed: Timed) -> dict[str, Any]:
    """Returns the fields of a `Sample` with these times."""
    return {"messages": timed.messages, "seconds": timed.seconds, **percentiles(timed.times_us)}


async def push_in_turn(streams: Sequence[Stream], *, messages: int, size_bytes: int, window: int) -> Timed:
    """Pushes round robin to all streams, with `window` unconfirmed in all. Ends when every push is confirmed."""
    data = os.urandom(size_bytes)
    times_us, timed_every = list[float](), max(1, min(TIMED_EVERY_MAX, messages // TIMED_MIN))
    async with AsyncExitStack() as stack:
        # The window is shared out, so that few and many streams are compared at the same number of unconfirmed pushes.
        share = max(1, window // len(streams))
        publishers = [await stack.enter_async_context(stream.publisher(share)) for stream in streams]
        started_s = time.perf_counter()
        count = len(publishers)
        for number in range(messages):
            publisher = publishers[number % count] if count > 1 else publishers[0]
            if number % timed_every:
                await publisher.push(data)
            else:
                began_ns = time.perf_counter_ns()
                watch(await publisher.push(data), began_ns, times_us)
        # A push counts when it is confirmed: without this, the last windows of pushes would take no time.
        for publisher in publishers:
            await publisher.flush()
        seconds = time.perf_counter() - started_s
    return Timed(messages, seconds, times_us)


async def push_rate(address: str, *, messages: int, size_bytes: int, window: int, streams: int = 1) -> Timed:
    """One client that pushes to one or many streams."""
    async with connect(address) as client:
        targets = [await client.create(f"bench.{number}") for number in range(streams)]
        return await push_in_turn(targets, messages=messages, size_bytes=size_bytes, window=window)


async def push_by_clients(address: str, *, messages: int, size_bytes: int, window: int, clients: int) -> Timed:
    """Many connections of one process that push to one stream, with `window` unconfirmed in all."""
    load = Load(messages=messages, size_bytes=size_bytes, clients=clients, window=max(1, window // clients))
    async with _connected(address, clients) as streams:
        return await loads.push(streams, load, _untold)


async def push_singly(address: str, *, publishers: int, size_bytes: int, for_s: float) -> Timed:
    """Publishers of one process, each on a connection of its own, push for this long and wait for every confirm."""
    data = os.urandom(size_bytes)
    times_us: list[float] = []

    async def push(target: Stream, until_s: float) -> None:
        while time.perf_counter() < until_s:
            began_ns = time.perf_counter_ns()
            await target.push(data)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)

    async with _connected(address, publishers) as streams:
        started_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(push, stream, started_s + for_s)
        seconds = time.perf_counter() - started_s
    return Timed(len(times_us), seconds, times_us)


async def fanout(address: str, *, messages: int, size_bytes: int, consumers: int) -> Timed:
    """One publisher and many consumers that follow its stream, a connection each. Counts and times deliveries."""
    load = Load(messages=messages, size_bytes=size_bytes, clients=consumers, window=FANOUT_WINDOW)
    async with _connected(address, consumers + 1) as streams:
        return await loads.fanout(streams, load, _untold)


def pull_latency(address: str, *, stream: str, stored: int, pulls: int, page_messages: int, seed: str) -> Timed:
    """Single pulls from anywhere in a log, with the blocking client.

    seed: chooses the places. Each measurement needs another seed, because places that were read are in memory.
    """
    places = random.Random(seed)
    with blocking.connect(address) as client:
        source = client.create(stream)
        return _repeat(lambda: source.pull(places.randrange(stored - page_messages), page_messages), pulls)


@asynccontextmanager
async def _connected(address: str, count: int) -> AsyncIterator[list[Stream]]:
    """The same stream as it is seen by several clients, each on a connection of its own."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(address)) for _ in range(count)]
        yield [await client.create(STREAM) for client in clients]


def _untold(messages: int) -> None:
    """The progress of a load, which nobody watches here."""


def _repeat(action: Callable[[], object], times: int) -> Timed:
    times_us = []
    started_s = time.perf_counter()
    for _ in range(times):
        began_ns = time.perf_counter_ns()
        action()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return Timed(times, time.perf_counter() - started_s, times_us)
