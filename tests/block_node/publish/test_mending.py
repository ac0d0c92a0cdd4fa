"""Goal: a damaged block is replaced by the block that was stored, and by no other.

Method: a real node whose block 1 has lost its bytes; a publisher offers blocks of its number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from block_node.protocol import Acknowledgement, DuplicateBlock, PublishStatus, StreamEnded
from stream_storage.contract import Do, Session, ignore_done
from stream_storage.errors import DatabaseLost
from tests.block_node.publish.samples import Bench, Publisher, bench, chain_of
from tests.support.databases import execute_text

BLOCKS, OTHERS = chain_of(3), chain_of(3, seed=9)


@asynccontextmanager
async def damaged(directory: Path) -> AsyncIterator[tuple[Bench, Publisher]]:
    """A node that misses the bytes of block 1, and a publisher."""
    async with bench(directory) as world:
        publisher = await world.publisher()
        for block in BLOCKS:
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(2))
        gone = "DELETE FROM messages WHERE idx = 1"
        world.runner.submit_write(Do(lambda session: execute_text(session, gone), ignore_done))
        await world.settle()
        world.block_node.store.read(1, 0, 1, ignore_done)
        await world.settle()
        assert world.stored() == [0, 2]
        yield world, publisher


async def test_no_other_block_takes_the_place_while_the_right_root_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a block whose root hash cannot be compared with the stored one is not stored. Method: the database is away
    for the look-up; the block comes from another chain, with proofs that are right."""

    def is_away(session: Session) -> NoReturn:
        raise DatabaseLost("said the test")

    async with damaged(tmp_path) as (world, publisher):
        read = world.runner.submit_read
        with monkeypatch.context() as patch:
            patch.setattr(world.runner, "submit_read", lambda operation: read(Do(is_away, operation.on_done)))
            publisher.block(OTHERS[1])
            await world.settle()
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.PERSISTENCE_FAILED
        assert world.stored() == [0, 2]
        # Another try ends otherwise.
        again = await world.publisher()
        again.block(BLOCKS[1])
        assert await again.expect(DuplicateBlock) == DuplicateBlock(1, 2)
        assert world.stored() == [0, 1, 2]


async def test_a_second_end_of_the_block_says_nothing(tmp_path: Path) -> None:
    async with damaged(tmp_path) as (world, publisher):
        publisher.block(BLOCKS[1])
        publisher.end_block(1)
        await world.settle()
        assert await publisher.expect(DuplicateBlock) == DuplicateBlock(1, 2)
        assert world.stored() == [0, 1, 2]
