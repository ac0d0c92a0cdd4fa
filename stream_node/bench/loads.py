"""The loads of the bench: pushes, pulls, single pushes, and deliveries to many consumers.
Each load gets one `Stream` object per client, all for the same stream."""

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
"""Of a large load, one push in 64 is timed, because timing every push would slow it down; of a small load, more."""
TIMED_MIN: Final = 1_000
"""The minimum number of timed pushes. With fewer, the percentile p99.9 would just be the slowest push."""
PUSHED_AT: Final = struct.Struct("<q")
"""The first 8 bytes of a fan-out message: the time of its push, in nanoseconds of the performance counter."""

Progress = Callable[[int], None]
"""Reports the number of messages that were pushed, pulled or delivered since the last call."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a load. clients: publishers, readers or consumers, each with a connection of its own.
    window: the unconfirmed pushes of a publisher, or the messages in one request of a reader."""

    messages: int
    size_bytes: int
    clients: int = 1
    window: int = 1


class Timed(msgspec.Struct, frozen=True):
    """The measured times of a load. messages: of all clients. times_us: of all single requests or of a regular
    sample."""

    messages: int
    seconds: float
    times_us: list[float] = []


class Timer:
    def __init__(self) -> None:
        self.times_us: list[float] = []

    def watch(self, push: Push, began_ns: int) -> None:
        push.when_done(lambda: self.times_us.append(_since_us(began_ns)))


async def push(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """Pushes the messages from all clients at the same time, each with at most `load.window` unconfirmed pushes."""
    data = os.urandom(load.size_bytes)
    timer = Timer()
    timed_every = max(1, min(TIMED_EVERY_MAX, load.messages // TIMED_MIN))

    async def publish(stream: Stream, count: int) -> None:
        async with stream.publisher(load.window) as publisher:
            for number in range(count):
                # One push in `timed_every` is timed, since timing slows a large load down.
                if number % timed_every:
                    await publisher.push(data)
                else:
                    began_ns = time.perf_counter_ns()
                    timer.watch(await publisher.push(data), began_ns)
                    progress(min(timed_every, count - number))

    seconds = await _all_at_once(publish, streams, _shares(load))
    return Timed(load.messages, seconds, timer.times_us)


async def latency(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """Pushes the messages from all clients at the same time. Each client waits for each confirm before its next
    push."""
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
    """Pulls all stored messages of the stream from each client, `load.window` messages at a time."""
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
    """Pushes messages from the first client. Each other client follows the stream from its beginning.
    Every delivery is timed: from the call that pushes a message until a consumer in this process receives it."""
    target, *sources = streams
    padding = os.urandom(max(0, load.size_bytes - PUSHED_AT.size))
    times_us: list[float] = []

    async def consume(source: Stream, count: int) -> None:
        follower = source.follow(0)
        while count > 0:
            page = await follower.next_page()
            # All messages of a page arrived at the same moment.
            now_ns = time.perf_counter_ns()
            times_us.extend((now_ns - PUSHED_AT.unpack_from(each.data)[0]) / 1e3 for each in page)
            count -= len(page)
            progress(len(page))
        follower.stop()

    async def publish() -> None:
        async with target.publisher(load.window) as publisher:
            for _ in range(load.messages):
                await publisher.push(PUSHED_AT.pack(time.perf_counter_ns()) + padding)

    # The measured time ends when the last consumer has all messages.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        seconds = await _all_at_once(consume, sources, [load.messages] * len(sources))
    return Timed(load.messages * len(sources), seconds, times_us)


def percentile(ordered: Sequence[float], per_mille: int) -> float:
    """Returns a percentile of rising values (at least one) by the nearest rank. per_mille: such as 999 for p99.9."""
    return ordered[(per_mille * len(ordered) + 999) // 1000 - 1]


def _shares(load: Load) -> Iterable[int]:
    """Returns how many messages each client pushes. The numbers differ by at most one."""
    return [load.messages // load.clients + (number < load.messages % load.clients) for number in range(load.clients)]


async def _all_at_once(
    action: Callable[[Stream, int], Awaitable[None]], streams: Sequence[Stream], counts: Iterable[int]
) -> float:
    """Calls `action` with each stream and its number in `counts`, all at once. Returns the seconds until all have
    ended."""
    started_s = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for stream, count in zip(streams, counts, strict=True):
            nursery.start_soon(action, stream, count)
    return time.perf_counter() - started_s


def _since_us(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3
