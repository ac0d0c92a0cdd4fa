"""Goal: what goes wrong in the node itself ends every stream with a status, gives every lease back, and the next
publisher goes on; and what publishers know is remembered and reported.

Method: plugins that crash or hang, publishers that are silent, in virtual time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from block_node.blocks.items import ItemKind, make_item
from block_node.events import CatchUpStalled, ItemEvent, NewestBlockKnownToNetwork, NodeFailure
from block_node.facility import Plugin
from block_node.persist.chain_log import StoreBlock
from block_node.protocol import (
    Acknowledgement,
    Behind,
    OpenSession,
    PublishStatus,
    ResendBlock,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.block_machine import PublishLimits
from ockam.actors.address import local
from stream_storage.commit import fail_all
from stream_storage.contract import Operation
from stream_storage.errors import CommitUnsettled, DatabaseLost
from tests.block_node.publish.samples import Bench, Publisher, bench, chain_of, header_of

BLOCKS = chain_of(4)


def plugin(world: Bench, name: str) -> Plugin:
    worker = world.node.find_worker(local(f"block_{name}"))
    assert isinstance(worker, Plugin)
    return worker


def _fail() -> None:
    raise RuntimeError("as the test wants it")


async def open_anew(publisher: Publisher) -> SessionOpened:
    """Tried until the node takes publishers again."""
    while True:
        publisher.sequence = 0
        publisher.told.clear()
        try:
            return await publisher.open(b"again")
        except AssertionError:
            await trio.sleep(0.05)


@pytest.mark.parametrize("name", ["persistence", "verification", "publish"])
@pytest.mark.parametrize("sent", ["half", "whole"])
async def test_a_plugin_that_fails_ends_every_stream(tmp_path: Path, name: str, sent: str) -> None:
    async with bench(tmp_path) as world:
        sender, idle = await world.publisher(), await world.publisher()
        sender.block(BLOCKS[0])
        await idle.expect(Acknowledgement)
        sender.items(BLOCKS[1].items[:5])
        if sent == "whole":
            sender.items(BLOCKS[1].items[5:])
            sender.end_block(1)
        plugin(world, name).context.guard(_fail)()
        while not isinstance(response := await idle.next(), StreamEnded):
            assert response == Acknowledgement(1)
        assert response.status is PublishStatus.ERROR
        await sender.wait_for(response)
        assert world.publishing.statistics().in_flight.blocks == 0
        opened = await open_anew(idle)
        assert opened.last_block in (0, 1)
        for block in BLOCKS[opened.next_block :]:
            idle.block(block)
        await idle.wait_for(Acknowledgement(3))
        assert world.stored() == [0, 1, 2, 3]


async def test_who_comes_while_no_block_is_stored_is_told_at_once(tmp_path: Path) -> None:
    """The free-disk floor: no publisher sends a block in vain, and none that is connected is ended by it."""
    async with bench(tmp_path) as world:
        connected = await world.publisher()
        world.block_node.store.refusal = "the disk is full"
        late = Publisher(world.node)
        late.send_to(local("block_publish"), OpenSession(b""))
        ended = await late.expect(StreamEnded)
        assert (ended.status, ended.last_block) == (PublishStatus.PERSISTENCE_FAILED, None)
        assert "the disk is full" in ended.reason
        world.block_node.store.refusal = None
        await late.open(b"again")
        connected.block(BLOCKS[0])
        assert await late.expect(Acknowledgement) == Acknowledgement(0)


async def test_a_publisher_that_comes_while_a_plugin_is_away_is_told_to_come_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        plugin(world, "verification").context.guard(_fail)()
        publisher = Publisher(world.node)
        with pytest.raises(AssertionError, match="verification"):
            await publisher.open(b"too early")
        assert (await open_anew(publisher)).next_block == 0


@pytest.mark.parametrize("name", ["verification", "persistence"])
async def test_a_plugin_that_hangs_is_noticed(
    tmp_path: Path, name: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A block that was complete is not verified, or not stored, in time."""
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        plugin(world, name).inlet.pause()
        publisher.block(BLOCKS[0])
        await trio.sleep(PublishLimits().processing_s_max + 1)
        ended = await publisher.expect(StreamEnded)
        status = PublishStatus.PERSISTENCE_FAILED if name == "persistence" else PublishStatus.ERROR
        assert (ended.status, ended.block_number) == (status, 0)
        assert len(world.all_of(NodeFailure)) == 1
        plugin(world, name).inlet.resume()
        await open_anew(publisher)
        publisher.block(BLOCKS[0])
        await publisher.wait_for(Acknowledgement(0))


async def test_plugins_that_take_nothing_are_noticed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    limits = PublishLimits(queued_bytes_max=4_000)
    async with bench(tmp_path, limits) as world:
        publisher = await world.publisher()
        plugin(world, "verification").inlet.pause()
        publisher.header(0)
        for _ in range(2_000):
            publisher.items(BLOCKS[0].items[1:3])
        await trio.sleep(30)
        assert not publisher.told, "that we do not read it is not its fault"
        await trio.sleep(40)
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.ERROR


async def test_a_plugin_that_takes_items_slowly_is_no_failure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """As persistence does while a large block goes to a slow disk: it is full at each look, and goes on."""
    async with bench(tmp_path, PublishLimits(queued_bytes_max=4_000)) as world:
        publisher, slow = await world.publisher(), plugin(world, "verification")
        handle = slow.handle_items

        def handle_one(event: ItemEvent) -> None:
            handle(event)
            slow.inlet.pause()

        slow.handle_items = handle_one  # type: ignore[method-assign]
        publisher.header(0)
        for _ in range(2_000):
            publisher.items(BLOCKS[0].items[1:3])
        for _ in range(10):
            await trio.sleep(20)
            assert world.block_node.facility.full
            slow.inlet.resume()
        assert not publisher.told
        assert world.all_of(NodeFailure) == []


async def test_a_publisher_that_is_silent_is_asked_again_and_at_last_ended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with bench(tmp_path, PublishLimits(idle_s_max=60.0)) as world:
        leaving, silent = await world.publisher(), await world.publisher()
        leaving.header(0)
        silent.header(0)
        assert await silent.expect(SkipBlock) == SkipBlock(0)
        leaving.end_stream()
        await trio.sleep(11)
        assert list(silent.told) == [ResendBlock(0)] * 3
        await trio.sleep(60)
        *_, ended = silent.told
        assert isinstance(ended, StreamEnded)
        assert ended.status is PublishStatus.TIMEOUT


async def test_what_is_offered_while_behind_is_remembered_and_reported_when_it_does_not_come_closer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """specs/block_publish.md: the node must record the offered number, and detect that it does not get closer."""
    async with bench(tmp_path) as world:
        for contact in range(5):
            publisher = await world.publisher()
            publisher.header(10 + contact)
            assert await publisher.expect(Behind) == Behind(10 + contact, None, 0)
            publisher.end_stream()
            await trio.sleep(5)
            assert world.publishing.statistics().target_block == 10 + contact
        assert world.all_of(NewestBlockKnownToNetwork) == [NewestBlockKnownToNetwork(10 + each) for each in range(5)]
        assert world.all_of(CatchUpStalled) == [CatchUpStalled(13, None)]
        assert world.publishing.statistics().catch_up_stalled
        publisher = await world.publisher()
        for block in BLOCKS:
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(3))
        publisher.header(14)
        assert await publisher.expect(Behind) == Behind(14, 3, 4)
        assert not world.publishing.statistics().catch_up_stalled


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for block in BLOCKS[:2]:
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(1))
        publisher.items(BLOCKS[2].items[:6])
    async with bench(tmp_path) as world:
        publisher = Publisher(world.node)
        assert await publisher.open() == SessionOpened(b"", 1, 2)
        for block in BLOCKS[2:]:
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(3))
        assert world.stored() == [0, 1, 2, 3]


async def test_what_comes_of_a_block_earns_it_time_and_a_new_beginning_does_not(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A block that comes steadily is not late; one that begins anew again and again is, at the first deadline."""
    limits = PublishLimits(block_s_max=10.0, earned_items_per_s=2, earned_bytes_per_s=1 << 40)
    async with bench(tmp_path, limits) as world:
        steady = await world.publisher()
        steady.header(0)
        for _ in range(40):
            steady.items([make_item(ItemKind.SIGNED_TRANSACTION, b"")])
            await trio.sleep(0.6)
        assert not any(isinstance(told, StreamEnded) for told in steady.told), "24 s, of which 20 s were earned"
        await trio.sleep(20)
        assert (await steady.expect(StreamEnded)).status is PublishStatus.TIMEOUT
        restless = await world.publisher()
        for _ in range(25):
            restless.items([header_of(0), *[make_item(ItemKind.SIGNED_TRANSACTION, b"")] * 3])
            await trio.sleep(0.5)
        assert (await restless.expect(StreamEnded)).status is PublishStatus.TIMEOUT


@pytest.mark.parametrize("fails_again", [False, True])
async def test_a_block_that_is_stored_after_all_is_acknowledged(tmp_path: Path, fails_again: bool) -> None:
    """Claim: a block whose commit was in doubt counts as durable once the store knows it. Publishing and verification
    go on with block 2. Method: the commit of block 1 fails as one in doubt, and has stored it. Then verification waits
    for block 1 again; if the node fails once more, it waits for block 2, and would refuse block 1."""
    async with bench(tmp_path) as world:
        sender = await world.publisher()
        sender.block(BLOCKS[0])
        await sender.expect(Acknowledgement)
        commit = world.runner.commit

        def commit_in_doubt(batch: list[Operation]) -> None:
            commit(batch)
            fail_all(
                [each for each in batch if isinstance(each, StoreBlock)],
                CommitUnsettled(DatabaseLost("the server is gone")),
            )

        world.runner.commit = commit_in_doubt  # type: ignore[method-assign]
        sender.block(BLOCKS[1])
        assert (await sender.expect(StreamEnded)).status is PublishStatus.PERSISTENCE_FAILED
        world.runner.commit = commit  # type: ignore[method-assign]
        await world.settle()
        if fails_again:
            world.block_node.facility.publish(NodeFailure("as the test wants it"))
        world.publishing.tick()
        assert (await sender.open(b"again")).last_block == 1
        sender.block(BLOCKS[2])
        await sender.wait_for(Acknowledgement(2))
