"""One publisher and many consumers that follow the end of its stream, all in this process, a connection each."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio

from bench.measure import Timed
from stream_client import RichMessage, Stream, connect

SENT_AT = struct.Struct("<q")
WINDOW = 100


async def fanout(address: str, *, messages: int, size_bytes: int, consumers: int) -> Timed:
    """Deliveries: messages times consumers, and the time of every delivery from push to receipt."""
    padding = os.urandom(max(0, size_bytes - SENT_AT.size))
    received: list[tuple[int, Sequence[RichMessage]]] = []

    async def consume(source: Stream) -> None:
        follower = source.follow(0)
        count = 0
        while count < messages:
            page = await follower.next_page()
            received.append((time.perf_counter_ns(), page))
            count += len(page)
        follower.stop()

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(address)) for _ in range(consumers + 1)]
        target, *sources = [await client.create("bench") for client in clients]
        started_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for source in sources:
                nursery.start_soon(consume, source)
            async with target.publisher(WINDOW) as publisher:
                for _ in range(messages):
                    await publisher.push(SENT_AT.pack(time.perf_counter_ns()) + padding)
        seconds = time.perf_counter() - started_s
    times_us = [(now_ns - SENT_AT.unpack_from(each.data)[0]) / 1e3 for now_ns, page in received for each in page]
    return Timed(messages * consumers, seconds, times_us)
