"""Measures the actors of `ockam` in one process: requests between two workers, and the memory of workers that sleep.

The rates are by the time of the processor, since one thread does everything, also both ends of a connection.
`python -m bench.works.actors KIND COUNT` prints the bytes by which a fresh process grows for COUNT workers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
import trio
import trio.testing

from bench.plan import Plan
from bench.processes import memory_bytes
from bench.report import Sample
from ockam import NEVER, AsyncWorker, Message, Node, Route, TcpTransport, Worker, local

ASKED, ASLEEP = "actors: asked and answered", "actors: asleep"
CALLED, AWAITING = "Worker", "AsyncWorker"
THROUGH_TCP = "Worker of another node, through TCP"
WINDOWS = (1, 100)
"""How many requests are under way at one time."""


class CalledEcho(Worker):
    """Answers by a callback."""

    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


class AwaitingEcho(AsyncWorker):
    """Answers in its task."""

    async def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


KINDS: dict[str, type[Worker]] = {CALLED: CalledEcho, AWAITING: AwaitingEcho}
ASKED_KINDS = {**KINDS, THROUGH_TCP: CalledEcho}


def samples(plan: Plan) -> Iterator[Sample]:
    # The nodes of this process would print each connection that ends.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for round_ in range(plan.rounds):
        for system in ASKED_KINDS:
            for window in WINDOWS:
                yield trio.run(_asked, system, round_, window, max(window, plan.messages // 4))
    for system in KINDS:
        command = [sys.executable, "-m", "bench.works.actors", system, str(plan.sleeping_workers)]
        grown = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[2])
        yield Sample(
            work=ASLEEP,
            system=system,
            durability="",
            clients=plan.sleeping_workers,
            messages=0,
            seconds=0.0,
            server_memory_bytes=int(grown.stdout),
        )


async def _asked(system: str, round_: int, window: int, messages: int) -> Sample:
    """One AsyncWorker asks a worker of this kind. window: its requests at once."""
    ended = trio.Event()

    class Asking(AsyncWorker):
        async def run(self) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(window):
                    nursery.start_soon(self._ask)

        def stopped(self) -> None:
            ended.set()

        async def _ask(self) -> None:
            for _ in range(messages // window):
                await self.ask(route, b"a payload of 24 bytes...", 60.0)

    async with trio.open_nursery() as nursery:
        node = asked = Node(nursery)
        route: Route = (local("echo"),)
        if system == THROUGH_TCP:
            asked = Node(nursery)
            (address,) = await TcpTransport(asked, nursery).listen("127.0.0.1", 0)
            route = (await TcpTransport(node, nursery).connect(address), *route)
        asked.register([local("echo")], ASKED_KINDS[system])
        started_s = time.process_time()
        node.register([local("asking")], Asking, restarts=NEVER)
        await ended.wait()
        seconds = time.process_time() - started_s
        nursery.cancel_scope.cancel()
    return Sample(
        work=ASKED,
        system=system,
        durability="",
        round=round_,
        window=window,
        messages=messages // window * window,
        seconds=seconds,
    )


async def _sleep(system: str, count: int) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        before = memory_bytes(os.getpid())
        for number in range(count):
            node.register([local(f"worker-{number}")], KINDS[system])
        await trio.testing.wait_all_tasks_blocked()
        sys.stdout.write(str(memory_bytes(os.getpid()) - before))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_sleep, sys.argv[1], int(sys.argv[2]))
