"""Goal: a block is stored under the root that fits, in whichever layout it was hashed, and the chain goes on there.

Method: chains in both layouts on a whole block node, with restarts between any two blocks, a rebuilt index, and a state
as an earlier version kept it. What must be stored, the generator says.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec
import pytest
import trio

from block_node import node as block_node_module
from block_node.blocks.chain import ChainState
from block_node.blocks.errors import Level
from block_node.blocks.generator import BlockShape, GeneratedBlock
from block_node.blocks.merkle import CURRENT, LEGACY, SCHEMES, HashRules, HashScheme
from block_node.blocks.settings import VerifierSettings
from block_node.events import BackfilledBlockNotification
from block_node.node import BlockNode, BlockNodeSettings
from block_node.persist import schema as sql
from block_node.persist.chain_log import ChainLog
from block_node.protocol import Acknowledgement, StreamEnded
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.rows import connection_of
from tests.block_node.publish.samples import Bench, bench, chain_of
from tests.stream_storage.storage_samples import reading, writing

PLAIN = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.CHAIN)
LOG = ChainLog("blocks")


def wrapped(scheme: HashScheme, count: int = 4) -> tuple[GeneratedBlock, ...]:
    """Record blocks of an old version."""
    return chain_of(count, BlockShape(scheme=scheme, hapi_version=(0, 3, 0)))


async def publish(world: Bench, *blocks: GeneratedBlock) -> None:
    publisher = await world.publisher()
    for block in blocks:
        publisher.block(block)
    await publisher.wait_for(Acknowledgement(blocks[-1].number))
    publisher.end_stream()
    await world.settle()


def roots_in(path: Path) -> list[bytes]:
    """As they are in the file, read past the node."""
    database = Database.open(path)
    try:
        with reading(database) as session:
            return LOG.roots(session, 100)
    finally:
        database.close()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
async def test_old_record_blocks_are_taken_from_block_1_on(tmp_path: Path, scheme: HashScheme, known: bool) -> None:
    blocks = wrapped(scheme)
    settings = msgspec.structs.replace(PLAIN, known_roots={0: blocks[0].root} if known else {})
    async with bench(tmp_path, verifier=settings) as world:
        await publish(world, *blocks)
    assert roots_in(tmp_path) == [block.root for block in blocks]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
async def test_a_restart_between_any_two_blocks_and_a_rebuilt_index(tmp_path: Path, scheme: HashScheme) -> None:
    """Which roots the last block may have is known again, from what is kept beside the chain or from its items."""
    blocks = wrapped(scheme)
    for block in blocks:
        async with bench(tmp_path, verifier=PLAIN) as world:
            await publish(world, block)
        database = Database.open(tmp_path)
        with writing(database) as session:
            if block.number % 2 == 0:
                connection_of(session).execute("UPDATE block_chains SET indexed_to = 0")
        database.close()
    async with bench(tmp_path, verifier=PLAIN) as world:
        assert world.stored() == [0, 1, 2, 3]
    assert roots_in(tmp_path) == [block.root for block in blocks]


async def test_a_wrong_block_is_refused_in_either_layout_and_the_right_one_taken(tmp_path: Path) -> None:
    blocks, other = wrapped(LEGACY), chain_of(4, BlockShape(scheme=LEGACY), seed=5)
    async with bench(tmp_path, verifier=PLAIN) as world:
        await publish(world, blocks[0])
        publisher = await world.publisher()
        publisher.block(other[1])
        ended = await publisher.expect(StreamEnded)
        for root in (blocks[0].root, other[0].root, wrapped(CURRENT)[0].root):
            assert root.hex() in ended.reason
        await publish(world, *blocks[1:])
    assert roots_in(tmp_path) == [block.root for block in blocks]


async def test_a_database_of_an_earlier_version_that_guessed_wrong_goes_on(tmp_path: Path) -> None:
    """It has block 0 under the root of the other layout, and a state that knows nothing else: it refused block 1."""
    blocks, wrong = wrapped(LEGACY), wrapped(CURRENT)[0].root
    async with bench(tmp_path, verifier=PLAIN) as world:
        await publish(world, blocks[0])
    state = msgspec.msgpack.encode({"next_number": 1, "previous_root": wrong, "peaks": (wrong,), "claims": ()})
    database = Database.open(tmp_path)
    with writing(database) as session:
        known = sql.find_chain(session, "blocks")
        assert known is not None
        sql.set_chain(session, "blocks", (*known[:-1], state))
        sql.set_root(session, "blocks", 0, wrong)
    with reading(database) as session:
        row = sql.find_chain(session, "blocks")
        assert row is not None, "else the index is rebuilt, and this state is not read"
        assert row[-1] == state
    database.close()
    assert roots_in(tmp_path) == [wrong]
    async with bench(tmp_path, verifier=PLAIN) as world:
        await publish(world, *blocks[1:])
    assert roots_in(tmp_path) == [block.root for block in blocks]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
async def test_blocks_that_come_whole_are_stored_under_the_root_that_fits(tmp_path: Path, scheme: HashScheme) -> None:
    """In their place in the chain, and below it, where the block above names the root."""
    blocks = wrapped(scheme, 5)
    async with bench(tmp_path, verifier=PLAIN, first_block=2) as world:
        for block, roots in ((blocks[2], ()), (blocks[3], ()), (blocks[1], (blocks[1].root,)), (blocks[4], ())):
            size_bytes = sum(map(len, block.items))
            world.block_node.facility.publish(
                BackfilledBlockNotification(block.number, list(block.items), size_bytes, roots=roots)
            )
            await world.settle()
        assert world.stored() == [1, 2, 3, 4]
    assert roots_in(tmp_path) == [block.root for block in blocks[1:]]


async def test_the_tree_of_a_chain_with_another_hash_algorithm_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a second node in the place of the first, which finds neither the state of the chain nor the roots that
    its newest block may have, as if that block were damaged."""
    scheme = HashScheme("sha256-16", HashRules(1, sha256))
    blocks = chain_of(4, BlockShape(scheme=scheme))
    settings = msgspec.structs.replace(PLAIN, hash_schemes=(*SCHEMES, scheme))
    async with bench(tmp_path, verifier=settings) as world:
        await publish(world, *blocks)
        world.block_node.close()
        monkeypatch.setattr(BlockNode, "_stored_chain", lambda self: None)
        monkeypatch.setattr(block_node_module, "find_roots", lambda store, number, settings, done: done((), "damaged"))
        second = BlockNode(
            world.node,
            world.runner,
            BlockNodeSettings(verifier=settings),
            now_us=lambda: 0,
            new_id=map(str, count()).__next__,
        )
        ready = trio.Event()
        second.when_ready(ready.set)
        second.start()
        await ready.wait()
        known = ChainState.from_roots([block.root for block in blocks], scheme.rules)
        assert (second.durable_chain().next_number, second.durable_chain().peaks) == (4, known.peaks)
