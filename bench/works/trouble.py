"""Trouble: what a client waits for its pushes while a worker of the operator on the same node is in trouble.

Each kind of trouble has a node, whose worker `troubled` makes that trouble from a message ON to a message OFF. The
client pushes in short turns, beside the trouble and without it, so that other work on the machine disturbs both figures
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import trio

from bench.measure import push_in_turn, sample_fields
from bench.plan import Plan
from bench.report import Sample
from bench.servers.bench_node import BenchNode
from ockam import ALWAYS, AsyncWorker, Message, Worker, WorkerFactory, local
from stream_client import Conversation, connect
from stream_node import HostNode
from stream_node.bench.run import Timed
from stream_node.node.config import ENVIRONMENT_PREFIX

BESIDE, ALONE = "trouble: pushed beside a worker in trouble", "trouble: pushed while the worker rests"
TROUBLED = "troubled"
ON, OFF = b"on", b"off"
SETTLE_S: Final = 0.2
"""The time between the beginning of a turn and its first push."""
SEND_INTERVAL_S: Final = 0.01
"""The time between two messages to the worker in trouble."""
FILLING: Final = 25_000
"""Messages that are sent to a worker that takes none, before the others: more than its mailbox holds."""
FILLED_AT_ONCE: Final = 100
SICK = (local("sick"),)


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
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._trouble, self._scope)
        self.reply(message, message.payload)

    async def make_trouble(self) -> None:
        """The trouble. It is cancelled at its end."""
        raise NotImplementedError

    async def _trouble(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self.make_trouble()
            finally:
                self.stop_child(SICK[0])

    async def send_on_and_on(self, sick: WorkerFactory, filling: int = 0) -> None:
        self.start_child(SICK, sick, ALWAYS)
        for number in range(filling):
            self.send(SICK, bytes(100))
            if number % FILLED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        while True:
            self.send(SICK, bytes(100))
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
    async def make_trouble(self) -> None:
        await self.send_on_and_on(Crashing)


class Hangs(Troubled):
    async def make_trouble(self) -> None:
        await self.send_on_and_on(Hanging, FILLING)


class NeverReads(Troubled):
    async def make_trouble(self) -> None:
        await self.send_on_and_on(Deaf, FILLING)


class Stopped(Troubled):
    """Starts a worker, and stops it while it handles a message and others wait, again and again."""

    async def make_trouble(self) -> None:
        while True:
            self.start_child(SICK, Hanging)
            for _ in range(10):
                self.send(SICK, bytes(100))
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


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work. system: what the worker does."""
    for round_ in range(plan.rounds):
        for kind, worker in KINDS.items():
            variable = f"{ENVIRONMENT_PREFIX}WORKER"
            with BenchNode(environment={variable: f"{__name__}:{worker.__name__}@{TROUBLED}"}) as node:
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
                share = max(1, plan.single // plan.flood_turns)
                found[work].append(await push_in_turn([stream], messages=share, size_bytes=plan.size_bytes, window=1))
    return {work: _together(each) for work, each in found.items()}


async def _tell(conversation: Conversation, order: bytes) -> None:
    await conversation.send(order)
    if await conversation.receive() != order:
        raise RuntimeError("the worker in trouble did not do what it was told")


def _together(turns: list[Timed]) -> Timed:
    times_us = [time_us for each in turns for time_us in each.times_us]
    return Timed(sum(each.messages for each in turns), sum(each.seconds for each in turns), times_us)
