"""Runs the command `stream-node bench` once: opens connections, creates a stream, runs a load, deletes the stream."""

from __future__ import annotations

import os
import secrets
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from stream_client import ClientError, Push, Stream, StreamClient
from stream_node.node.process import NodeProcess

TIMED_EVERY_MAX: Final = 64
"""In a large load, one push in 64 is timed, because timing every push would slow it down; in a small load, more are."""
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
    """The measured times. messages: their number in all. times_us: the durations of all requests, or of a sample."""

    messages: int
    seconds: float
    times_us: list[float] = []


def watch(push: Push, began_ns: int, times_us: list[float]) -> None:
    push.when_done(lambda: times_us.append(_since_us(began_ns)))


async def push(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """Pushes the messages from all clients at the same time, each with at most `load.window` unconfirmed pushes."""
    data = os.urandom(load.size_bytes)
    times_us: list[float] = []
    timed_every = max(1, min(TIMED_EVERY_MAX, load.messages // TIMED_MIN))

    async def publish(stream: Stream, count: int) -> None:
        async with stream.publisher(load.window) as publisher:
            for number in range(count):
                # One push in `timed_every` is timed, since timing slows a large load down.
                if number % timed_every:
                    await publisher.push(data)
                else:
                    began_ns = time.perf_counter_ns()
                    watch(await publisher.push(data), began_ns, times_us)
                    progress(min(timed_every, count - number))

    return Timed(load.messages, await _all_at_once(publish, streams, _shares(load)), times_us)


async def latency(streams: Sequence[Stream], load: Load, progress: Progress) -> Timed:
    """Pushes the messages from all clients at once. Each waits for each confirm before its next push."""
    data = os.urandom(load.size_bytes)
    times_us: list[float] = []

    async def publish(stream: Stream, count: int) -> None:
        for _ in range(count):
            began_ns = time.perf_counter_ns()
            await stream.push(data)
            times_us.append(_since_us(began_ns))
            progress(1)

    return Timed(load.messages, await _all_at_once(publish, streams, _shares(load)), times_us)


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
    """Pushes messages from the first client; each other client follows the stream. Every delivery is timed."""
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
    return [load.messages // load.clients + (number < load.messages % load.clients) for number in range(load.clients)]


async def _all_at_once(
    action: Callable[[Stream, int], Awaitable[None]], streams: Sequence[Stream], counts: Iterable[int]
) -> float:
    """Calls `action` with each stream and its number in `counts`, all at once. Returns the seconds until all end."""
    started_s = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for stream, count in zip(streams, counts, strict=True):
            nursery.start_soon(action, stream, count)
    return time.perf_counter() - started_s


def _since_us(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3


REMOVAL_TIMEOUT_S: Final = 10.0
"""The longest wait for the deletion of the test stream. After that the stream stays, so that the run ends."""
FILL_WINDOW: Final = 1_000

Work = Literal["push", "pull", "latency", "fanout"]
Connect = Callable[[], AbstractAsyncContextManager[StreamClient]]
Draw = Callable[[str, int, int], None]
"""Shows the progress of a step: its name, the number of messages done, and their total number."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles of the durations of single requests, in microseconds. timed: the number of measured requests."""

    timed: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, times_us: Sequence[float]) -> Latency:
        ordered = sorted(times_us)
        return cls(len(ordered), *(percentile(ordered, per_mille) for per_mille in (500, 900, 990, 999, 1_000)))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. messages: their number in all. latency_us: for pushes, from the call to the confirm; for
    pulls, from the call to the page; for a fan-out, from the push to the receipt by a consumer."""

    work: Work
    messages: int
    size_bytes: int
    clients: int
    window: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    latency_us: Latency


KINDS: Final[dict[Work, tuple[Callable[[Sequence[Stream], Load, Progress], Awaitable[Timed]], str]]] = {
    "push": (push, "pushing"),
    "pull": (pull, "pulling"),
    "latency": (latency, "pushing"),
    "fanout": (fanout, "delivering"),
}
"""The function of each kind of load, and the verb of its progress line."""


async def run(work: Work, load: Load, connect: Connect, draw: Draw, tell: Callable[[str], None]) -> Result:
    """Measures a load on a new stream, which is deleted at the end in any case. Raises ClientError."""
    measure, verb = KINDS[work]
    name = f"bench-{secrets.token_hex(6)}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect())
        streams = [await stack.enter_async_context(_own_stream(first, name, tell))]
        # Each client has a connection of its own, as programs on other machines would have. A fan-out has one more that
        # pushes.
        for _ in range(load.clients - (work != "fanout")):
            client = await stack.enter_async_context(connect())
            streams.append(await client.create(name))
        if work == "pull":
            filling = Load(messages=load.messages, size_bytes=load.size_bytes, window=FILL_WINDOW)
            await push(streams[:1], filling, _counted(draw, "filling", load.messages))
        # Every client pulls every message, and every consumer gets every message.
        total = load.messages * (load.clients if work in ("pull", "fanout") else 1)
        timed = await measure(streams, load, _counted(draw, verb, total))
    rate = timed.messages / timed.seconds
    return Result(
        work=work,
        **msgspec.structs.asdict(load) | {"messages": timed.messages},
        seconds=timed.seconds,
        messages_per_second=rate,
        bytes_per_second=rate * load.size_bytes,
        latency_us=Latency.of(timed.times_us),
    )


@contextmanager
def own_node() -> Iterator[str]:
    """Runs a node, and yields its address. Its data is in the working directory: the system's folder for temporary
    files is often in memory. Raises NodeNotStarted, OSError."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as place:
        node = NodeProcess(Path(place) / "data", log_file=Path(place) / "node.log")
        try:
            node.start()
            yield node.address
        finally:
            node.kill()


@asynccontextmanager
async def _own_stream(client: StreamClient, name: str, tell: Callable[[str], None]) -> AsyncIterator[Stream]:
    stream = await client.create(name)
    try:
        yield stream
    finally:
        why: str | None = f"no answer within {REMOVAL_TIMEOUT_S:g} s"
        # The deletion is shielded, so that an interrupted run also deletes its stream.
        with trio.move_on_after(REMOVAL_TIMEOUT_S, shield=True):
            try:
                await stream.delete()
                why = None
            except ClientError as error:
                why = str(error)
        if why is not None:
            tell(f"the stream {name} is still on the node ({why}); to remove it: stream-node stream delete {name}")


def _counted(draw: Draw, verb: str, total: int) -> Progress:
    done = 0

    def progress(messages: int) -> None:
        nonlocal done
        done += messages
        draw(verb, done, total)

    return progress
