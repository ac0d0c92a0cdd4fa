"""The work that is measured, done to a node by our own clients. It starts no servers and compares nothing."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import trio

from bench.report import percentiles
from stream_client import Push, Stream, StreamMessage, blocking, connect

PAGE_MESSAGES = 1_000
TIMED_EVERY = 64
"""Of pushes in a row, one in so many is timed, so that taking the time costs nothing that can be seen."""
TIMED_MIN = 1_000
"""As many as p99.9 needs are timed, where there are as many."""


class Timed(msgspec.Struct, frozen=True):
    """What the work took. times_us: of some or all of its single requests."""

    messages: int
    seconds: float
    times_us: list[float] = []

    def fields(self) -> dict[str, Any]:
        """As fields of a `Sample`."""
        return {"messages": self.messages, "seconds": self.seconds, **percentiles(self.times_us)}


class Timer:
    """Notes how long some pushes take from the call to the confirm."""

    def __init__(self) -> None:
        self.times_us: list[float] = []

    def watch(self, push: Push, began_ns: int) -> None:
        push.when_done(lambda: self.times_us.append((time.perf_counter_ns() - began_ns) / 1e3))


async def push_in_turn(streams: Sequence[Stream], *, messages: int, size_bytes: int, window: int) -> Timed:
    """Push round robin to all streams, with `window` unconfirmed in all; ends when every push is confirmed."""
    data = os.urandom(size_bytes)
    timer, timed_every = Timer(), max(1, min(TIMED_EVERY, messages // TIMED_MIN))
    async with AsyncExitStack() as stack:
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
                timer.watch(await publisher.push(data), began_ns)
        for publisher in publishers:
            await publisher.flush()
        seconds = time.perf_counter() - started_s
    return Timed(messages, seconds, timer.times_us)


async def push_rate(address: str, *, messages: int, size_bytes: int, window: int, streams: int = 1) -> Timed:
    """One client that pushes to one or many streams."""
    async with connect(address) as client:
        targets = [await client.create(f"bench.{number}") for number in range(streams)]
        return await push_in_turn(targets, messages=messages, size_bytes=size_bytes, window=window)


async def push_by_clients(address: str, *, messages: int, size_bytes: int, window: int, clients: int) -> Timed:
    """Many connections of one process that push to one stream, with `window` unconfirmed in all."""
    times_us: list[float] = []

    async def push(target: Stream) -> None:
        share = max(1, window // clients)
        done = await push_in_turn([target], messages=messages // clients, size_bytes=size_bytes, window=share)
        times_us.extend(done.times_us)

    async with AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(connect(address)) for _ in range(clients)]
        targets = [await client.create("bench") for client in connected]
        started_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(push, target)
        seconds = time.perf_counter() - started_s
    return Timed(messages // clients * clients, seconds, times_us)


async def push_singly(address: str, *, publishers: int, size_bytes: int, for_s: float) -> Timed:
    """Publishers of one process on a connection each, that wait for each confirm, for so long."""
    data = os.urandom(size_bytes)
    times_us: list[float] = []

    async def push(target: Stream, until_s: float) -> None:
        while time.perf_counter() < until_s:
            began_ns = time.perf_counter_ns()
            await target.push(data)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)

    async with AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(connect(address)) for _ in range(publishers)]
        targets = [await client.create("bench") for client in connected]
        started_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for target in targets:
                nursery.start_soon(push, target, started_s + for_s)
        seconds = time.perf_counter() - started_s
    return Timed(len(times_us), seconds, times_us)


async def push_latency(address: str, *, messages: int, size_bytes: int) -> Timed:
    """Single pushes of the async client, each confirmed before the next."""
    data = os.urandom(size_bytes)
    times_us = []
    async with connect(address) as client:
        target = await client.create("bench.latency")
        started_s = time.perf_counter()
        for _ in range(messages):
            began_ns = time.perf_counter_ns()
            await target.push(data)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        return Timed(messages, time.perf_counter() - started_s, times_us)


def push_latency_blocking(address: str, *, messages: int, size_bytes: int) -> Timed:
    """The same with the blocking client."""
    data = os.urandom(size_bytes)
    with blocking.connect(address) as client:
        target = client.create("bench.latency")
        return _repeat(lambda: target.push(data), messages)


async def pull_rate(address: str, *, messages: int) -> Timed:
    """Pull what `push_rate` has stored, a thousand a page, decoded to objects."""
    times_us = []
    async with connect(address) as client:
        source = await client.create("bench.0")
        index = 0
        started_s = time.perf_counter()
        while index < messages:
            began_ns = time.perf_counter_ns()
            page: Sequence[StreamMessage] = await source.pull(index, PAGE_MESSAGES)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
            index = page[-1].index + 1
        return Timed(index, time.perf_counter() - started_s, times_us)


def pull_latency(address: str, *, stream: str, stored: int, pulls: int, page_messages: int, seed: str) -> Timed:
    """Single pulls from anywhere in a log, with the blocking client. seed: each gives other places, since those that
    were read before are in memory."""
    places = random.Random(seed)
    with blocking.connect(address) as client:
        source = client.create(stream)
        return _repeat(lambda: source.pull(places.randrange(stored - page_messages), page_messages), pulls)


def _repeat(action: Callable[[], object], times: int) -> Timed:
    times_us = []
    started_s = time.perf_counter()
    for _ in range(times):
        began_ns = time.perf_counter_ns()
        action()
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return Timed(times, time.perf_counter() - started_s, times_us)
