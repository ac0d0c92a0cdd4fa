"""Consumers with a chain store: what they store, over restarts and any depth of undoing, against a plain replay."""

from __future__ import annotations

import asyncio
import math
import os
import random
import shutil
import sqlite3
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from block_manager import NULL_BLOCK_ID, Block, BlockStoreError, Transactions, UnknownBlock, open_store
from block_manager.transactions import Write
from cardinal_streams.application import Application
from cardinal_streams.consume.chain_store import KeptChain
from cardinal_streams.consume.consuming import Update, consume
from cardinal_streams.errors import ChainStoreMismatch, CheckpointError, CheckpointTaken
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, Revert
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED, SimulationOptions, simulate
from cardinal_streams.transports.file_transport import FileTransport
from cardinal_streams.transports.transport import Transport
from stream_client import StreamRemade
from stream_storage.errors import DatabaseInUse
from tests.block_manager.commit_samples import open_transactions
from tests.cardinal_streams.chain_journal import replayed, stored_chain, text_of, write_of
from tests.cardinal_streams.chains import EVERYTHING, OLD, blocks_of, served_transport, values_of
from tests.cardinal_streams.helpers import hash_of, payload
from tests.cardinal_streams.world import GENESIS as LETTERS


class KilledError(Exception):
    """Ends a consumer without its last save."""


async def lived(
    transport: FileTransport, folder: Path, updates_max: int | None, application: Application = SIMULATED
) -> bool:
    """One life of a consumer, which is killed after so many updates. Whether it came to the end."""
    try:
        async with consume(
            application, transport, chain_store=folder, start=GENESIS, save_interval_s=0, stop_at_end=True
        ) as updates:
            async for update in updates:
                if updates_max == 0:
                    raise KilledError
                updates_max = None if updates_max is None else updates_max - 1
                update.done(write_of(update.removed, update.added))
    except KilledError:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
async def test_a_simulated_chain_with_restarts_anywhere(seed: int, tmp_path: Path) -> None:
    randomness = random.Random(seed)
    simulation = simulate(
        randomness,
        SimulationOptions(blocks=60, deep_reorgs=2, producers=1 + seed % 2, delay_max=seed * 80, fork_rate=0.4),
    )
    transport = FileTransport(tmp_path / "recording", partitions=1 + seed % 3)
    await transport.send_in_order([(step.topic, step.record) for step in simulation.steps])
    lives = 1
    while not await lived(transport, tmp_path / "chain", randomness.randint(0, 15)):
        lives += 1
        assert lives < 200
    transport.close()
    expected = [(block.hash, simulation.contents[block.hash]) for block in simulation.chain]
    database = tmp_path / "chain" / "streams.sqlite"
    assert [(each.hash, each.values) for each in stored_chain(database)] == expected
    assert replayed(database) == [(hash_, text_of(values)) for hash_, values in expected]


async def recorded(path: Path, *groups: Sequence[ChainBlock]) -> FileTransport:
    transport = FileTransport(path)
    async with publish(EVERYTHING, transport) as publisher:
        for blocks in groups:
            await publisher.send(blocks)
    return transport


async def follow(
    transport: Transport,
    chain_store: Path | Transactions,
    application: Application = EVERYTHING,
    write: Write | None = None,
    **options: Any,
) -> list[Update]:
    """Consumes up to the end, and finishes everything."""
    found = []
    async with consume(
        application, transport, chain_store=chain_store, start=LETTERS.start, stop_at_end=True, **options
    ) as updates:
        async for update in updates:
            found.append(update)
            update.done(write or write_of(update.removed, update.added))
    return found


async def test_blocks_and_branches_while_a_reorg_goes_on(tmp_path: Path) -> None:
    """Goal: the application reads any block and branch of its chain, from disk or memory, and a branch that it reads
    stays while the chain leaves it. Method: a first life stores ten blocks; a second one reads them slowly, while a
    heavier fork is taken, stored and read."""
    transport = await recorded(tmp_path / "recording", OLD)
    await follow(transport, tmp_path / "chain")
    fork = blocks_of("n", "o8", 9, 3, bonus=5)
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(fork)
    async with consume(
        EVERYTHING, transport, chain_store=tmp_path / "chain", start=LETTERS.start, stop_at_end=True
    ) as updates:
        assert updates.tip == OLD[-1].payload.hash
        slow = updates.branch()
        read = [await anext(slow)]
        removed: list[CompleteBatch] = []
        async for update in updates:
            removed += update.removed
            with pytest.raises(UnknownBlock):
                await updates.get(hash_of("nowhere"))
            update.done()
            await updates.save()
            assert (await updates.get(update.added[-1].hash)).values == update.added[-1].values
        read += [batch async for batch in slow]
        assert [batch.hash for batch in read] == [block.payload.hash for block in reversed(OLD)]
        assert [batch.values for batch in removed] == [values_of(block) for block in OLD[8:]]
        ours = [batch.hash async for batch in updates.branch(exclude=OLD[5].payload.hash)]
        assert ours == [block.payload.hash for block in reversed((*OLD[6:8], *fork))]
        assert updates.tip == fork[-1].payload.hash
    transport.close()


async def test_blocks_that_a_reorg_removes_after_a_restart_leave_the_memory(tmp_path: Path) -> None:
    """Claim: once a reorg is saved, the store has no block of the other branch, neither on disk nor in memory, also if
    an earlier life stored that branch. Method: the manager counts the blocks that it has in memory."""
    transport = await recorded(tmp_path / "recording", OLD)
    await follow(transport, tmp_path / "chain")
    fork = blocks_of("n", "o8", 9, 3, bonus=5)
    async with publish(EVERYTHING, transport) as publisher:
        await publisher.send(fork)
    async with consume(
        EVERYTHING, transport, chain_store=tmp_path / "chain", start=LETTERS.start, stop_at_end=True
    ) as updates:
        removed: list[bytes] = []
        async for update in updates:
            removed += [batch.hash for batch in update.removed]
            update.done()
        await updates.save()
        assert removed == [block.payload.hash for block in OLD[8:]]
        assert updates.chain is not None
        assert updates.chain._manager.statistics().tree.block_count == 0
        for hash_ in removed:
            with pytest.raises(UnknownBlock):
                await updates.get(hash_)
        updates.chain._manager.check_integrity()
    transport.close()


async def test_a_chain_that_goes_back_below_its_first_block_and_returns(tmp_path: Path) -> None:
    """Goal: also where the chain leaves the store at its first block, and comes back to the same blocks from further
    below, each block is stored behind its parent. Method: a chain that begins at o5 without a start goes back to o2,
    takes o3 to o10 in one transaction, and is read by sqlite3 alone."""
    batches = [
        CompleteBatch(
            hash=block.payload.hash,
            number=block.payload.number,
            parent=block.payload.parent,
            weight=block.payload.weight,
            values=values_of(block),
            deletes=frozenset({"d"}),
        )
        for block in OLD
    ]
    events: list[ChainUpdate | Revert] = [
        ChainUpdate((), tuple(batches[4:])),
        Revert(batches[1].hash, 2, 20, ()),
        ChainUpdate((), tuple(batches[2:])),
    ]
    with open_transactions(tmp_path) as transactions:
        store = KeptChain(transactions, EVERYTHING, EVERYTHING.tracked())
        for event, removed in zip(events, ([], batches[4:], []), strict=True):
            assert await store.deliver(event) == tuple(removed)
            store.finish(event, None)
            if event is not events[1]:
                await store.save(Checkpoint(start=LETTERS.start))
        stored = stored_chain(tmp_path / "streams.sqlite")
        assert [(each.hash, each.parent) for each in stored] == [(each.hash, each.parent) for each in batches[2:]]
        again = KeptChain(transactions, EVERYTHING, EVERYTHING.tracked())
        assert again.tip == batches[-1].hash
        assert [batch async for batch in again.branch(None, None)] == batches[:1:-1]
        # The reorg goes back to a block that the store, which has blocks below it, does not have.
        with pytest.raises(ChainStoreMismatch, match="not on its chain"):
            await again.deliver(Revert(hash_of("elsewhere"), 6, 60, ()))


async def test_a_write_of_the_application_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Goal: a mistake in the application's own table is raised as it is, nothing of its transaction is stored, and the
    next life does it all. Method: the second life's chain and journal are read by sqlite3 alone."""
    transport = await recorded(tmp_path / "recording", OLD)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE twice (n INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO twice VALUES (?)", [(1,), (1,)])

    for write, error in ((fail, sqlite3.IntegrityError), (lambda connection: 1 / 0, ZeroDivisionError)):
        with pytest.raises(error):
            await follow(transport, tmp_path / "chain", write=write)
        assert stored_chain(tmp_path / "chain" / "streams.sqlite") == []
    await follow(transport, tmp_path / "chain")
    expected = [(block.payload.hash, text_of(values_of(block))) for block in OLD]
    assert replayed(tmp_path / "chain" / "streams.sqlite") == expected
    transport.close()


async def test_only_one_consumer_has_a_store(tmp_path: Path) -> None:
    transport = await recorded(tmp_path / "recording", OLD)
    async with consume(EVERYTHING, transport, chain_store=tmp_path / "chain", start=LETTERS.start, stop_at_end=True):
        expected = f"the folder {tmp_path / 'chain'} is in use by this process, .* or choose another folder"
        with pytest.raises(DatabaseInUse, match=expected):
            await follow(transport, tmp_path / "chain")
    # By transactions nobody holds a lock, so the one that saves second finds out.
    with open_transactions(tmp_path / "shared") as transactions:
        async with consume(
            EVERYTHING, transport, chain_store=transactions, start=LETTERS.start, stop_at_end=True
        ) as slow:
            update = await anext(slow)
            await follow(transport, transactions)
            update.done()
            with pytest.raises(CheckpointTaken, match="give each consumer"):
                await slow.save()
            slow._save_due_s = math.inf
    assert len(stored_chain(tmp_path / "shared" / "streams.sqlite")) == len(OLD)
    transport.close()


async def test_a_store_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    transport = await recorded(tmp_path / "recording", OLD)
    await follow(transport, tmp_path / "chain")
    other = Application("others", "default", EVERYTHING.prefixes, reorg_threshold=4)
    with pytest.raises(
        ChainStoreMismatch, match=r"application: 'letters'; .*'others'; give this consumer a chain store"
    ):
        await follow(transport, tmp_path / "chain", other)
    with pytest.raises(ChainStoreMismatch, match="tracked entries"):
        await follow(transport, tmp_path / "chain", tracked=Tracked(("a/",)))
    with pytest.raises(ValueError, match="leave out `store` and `checkpoint`"):
        await follow(transport, tmp_path / "chain", checkpoint=LETTERS)
    # The blocks are those of a program that uses the block manager itself.
    with open_store(tmp_path / "other", "chain") as store:
        store.put([Block("a", NULL_BLOCK_ID, 1)])
    with pytest.raises(ChainStoreMismatch, match="another program"):
        await follow(transport, tmp_path / "other")
    # Whatever was refused has changed nothing.
    assert len(stored_chain(tmp_path / "chain" / "streams.sqlite")) == len(OLD)
    transport.close()


def changed_state(database: Path, change: Callable[[bytes], bytes], *, resealed: bool = True) -> None:
    """Changes the saved state as another program would, with its checksum, or as a bad disk."""
    with sqlite3.connect(database) as connection:
        id_, number, data = connection.execute(
            "SELECT block_id, number, data FROM commit_blocks WHERE store = 'chain state'"
        ).fetchone()
        data = change(data)
        connection.execute("UPDATE commit_blocks SET data = ? WHERE store = 'chain state'", (data,))
        if resealed:
            checksum = zlib.crc32(data, zlib.crc32(f"{number}:{NULL_BLOCK_ID}:{id_}".encode()))
            connection.execute("UPDATE commit_blocks SET checksum = ? WHERE store = 'chain state'", (checksum,))


async def test_a_store_of_another_version_or_with_damage_is_refused(tmp_path: Path) -> None:
    """Goal: what a bad disk or another version of the program left is told, with what to do. Method: each fault in a
    copy of one store."""
    transport = await recorded(tmp_path / "recording", OLD)
    await follow(transport, tmp_path / "chain")

    def copy(name: str) -> Path:
        shutil.copytree(tmp_path / "chain", tmp_path / name)
        return tmp_path / name / "streams.sqlite"

    changed_state(copy("newer"), lambda data: data.replace(b'"version":1', b'"version":2,"more":1', 1))
    with pytest.raises(ChainStoreMismatch, match="its version is 2, and this program knows version 1"):
        await follow(transport, tmp_path / "newer")
    changed_state(copy("cut"), lambda data: data[:40])
    with pytest.raises(CheckpointError, match=r"damaged.*restore a backup"):
        await follow(transport, tmp_path / "cut")
    changed_state(copy("flipped"), lambda data: data[:40], resealed=False)
    with pytest.raises(BlockStoreError, match="is damaged"):
        await follow(transport, tmp_path / "flipped")
    with sqlite3.connect(copy("lost")) as connection:
        connection.execute("DELETE FROM commit_blocks WHERE number = 10")
    with pytest.raises(BlockStoreError, match=r"lost its newest block.*restore a backup"):
        await follow(transport, tmp_path / "lost")
    with sqlite3.connect(copy("block")) as connection:
        connection.execute("UPDATE commit_blocks SET data = x'00' WHERE store = 'chain' AND number = 5")
    async with consume(EVERYTHING, transport, chain_store=tmp_path / "block", stop_at_end=True) as updates:
        assert (await updates.get(OLD[5].payload.hash)).values == values_of(OLD[5])
        with pytest.raises(BlockStoreError, match="is damaged"):
            await updates.get(OLD[4].payload.hash)
    transport.close()


async def test_a_topic_that_was_made_again_is_noticed(tmp_path: Path) -> None:
    """Goal: a chain store never goes on with the offsets of a topic that is another one now. Method: a recording that
    is shorter than what was read, and a stream of a node that was deleted and made again, longer than before."""
    (await recorded(tmp_path / "long", OLD)).close()
    (await recorded(tmp_path / "short", OLD[:5])).close()
    await follow(FileTransport(tmp_path / "long"), tmp_path / "chain")
    with pytest.raises(ChainStoreMismatch, match=r"was read up to offset \d+, and ends at \d+: it was made again"):
        await follow(FileTransport(tmp_path / "short"), tmp_path / "chain")
    async with served_transport(tmp_path / "data") as (_, transport):
        async with publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD[:5])
        await follow(transport, tmp_path / "over a node")
        transport.close()
        for topic in EVERYTHING.topics:
            stream = await transport.client.find_stream(topic)
            assert stream is not None
            for partition in stream.partitions:
                await partition.delete()
        async with publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD)
        with pytest.raises(StreamRemade, match="was deleted and created again"):
            await follow(transport, tmp_path / "over a node")


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Goal: when there is room again, the same consumer goes on, and everything is stored once. Method: the largest
    number of pages of the database is set to what it has; real files, read by sqlite3 alone."""
    transport = await recorded(tmp_path / "recording", OLD, blocks_of("o", "o10", 11, 60))
    with open_transactions(tmp_path) as transactions:
        connection = transactions._writing.connection  # type: ignore[attr-defined]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 1}")
        async with consume(
            EVERYTHING, transport, chain_store=transactions, start=LETTERS.start, stop_at_end=True, save_interval_s=1e6
        ) as updates:
            for _ in range(70):
                update = await anext(updates)
                update.done(write_of(update.removed, update.added))
            with pytest.raises(BlockStoreError, match="free space or raise the quota, then repeat"):
                await updates.save()
            assert stored_chain(tmp_path / "streams.sqlite") == []
            connection.execute("PRAGMA max_page_count=1000000")
            await updates.save()
    assert len(stored_chain(tmp_path / "streams.sqlite")) == len(replayed(tmp_path / "streams.sqlite")) == 70
    transport.close()


async def test_without_a_chain_store_there_is_no_chain(tmp_path: Path) -> None:
    transport = await recorded(tmp_path / "recording", OLD)
    async with consume(EVERYTHING, transport, start=LETTERS.start, stop_at_end=True) as updates:
        update = await anext(updates)
        with pytest.raises(ValueError, match="chain_store="):
            update.done(lambda connection: None)
        update.done()
        with pytest.raises(ValueError, match="chain_store="):
            await updates.get(update.added[0].hash)
    transport.close()


def test_it_runs_under_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        transport = await recorded(tmp_path / "recording", OLD)
        assert len(await follow(transport, tmp_path / "chain")) == len(OLD)
        assert await follow(transport, tmp_path / "chain") == []
        transport.close()

    asyncio.run(run())
    assert len(stored_chain(tmp_path / "chain" / "streams.sqlite")) == len(OLD)


async def test_keys_are_stored_alike_in_any_locale(tmp_path: Path) -> None:
    """Claim: the locale of the process does not change what a store has. Method: a child process, whose file names are
    ASCII, stores a block with keys of other characters, and of bytes that are no UTF-8."""
    keys = {"x/\u043a": b"1", "x/\udcff": b"2"}
    transport = await recorded(tmp_path / "recording", [ChainBlock(payload("a", "g", 1, updates=keys))])
    transport.close()
    program = "import sys, trio, tests.cardinal_streams.test_chain_store as t; trio.run(t.follow_file, *sys.argv[1:])"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    await trio.run_process([sys.executable, "-c", program, tmp_path / "recording", tmp_path / "chain"], env=environment)
    (stored,) = stored_chain(tmp_path / "chain" / "streams.sqlite")
    assert stored.values == keys


async def follow_file(recording: str, folder: str) -> None:
    assert sys.getfilesystemencoding() == "ascii"
    await follow(FileTransport(recording), Path(folder))
