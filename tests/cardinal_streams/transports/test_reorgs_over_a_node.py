"""Reorgs, redundant producers and unordered consumers over a running node's partitioned streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from cardinal_streams.consume.checkpoints import NodeCheckpoints
from cardinal_streams.consume.consuming import Updates, consume, consume_unordered
from cardinal_streams.machines.events import Start
from cardinal_streams.produce.producer import ReorgChannel
from cardinal_streams.produce.publishing import publish
from cardinal_streams.transports.transport import reorg_topic, source_of
from tests.cardinal_streams.chains import (
    AFTER,
    EVERYTHING,
    NEW,
    OLD,
    Ledger,
    blocks_of,
    hashes,
    read_all,
    served_transport,
    transport_to,
    values_of,
)
from tests.cardinal_streams.helpers import hash_of, payload
from tests.cardinal_streams.world import GENESIS
from tests.support.served import PATIENCE_S, wait_until


class TestReorg:
    async def test_beyond_the_threshold(self, tmp_path: Path) -> None:
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
                await read_all(transport, ledger, "reader")
                assert ledger.hashes == hashes(OLD)
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
                await publisher.send(AFTER)
            topic = reorg_topic("default", OLD[1].payload.hash)
            assert len((await transport.client.get_stream(topic)).partitions) == 1
            await read_all(transport, ledger, "reader")
        assert ledger.hashes == hashes(OLD[:2], NEW, AFTER)
        assert ledger.reverts == 1
        for block in (*NEW, *AFTER):
            assert ledger.batches[block.payload.hash].values == values_of(block)

    async def test_restarts_at_every_update_of_it(self, tmp_path: Path) -> None:
        """Goal: a consumer that is restarted after any update, before, in and after a reorg, ends where another does,
        and gets no update twice. Method: it leaves after each update and begins anew from what it saved."""
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
                await read_all(transport, ledger, "reader")
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
                await publisher.send(AFTER)
            store = NodeCheckpoints(transport.client, "reader")
            for _ in range(100):
                async with consume(EVERYTHING, transport, store, stop_at_end=True) as updates:
                    update = await anext(updates, None)
                    if update is None:
                        break
                    ledger.repeat(update)
                    update.done()
        assert ledger.hashes == hashes(OLD[:2], NEW, AFTER)

    async def test_a_producer_that_fails_gives_it_up_and_another_attempt_succeeds(self, tmp_path: Path) -> None:
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)

                async def fail() -> None:
                    async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                        await channel.send(NEW[:3])
                        raise KeyError("no more blocks")

                with pytest.raises(KeyError, match="no more blocks"):
                    await fail()
                await read_all(transport, ledger, "reader")
                assert ledger.hashes == hashes(OLD)
                assert ledger.reverts == 2
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
            await read_all(transport, ledger, "reader")
        assert ledger.hashes == hashes(OLD[:2], NEW)

    @pytest.mark.parametrize("is_running", [True, False])
    async def test_a_channel_that_is_deleted_ends_no_consumer(self, tmp_path: Path, is_running: bool) -> None:
        """Claim: a consumer outlives the channel of a finished reorg, whether it runs at that time or begins later, and
        takes another reorg that another producer sends on a channel of the same name. Method: the second section has
        more messages than the first, so that the old offset is one of the new channel, too."""
        ledger, ancestor = Ledger(), OLD[1].payload.hash
        other = blocks_of("m", "o2", 3, 20, bonus=7)

        async def read(updates: Updates) -> None:
            async for update in updates:
                ledger.apply(update)
                update.done()

        async with served_transport(tmp_path) as (running, transport), transport_to(running.address) as second:
            async with publish(EVERYTHING, transport, redundant=False) as publisher:
                await publisher.send(OLD)
                async with publisher.reorg(ancestor, 2, 100) as channel:
                    await channel.send(NEW)
                # The blocks of the reorg become final, so that no checkpoint needs them any more.
                await publisher.send(after := blocks_of("n", "n11", 12, 6, bonus=5))
            topic, store = reorg_topic("default", ancestor), NodeCheckpoints(transport.client, "reader")
            async with (
                consume(EVERYTHING, transport, store, start=GENESIS.start) as updates,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(read, updates)
                await wait_until(lambda: ledger.hashes == hashes(OLD[:2], NEW, after))
                feed = updates._feeds[ancestor]
                before = feed.receiver
                if is_running:
                    await (await second.client.get_stream(topic)).delete()
                    await wait_until(lambda: feed.receiver is not before)
                    await publisher.send(last := blocks_of("n", "n17", 18, 1, bonus=5))
                    await wait_until(lambda: ledger.hashes == hashes(OLD[:2], NEW, after, last))
                nursery.cancel_scope.cancel()
            if not is_running:
                await (await second.client.get_stream(topic)).delete()
            async with (
                consume(EVERYTHING, second, NodeCheckpoints(second.client, "reader")) as updates,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(read, updates)
                async with (
                    publish(EVERYTHING, second, redundant=False) as another,
                    another.reorg(ancestor, 2, 185) as channel,
                ):
                    await channel.send(other)
                await wait_until(lambda: ledger.hashes == hashes(OLD[:2], other))
                nursery.cancel_scope.cancel()

    async def test_a_channel_that_was_read_before_a_restart_is_at_its_end(self, tmp_path: Path) -> None:
        """Claim: after a restart, nothing is left to read of a channel that was read before. Otherwise the consumer is
        never at the end, where it reports gaps. Method: the lags of a consumer that waits."""
        source = source_of(reorg_topic("default", OLD[1].payload.hash), 0)
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport, redundant=False) as publisher:
                await publisher.send(OLD)
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
                # The blocks of the reorg become final, so that the channel is not read again for them.
                await publisher.send(blocks_of("n", "n11", 12, 6, bonus=5))
            await read_all(transport, Ledger(), "reader")
            async with (
                consume(EVERYTHING, transport, NodeCheckpoints(transport.client, "reader")) as updates,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(updates.__anext__)
                await wait_until(lambda: source in updates.lags() and set(updates.lags().values()) == {0})
                nursery.cancel_scope.cancel()

    async def test_a_checkpoint_has_no_offset_in_a_channel_of_which_nothing_was_taken(self, tmp_path: Path) -> None:
        """Claim: a consumer that saves after a channel was made again, and before it takes a message of the new one,
        reads that from its beginning after a restart. Method: the consumer stands still while the page arrives."""
        ledger, ancestor = Ledger(), OLD[1].payload.hash
        other = blocks_of("m", "o2", 3, 20, bonus=7)
        async with served_transport(tmp_path) as (running, transport), transport_to(running.address) as second:
            async with publish(EVERYTHING, transport, redundant=False) as publisher:
                await publisher.send(OLD)
                async with publisher.reorg(ancestor, 2, 100) as channel:
                    await channel.send(NEW)
                await publisher.send(after := blocks_of("n", "n11", 12, 6, bonus=5))
            async with consume(EVERYTHING, transport, start=GENESIS.start) as updates:
                while ledger.hashes != hashes(OLD[:2], NEW, after):
                    ledger.apply(update := await anext(updates))
                    update.done()
                feed = updates._feeds[ancestor]
                await wait_until(lambda: feed.receiver is not None and not feed.page)
                before = feed.receiver
                await (await second.client.get_stream(reorg_topic("default", ancestor))).delete()
                await wait_until(lambda: feed.receiver is not before)
                async with (
                    publish(EVERYTHING, second, redundant=False) as another,
                    another.reorg(ancestor, 2, 185) as channel,
                ):
                    await channel.send(other)
                await wait_until(lambda: bool(feed.page))
                checkpoint = updates.checkpoint()
            async with consume(EVERYTHING, second, checkpoint=checkpoint) as updates:
                with trio.fail_after(PATIENCE_S):
                    while ledger.hashes != hashes(OLD[:2], other):
                        ledger.apply(update := await anext(updates))
                        update.done()

    async def test_a_consumer_gives_up_what_its_producer_never_ends(self, tmp_path: Path) -> None:
        ledger = Ledger()
        more = blocks_of("o", "o10", 11, 2)
        async with served_transport(tmp_path) as (_, transport), publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD)
            channel = ReorgChannel(publisher.producer, OLD[1].payload.hash, 2, 100)
            await transport.send(channel.begin())
            await transport.send({channel.topic: channel.add_block(payload("n3", "o2", 3, 31))})
            async with consume(EVERYTHING, transport, checkpoint=GENESIS) as updates:
                with trio.fail_after(PATIENCE_S):
                    while not ledger.reverts or len(ledger.hashes) < 4:
                        update = await anext(updates)
                        ledger.apply(update)
                        update.done()
                    await publisher.send(more)
                    updates.abandon_reorg(OLD[1].payload.hash)
                    while ledger.hashes != hashes(OLD, more):
                        update = await anext(updates)
                        ledger.apply(update)
                        update.done()
                assert updates.statistics().reorgs_abandoned == 1
                assert updates.checkpoint().open_reorgs[0].offset == 1, "its block can still get heavier"


class TestRedundantProducers:
    async def test_a_second_one_sends_nothing_that_is_there(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path) as (running, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            before = await transport.ends(EVERYTHING.topics)
            async with transport_to(running.address) as other, publish(EVERYTHING, other) as second:
                assert second.latest == Start(OLD[-1].payload.hash, 10, 100)
                assert await second.send(OLD) == 0
            assert await transport.ends(EVERYTHING.topics) == before

    async def test_it_sees_what_the_first_sends_now(self, tmp_path: Path) -> None:
        async with (
            served_transport(tmp_path) as (running, transport),
            transport_to(running.address) as other,
            publish(EVERYTHING, transport) as first,
            publish(EVERYTHING, other) as second,
        ):
            await first.send(OLD)
            with trio.fail_after(PATIENCE_S):
                while not all(second.producer.has_seen(block.payload.hash) for block in OLD):
                    await trio.sleep(0.01)
            assert second.latest == Start(OLD[-1].payload.hash, 10, 100)
            assert await second.send(OLD) == 0

    async def test_both_at_once_is_harmless(self, tmp_path: Path) -> None:
        ledger = Ledger()
        async with served_transport(tmp_path) as (running, transport), transport_to(running.address) as other:
            async with publish(EVERYTHING, transport) as first, publish(EVERYTHING, other) as second:
                async with trio.open_nursery() as nursery:
                    for publisher in (first, second):
                        for block in OLD:
                            nursery.start_soon(publisher.send, [block])
                for publisher in (first, second):
                    async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                        await channel.send(NEW)
                for publisher in (first, second):
                    await publisher.send(AFTER)
            await read_all(transport, ledger)
        assert ledger.hashes == hashes(OLD[:2], NEW, AFTER)
        assert ledger.reverts == 1

    async def test_a_block_that_was_half_sent_is_sent_again(self, tmp_path: Path) -> None:
        """Goal: a producer that dies between a block's messages costs nothing. Method: all but the Batch is there."""
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            half = EVERYTHING.producer().add_block(OLD[0].payload)
            del half["default"][-1]
            await transport.send(half)
            async with publish(EVERYTHING, transport) as publisher:
                assert await publisher.send(OLD) == len(OLD)
            await read_all(transport, ledger)
        assert ledger.hashes == hashes(OLD)


class TestUnordered:
    async def test_every_block_comes_once_forks_and_reorgs_too(self, tmp_path: Path) -> None:
        found = []
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
                async with publisher.reorg(OLD[1].payload.hash, 2, 100) as channel:
                    await channel.send(NEW)
                await publisher.send(AFTER)
            store = NodeCheckpoints(transport.client, "reader")
            for _ in range(2):
                async with consume_unordered(EVERYTHING, transport, store, stop_at_end=True) as arrivals:
                    async for arrival in arrivals:
                        found.append(arrival.batch.hash)
                        arrival.done()
                    arrivals.machine.check()
        assert sorted(found) == sorted(hashes(OLD, NEW, AFTER)[1:])

    async def test_what_is_not_done_comes_again(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            store = NodeCheckpoints(transport.client, "reader")
            async with consume_unordered(EVERYTHING, transport, store, stop_at_end=True) as arrivals:
                kept = [arrival async for arrival in arrivals]
                for arrival in kept[1:]:
                    arrival.done()
                with pytest.raises(ValueError, match="not among those"):
                    kept[1].done()
            async with consume_unordered(EVERYTHING, transport, store, stop_at_end=True) as arrivals:
                again = {arrival.batch.hash async for arrival in arrivals}
        assert kept[0].batch.hash in again
        assert hash_of("o1") in {arrival.batch.hash for arrival in kept}
