"""Backfill: how fast a node fills its holes from one other node, and what that costs a live block meanwhile."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from bench.plan import MIB, Plan
from bench.report import OURS, Sample, percentiles
from bench.servers.bench_node import BenchNode
from bench.works.block_publishing import TimedSession, publish_all
from block_node.backfill.protocol import BACKFILL, BackfillAsk
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from stream_client import connect as connect_streams

ITEMS_A_BLOCK: Final = 300
LIVE_EVERY_S: Final = 0.05
"""The time between the beginnings of two live blocks. A real network has one or two blocks a second."""
LARGE_ITEMS, LARGE_ITEM_BYTES = 20, 50_000
BUFFERS_BYTES: Final = (16 * MIB, 64 * MIB)
POLL_S: Final = 0.02
PATIENCE_S: Final = 600.0
NEWEST, OLDEST = "newest blocks", "oldest blocks"
ALONE = "stream-node, no backfill"
FILLED, LIVE, FILLED_MEANWHILE, LARGE = (
    "backfill: filled from one node",
    "backfill: a live block, from its beginning to its acknowledgement",
    "backfill: filled beside live blocks",
    "backfill: filled with blocks of a megabyte",
)


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work. Their `window` is the number of items of a block, their `messages` are blocks."""
    keys = SigningKeys.generate(key_bits=2048)
    generator = ChainGenerator(keys, shape=BlockShape(item_count=ITEMS_A_BLOCK, item_bytes=plan.size_bytes))
    with BenchNode() as source:
        last = trio.run(publish_all, source.address, generator.blocks(plan.backfilled))
        live = list(generator.blocks(plan.live_blocks))
        for round_ in range(plan.rounds):
            for system, newest in ((NEWEST, None), (OLDEST, last)):
                with _behind(newest, source.address) as node:
                    yield _filled(node, plan, round_, system, plan.backfilled - (newest is not None))
            yield from _live(source.address, plan, round_, last, live)
    yield from _large(keys, plan)


def _filled(node: BenchNode, plan: Plan, round_: int, system: str, count: int) -> Sample:
    started_s, cpu_s = time.perf_counter(), node.cpu_seconds()
    memory_bytes = trio.run(_wait_stored, node, count)
    return Sample(
        work=FILLED,
        system=system,
        round=round_,
        window=ITEMS_A_BLOCK,
        size_bytes=ITEMS_A_BLOCK * plan.size_bytes,
        messages=count,
        seconds=time.perf_counter() - started_s,
        server_cpu_s=node.cpu_seconds() - cpu_s,
        server_memory_bytes=memory_bytes,
    )


def _live(
    source: str, plan: Plan, round_: int, last: GeneratedBlock, live: Sequence[GeneratedBlock]
) -> Iterator[Sample]:
    """Publishes live blocks to two nodes that lack all blocks before: one leaves the hole, one fills it meanwhile."""
    size_bytes = ITEMS_A_BLOCK * plan.size_bytes
    for system, sources in ((ALONE, ""), (OURS, source)):
        with _behind(last, sources) as node:
            started_s = time.perf_counter()
            times_us, filled = trio.run(_publish_paced, node.address, live)
            seconds = time.perf_counter() - started_s
        if filled == plan.backfilled - 1:
            raise RuntimeError("the backfill ended before the live blocks did: make the chain longer")
        figures = percentiles(times_us)
        yield Sample(
            work=LIVE,
            system=system,
            round=round_,
            window=ITEMS_A_BLOCK,
            size_bytes=size_bytes,
            messages=len(live),
            seconds=sum(times_us) / 1e6,
            p50_us=figures["p50_us"],
            p99_us=figures["p99_us"],
            p999_us=figures["p999_us"],
        )
        if sources:
            yield Sample(
                work=FILLED_MEANWHILE,
                system=OURS,
                round=round_,
                window=ITEMS_A_BLOCK,
                size_bytes=size_bytes,
                messages=filled,
                seconds=seconds,
            )


def _large(keys: SigningKeys, plan: Plan) -> Iterator[Sample]:
    """The memory by which a node grows at most while it is filled, with buffers of two sizes (`window`, in bytes)."""
    count = max(2, plan.backfilled // 25)
    shape = BlockShape(item_count=LARGE_ITEMS, item_bytes=LARGE_ITEM_BYTES)
    with BenchNode() as source:
        trio.run(publish_all, source.address, ChainGenerator(keys, shape=shape).blocks(count))
        for buffer_bytes in BUFFERS_BYTES:
            with _behind(None, source.address, STREAM_NODE_BACKFILL_MAX_INCOMING_BUFFER_SIZE=str(buffer_bytes)) as node:
                before_bytes = node.memory_bytes()
                started_s = time.perf_counter()
                memory_bytes = trio.run(_wait_stored, node, count) - before_bytes
                yield Sample(
                    work=LARGE,
                    system=OURS,
                    window=buffer_bytes,
                    size_bytes=LARGE_ITEMS * LARGE_ITEM_BYTES,
                    messages=count,
                    seconds=time.perf_counter() - started_s,
                    server_memory_bytes=memory_bytes,
                )


@contextmanager
def _behind(newest: GeneratedBlock | None, source: str, **environment: str) -> Iterator[BenchNode]:
    """A node that was just started and lacks every block of the source but `newest`."""
    first_block = 0 if newest is None else newest.number
    environment |= {"STREAM_NODE_BLOCK_FIRST": str(first_block)}
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as place:
        data_dir = Path(place) / "data"
        if newest is not None:
            with BenchNode(data_dir, environment=environment) as node:
                trio.run(publish_all, node.address, [newest])
                node.stop()
        environment |= {"STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": source}
        with BenchNode(data_dir, environment=environment) as node:
            yield node


async def _wait_stored(node: BenchNode, count: int) -> int:
    """Waits until backfill has stored this many blocks. Returns the most memory that the node had meanwhile."""
    memory_bytes = 0
    with trio.fail_after(PATIENCE_S):
        async with connect_streams(node.address) as connection:
            while (
                await connection.session.ask("block_backfill", BACKFILL, BackfillAsk(1, False))
            ).blocks_stored < count:
                memory_bytes = max(memory_bytes, node.memory_bytes())
                await trio.sleep(POLL_S)
    return max(memory_bytes, node.memory_bytes())


async def _publish_paced(address: str, blocks: Sequence[GeneratedBlock]) -> tuple[list[float], int]:
    """Publishes one block after the other, at a fixed pace.

    Returns the microseconds from the sending of each block's first item to its acknowledgement, and how many blocks
    backfill has stored by then.
    """
    times_us: list[float] = []
    async with connect_streams(address) as connection:
        session = TimedSession(connection)
        await session.open()
        next_s = trio.current_time()
        for block in blocks:
            next_s += LIVE_EVERY_S
            await trio.sleep_until(next_s)
            times_us.append((await session.publish(block)).from_first_item_us)
        status = await connection.session.ask("block_backfill", BACKFILL, BackfillAsk(1, False))
    return times_us, status.blocks_stored
