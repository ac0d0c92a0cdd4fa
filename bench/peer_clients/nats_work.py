"""nats-py on asyncio. Pushes in a row are `publish_async`, with at most `window` of them unanswered, or atomic
batches."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from bench.peer_clients.load import Clock, Done, Load, Pace, batches

FILL_WINDOW = 1_000
BATCH_MAX = 1_000
"""The most messages that the server takes in one atomic batch."""
PENDING_MAX = 1_000_000
DUE_AT = struct.Struct("<q")


class NatsWork:
    def __init__(self, port: int) -> None:
        self._url = f"nats://127.0.0.1:{port}"

    def push(self, load: Load) -> Done:
        return asyncio.run(self._push(load))

    def fill(self, load: Load) -> Done:
        return asyncio.run(self._push(load._replace(window=FILL_WINDOW)))

    def latency(self, load: Load) -> Done:
        return asyncio.run(self._latency(load))

    def pull(self, load: Load) -> Done:
        return asyncio.run(self._pull(load))

    def at_rate(self, load: Load) -> Done:
        return asyncio.run(self._at_rate(load))

    def deliver(self, load: Load) -> Done:
        return asyncio.run(self._deliver(load))

    async def _push(self, load: Load) -> Done:
        data = os.urandom(load.size_bytes)
        async with self._jetstream(load, load.window) as (_, jetstream):
            clock, sent, answers = Clock(load), 0, []
            # The clock is read once in 16 pushes, because each reading takes time.
            while clock.goes_on(sent):
                for _ in range(min(16, load.messages - sent)):
                    answers.append(await jetstream.publish_async(load.stream, data))
                    sent += 1
            await jetstream.publish_async_completed()
            done = clock.done(sent)
            for answer in answers:
                answer.result()
            return done

    async def _latency(self, load: Load) -> Done:
        data = os.urandom(load.size_bytes)
        async with self._jetstream(load, 1) as (_, jetstream):
            clock, sent = Clock(load), 0
            while clock.goes_on(sent):
                began_ns = time.perf_counter_ns()
                await jetstream.publish(load.stream, data)
                clock.add(began_ns)
                sent += 1
            return clock.done(sent)

    async def _pull(self, load: Load) -> Done:
        async with self._jetstream(load, 1, create=False) as (_, jetstream):
            source = await jetstream.pull_subscribe(load.stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
            clock, received = Clock(load), 0
            while clock.goes_on(received):
                began_ns = time.perf_counter_ns()
                received += len(await source.fetch(min(load.window, load.messages - received)))
                clock.add(began_ns)
            return clock.done(received)

    async def _at_rate(self, load: Load) -> Done:
        data = os.urandom(load.size_bytes)
        async with self._jetstream(load, PENDING_MAX) as (_, jetstream):
            clock, pace = Clock(load), Pace(load)
            while not pace.is_over:
                for number in pace.due():
                    answer = await jetstream.publish_async(load.stream, data)
                    if number % load.timed_every == 0:
                        answer.add_done_callback(_timer(clock, pace.due_ns(number)))
                await asyncio.sleep(pace.sleep_s())
            await jetstream.publish_async_completed()
            return clock.done(pace.given)

    async def _deliver(self, load: Load) -> Done:
        """An ordered consumer, with a callback, on a connection of its own."""
        times_us: list[float] = []
        expected = min(load.messages, int(load.rate * load.seconds))
        is_over = asyncio.Event()

        async def take(message: Any) -> None:
            times_us.append((time.perf_counter_ns() - DUE_AT.unpack_from(message.data)[0]) / 1e3)
            if len(times_us) == expected:
                is_over.set()

        padding = os.urandom(max(0, load.size_bytes - DUE_AT.size))
        async with (
            self._jetstream(load, PENDING_MAX) as (_, jetstream),
            self._jetstream(load, 1, create=False) as (_, source),
        ):
            await source.subscribe(load.stream, cb=take, ordered_consumer=True)
            clock, pace = Clock(load), Pace(load)
            while not pace.is_over:
                for number in pace.due():
                    await jetstream.publish_async(load.stream, DUE_AT.pack(pace.due_ns(number)) + padding)
                await asyncio.sleep(pace.sleep_s())
            await is_over.wait()
            return clock.done(pace.given)._replace(times_us=times_us)

    @asynccontextmanager
    async def _jetstream(self, load: Load, pending: int, *, create: bool = True) -> AsyncIterator[tuple[Any, Any]]:
        connection: Any = await nats.connect(self._url)
        try:
            jetstream = connection.jetstream(publish_async_max_pending=pending)
            if create:
                await jetstream.add_stream(StreamConfig(name=load.stream, subjects=[load.stream], allow_atomic=True))
            yield connection, jetstream
        finally:
            await connection.close()


class NatsBatchWork(NatsWork):
    """Pushes in atomic batches of at most BATCH_MAX messages. The server answers the last message of a batch."""

    async def _push(self, load: Load) -> Done:
        data = os.urandom(load.size_bytes)
        async with self._jetstream(load, 1) as (connection, _):
            numbers = iter(range(load.messages))
            clock, sent = Clock(load), 0

            async def push_batch(count: int) -> None:
                nonlocal sent
                name = f"batch-{next(numbers)}"
                for place in range(1, count):
                    headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(place)}
                    await connection.publish(load.stream, data, headers=headers)
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(count), "Nats-Batch-Commit": "1"}
                answer = await connection.request(load.stream, data, headers=headers, timeout=30)
                if b'"error"' in answer.data:
                    raise RuntimeError(answer.data.decode())
                sent += count

            while clock.goes_on(sent):
                # As many batches at once as the window holds.
                together = batches(min(load.window, load.messages - sent), BATCH_MAX)
                await _all([push_batch(count) for count in together])
            return clock.done(sent)


async def _all(actions: list[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for action in actions:
            group.create_task(action)


def _timer(clock: Clock, since_ns: int) -> Callable[[object], None]:
    return lambda answer: clock.add(since_ns)
