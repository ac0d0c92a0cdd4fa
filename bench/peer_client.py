"""Does the measured work on another server, with the client that a Python user would pick for that server.

It is a program of its own, because the packages of these clients lie in a folder that no other program may see:

    python -P peer_client.py FOLDER redis|nats PORT push|latency|fill|pull MESSAGES SIZE_BYTES WINDOW STREAM

prints one JSON line: {"messages", "seconds", "times_us"}. Nothing of ours is imported.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from typing import Any

FILL_WINDOW = 1_000


class RedisWork:
    """redis-py, blocking, with pipelines that are no transactions: a batch is sent, then its answers are read."""

    def __init__(self, port: int) -> None:
        self._client: Any = importlib.import_module("redis").Redis(port=port)
        self._client.ping()

    def push(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        data = os.urandom(size_bytes)
        times_us = []
        for sent in range(0, messages, window):
            began_ns = time.perf_counter_ns()
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(min(window, messages - sent)):
                pipeline.xadd(stream, {"d": data})
            pipeline.execute()
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        return times_us

    def latency(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        data = os.urandom(size_bytes)
        times_us = []
        for _ in range(messages):
            began_ns = time.perf_counter_ns()
            self._client.xadd(stream, {"d": data})
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        return times_us

    def fill(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        return self.push(stream, messages, size_bytes, FILL_WINDOW)

    def pull(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        """Pages of `window` messages, from the first to the last."""
        times_us = []
        received, after = 0, "-"
        while received < messages:
            began_ns = time.perf_counter_ns()
            page = self._client.xrange(stream, min=after, count=window)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
            received += len(page)
            after = "(" + page[-1][0].decode()
        return times_us


class NatsWork:
    """nats-py on asyncio. Pushes in a row are `publish_async` with `window` of them unanswered at most."""

    def __init__(self, port: int) -> None:
        self._url = f"nats://127.0.0.1:{port}"
        self._nats: Any = importlib.import_module("nats")

    def push(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        return asyncio.run(self._push(stream, messages, size_bytes, window))

    def latency(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        return asyncio.run(self._latency(stream, messages, size_bytes))

    def fill(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        return asyncio.run(self._push(stream, messages, size_bytes, FILL_WINDOW))

    def pull(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        return asyncio.run(self._pull(stream, messages, window))

    async def _push(self, stream: str, messages: int, size_bytes: int, window: int) -> list[float]:
        data = os.urandom(size_bytes)
        connection = await self._nats.connect(self._url)
        jetstream = connection.jetstream(publish_async_max_pending=window)
        await jetstream.add_stream(name=stream, subjects=[stream])
        started_ns = time.perf_counter_ns()
        answers = [await jetstream.publish_async(stream, data) for _ in range(messages)]
        await jetstream.publish_async_completed()
        seconds = (time.perf_counter_ns() - started_ns) / 1e9
        for answer in answers:
            answer.result()
        await connection.close()
        return [seconds * 1e6]

    async def _latency(self, stream: str, messages: int, size_bytes: int) -> list[float]:
        data = os.urandom(size_bytes)
        connection = await self._nats.connect(self._url)
        jetstream = connection.jetstream()
        await jetstream.add_stream(name=stream, subjects=[stream])
        times_us = []
        for _ in range(messages):
            began_ns = time.perf_counter_ns()
            await jetstream.publish(stream, data)
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        await connection.close()
        return times_us

    async def _pull(self, stream: str, messages: int, window: int) -> list[float]:
        connection = await self._nats.connect(self._url)
        config = self._nats.js.api.ConsumerConfig(ack_policy=self._nats.js.api.AckPolicy.NONE)
        source = await connection.jetstream().pull_subscribe(stream, config=config)
        times_us = []
        received = 0
        while received < messages:
            began_ns = time.perf_counter_ns()
            received += len(await source.fetch(min(window, messages - received)))
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        await connection.close()
        return times_us


def main() -> None:
    folder, peer, port, work, messages, size_bytes, window, stream = sys.argv[1:]
    sys.path.insert(0, folder)
    worker: Any = (RedisWork if peer == "redis" else NatsWork)(int(port))
    times_us = getattr(worker, work)(stream, int(messages), int(size_bytes), int(window))
    answer = {"messages": int(messages), "seconds": sum(times_us) / 1e6, "times_us": times_us}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
