"""Watching: what metrics, the dashboard and a follower over HTTP cost a node. With them and without them, in turn.

A stream of its own gets a few messages a second all the time; the follower gets these. A program of its own watches
(`bench/works/watcher.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from stream_client import Stream, StreamClient, connect
from stream_node.node.config import ENVIRONMENT_PREFIX

PUSHED: Final = "watching: pushed"
IDLE: Final = "watching: a nearly idle node"
WATCHED: Final = "stream-node, watched"
SYSTEMS: Final = (OURS, WATCHED)
FOLLOWED: Final = "followed"
PUSHED_STREAM: Final = "bench.0"
TICK_S: Final = 0.1
"""The interval between two messages to the followed stream, in seconds."""
WINDOW: Final = 1_000


class Watcher:
    """The program that watches a node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def command(self, word: str) -> None:
        """Gives the program the command `watch` or `rest`, and waits until it is carried out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != word + "\n":
            raise RuntimeError(f"the watching program ended with {self._process.wait()}")


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work, of all rounds and turns."""
    with BenchNode(environment={f"{ENVIRONMENT_PREFIX}HTTP": "127.0.0.1:0"}) as node, _watcher(node) as watcher:
        trio.run(_make_streams, node.address, max(plan.streams))
        for round_ in range(plan.rounds):
            yield from trio.run(_idle, node, watcher, plan, round_)
        for turn in range(plan.watch_turns):
            yield from trio.run(_push, node, watcher, plan, turn)


@contextmanager
def _watcher(node: BenchNode) -> Iterator[Watcher]:
    command = [sys.executable, "-m", "bench.works.watcher", node.http[0], FOLLOWED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Watcher(process)
        finally:
            process.kill()


async def _make_streams(address: str, count: int) -> None:
    """Makes the streams of the bench, and `count` others, so that the dashboard has something to list."""
    async with connect(address) as client:
        for name in (PUSHED_STREAM, FOLLOWED, *(f"other.{number}" for number in range(count))):
            stream = await client.create(name)
            await stream.push(b"")


async def _tick(stream: Stream) -> None:
    while True:
        await stream.push(os.urandom(100))
        await trio.sleep(TICK_S)


async def _idle(node: BenchNode, watcher: Watcher, plan: Plan, round_: int) -> list[Sample]:
    """The processor time of a node that gets nothing but the messages of the followed stream."""
    found: list[Sample] = []
    async with connect(node.address) as client, trio.open_nursery() as nursery:
        nursery.start_soon(_tick, await client.create(FOLLOWED))
        for system in SYSTEMS:
            await trio.to_thread.run_sync(watcher.command, "watch" if system == WATCHED else "rest")
            cpu_s = node.cpu_seconds()
            await trio.sleep(plan.watch_seconds)
            found.append(
                Sample(
                    work=IDLE,
                    system=system,
                    round=round_,
                    messages=round(plan.watch_seconds / TICK_S),
                    seconds=plan.watch_seconds,
                    server_cpu_s=node.cpu_seconds() - cpu_s,
                )
            )
        nursery.cancel_scope.cancel()
    return found


async def _push(node: BenchNode, watcher: Watcher, plan: Plan, turn: int) -> list[Sample]:
    """One turn of pushes with the watching, and one without. The order changes from turn to turn."""
    found: list[Sample] = []
    async with connect(node.address) as client, trio.open_nursery() as nursery:
        nursery.start_soon(_tick, await client.create(FOLLOWED))
        for system in SYSTEMS[:: -1 if turn % 2 else 1]:
            await trio.to_thread.run_sync(watcher.command, "watch" if system == WATCHED else "rest")
            found.append(await _pushed(client, node, plan, system, turn))
        nursery.cancel_scope.cancel()
    return found


async def _pushed(client: StreamClient, node: BenchNode, plan: Plan, system: str, turn: int) -> Sample:
    cpu_s = node.cpu_seconds()
    stream = await client.create(PUSHED_STREAM)
    timed = await push_in_turn([stream], messages=plan.watched_messages, size_bytes=plan.size_bytes, window=WINDOW)
    return Sample(
        work=PUSHED,
        system=system,
        round=turn,
        window=WINDOW,
        size_bytes=plan.size_bytes,
        server_cpu_s=node.cpu_seconds() - cpu_s,
        server_memory_bytes=node.memory_bytes(),
        **sample_fields(timed),
    )
