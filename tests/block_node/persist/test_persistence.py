"""Goal: what is told to be persisted is on disk, in order and without a hole at its end, and memory stays bounded.

Method: the plugin in a node with real threads and a real database, or with storage that can be stopped and refused;
events come from the test as verification and publishers would publish them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from block_node.events import (
    BackfilledBlockNotification,
    BlockDropped,
    BlockEnded,
    BlockOrigin,
    ItemsReceived,
    NodeFailure,
    VerificationNotification,
)
from block_node.persist import plugin as persistence
from block_node.persist.chain_log import StageParts, StoreBlock
from block_node.persist.store import BlockRetention
from ockam.actors.address import local
from stream_storage.contract import Operation
from tests.block_node.persist.block_samples import items_of, serialized
from tests.block_node.persist.block_world import world
from tests.support.databases import execute_text, open_database
from tests.support.served import wait_until

pytestmark = pytest.mark.usefixtures("each_database")


async def test_a_verified_block_is_stored_and_told(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for number in range(3):
            made.persist(number)
        assert await made.persisted(3) == [(0, True), (1, True), (2, True)]
        assert [await made.stored(number) for number in range(3)] == [serialized(items_of(n)) for n in range(3)]
        assert list(made.store.available) == [(0, 2)]
    async with world(tmp_path) as made:
        assert list(made.store.available) == [(0, 2)], "known from the start, without reading the blocks"


async def test_what_is_not_verified_is_not_stored(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        attempt = made.send(0, items_of(0))
        made.facility.publish(VerificationNotification(0, attempt, BlockOrigin.PUBLISHER, False, failure="bad_root"))
        dropped = made.begin(0)
        made.facility.publish(ItemsReceived(0, dropped, items_of(0), 60))
        made.facility.publish(BlockDropped(0, dropped, "the publisher went"))
        made.persist(0, items_of(50))
        assert await made.persisted(1) == [(0, True)]
        assert await made.stored(0) == serialized(items_of(50))


async def test_backfilled_blocks_come_whole_and_in_any_order(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for number in (7, 3, 4):
            items = items_of(number)
            made.facility.publish(BackfilledBlockNotification(number, items, sum(map(len, items))))
        for number in (3, 7, 4):
            made.verify(number, 0, items_of(number), BlockOrigin.BACKFILL)
        await made.persisted(3)
        assert {each.source for each in made.witness.seen} == {BlockOrigin.BACKFILL}
        assert list(made.store.available) == [(3, 4), (7, 7)]
        assert await made.stored(4) == serialized(items_of(4))


async def test_a_verified_block_whose_items_are_gone_is_told_as_failed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.verify(3, 99, items_of(3))
        assert await made.persisted(1) == [(3, False)]
        assert "did not all come" in made.witness.seen[0].reason


async def test_a_large_block_is_never_held_in_memory_whole(tmp_path: Path) -> None:
    """Ten times what may be held: parts go to the disk while it comes, and nothing is left of them behind it."""
    item = bytes(range(256)) * 2_048
    items = [item] * 20
    async with world(tmp_path, held_bytes_max=1 << 20) as made:
        staged = 0

        def count(operation: Operation) -> bool:
            nonlocal staged
            staged += isinstance(operation, StageParts)
            return False

        made.runner.refuses = count
        made.persist(0, items)
        assert await made.persisted(1) == [(0, True)]
        assert staged >= 4
        assert await made.stored(0) == serialized(items)
        dropped = made.send(1, items)
        made.facility.publish(BlockDropped(1, dropped, "the publisher went"))
    database = open_database(tmp_path)
    session = database.read_session()
    assert execute_text(session, "SELECT count(*) FROM block_staged").fetchone() == (0,)
    session.close()
    database.close()


async def test_a_slow_disk_stops_the_source_of_a_large_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "STAGING_BYTES_MAX", 1 << 20)
    item = b"x" * (1 << 20)
    async with world(tmp_path, held_bytes_max=1 << 20) as made:
        attempt = made.begin(0)
        for _ in range(30):
            made.facility.publish(ItemsReceived(0, attempt, [item], len(item)))
        assert made.facility.full, "the disk has not answered yet"
        await wait_until(lambda: not made.facility.full)
        made.facility.publish(BlockEnded(0, attempt))
        made.verify(0, attempt, [item] * 30)
        assert await made.persisted(1) == [(0, True)]
        assert await made.stored(0) == serialized([item] * 30)


async def test_after_a_failure_nothing_above_it_is_stored_before_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.persist(0)
        await made.persisted(1)
        made.runner.refuses = lambda operation: isinstance(operation, StoreBlock) and operation.block.number == 1
        for number in (1, 2, 3):
            made.persist(number)
        assert (await made.persisted(4))[1:] == [(1, False), (2, False), (3, False)]
        assert "no room to write" in made.witness.seen[1].reason
        made.runner.refuses = lambda operation: False
        made.persist(4)
        assert (await made.persisted(5))[4:] == [(4, False)]
        for number in (1, 2):
            made.persist(number)
        assert (await made.persisted(7))[5:] == [(1, True), (2, True)]
        assert list(made.store.available) == [(0, 2)]


async def test_a_failure_below_the_end_holds_nothing_up(tmp_path: Path) -> None:
    """A block of history that cannot be stored is a hole that backfill offers again; the end goes on."""
    async with world(tmp_path) as made:
        made.persist(5)
        made.runner.refuses = lambda operation: isinstance(operation, StoreBlock) and operation.block.number == 2
        made.persist(2)
        made.persist(6)
        assert await made.persisted(3) == [(5, True), (2, False), (6, True)]


async def test_another_block_of_a_stored_number_fails_and_the_same_succeeds(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.persist(0)
        made.persist(0)
        made.persist(0, items_of(9))
        made.persist(1)
        assert await made.persisted(4) == [(0, True), (0, True), (0, False), (1, True)]
        assert await made.stored(0) == serialized(items_of(0))


async def test_a_part_that_cannot_be_kept_fails_its_block_alone(tmp_path: Path) -> None:
    items = [b"x" * (1 << 20)] * 3
    async with world(tmp_path, held_bytes_max=1 << 20) as made:
        made.runner.refuses = lambda operation: isinstance(operation, StageParts)
        made.persist(0, items)
        assert await made.persisted(1) == [(0, False)]
        made.runner.refuses = lambda operation: False
        made.persist(0, items)
        assert (await made.persisted(2))[1:] == [(0, True)]


async def test_a_node_that_failed_drops_what_is_under_way(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        attempt = made.send(0, items_of(0))
        made.facility.publish(NodeFailure("said the test"))
        made.verify(0, attempt, items_of(0))
        assert await made.persisted(1) == [(0, False)]


async def test_a_plugin_that_crashed_starts_again_and_persists(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.persist(0)
        await made.persisted(1)

        def fail() -> None:
            raise RuntimeError("as the test wants it")

        worker = made.node.find_worker(local("persistence"))
        assert worker is not None
        worker.context.guard(fail)()
        assert made.facility.full, "nobody persists"
        await wait_until(lambda: not made.facility.full)
        assert len(made.witness.failures) == 1
        made.persist(1)
        assert (await made.persisted(2))[1:] == [(1, True)]


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (BlockRetention(blocks=4), [(36, 39)]),
        (BlockRetention(size_bytes=10 * len(serialized(items_of(0)))), [(30, 39)]),
        (BlockRetention(size_bytes=1), [(39, 39)]),
    ],
)
async def test_retention_by_count_and_bytes(
    tmp_path: Path, retention: BlockRetention, left: list[tuple[int, int]]
) -> None:
    async with world(tmp_path, retention) as made:
        for number in range(40):
            made.persist(number)
        await made.persisted(40)
        await wait_until(lambda: list(made.store.available) == left)
        assert list(made.store.ever_stored) == [(0, 39)]
    async with world(tmp_path, retention) as made:
        assert (list(made.store.available), list(made.store.ever_stored)) == (left, [(0, 39)])
