"""redis-py, blocking, with pipelines that are no transactions: a batch is sent, then its answers are read."""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Any

import redis

from bench.peer_clients.load import Clock, Done, Load, Pace
from bench.peer_clients.sockets import ask_in_turns

FILL_WINDOW = 1_000
PAGE = 1_000
DUE_AT = struct.Struct("<q")


class RedisWork:
    def __init__(self, port: int) -> None:
        self._port = port
        self._client: Any = redis.Redis(port=port)
        self._client.ping()

    def push(self, load: Load) -> Done:
        """The times of single pushes are not known: a pipeline has one time for all of them."""
        fields = {"d": os.urandom(load.size_bytes)}
        names = [f"{load.stream}.{number}" for number in range(load.streams)] if load.streams > 1 else [load.stream]
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            count = min(load.window, load.messages - sent)
            pipeline = self._client.pipeline(transaction=False)
            for number in range(sent, sent + count):
                pipeline.xadd(names[number % load.streams], fields)
            pipeline.execute()
            sent += count
        return clock.done(sent)

    def fill(self, load: Load) -> Done:
        return self.push(load._replace(window=FILL_WINDOW))

    def latency(self, load: Load) -> Done:
        fields = {"d": os.urandom(load.size_bytes)}
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            began_ns = time.perf_counter_ns()
            self._client.xadd(load.stream, fields)
            clock.add(began_ns)
            sent += 1
        return clock.done(sent)

    def clients(self, load: Load) -> Done:
        """A client for each stream, which pushes one message at a time."""
        data = os.urandom(load.size_bytes)
        requests = []
        for number in range(load.streams):
            words = (b"XADD", f"{load.stream}.{number}".encode(), b"*", b"d", data)
            requests.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        # An answer is an id: its length, and the id, each with the end of a line.
        return ask_in_turns(self._port, load, requests, lambda data: data.count(b"\r\n") == 2)

    def pull(self, load: Load) -> Done:
        """Pages of `window` messages, from the first to the last."""
        clock, received, after = Clock(load), 0, "-"
        while clock.goes_on(received):
            began_ns = time.perf_counter_ns()
            page = self._client.xrange(load.stream, min=after, count=load.window)
            clock.add(began_ns)
            received += len(page)
            after = "(" + page[-1][0].decode()
        return clock.done(received)

    def at_rate(self, load: Load) -> Done:
        """All messages that are due go into one pipeline. The next pipeline waits for the answers to this one."""
        fields = {"d": os.urandom(load.size_bytes)}
        clock, pace = Clock(load), Pace(load)
        while not pace.is_over:
            numbers = pace.due()
            if not numbers:
                time.sleep(pace.sleep_s())
                continue
            pipeline = self._client.pipeline(transaction=False)
            for _ in numbers:
                pipeline.xadd(load.stream, fields)
            pipeline.execute()
            for number in numbers:
                if number % load.timed_every == 0:
                    clock.add(pace.due_ns(number))
        return clock.done(pace.given)

    def deliver(self, load: Load) -> Done:
        """A thread waits for messages with XREAD BLOCK, on a connection of its own."""
        times_us: list[float] = []
        self._client.xgroup_create(load.stream, "none", mkstream=True)
        waits = threading.Event()

        def consume(expected: int) -> None:
            client: Any = redis.Redis(port=self._port)
            client.ping()
            waits.set()
            last = b"0"
            while len(times_us) < expected:
                for _, page in client.xread({load.stream: last}, count=PAGE, block=0):
                    now_ns = time.perf_counter_ns()
                    times_us.extend((now_ns - DUE_AT.unpack_from(fields[b"d"])[0]) / 1e3 for _, fields in page)
                    last = page[-1][0]

        reader = threading.Thread(target=consume, args=(min(load.messages, int(load.rate * load.seconds)),))
        reader.start()
        waits.wait()
        padding = os.urandom(max(0, load.size_bytes - DUE_AT.size))
        clock, pace = Clock(load), Pace(load)
        while not pace.is_over:
            numbers = pace.due()
            if not numbers:
                time.sleep(pace.sleep_s())
                continue
            pipeline = self._client.pipeline(transaction=False)
            for number in numbers:
                pipeline.xadd(load.stream, {"d": DUE_AT.pack(pace.due_ns(number)) + padding})
            pipeline.execute()
        reader.join()
        return clock.done(pace.given)._replace(times_us=times_us)
