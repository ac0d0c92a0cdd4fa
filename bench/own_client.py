"""Does the measured work on a node of ours, in a process of its own, as the clients of the peers do.

    python -m bench.own_client ADDRESS WORK LOAD

LOAD: the fields of `Load`, in JSON. It prints the fields of `Done` as one JSON line.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import trio

from bench.peer_clients.load import Clock, Done, Load, Pace
from bench.peer_clients.sockets import ask_in_turns
from ockam.actors.address import local, split_host_port
from ockam.actors.message import Message
from ockam.errors import FrameTooLarge
from ockam.transport.frames import FrameWriter
from ockam.transport.wire_head import HEAD
from stream_client import blocking, connect
from stream_service.names import stream_address
from stream_service.protocol import PUSH, PushRequest

FILL_WINDOW = 1_000
WINDOW_AT_RATE = 100_000
TIMED_EVERY = 64
"""Of this many pushes in a row, one is timed."""
DUE_AT = struct.Struct("<q")


async def push(address: str, load: Load) -> Done:
    """The async client's publisher. A push is timed from the moment at which there was room for it in the window."""
    data = os.urandom(load.size_bytes)
    async with connect(address) as client:
        stream = await client.create(load.stream)
        async with stream.publisher(load.window) as publisher:
            clock, sent = Clock(load), 0
            timed_every = 1 if load.window == 1 else TIMED_EVERY
            while clock.goes_on(sent):
                for _ in range(min(TIMED_EVERY, load.messages - sent)):
                    if sent % timed_every:
                        await publisher.push(data)
                    else:
                        _watch(await publisher.push(data), clock)
                    sent += 1
            await publisher.flush()
            return clock.done(sent)


async def push_in_turn(address: str, load: Load) -> Done:
    """The async client's publishers of many streams. Each publisher has its share of the window."""
    data = os.urandom(load.size_bytes)
    async with connect(address) as client, AsyncExitStack() as stack:
        streams = [await client.create(f"{load.stream}.{number}") for number in range(load.streams)]
        share = max(1, load.window // load.streams)
        publishers = [await stack.enter_async_context(stream.publisher(share)) for stream in streams]
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            for publisher in publishers:
                await publisher.push(data)
            sent += len(publishers)
        for publisher in publishers:
            await publisher.flush()
        return clock.done(sent)


async def fill(address: str, load: Load) -> Done:
    return await push(address, load._replace(window=FILL_WINDOW))


async def latency(address: str, load: Load) -> Done:
    """Single pushes of the async client, each confirmed before the next."""
    data = os.urandom(load.size_bytes)
    async with connect(address) as client:
        stream = await client.create(load.stream)
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            began_ns = time.perf_counter_ns()
            await stream.push(data)
            clock.add(began_ns)
            sent += 1
        return clock.done(sent)


def latency_blocking(address: str, load: Load) -> Done:
    """Single pushes of the blocking client, each confirmed before the next."""
    data = os.urandom(load.size_bytes)
    with blocking.connect(address) as client:
        stream = client.create(load.stream)
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            began_ns = time.perf_counter_ns()
            stream.push(data)
            clock.add(began_ns)
            sent += 1
        return clock.done(sent)


def clients(address: str, load: Load) -> Done:
    """A client for each stream, which pushes one message at a time."""
    names = [f"{load.stream}.{number}" for number in range(load.streams)]
    with blocking.connect(address) as client:
        for name in names:
            client.create(name)
    push = PUSH.encode_request(PushRequest(1, os.urandom(load.size_bytes)))
    writer = FrameWriter(HEAD)
    frames = [
        writer.encode([Message((local("-"), stream_address(name, 0)), (local("me"),), push)], _too_large)[1]
        for name in names
    ]
    # A confirm is one short frame, which comes in one piece.
    return ask_in_turns(split_host_port(address)[1], load, frames, bool, HEAD.hello)


def _too_large(error: FrameTooLarge) -> None:
    raise error


async def pull(address: str, load: Load) -> Done:
    """Pages of `window` messages, from the first to the last, decoded to objects."""
    async with connect(address) as client:
        stream = await client.create(load.stream)
        clock, received = Clock(load), 0
        while clock.goes_on(received):
            began_ns = time.perf_counter_ns()
            received += len(await stream.pull(received, min(load.window, load.messages - received)))
            clock.add(began_ns)
        return clock.done(received)


async def follow(address: str, load: Load) -> Done:
    """Pages of `window` messages, as a consumer gets them: the next page is on its way while the program decodes the
    present page."""
    async with connect(address) as client:
        follower = (await client.create(load.stream)).follow(0, page_messages=load.window)
        clock, received = Clock(load), 0
        while clock.goes_on(received):
            began_ns = time.perf_counter_ns()
            received += len(await follower.next_page())
            clock.add(began_ns)
        follower.stop()
        return clock.done(received)


async def at_rate(address: str, load: Load) -> Done:
    """Pushes that become due at a fixed rate. Each is timed from when it was due."""
    data = os.urandom(load.size_bytes)
    async with connect(address) as client:
        stream = await client.create(load.stream)
        async with stream.publisher(WINDOW_AT_RATE) as publisher:
            clock, pace = Clock(load), Pace(load)
            while not pace.is_over:
                for number in pace.due():
                    if number % load.timed_every:
                        await publisher.push(data)
                    else:
                        added = await publisher.push(data)
                        added.when_done(partial(clock.add, pace.due_ns(number)))
                await trio.sleep(pace.sleep_s())
            await publisher.flush()
            return clock.done(pace.given)


async def deliver(address: str, load: Load) -> Done:
    """Pushes at a fixed rate, and a consumer on a connection of its own that waits for them. A message is timed from
    when its push was due until the consumer has the message."""
    padding = os.urandom(max(0, load.size_bytes - DUE_AT.size))
    times_us: list[float] = []
    expected = min(load.messages, int(load.rate * load.seconds))

    async def consume() -> None:
        follower = source.follow(0)
        while len(times_us) < expected:
            page = await follower.next_page()
            now_ns = time.perf_counter_ns()
            times_us.extend((now_ns - DUE_AT.unpack_from(message.data)[0]) / 1e3 for message in page)
        follower.stop()

    async with connect(address) as client, connect(address) as other:
        stream, source = await client.create(load.stream), await other.create(load.stream)
        async with trio.open_nursery() as nursery, stream.publisher(WINDOW_AT_RATE) as publisher:
            nursery.start_soon(consume)
            await trio.sleep(0.1)
            clock, pace = Clock(load), Pace(load)
            while not pace.is_over:
                for number in pace.due():
                    await publisher.push(DUE_AT.pack(pace.due_ns(number)) + padding)
                await trio.sleep(pace.sleep_s())
        return clock.done(pace.given)._replace(times_us=times_us)


def _watch(added: Any, clock: Clock) -> None:
    added.when_done(partial(clock.add, time.perf_counter_ns()))


ASYNC_WORKS: dict[str, Callable[[str, Load], Any]] = {
    each.__name__: each for each in (push, push_in_turn, fill, latency, pull, follow, at_rate, deliver)
}

BLOCKING_WORKS: dict[str, Callable[[str, Load], Done]] = {each.__name__: each for each in (latency_blocking, clients)}


def main() -> None:
    address, work, load = sys.argv[1:]
    wanted = Load(**json.loads(load))
    if work in BLOCKING_WORKS:
        done = BLOCKING_WORKS[work](address, wanted)
    else:
        done = trio.run(ASYNC_WORKS[work], address, wanted)
    sys.stdout.write(json.dumps(done._asdict()) + "\n")


if __name__ == "__main__":
    main()
