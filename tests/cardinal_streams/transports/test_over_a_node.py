"""Producers and consumers over a running node's partitioned streams: real sockets, real files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from cardinal_streams.consume.checkpoints import NodeCheckpoints, checkpoint_stream, parse_checkpoint
from cardinal_streams.consume.consuming import consume
from cardinal_streams.errors import PayloadOutOfRange
from cardinal_streams.machines.events import Checkpoint, Start
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.transports.stream_transport import StreamTransport
from stream_client import (
    LAST,
    PositionBeyondEnd,
    PositionReset,
    PushFailed,
    SavedIndexes,
    StreamNotFound,
    StreamRemade,
    partitions,
    set_position,
)
from tests.cardinal_streams.chains import (
    EVERYTHING,
    OLD,
    Ledger,
    blocks_of,
    hashes,
    read_all,
    served_transport,
    transport_to,
    values_of,
)
from tests.cardinal_streams.helpers import payload
from tests.cardinal_streams.world import GENESIS
from tests.support.limited_disk import limit_disk
from tests.support.served import PATIENCE_S, served, wait_until


class TestChain:
    async def test_what_is_published_is_consumed(self, tmp_path: Path) -> None:
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                assert await publisher.send(OLD) == len(OLD)
                assert publisher.latest == Start(OLD[-1].payload.hash, 10, 100)
            await read_all(transport, ledger)
        assert ledger.hashes == hashes(OLD)
        for block in OLD:
            assert ledger.batches[block.payload.hash].values == values_of(block)

    @pytest.mark.parametrize("there", [(), ("default",)])
    async def test_a_consumer_waits_for_its_topics(self, tmp_path: Path, there: tuple[str, ...]) -> None:
        """Goal: a consumer that is there first makes no topics, and gets every block soon after it was sent.

        Method: the producer chooses another number of partitions; its client lists what there is before and after."""
        ledger = Ledger()
        async with served_transport(tmp_path) as (running, transport), transport_to(running.address, 2) as other:
            for topic in there:
                await other.client.create_partitioned(topic, 2)
            async with (
                consume(EVERYTHING, transport, checkpoint=GENESIS) as updates,
                publish(EVERYTHING, other) as publisher,
            ):
                await wait_until(lambda: [feed.receiver for feed in updates._feeds.values() if feed.receiver])
                assert {each.stream_name async for each in other.client.list_streams()} == set(there)
                for block in OLD:
                    await publisher.send([block])
                    with trio.fail_after(PATIENCE_S):
                        update = await anext(updates)
                    ledger.apply(update)
                    update.done()
                ends = await other.ends(EVERYTHING.topics)
        assert ledger.hashes == hashes(OLD)
        assert sorted(ends) == sorted(f"{topic}:{n}" for topic in EVERYTHING.topics for n in range(2))

    async def test_keys_spread_over_the_partitions(self, tmp_path: Path) -> None:
        many = blocks_of("o", "g", 1, 60)
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(many)
            ends = await transport.ends(["default", "ta", "tb"])
        assert len(ends) == 9
        assert min(ends.values()) > 0
        assert sum(end for source, end in ends.items() if source.startswith("ta")) == len(many)

    async def test_the_partitions_that_there_are_decide(self, tmp_path: Path) -> None:
        """Goal: a consumer that was set up for another number of partitions misses nothing."""
        ledger = Ledger()
        async with served_transport(tmp_path, partitions=5) as (running, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            async with transport_to(running.address, partitions=2) as other:
                await read_all(other, ledger)
                async with publish(EVERYTHING, other) as publisher:
                    await publisher.send(blocks_of("o", "o10", 11, 5))
            await read_all(transport, again := Ledger())
        assert ledger.hashes == hashes(OLD)
        assert len(again.hashes) == 16

    async def test_a_producer_goes_on_after_its_topics_were_deleted(self, tmp_path: Path) -> None:
        """Claim: the send that meets the deletion raises, and the next one makes the topics again."""
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport, redundant=False) as publisher:
                await publisher.send(OLD[:2])
                for topic in EVERYTHING.topics:
                    await (await transport.client.get_stream(topic)).delete()
                with pytest.raises(StreamNotFound):
                    await publisher.send(OLD[2:4])
                assert await publisher.send(OLD[2:4]) == 2
            ledger = Ledger(OLD[1].payload.hash)
            async with consume(
                EVERYTHING, transport, start=Start(ledger.hashes[0], 2, 20), stop_at_end=True
            ) as updates:
                async for update in updates:
                    ledger.apply(update)
        assert ledger.hashes == [block.payload.hash for block in OLD[1:4]]

    async def test_a_key_that_no_node_stores_is_refused_before_anything_is_sent(self, tmp_path: Path) -> None:
        long = payload("a", "g", 1, updates={"a/" + "x" * 5_000: b"1", "a/short": b"2"})
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                with pytest.raises(PayloadOutOfRange, match="at most 4096"):
                    await publisher.send([ChainBlock(long)])
                assert await publisher.send([ChainBlock(payload("a", "g", 1))]) == 1
            assert sum((await transport.ends(["ta"])).values()) == 0

    async def test_records_that_are_gone_are_told(self, tmp_path: Path) -> None:
        holes = []
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            (stream,) = (await transport.client.get_stream("ta")).partitions
            await stream.truncate(4)
            told = StreamTransport(transport.client, on_hole=lambda *hole: holes.append(hole))
            async with told.subscribe(["ta"], {}, stop_at_end=True) as receiver:
                assert [delivery.offset for delivery in await receiver.receive_some()] == [4, 5, 6, 7, 8, 9]
                assert receiver.holes == 4
        assert holes == [("ta:0", 0, 4)]

    async def test_records_that_are_gone_at_the_end_are_not_waited_for(self, tmp_path: Path) -> None:
        """Claim: a consumer is at the end although the newest records of some partitions were deleted before it read
        them, as by a retention. Method: ten blocks are deleted; a chain without a start block begins with the next."""
        (after,) = blocks_of("o", "o10", 11, 1)
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
                for topic in EVERYTHING.topics:
                    for stream in (await transport.client.get_stream(topic)).partitions:
                        await stream.truncate((await stream.info()).next_index)
                await publisher.send([after])
            async with consume(EVERYTHING, transport) as updates:
                with trio.fail_after(PATIENCE_S):
                    update = await anext(updates)
                assert set(updates.lags().values()) == {0}
        assert [batch.hash for batch in update.added] == [after.payload.hash]

    async def test_a_record_comes_at_once_after_an_empty_page(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Claim: a receiver that got an empty page asks for the next one by itself. Method: one partition, which is
        empty at first, and no question whether it has more partitions, which would wake the receiver."""
        monkeypatch.setattr(partitions, "WATCH_S", 10 * PATIENCE_S)
        async with served_transport(tmp_path) as (_, transport):
            stream = await transport.client.create("ta")
            async with transport.subscribe(["ta"], {}) as receiver, trio.open_nursery() as nursery:

                async def push() -> None:
                    await wait_until(lambda: receiver.ends == {"ta:0": 0})
                    await stream.push(b"v", key=b"k")

                nursery.start_soon(push)
                with trio.fail_after(PATIENCE_S):
                    assert [each.value for each in await receiver.receive_some()] == [b"v"]

    async def test_a_stream_that_was_made_again_is_told(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            with pytest.raises(PositionBeyondEnd, match="position of ta:0 is 5"):
                async with transport.subscribe(["ta"], {"ta:0": 5}):
                    pass
            await transport.client.create("ta")
            async with transport.subscribe(["ta"], {"ta:0": 5}) as receiver:
                with pytest.raises(PositionBeyondEnd, match="position of ta:0 is 5"):
                    await receiver.receive_some()
            with pytest.raises(PositionBeyondEnd):
                async with consume(EVERYTHING, transport, checkpoint=Checkpoint(start=None, position={"ta:0": 5})) as u:
                    await anext(u)


class TestPositions:
    async def test_a_consumer_goes_on_where_it_was_done(self, tmp_path: Path) -> None:
        """Method: it leaves in the middle, with an update not done; the next one gets exactly that and the rest."""
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            store = NodeCheckpoints(transport.client, "reader")
            async with consume(EVERYTHING, transport, store, checkpoint=GENESIS, stop_at_end=True) as updates:
                while len(ledger.hashes) < 6:
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()
                had = ledger.hashes.copy()
                await anext(updates, None)
            await read_all(transport, ledger, "reader")
            assert ledger.hashes == hashes(OLD)
            assert had == ledger.hashes[: len(had)]
            assert await read_all(transport, ledger, "reader") == 0

    async def test_the_index_service_has_the_positions(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            await read_all(transport, Ledger(), "reader")
            saved = await SavedIndexes(transport.client, "reader").load("ta", [0, 1, 2])
            checkpoint = await NodeCheckpoints(transport.client, "reader").load()
        assert checkpoint is not None
        assert checkpoint.start == Start(OLD[-1].payload.hash, 10, 100)
        assert list(saved) == [checkpoint.read.get(f"ta:{partition}", 0) for partition in range(3)]

    async def test_an_index_that_was_set_back_is_read_again_and_nothing_is_told_twice(self, tmp_path: Path) -> None:
        ledger = Ledger()
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
                await read_all(transport, ledger, "reader")
                for topic in EVERYTHING.topics:
                    for partition in range(3):
                        await set_position(transport.client, "reader", topic, partition, 0)
                loaded = await NodeCheckpoints(transport.client, "reader").load()
                assert loaded is not None
                assert set(loaded.position.values()) == {0}
                assert await read_all(transport, ledger, "reader") == 0
                await publisher.send(blocks_of("o", "o10", 11, 2))
            await read_all(transport, ledger, "reader")
        assert len(ledger.hashes) == 13

    async def test_a_save_that_was_cut_off_sets_nothing_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Claim: a consumer that died between the two halves of a save goes on by the text, and an offset that somebody
        sets then still counts. Method: the second save ends before its offsets; the text itself is what must come."""

        async def die(self: SavedIndexes, stream_name: str, indexes: Mapping[int, int]) -> None:
            raise KeyError("died")

        ledger = Ledger()
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD[:4])
                await read_all(transport, ledger, "reader")
                await publisher.send(OLD[4:])
            with monkeypatch.context() as patch:
                patch.setattr(SavedIndexes, "save", die)
                with pytest.raises(KeyError, match="died"):
                    await read_all(transport, ledger, "reader")
            assert ledger.hashes == hashes(OLD)
            assert await SavedIndexes(transport.client, "reader").get("ta") == 4
            (stream,) = (await transport.client.get_stream(checkpoint_stream("reader"))).partitions
            saved = parse_checkpoint((await stream.pull_page(LAST, 1)).messages[-1].data)
            assert (saved.read["ta:0"], saved.position["ta:0"]) == (10, 5)
            assert await NodeCheckpoints(transport.client, "reader").load() == saved
            await set_position(transport.client, "reader", "ta", 0, 3)
            loaded = await NodeCheckpoints(transport.client, "reader").load()
            assert loaded is not None
            assert (loaded.read, loaded.needed, loaded.position["ta:0"]) == ({}, (), 3)
            assert await read_all(transport, ledger, "reader") == 0

    async def test_what_comes_after_a_backup_was_put_back_is_new(self, tmp_path: Path) -> None:
        """Goal: where less is there than a checkpoint says was read, what comes then counts. Method: four of ten blocks
        are there when the consumer begins; then the eleventh and the twelfth come, at offsets that others had."""
        more = blocks_of("o", "o10", 11, 2)
        read = {f"{topic}:{partition}": 1_000 for topic in EVERYTHING.topics for partition in range(3)}
        known = Checkpoint(start=Start(OLD[-1].payload.hash, 10, 100), read=read)
        ledger = Ledger(OLD[-1].payload.hash)
        async with served_transport(tmp_path) as (_, transport), publish(EVERYTHING, transport) as publisher:
            await publisher.send(OLD[:4])
            async with consume(EVERYTHING, transport, checkpoint=known) as updates:
                await publisher.send(more)
                with trio.fail_after(PATIENCE_S):
                    while len(ledger.hashes) < 3:
                        ledger.apply(await anext(updates))
        assert ledger.hashes[1:] == [block.payload.hash for block in more]

    @pytest.mark.parametrize("keep_positions", [False, True])
    async def test_topics_that_were_made_again_are_read_from_their_beginning(
        self, tmp_path: Path, keep_positions: bool
    ) -> None:
        """Goal: a checkpoint of topics that were deleted says nothing about those that have their names now, whether
        the positions are deleted with them or not. Method: another chain of as many blocks, so that every offset of the
        checkpoint is one of the new topics, too; then the consumer goes on once more."""
        told: list[object] = []
        async with served_transport(tmp_path) as (running, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            await read_all(transport, Ledger(), "reader")
            for topic in EVERYTHING.topics:
                await (await transport.client.get_stream(topic)).delete(keep_positions=keep_positions)
            other = blocks_of("n", "g", 1, 10)
            async with transport_to(running.address) as anew:
                async with publish(EVERYTHING, anew) as publisher:
                    await publisher.send(other)
                for wanted in (hashes(other)[1:], []):
                    store, found = NodeCheckpoints(anew.client, "reader"), []
                    async with consume(
                        EVERYTHING, anew, store, start=GENESIS.start, stop_at_end=True, on_event=told.append
                    ) as updates:
                        async for update in updates:
                            found += [batch.hash for batch in update.added]
                            update.done()
                    assert found == wanted
        remade = {(each.stream_name, each.partition) for each in told if isinstance(each, StreamRemade)}
        assert remade, "the new topics are told"
        assert {topic for topic, _ in remade} <= set(EVERYTHING.topics)

    async def test_offsets_follow_a_topic_that_was_made_again(self, tmp_path: Path) -> None:
        """Claim: the saved offset becomes one of the new stream, also after the next save. Method: the offset of the
        former stream was set, so the node knows to which stream it belonged."""
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            stream = await transport.client.create("ta")
            await set_position(transport.client, "reader", "ta", 0, 4)
            await stream.delete(keep_positions=True)
            await transport.client.create("ta")
            created = await transport.created(["ta"])
            store = NodeCheckpoints(transport.client, "reader")
            for offset in (1, 2):
                await store.save(Checkpoint(start=None, position={"ta:0": offset}, created=created))
                (mark,) = await SavedIndexes(transport.client, "reader").resume("ta", [0], lambda partition: None)
                assert (mark.index, mark.created_us) == (offset, created["ta:0"])

    async def test_topics_that_came_after_the_consumer_are_known_when_they_are_made_again(self, tmp_path: Path) -> None:
        """Claim: a consumer that was there before its topics saves when they were created, so that it notices others
        with their names. Method: the second topics have as many messages as the first; nothing of them is skipped."""
        told: list[object] = []
        async with served_transport(tmp_path) as (running, transport), transport_to(running.address) as other:
            store = NodeCheckpoints(transport.client, "reader")
            async with consume(EVERYTHING, transport, store, start=GENESIS.start) as updates:
                async with publish(EVERYTHING, other) as publisher:
                    await publisher.send(OLD)
                left = len(OLD)
                with trio.fail_after(PATIENCE_S):
                    while left:
                        update = await anext(updates)
                        left -= len(update.added)
                        update.done()
            for topic in EVERYTHING.topics:
                await (await other.client.get_stream(topic)).delete()
            async with transport_to(running.address) as anew:
                async with publish(EVERYTHING, anew) as publisher:
                    await publisher.send(new := blocks_of("n", "g", 1, 10))
                async with consume(
                    EVERYTHING, anew, store, start=GENESIS.start, stop_at_end=True, on_event=told.append
                ) as updates:
                    found = [batch.hash async for update in updates for batch in update.added]
        assert found == hashes(new)[1:]
        assert any(isinstance(each, StreamRemade) for each in told)

    async def test_without_an_offset_the_stream_that_is_there_is_read(self, tmp_path: Path) -> None:
        """Claim: a subscription from the beginning takes whatever stream has the name now, so that a feed that begins
        anew after a deletion ends; one with an offset is told that the offset is of another stream."""
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            for _ in range(2):
                stream = await transport.client.create("ta")
                await stream.push(b"v", key=b"k")
                if not transport._created:
                    await transport.created(["ta"])
                    await stream.delete()
            async with transport.subscribe(["ta"], {}) as receiver:
                with trio.fail_after(PATIENCE_S):
                    assert [each.value for each in await receiver.receive_some()] == [b"v"]
            async with transport.subscribe(["ta"], {"ta:0": 0}) as receiver:
                with trio.fail_after(PATIENCE_S), pytest.raises(StreamRemade):
                    await receiver.receive_some()

    async def test_partitions_that_a_topic_lost_are_not_told(self, tmp_path: Path) -> None:
        """Claim: `created` tells of the present partitions alone: an old time would pass for another stream as soon as
        the topic grows again."""
        async with served_transport(tmp_path) as (_, transport):
            for partitions in (3, 1):
                stream = await transport.client.create_partitioned("ta", partitions)
                assert sorted(await transport.created(["ta"])) == [f"ta:{n}" for n in range(partitions)]
                await stream.delete()
            assert await transport.created(["ta"]) == {}

    async def test_an_offset_that_is_set_beside_a_running_consumer_is_not_overwritten(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path, partitions=1) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            store = NodeCheckpoints(transport.client, "reader")

            async def run() -> None:
                async with consume(EVERYTHING, transport, store, start=GENESIS.start) as updates:
                    for number in range(10):
                        (await anext(updates)).done()
                        if number == 4:
                            await updates.save()
                    await set_position(transport.client, "reader", "ta", 0, 0)

            with pytest.raises(PositionReset, match="to 0 by somebody"):
                await run()
            assert await SavedIndexes(transport.client, "reader").get("ta") == 0
            loaded = await NodeCheckpoints(transport.client, "reader").load()
            assert loaded is not None
            assert loaded.position["ta:0"] == 0

    async def test_a_checkpoint_that_a_full_disk_refused_is_saved_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Claim: a save that failed is not taken for one of another consumer. Method: the disk fills up between two
        saves; with room again, the third one stores where the consumer stands."""
        disk = limit_disk(monkeypatch)
        async with (
            served(tmp_path, error_delay_s=0.0) as running,
            transport_to(running.address) as transport,
            publish(EVERYTHING, transport) as publisher,
        ):
            await publisher.send(OLD[:1])
            store = NodeCheckpoints(transport.client, "reader")
            async with consume(EVERYTHING, transport, store, checkpoint=GENESIS) as updates:
                (await anext(updates)).done()
                await updates.save()
                await publisher.send(OLD[1:2])
                (await anext(updates)).done()
                filler = await transport.client.create("filler")
                for size in (50_000, 100):
                    with suppress(PushFailed):
                        while True:
                            await filler.push(b"x" * size)
                with pytest.raises(PushFailed):
                    await updates.save()
                disk.free()
                await updates.save()
            loaded = await NodeCheckpoints(transport.client, "reader").load()
        assert loaded is not None
        assert loaded.start == Start(OLD[1].payload.hash, 2, 20)

    async def test_few_checkpoints_are_kept(self, tmp_path: Path) -> None:
        """Goal: a consumer that saves for years does not fill the disk. Method: the stream has a retention."""
        async with served_transport(tmp_path) as (_, transport):
            await NodeCheckpoints(transport.client, "reader").save(GENESIS)
            (stream,) = (await transport.client.get_stream(checkpoint_stream("reader"))).partitions
            retention = (await stream.info()).retention
        assert retention is not None
        assert retention.messages == 16

    async def test_what_is_not_done_is_not_saved(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            store = NodeCheckpoints(transport.client, "reader")
            async with consume(EVERYTHING, transport, store, checkpoint=GENESIS, stop_at_end=True) as updates:
                async for _ in updates:
                    pass
            assert await store.load() is None

    async def test_an_exception_saves_nothing_more(self, tmp_path: Path) -> None:
        async with served_transport(tmp_path) as (_, transport):
            async with publish(EVERYTHING, transport) as publisher:
                await publisher.send(OLD)
            store = NodeCheckpoints(transport.client, "reader")

            async def fail() -> None:
                async with consume(EVERYTHING, transport, store, checkpoint=GENESIS) as updates:
                    (await anext(updates)).done()
                    raise KeyError("mistake")

            with pytest.raises(KeyError, match="mistake"):
                await fail()
            assert await store.load() is None
