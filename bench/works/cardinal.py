"""Measures Cardinal Streams: blocks of 23 messages are made and ordered, in one process and through a node."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeAlias

import trio

from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from cardinal_streams.application import Application, Prefix
from cardinal_streams.consume.consuming import consume
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, Start
from cardinal_streams.message.messages import Record
from cardinal_streams.payload import Payload
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.transports.stream_transport import StreamTransport
from cardinal_streams.transports.transport import partition_of, source_of
from stream_client import connect

MESSAGES_A_BLOCK = 23
PARTITIONS = 4
GROUP_BLOCKS = 100
"""The number of blocks that are sent together."""
VALUE_BYTES = 60
NOWHERE = "in memory"
APPLICATION = Application(
    "bench", "bench-blocks", tuple(Prefix(pattern=f"{name}/", topic=f"bench-{name}") for name in "abc")
)
PRODUCE, REASSEMBLE, SEND, RECEIVE, STORE = (
    "cardinal: made",
    "cardinal: put together and ordered",
    "cardinal: sent through a node",
    "cardinal: received and ordered through a node",
    "cardinal: received and kept in a chain store",
)


class Spent(NamedTuple):
    """Time on the clock and time of the processor. On a busy machine, processor time says more."""

    seconds: float
    cpu_s: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time())

    def since(self, started: Spent) -> Spent:
        return Spent(self.seconds - started.seconds, self.cpu_s - started.cpu_s)


Delivered: TypeAlias = list[tuple[bytes, bytes, str, int]]
"""Key, value, source and offset of each delivery."""


def samples(plan: Plan) -> Iterator[Sample]:
    blocks = chain(max(1, plan.messages // MESSAGES_A_BLOCK))
    for round_ in range(plan.rounds):
        spent, records = produced(blocks)
        messages = len(records)
        yield _in_process(PRODUCE, round_, messages, spent)
        yield _in_process(REASSEMBLE, round_, messages, ordered(delivered(records), len(blocks)))
        yield from _through_a_node(round_, blocks, messages)


def chain(count: int) -> list[Payload]:
    """Blocks in a row; each has 22 values on three topics, so that it is 23 messages."""
    blocks = []
    parent = bytes(32)
    value = b"v" * VALUE_BYTES
    for number in range(1, count + 1):
        updates = {f"{'abc'[index % 3]}/{number}/{index}": value for index in range(MESSAGES_A_BLOCK - 1)}
        block = Payload(hash=number.to_bytes(32, "big"), number=number, parent=parent, weight=number, updates=updates)
        blocks.append(block)
        parent = block.hash
    return blocks


def produced(blocks: list[Payload]) -> tuple[Spent, list[tuple[str, Record]]]:
    """Makes all messages. Returns the time that this took, and the messages with their topics."""
    producer = APPLICATION.producer()
    made = []
    started = Spent.now()
    for block in blocks:
        made.append(producer.add_block(block))
    spent = Spent.now().since(started)
    return spent, [(topic, each) for outgoing in made for topic, records in outgoing.items() for each in records]


def delivered(records: list[tuple[str, Record]]) -> Delivered:
    """The messages as four partitions of each topic would deliver them."""
    offsets: dict[str, int] = {}
    found: Delivered = []
    for topic, (key, value) in records:
        source = source_of(topic, partition_of(key, PARTITIONS))
        offsets[source] = offset = offsets.get(source, -1) + 1
        found.append((key, value, source, offset))
    return found


def ordered(deliveries: Delivered, blocks: int) -> Spent:
    """Lets one consumer bring all blocks into order. Returns the time that this took."""
    # With a start, each block is in order as soon as it is complete; without a start, only after the end of the log.
    start = Checkpoint(start=Start(bytes(32), 0, 0))
    consumer = ChainConsumer(
        reorg_threshold=APPLICATION.reorg_threshold, tracked=APPLICATION.tracked(), checkpoint=start
    )
    added = 0
    started = Spent.now()
    for delivery in deliveries:
        for event in consumer.receive(*delivery):
            if isinstance(event, ChainUpdate):
                added += len(event.added)
                consumer.done(event)
    spent = Spent.now().since(started)
    _check(added, blocks)
    return spent


def _through_a_node(round_: int, blocks: list[Payload], messages: int) -> Iterator[Sample]:
    with BenchNode() as node:
        for work, action in ((SEND, _send), (RECEIVE, _receive), (STORE, _store)):
            started, server_cpu_s = Spent.now(), node.cpu_seconds()
            seconds = trio.run(_timed, action, node.address, blocks)
            server_cpu_s = node.cpu_seconds() - server_cpu_s
            yield Sample(
                work=work,
                system=OURS,
                round=round_,
                size_bytes=VALUE_BYTES,
                streams=PARTITIONS * len(APPLICATION.topics),
                messages=messages,
                seconds=seconds,
                server_cpu_s=server_cpu_s,
                cpu_s=server_cpu_s + Spent.now().since(started).cpu_s,
                server_memory_bytes=node.memory_bytes(),
            )


async def _timed(
    action: Callable[[StreamTransport, list[Payload]], Awaitable[None]], address: str, blocks: list[Payload]
) -> float:
    async with connect(address) as client:
        transport = StreamTransport(client, partitions=PARTITIONS)
        started_s = time.perf_counter()
        await action(transport, blocks)
        return time.perf_counter() - started_s


async def _send(transport: StreamTransport, blocks: list[Payload]) -> None:
    async with publish(APPLICATION, transport, redundant=False) as publisher:
        for at in range(0, len(blocks), GROUP_BLOCKS):
            await publisher.send([ChainBlock(block) for block in blocks[at : at + GROUP_BLOCKS]])


async def _receive(transport: StreamTransport, blocks: list[Payload]) -> None:
    added = 0
    async with consume(APPLICATION, transport, stop_at_end=True) as updates:
        async for update in updates:
            added += len(update.added)
            update.done()
    _check(added, len(blocks))


async def _store(transport: StreamTransport, blocks: list[Payload]) -> None:
    """As `_receive`, with a chain store on the disk of the node."""
    added = 0
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        async with consume(APPLICATION, transport, chain_store=folder, stop_at_end=True) as updates:
            async for update in updates:
                added += len(update.added)
                update.done()
    _check(added, len(blocks))


def _check(added: int, blocks: int) -> None:
    """Raises RuntimeError if a block is missing: a time without all of its work is no figure."""
    if added != blocks:
        raise RuntimeError(f"{added} of {blocks} blocks were put in order")


def _in_process(work: str, round_: int, messages: int, spent: Spent) -> Sample:
    return Sample(
        work=work,
        system=OURS,
        durability=NOWHERE,
        round=round_,
        size_bytes=VALUE_BYTES,
        messages=messages,
        seconds=spent.seconds,
        cpu_s=spent.cpu_s,
    )
