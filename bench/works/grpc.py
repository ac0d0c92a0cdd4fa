"""Measures a block node over gRPC: publishers beside the routed protocol, subscribers, and status calls.

`bench.works.grpc_bytes` measures what single bytes cost. The client is `AskingConnection`. The figures of the server's
processor time and memory do not contain the cost of the client.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import trio

from bench.plan import Plan
from bench.report import OURS, Sample, percentiles
from bench.servers.bench_node import BenchNode
from bench.works.block_publishing import TimedSession, publish_all
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.grpc.client.channel import AskedCall, AskingConnection
from block_node.grpc.client.source import STATUS, SUBSCRIBE
from block_node.grpc.http2.connection import DoorCounts
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import read_message, write_message
from ockam.actors.address import split_host_port
from ockam.identity.tls import Tls
from ockam.identity.tls_stream import connect_tls
from stream_client import connect

PUBLISH: Final = b"/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
ITEMS_A_BLOCK: Final = 1_000
ITEM_BYTES: Final = 220
"""The mean of a real network's items (hiero-consensus-node 26174)."""
PACED_BLOCKS_PER_S: Final = 30
SMALL_FRAME_BYTES: Final = 16 * 1024
ROUTED, FOLLOWED, BUSY = "stream-node, routed", "stream-node, followed", "stream-node, publisher beside it"
PUBLISHED, PACED, STATUS_ASKED = (
    "grpc: published until verified and durable",
    "grpc: from a block's end to its acknowledgement",
    "grpc: status calls",
)


class WireBlock(NamedTuple):
    """A block as messages of a publisher: the set of its items, and its end."""

    items: bytes
    end: bytes


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work. Their `window` is the number of items of a block; their `messages` are items, calls, or
    messages of a subscriber."""
    keys = SigningKeys.generate(key_bits=2048)
    shape = BlockShape(item_count=ITEMS_A_BLOCK, item_bytes=ITEM_BYTES)
    blocks = list(ChainGenerator(keys, shape=shape).blocks(max(2, plan.messages // ITEMS_A_BLOCK)))
    wire = [wire_of(block) for block in blocks]
    turns: dict[str, Callable[[BenchNode], Any]] = {
        ROUTED: lambda node: trio.run(publish_all, node.address, blocks),
        OURS: lambda node: trio.run(publish, node, wire),
        FOLLOWED: lambda node: trio.run(publish, node, wire, True),
    }
    for round_ in range(plan.rounds):
        for system in tuple(turns)[:: -1 if round_ % 2 else 1]:
            with grpc_node() as node:
                yield _measured(node, PUBLISHED, system, round_, len(blocks) * ITEMS_A_BLOCK, turns[system])
        paced = wire[: max(2, int(PACED_BLOCKS_PER_S * plan.delivered_seconds))]
        with grpc_node() as node:
            times_us = trio.run(publish, node, paced, True, 1 / PACED_BLOCKS_PER_S)
            yield _timed(PACED, OURS, round_, times_us)
        with grpc_node() as node:
            yield _timed(STATUS_ASKED, OURS, round_, trio.run(_ask_status, node, plan.single, ()))
            yield _timed(STATUS_ASKED, BUSY, round_, trio.run(_ask_status, node, plan.single, wire))


def wire_of(block: GeneratedBlock) -> WireBlock:
    items = write_message("PublishStreamRequest", {"block_items": {"block_items": block.items}})
    return WireBlock(items, write_message("PublishStreamRequest", {"end_of_block": {"block_number": block.number}}))


@contextmanager
def grpc_node(environment: Mapping[str, str] | None = None, tls: Tls | None = None) -> Iterator[BenchNode]:
    """A node that has read which blocks it has; until then, a node refuses calls. tls: how to connect to it."""

    async def wait_open(address: str) -> None:
        # The routed protocol answers as soon as the node takes publishers.
        async with connect(address, tls=tls) as connection:
            await TimedSession(connection).open()

    with BenchNode(environment={"STREAM_NODE_GRPC": "127.0.0.1:0", **(environment or {})}) as node:
        trio.run(wait_open, node.address)
        yield node


def _measured(
    node: BenchNode, work: str, system: str, round_: int, messages: int, action: Callable[[BenchNode], Any]
) -> Sample:
    cpu_s, started_s = node.cpu_seconds(), time.perf_counter()
    action(node)
    return Sample(
        work=work,
        system=system,
        round=round_,
        window=ITEMS_A_BLOCK,
        size_bytes=ITEM_BYTES,
        messages=messages,
        seconds=time.perf_counter() - started_s,
        server_cpu_s=node.cpu_seconds() - cpu_s,
        server_memory_bytes=node.memory_bytes(),
    )


def _timed(work: str, system: str, round_: int, times_us: Sequence[float]) -> Sample:
    figures: dict[str, Any] = percentiles(times_us)
    seconds = sum(times_us) / 1e6
    return Sample(work=work, system=system, round=round_, messages=len(times_us), seconds=seconds, **figures)


# The client.


class Answer:
    """Takes the answers to one call (an `AnswerHandler`). acknowledged_ns: when each block was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged_ns: list[int] = []
        self.status: GrpcStatus | None = None
        self._changed = trio.Event()

    def take(self, message: bytes) -> None:
        self._changed.set()

    def room(self) -> None:
        self._changed.set()

    def done(self, status: GrpcStatus, text: str) -> None:
        self.status = status
        self._changed.set()

    async def send(self, call: AskedCall, message: bytes, *, compressed: bool = False) -> None:
        """Sends a message, and waits until there is room for another one."""
        if not call.send(message, compressed=compressed):
            self._changed = trio.Event()
            await self._changed.wait()

    async def wait(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            if self.status is not None:
                raise RuntimeError(f"the call ended with {self.status.name}")
            self._changed = trio.Event()
            await self._changed.wait()


class Publishing(Answer):
    """The answers to one publisher, which acknowledge its blocks from `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def take(self, message: bytes) -> None:
        found = read_message("PublishStreamResponse", message)
        if "acknowledgement" not in found:
            raise RuntimeError(f"the node answered {found}")
        # An acknowledgement also acknowledges the blocks before its own.
        new = found["acknowledgement"].get("block_number", 0) + 1 - self._first - len(self.acknowledged_ns)
        self.acknowledged_ns += [time.perf_counter_ns()] * new
        self._changed.set()


@asynccontextmanager
async def asking(
    node: BenchNode, limits: Http2Limits | None = None, tls: Tls | None = None
) -> AsyncIterator[AskingConnection]:
    address = node.grpc[0]
    stream = await trio.open_tcp_stream(*split_host_port(address))
    layer = None if tls is None else tls.layer(address)
    if layer is not None:
        await connect_tls(stream, layer)
    connection = AskingConnection(SocketBytes(stream, layer), address, limits or Http2Limits(), DoorCounts())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection
        connection.close("shutdown")


async def publish(
    node: BenchNode, blocks: Sequence[WireBlock], follows: bool = False, every_s: float = 0.0, first: int = 0
) -> list[float]:
    """Publishes blocks, one after the other or at a pace, while a subscriber may follow. Returns the microseconds from
    the end of each block to its acknowledgement."""
    answer = Publishing(first)
    ended_ns = []
    async with asking(node) as connection, trio.open_nursery() as nursery:
        if follows:
            nursery.start_soon(read_blocks, node, len(blocks))
        call = connection.ask(PUBLISH, answer)
        next_s = trio.current_time()
        for block in blocks:
            next_s += every_s
            await trio.sleep_until(next_s)
            await answer.send(call, block.items)
            ended_ns.append(time.perf_counter_ns())
            await answer.send(call, block.end)
        await answer.wait(lambda: len(answer.acknowledged_ns) == len(blocks))
    return [(heard - ended) / 1e3 for heard, ended in zip(answer.acknowledged_ns, ended_ns, strict=True)]


async def read_blocks(node: BenchNode, count: int) -> None:
    """Subscribes to the first blocks, in frames of 16 KiB as most libraries ask for, and reads them to their end."""
    answer = Answer()
    async with asking(node, Http2Limits(frame_bytes_max=SMALL_FRAME_BYTES)) as connection:
        connection.ask(SUBSCRIBE, answer, write_message("SubscribeStreamRequest", {"end_block_number": count - 1}))
        await answer.wait(lambda: answer.status is GrpcStatus.OK)


async def _ask_status(node: BenchNode, calls: int, blocks: Sequence[WireBlock]) -> list[float]:
    """Microseconds of status calls, one after the other. With blocks, only while they are published at full speed."""
    times_us: list[float] = []
    async with asking(node) as connection, trio.open_nursery() as nursery:

        async def publish_all_blocks() -> None:
            await publish(node, blocks)
            nursery.cancel_scope.cancel()

        if blocks:
            nursery.start_soon(publish_all_blocks)
        while blocks or len(times_us) < calls:
            answer = Answer()
            began_ns = time.perf_counter_ns()
            connection.ask(STATUS, answer, b"")
            await answer.wait(lambda answer=answer: answer.status is GrpcStatus.OK)  # type: ignore[misc]
            times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return times_us
