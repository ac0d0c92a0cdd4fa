"""The part of the demo with blocks: two publishers send blocks, and a subscriber receives all of them.

1. Start a node, and a subscriber that waits for all blocks of a generated chain.
2. The first publisher sends half of the chain. Its connection then breaks in the middle of a block.
3. The second publisher offers the whole chain. The node skips the blocks that it has on disk, and accepts the block
   that was cut short.
4. If there are real blocks in files, publish them to another node.
5. Check that the subscriber received each block once, in order, with the published items.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from block_node.blocks.files import find_files, read_items
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
from block_node.blocks.keys import SigningKeys
from block_node.client import OutgoingBlock, connect
from block_node.item_splitting import ItemBatch
from block_node.protocol import Piece
from stream_node.demo.proof import DemoFailed
from stream_node.node.process import NodeProcess

BLOCKS = 40
ITEMS_A_BLOCK = 200
DIES_AT = BLOCKS // 2
PATIENCE_S = 60.0
REAL_BLOCKS = Path(__file__).resolve().parents[3] / "shared" / "data" / "hiero" / "SOLO_4N"
"""A folder with real blocks next to the repository. The demo skips them if this folder does not exist."""


class DemoBlocks(msgspec.Struct, frozen=True):
    """The result of this part. real: the number of blocks from files. broken: a text for each broken promise."""

    published: int
    received: int
    real: int
    size_bytes: int
    seconds: float
    broken: tuple[str, ...]


class Died(Exception):
    pass


def run_blocks(directory: Path) -> DemoBlocks:
    """Runs this part of the demo in the folder. Raises DemoFailed if the subscriber is not served in time."""
    keys = SigningKeys.generate()
    chain = list(ChainGenerator(keys, shape=BlockShape(item_count=ITEMS_A_BLOCK)).blocks(BLOCKS))
    real = [tuple(read_items(file)) for _, file in find_files(REAL_BLOCKS).blocks] if REAL_BLOCKS.is_dir() else []
    started_s = time.monotonic()
    with NodeProcess(directory / "blocks") as node:
        received = trio.run(_publish_and_follow, node.address, chain)
    broken = check([block.items for block in chain], received)
    if real:
        with NodeProcess(directory / "real-blocks") as node:
            from_files = trio.run(_publish_real, node.address, real)
        broken += check(real, from_files)
    size_bytes = sum(len(item) for items in [*(block.items for block in chain), *real] for item in items)
    seconds = time.monotonic() - started_s
    return DemoBlocks(len(chain), len(received), len(real), size_bytes, seconds, tuple(broken))


def check(published: Sequence[Sequence[bytes]], received: Sequence[tuple[int, Sequence[bytes]]]) -> list[str]:
    """Returns the broken promises, unless each block was received once, in order, with its items."""
    broken = []
    numbers = [number for number, _ in received]
    if numbers != list(range(len(published))):
        broken.append(f"the subscriber got the blocks {numbers}, not each of 0 to {len(published) - 1} once")
    for number, items in received:
        if number < len(published) and list(items) != list(published[number]):
            broken.append(f"block {number}: what came is not what was published")
    return broken


async def _publish_and_follow(address: str, chain: Sequence[GeneratedBlock]) -> list[tuple[int, list[bytes]]]:
    received: list[tuple[int, list[bytes]]] = []

    async def follow() -> None:
        async with connect(address) as blocks_client, blocks_client.subscribe(0, len(chain) - 1) as blocks:
            async for block in blocks:
                received.append((block.number, block.items))

    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await _publish_and_die(address, chain)
                await _publish(address, [block.items for block in chain])
    except trio.TooSlowError:
        raise DemoFailed(f"the subscriber got {len(received)} of {len(chain)} blocks in {PATIENCE_S:g} s") from None
    return received


async def _publish_and_die(address: str, chain: Sequence[GeneratedBlock]) -> None:
    block = chain[DIES_AT]

    def half() -> Iterator[ItemBatch]:
        items = list(block.items[: len(block.items) // 2])
        yield ItemBatch(items, Piece.WHOLE, sum(map(len, items)))
        raise Died

    with suppress(Died):
        async with connect(address) as blocks_client, blocks_client.publisher() as publisher:
            for each in chain[:DIES_AT]:
                await publisher.send(OutgoingBlock.from_items(each.items))
            await publisher.flush()
            await publisher.send(OutgoingBlock(block.number, 0, half))
            await publisher.flush()


async def _publish(address: str, blocks: Sequence[Sequence[bytes]]) -> None:
    async with connect(address) as blocks_client, blocks_client.publisher() as publisher:
        for items in blocks:
            await publisher.send(OutgoingBlock.from_items(items))


async def _publish_real(address: str, blocks: Sequence[Sequence[bytes]]) -> list[tuple[int, list[bytes]]]:
    with trio.fail_after(PATIENCE_S):
        await _publish(address, blocks)
        async with connect(address) as blocks_client, blocks_client.subscribe(0, len(blocks) - 1) as received:
            return [(block.number, block.items) async for block in received]
