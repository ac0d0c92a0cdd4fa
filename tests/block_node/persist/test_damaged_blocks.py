"""Goal: a stored block whose bytes are damaged or gone is missing from the moment in which somebody looks at it, and
the same block that comes again mends it, as if nothing had happened.

Method: a store on a real database; bytes are changed and removed behind its back, never a row of an index. What is
mended is compared with the rows before the damage, and the file is verified.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from block_node.persist import plugin
from block_node.persist.chain_log import ReadBlocks
from block_node.persist.plugin import BlockScan
from block_node.protocol_reading import GetStatus, SubscribeStatus
from block_node.read.feed import SubscribeLimits
from ockam.actors.address import local
from stream_storage.contract import Operation
from stream_storage.errors import DatabaseCorrupt
from tests.block_node.persist.block_samples import block_of, check_database, items_of, root_of, serialized
from tests.block_node.persist.block_world import World, world
from tests.block_node.read.conftest import Clock
from tests.block_node.read.probe import Subscribers, check_blocks, persist
from tests.block_node.read.test_access import Access
from tests.support.served import wait_until

ALL = "SELECT idx, time_us, checksum, key, headers, data FROM messages ORDER BY idx"
LARGE = [b"a" * 1_000_000, b"b" * 1_000_000, b"c" * 400_000]
"""The items of block 1: three parts."""
GONE, WRONG = "DELETE FROM messages WHERE idx = {}", "UPDATE messages SET checksum = checksum + 1 WHERE idx = {}"


async def fill(made: World) -> None:
    """Blocks 0 to 3, at the indexes 0, 1 to 3, 4 and 5."""
    for number in range(4):
        made.persist(number, LARGE if number == 1 else None)
    await made.persisted(4)


async def meet(made: World, number: int, part: int = 0) -> None:
    """Somebody reads that part of the block, which is damaged."""
    found: list[object] = []
    made.store.read(number, part, 1, lambda operation: found.append(operation.error))
    await wait_until(lambda: found)
    assert isinstance(found[0], DatabaseCorrupt)


def rows(directory: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(directory / "streams.sqlite")
    try:
        return connection.execute(ALL).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("damage", "index"),
    [
        pytest.param(GONE, 0, id="gone"),
        pytest.param(GONE, 2, id="a part gone"),
        pytest.param("DELETE FROM messages WHERE idx > {}", 4, id="the newest gone"),
        pytest.param("UPDATE messages SET data = zeroblob(length(data)) WHERE idx = {}", 3, id="data"),
        pytest.param("UPDATE messages SET headers = x'00' WHERE idx = {}", 1, id="headers"),
        pytest.param(WRONG, 2, id="checksum"),
    ],
)
async def test_a_damaged_block_is_missing_and_is_mended_in_its_place(tmp_path: Path, damage: str, index: int) -> None:
    number, part = {0: (0, 0), 1: (1, 0), 2: (1, 1), 3: (1, 2), 4: (3, 0)}[index]
    async with world(tmp_path) as made:
        await fill(made)
    before = rows(tmp_path)
    async with world(tmp_path) as made:
        await made.change(damage.format(index))
        size_bytes = made.store.statistics().size_bytes
        await meet(made, number, part)
        assert number not in made.store.available
        assert number not in made.store.ever_stored
        assert (made.store.statistics().blocks, made.store.statistics().damaged) == (3, 1)
    # The damage is known after a restart, without another look.
    async with world(tmp_path) as made:
        made.damaged = True
        assert list(made.store.damaged) == [(number, number)]
        assert number not in made.store.available
        made.persist(number, LARGE if number == 1 else None)
        assert await made.persisted(1) == [(number, True)]
        assert list(made.store.available) == [(0, 3)]
        statistics = made.store.statistics()
        assert (statistics.blocks, statistics.damaged, statistics.mended) == (4, 0, 1)
        assert statistics.size_bytes == size_bytes
        assert await made.stored(number) == serialized(LARGE if number == 1 else items_of(number))
    after = rows(tmp_path)
    if damage == WRONG or "DELETE" in damage or "headers" in damage:
        # The time is that of the message before, which is the same here; headers are made anew with what is known.
        assert [(*row[:2], row[3], row[5]) for row in after] == [(*row[:2], row[3], row[5]) for row in before]
    else:
        assert after == before
    check_database(tmp_path)


@pytest.mark.usefixtures("each_database")
async def test_every_kind_of_database_mends(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await fill(made)
        for damage, index in ((GONE, 2), (WRONG, 3)):
            await made.change(damage.format(index))
            await meet(made, 1, index - 1)
            made.persist(1, LARGE)
            await wait_until(lambda: 1 in made.store.available)
            assert await made.stored(1) == serialized(LARGE)


async def test_a_block_of_another_size_is_mended_behind_the_others(tmp_path: Path) -> None:
    """With another proof it does not fit into its place. Neither does any block if the row of its place is damaged."""
    async with world(tmp_path) as made:
        await fill(made)
        await made.change(GONE.format(4))
        await meet(made, 2)
        other = msgspec.structs.replace(block_of(2, items_of(7, count=5)), root=root_of(items_of(2)))
        made.store.store(other, lambda error: made.facility.close() if error else None)
        await wait_until(lambda: 2 in made.store.available)
        assert await made.stored(2) == serialized(items_of(7, count=5))
        await made.change("UPDATE block_index SET first_index = 0 WHERE number = 3")
        await meet(made, 3)
        made.persist(3)
        await wait_until(lambda: 3 in made.store.available)
        assert await made.stored(0) == serialized(items_of(0))
        size_bytes = sum([len(await made.stored(number)) for number in range(4)])
        assert (made.store.statistics().blocks, made.store.statistics().size_bytes) == (4, size_bytes)
    async with world(tmp_path) as made:
        made.damaged = True
        assert list(made.store.available) == [(0, 3)]
        assert (made.store.statistics().blocks, made.store.statistics().size_bytes) == (4, size_bytes)


async def test_a_reader_meets_the_damage_and_a_subscriber_waits_for_the_block(tmp_path: Path) -> None:
    clock = Clock()
    async with world(tmp_path) as made:
        subscribers = Subscribers(made, SubscribeLimits(tick_s=0.02, missing_s_max=5.0), clock)
        await persist(made, *range(5))
        await made.change(GONE.format(0))
        await made.change(WRONG.format(3))
        access = Access(made)
        assert (await access.ask(3)).status is GetStatus.NOT_FOUND
        assert (await access.ask(3)).status is GetStatus.NOT_AVAILABLE
        subscriber = subscribers.subscribe(0, 4)
        await wait_until(lambda: list(made.store.damaged) == [(0, 0), (3, 3)])
        for number in (3, 0):
            made.persist(number)
        assert await subscriber.wait_status() is SubscribeStatus.SUCCESS
        check_blocks(subscriber, list(range(5)))
        await made.change(GONE.format(1))
        waiting = subscribers.subscribe(1, 4)
        await wait_until(lambda: 1 in made.store.damaged)
        clock.now_s += 6.0
        assert await waiting.wait_status() is SubscribeStatus.NOT_AVAILABLE


async def test_the_scan_finds_damage_that_nobody_reads(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await fill(made)
        await made.change(GONE.format(3))
        await made.change(WRONG.format(4))
        made.node.register([local("block_scan")], lambda: BlockScan(made.store, 100_000_000))
        await wait_until(lambda: list(made.store.damaged) == [(1, 2)])
        assert list(made.store.available) == [(0, 0), (3, 3)]


async def test_a_scan_whose_reads_fail_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: while the database is away, the scan leaves it alone; no block counts as damaged. Method: after the first
    read that fails, others read many times, and the scan has not read again."""
    monkeypatch.setattr(plugin, "PAUSE_S", 3600.0)
    async with world(tmp_path) as made:
        await fill(made)
        failed: list[Operation] = []

        def refuses(operation: Operation) -> bool:
            is_scan = isinstance(operation, ReadBlocks) and operation.blocks > 1
            if is_scan:
                failed.append(operation)
            return is_scan

        made.runner.refuses = refuses
        made.node.register([local("block_scan")], lambda: BlockScan(made.store, 100_000_000))
        await wait_until(lambda: failed and failed[0].error)
        for _ in range(50):
            await made.stored(0)
        assert len(failed) == 1
        assert list(made.store.available) == [(0, 3)]
