"""Whether the block that a node has is the one that was given to be published. It publishes nothing.

Two blocks are the same where their roots are: a root covers every item but the proofs.
"""

from __future__ import annotations

from typing import Final

import anyio.lowlevel
import msgspec

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import Level
from block_node.blocks.hash_scheme import RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.client.connection import BlockConnection
from block_node.client.errors import AnotherBlock, BlockNotCompared
from block_node.client.outgoing import OutgoingBlock
from block_node.protocol import Piece
from block_node.protocol_reading import GET, BlockPart, GetBlock, GetStatus
from stream_client.errors import UnexpectedAnswer

READING: Final = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE)
"""What a block must pass to have a root: it begins with a header, is whole, and ends with a footer and a proof."""


class GivenBlock(msgspec.Struct, frozen=True):
    """roots: of the bytes that were given, by each hash scheme that may be meant; the node knows which one is.

    size_bytes: of the items, without what stands between them.
    """

    roots: tuple[RootCandidate, ...]
    size_bytes: int


async def read_given(block: OutgoingBlock) -> GivenBlock:
    """Read a block that was given, and hash it. Raises BlockError where it cannot be read, or is not a whole block."""
    reader = BlockReader(block.number, READING)
    for chunk in block.chunks():
        if chunk.piece is Piece.WHOLE:
            reader.add(chunk.items)
        else:
            reader.add_part(chunk.items[0], last=chunk.piece is Piece.LAST)
        # A large block takes seconds; the connection is read meanwhile.
        await anyio.lowlevel.checkpoint()
    return GivenBlock(reader.finish().roots, reader.size_bytes)


async def compare(connection: BlockConnection, block: OutgoingBlock, stored: bytes, answer_s_max: float) -> None:
    """Compare a block with the one that the node has under its number. stored: its root, empty where it is to be asked.

    Raises AnotherBlock, BlockNotCompared, BlockError, ConnectionLost, RequestTimeout, UnexpectedAnswer.
    """
    given = await read_given(block)
    stored = stored or await _ask_root(connection, block.number, given, answer_s_max)
    if stored not in [each.root for each in given.roots]:
        raise AnotherBlock(block.number, stored, given.roots, connection.address)


async def _ask_root(connection: BlockConnection, number: int, given: GivenBlock, answer_s_max: float) -> bytes:
    """The root under which the node has a block: it comes with any bytes of it, so few are asked for."""

    async def ask(offset: int) -> BlockPart:
        return await connection.ask("block_get", GET, GetBlock(1, number, False, offset), answer_s_max)

    part = await ask(given.size_bytes)
    if part.status is GetStatus.INVALID_REQUEST:
        # The block that is stored is shorter than that.
        part = await ask(0)
    if part.status is GetStatus.NOT_AVAILABLE:
        raise BlockNotCompared(number, given.roots, connection.address)
    if part.status is not GetStatus.SUCCESS:
        raise UnexpectedAnswer(f"{connection.address} cannot read block {number} ({part.status.name})")
    return part.root


async def check_same(number: int, one: OutgoingBlock, other: OutgoingBlock) -> None:
    """Two blocks that were given under one number. Raises AnotherBlock unless they are the same, and BlockError."""
    first, second = await read_given(one), await read_given(other)
    if first.roots != second.roots:
        raise AnotherBlock(number, first.roots[0].root, second.roots, None)
