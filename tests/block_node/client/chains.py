"""Blocks that a node takes: generated chains, and nodes that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.client import OutgoingBlock, connect


@cache
def keys() -> SigningKeys:
    return SigningKeys.generate(1)


@cache
def chain(count: int, item_count: int = 8, seed: int = 0) -> tuple[GeneratedBlock, ...]:
    """Blocks from 0 on that follow each other."""
    generator = ChainGenerator(keys(), shape=BlockShape(item_count=item_count), seed=seed)
    return tuple(generator.blocks(count))


def outgoing(block: GeneratedBlock) -> OutgoingBlock:
    return OutgoingBlock.from_items(block.items)


async def fetch(nodes: str | Sequence[str], number: int | None = None) -> tuple[int, bytes, bytes]:
    """Number, root and bytes of a block, by a client of its own."""
    async with connect(nodes) as client:
        return await client.get(number)
