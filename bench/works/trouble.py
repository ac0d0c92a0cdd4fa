"""Trouble: how long a client waits for its pushes while a worker of the operator on the same node is in trouble.

Each kind of trouble has a node, whose worker `troubled` makes that trouble from a message ON to a message OFF. The
client pushes in short turns, beside the trouble and without it, so that other work on the machine disturbs both figures
alike. The worker that floods a stream has limits, as a flooding client has in `bench.works.flood`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from bench.measure import sample_fields
from bench.plan import Plan
from bench.report import Sample
from bench.servers.bench_node import BenchNode
from bench.works.flood import FLOODER_LIMITS
from ockam import ALWAYS, AsyncWorker, Message, Worker, WorkerFactory, local
from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.identity.rules.rule_file import rule_text
from ockam.identity.rules.rules import Rule
from stream_client import Conversation, Stream, connect
from stream_node import HostNode
from stream_node.bench.run import Timed
from stream_node.node.config import ENVIRONMENT_PREFIX

BESIDE, ALONE = "trouble: pushed beside a worker in trouble", "trouble: pushed while the worker rests"
TROUBLED = "troubled"
ON, OFF = b"on", b"off"
SETTLE_S: Final = 0.2
"""The time between the beginning of a turn and its first push."""
PUSH_INTERVAL_S: Final = 0.002
"""The pause of the client between two pushes."""
SEND_INTERVAL_S: Final = 0.01
"""The time between two messages to the worker in trouble."""
FILLING: Final = 25_000
"""The messages that are first sent to a worker that takes none: more than its mailbox holds."""
FILLED_AT_ONCE: Final = 100
SICK = (local("sick"),)
TO_SICK = Message(SICK, (), bytes(100))
"""A message to the worker in trouble. It has no return route, so nobody gets the errors that answer it."""


class Troubled(AsyncWorker):
    """Makes trouble from a message ON to a message OFF, and answers both."""

    node: HostNode

    def __init__(self) -> None:
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await super().run()

    async def handle(self, message: Message) -> None:
        self._scope.cancel()
        if message.payload == ON:
            await self._nursery.start(self._trouble)
        self.reply(message, message.payload)

    async def prepare(self) -> None:
        """Prepares the trouble. This is not measured."""

    async def make_trouble(self) -> None:
        """Makes the trouble, until it is cancelled."""
        raise NotImplementedError

    async def _trouble(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scope:
            try:
                await self.prepare()
                task_status.started()
                await self.make_trouble()
            finally:
                self.stop_child(SICK[0])

    async def start_sick(self, sick: WorkerFactory, filling: int) -> None:
        self.start_child(SICK, sick, ALWAYS)
        for number in range(filling):
            self.context.send(TO_SICK)
            if number % FILLED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def send_on_and_on(self) -> None:
        while True:
            self.context.send(TO_SICK)
            await trio.sleep(SEND_INTERVAL_S)


class Crashing(AsyncWorker):
    async def handle(self, message: Message) -> None:
        raise RuntimeError("it always fails")


class Hanging(AsyncWorker):
    async def handle(self, message: Message) -> None:
        await trio.sleep_forever()


class Deaf(AsyncWorker):
    async def run(self) -> None:
        await trio.sleep_forever()


class Echo(Worker):
    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


class Crashes(Troubled):
    async def prepare(self) -> None:
        await self.start_sick(Crashing, 0)

    async def make_trouble(self) -> None:
        await self.send_on_and_on()


class Hangs(Crashes):
    async def prepare(self) -> None:
        await self.start_sick(Hanging, FILLING)


class NeverReads(Crashes):
    async def prepare(self) -> None:
        await self.start_sick(Deaf, FILLING)


class Stopped(Troubled):
    """Starts a worker, and stops it while it handles a message and others wait, again and again."""

    async def make_trouble(self) -> None:
        while True:
            self.start_child(SICK, Hanging)
            for _ in range(10):
                self.context.send(TO_SICK)
            await trio.sleep(SEND_INTERVAL_S)
            self.stop_child(SICK[0])
            await trio.sleep(SEND_INTERVAL_S)


class FloodsStream(Troubled):
    """Pushes as fast as it can, with the window of a publisher."""

    async def make_trouble(self) -> None:
        async with self.node.client() as client, (await client.create("flood")).publisher() as publisher:
            while True:
                await publisher.push(bytes(100))


class FloodsWorker(Troubled):
    """Asks another worker as fast as it can."""

    async def make_trouble(self) -> None:
        self.start_child(SICK, Echo)
        while True:
            await self.ask(SICK, bytes(100))


class FloodsInCircles(Troubled):
    """Two workers with callbacks answer each other without end."""

    async def make_trouble(self) -> None:
        self.start_child(SICK, Echo)
        other = self.start_child([local("other")], Echo)
        try:
            self.context.send(Message(SICK, (other,), bytes(100)))
            await trio.sleep_forever()
        finally:
            self.stop_child(other)


KINDS: Final[dict[str, type[Troubled]]] = {
    "crashes": Crashes,
    "hangs": Hangs,
    "never reads": NeverReads,
    "is stopped in the middle": Stopped,
    "floods a stream": FloodsStream,
    "floods a worker": FloodsWorker,
    "floods in circles": FloodsInCircles,
}


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """The samples of this work. system: what the worker does."""
    rules = place / "trouble.toml"
    table = "".join(f"{name} = {value}\n" for name, value in FLOODER_LIMITS.items())
    rules.write_text(f'{rule_text(Rule("all", ("*",), may=ALL_RIGHTS))}\n[limits."worker:{TROUBLED}"]\n{table}')
    for round_ in range(plan.rounds):
        for kind, worker in KINDS.items():
            settings = {"worker": f"{__name__}:{worker.__name__}@{TROUBLED}"}
            if worker is FloodsStream:
                settings["access_rules"] = str(rules)
            variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in settings.items()}
            with BenchNode(environment=variables) as node:
                for work, timed in trio.run(_in_turn, node.address, plan).items():
                    yield Sample(
                        work=work,
                        system=kind,
                        round=round_,
                        window=1,
                        size_bytes=plan.size_bytes,
                        server_memory_bytes=node.memory_bytes(),
                        **sample_fields(timed),
                    )


async def _in_turn(address: str, plan: Plan) -> dict[str, Timed]:
    """Pushes one message after the other in short turns. Returns the times beside the trouble, and those alone."""
    found: dict[str, list[Timed]] = {BESIDE: [], ALONE: []}
    async with connect(address) as client:
        stream, conversation = await client.create("good"), client.converse(TROUBLED)
        for _ in range(plan.flood_turns):
            for work, order in ((BESIDE, ON), (ALONE, OFF)):
                await _tell(conversation, order)
                await trio.sleep(SETTLE_S)
                found[work].append(await _push(stream, max(1, plan.single // plan.flood_turns), plan.size_bytes))
    return {work: _together(each) for work, each in found.items()}


async def _push(stream: Stream, messages: int, size_bytes: int) -> Timed:
    data, times_us = os.urandom(size_bytes), []
    for _ in range(messages):
        began_ns = time.perf_counter_ns()
        await stream.push(data)
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        await trio.sleep(PUSH_INTERVAL_S)
    return Timed(messages, sum(times_us) / 1e6, times_us)


async def _tell(conversation: Conversation, order: bytes) -> None:
    await conversation.send(order)
    if await conversation.receive() != order:
        raise RuntimeError("the worker in trouble did not do what it was told")


def _together(turns: list[Timed]) -> Timed:
    times_us = [time_us for each in turns for time_us in each.times_us]
    return Timed(sum(each.messages for each in turns), sum(each.seconds for each in turns), times_us)
