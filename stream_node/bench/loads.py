"""The loads that a bench puts on a node: pushes, pulls, single pushes, and deliveries to many consumers.

It opens no connections and makes no streams: each load gets the stream as it is seen by several clients.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
import trio

from stream_client import Push, Stream

TIMED_EVERY_MAX: Final = 64
"""One push of this many is timed, so that taking the time costs nothing that can be seen."""
TIMED_MIN: Final = 1_000
"""Pushes that are timed at least, where there are as many: p99.9 of fewer is the slowest of them."""
PUSHED_AT: Final = struct.Struct("<q")
"""The first bytes of a message of a fan-out: the nanosecond of its push."""

Progress = Callable[[int], None]
"""Is told how many more messages have been pushed, pulled or delivered."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How much is done. clients: publishers, or readers, with a connection each. window: pushes of each publisher that
    may be unconfirmed, or messages that a reader asks for at a time."""

    messages: int
    size_bytes: int
    clients: int = 1
    window: int = 1


class Timed(msgspec.Struct, frozen=True):
    """How long a load took. messages: pushed, pulled or delivered by all clients. times_us: microseconds that single
    requests took, of all of them or of an even choice."""

    messages: int
    seconds: float
    times_us: list[float] = []


class Timer:
    """Notes how long pushes take from the call to the confirm."""

    def __init__(self) -> None:
        self.times_us: list[float] = []

    def watch(self, push: Push, began_ns: int) -> None:
        push.when_done(lambda: self.times_us.append(_since_us(began_ns)))


async def push(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """All clients push at once, with a window of unconfirmed pushes each. It ends when every push is confirmed."""
    data = os.urandom(load.size_bytes)
    timer = Timer()
    timed_every = max(1, min(TIMED_EVERY_MAX, load.messages // TIMED_MIN))

    async def publish(stream: Stream, count: int) -> None:
        async with stream.publisher(load.window) as publisher:
            for number in range(count):
                if number % timed_every:
                    await publisher.push(data)
                else:
                    began_ns = time.perf_counter_ns()
                    timer.watch(await publisher.push(data), began_ns)
                    progress(min(timed_every, count - number))

    seconds = await _all_at_once(publish, streams, _shares(load))
    return Timed(load.messages, seconds, timer.times_us)


async def latency(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """All clients push at once, and each waits for every confirm before its next push."""
    data = os.urandom(load.size_bytes)
    times_us: list[float] = []

    async def publish(stream: Stream, count: int) -> None:
        for _ in range(count):
            began_ns = time.perf_counter_ns()
            await stream.push(data)
            times_us.append(_since_us(began_ns))
            progress(1)

    seconds = await _all_at_once(publish, streams, _shares(load))
    return Timed(load.messages, seconds, times_us)


async def pull(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """Each client pulls all messages of the stream, which holds them already, a window at a time."""
    times_us: list[float] = []

    async def read(stream: Stream, count: int) -> None:
        index = 0
        while index < count:
            began_ns = time.perf_counter_ns()
            page = await stream.pull(index, min(load.window, count - index))
            times_us.append(_since_us(began_ns))
            index = page[-1].index + 1
            progress(len(page))

    seconds = await _all_at_once(read, streams, [load.messages] * load.clients)
    return Timed(load.messages * load.clients, seconds, times_us)


async def fanout(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """The first client pushes; each of the others follows the stream from its beginning and gets every message.

    The times are those of every delivery, from the call that pushed the message to its receipt in this process.
    """
    target, *sources = streams
    padding = os.urandom(max(0, load.size_bytes - PUSHED_AT.size))
    times_us: list[float] = []

    async def consume(source: Stream, count: int) -> None:
        follower = source.follow(0)
        while count > 0:
            page = await follower.next_page()
            now_ns = time.perf_counter_ns()
            times_us.extend((now_ns - PUSHED_AT.unpack_from(each.data)[0]) / 1e3 for each in page)
            count -= len(page)
            progress(len(page))
        follower.stop()

    async def publish() -> None:
        async with target.publisher(load.window) as publisher:
            for _ in range(load.messages):
                await publisher.push(PUSHED_AT.pack(time.perf_counter_ns()) + padding)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        seconds = await _all_at_once(consume, sources, [load.messages] * len(sources))
    return Timed(load.messages * len(sources), seconds, times_us)


def percentile(ordered: Sequence[float], per_mille: int) -> float:
    """A percentile by nearest rank, so the largest where there are few. ordered: not empty, from small to large."""
    return ordered[(per_mille * len(ordered) + 999) // 1000 - 1]


def _shares(load: Load) -> Iterable[int]:
    """How many of the messages each client pushes: as many as the others, or one more."""
    return [load.messages // load.clients + (number < load.messages % load.clients) for number in range(load.clients)]


async def _all_at_once(
    action: Callable[[Stream, int], Awaitable[None]], streams: Sequence[Stream], counts: Iterable[int]
) -> float:
    """Seconds until the action has ended for all streams."""
    started_s = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for stream, count in zip(streams, counts, strict=True):
            nursery.start_soon(action, stream, count)
    return time.perf_counter() - started_s


def _since_us(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3
