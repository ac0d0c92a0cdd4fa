"""What a consumer does about silence: a producer that dies within a deep reorg, and topics that it does not need."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import trio

from cardinal_streams.consume.checkpoints import FileCheckpoints
from cardinal_streams.consume.consuming import consume, consume_unordered
from cardinal_streams.evm import evm
from cardinal_streams.machines.events import Checkpoint, PrefixUnmet, ReorgStalled
from cardinal_streams.prefixes import Tracked, can_meet
from cardinal_streams.produce.producer import ReorgChannel
from cardinal_streams.produce.publishing import publish
from cardinal_streams.transports.file_transport import FileTransport
from cardinal_streams.transports.stream_transport import StreamTransport
from stream_client import ClientError, connect
from stream_node.node.process import NodeProcess
from tests.cardinal_streams.chains import (
    APPLICATION,
    EVERYTHING,
    NEW,
    OLD,
    Ledger,
    blocks_of,
    hashes,
    served_transport,
    transport_to,
    values_of,
)
from tests.cardinal_streams.helpers import hash_of, payload
from tests.cardinal_streams.world import GENESIS
from tests.support.served import PATIENCE_S


async def test_a_producer_that_dies_within_a_reorg_is_waited_for_so_long(tmp_path: Path) -> None:
    """Goal: the feed opens again by itself; until then the age and the lag of the normal feed show what is wrong; what
    another producer sends later on the channel is still taken."""
    ledger, events = Ledger(), list[Any]()
    more = blocks_of("o", "o10", 11, 2)
    async with served_transport(tmp_path) as (_, transport), publish(EVERYTHING, transport) as publisher:
        await publisher.send(OLD)
        channel = ReorgChannel(publisher.producer, OLD[1].payload.hash, 2, 100)
        await transport.send(channel.begin())
        await transport.send({channel.topic: channel.add_block(payload("n3", "o2", 3, 31))})
        async with consume(
            EVERYTHING, transport, checkpoint=GENESIS, reorg_timeout_s=1.0, on_event=events.append
        ) as updates:
            with trio.fail_after(PATIENCE_S):
                while ledger.hashes[-1] != hash_of("n3"):
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()
                await publisher.send(more)
                while ledger.hashes != hashes(OLD, more):
                    update = await anext(updates)
                    if not ledger.reverts - 1:
                        lags = {source: lag for source, lag in updates.lags().items() if source.startswith("default:")}
                        assert sum(lags.values()) >= len(more), "the messages that came meanwhile"
                        assert updates.reorg_age_s() >= 1.0
                    ledger.apply(update)
                    update.done()
                (told,) = [event for event in events if isinstance(event, ReorgStalled)]
                assert (told.hash, told.number, told.is_given_up) == (OLD[1].payload.hash, 2, True)
                assert updates.statistics().reorgs_abandoned == 1
                async with publisher.reorg(OLD[1].payload.hash, 2, 120) as session:
                    await session.send([*NEW, *blocks_of("n", "n11", 12, 1, bonus=5)])
                while ledger.hashes[-1] != hash_of("n12"):
                    update = await anext(updates)
                    ledger.apply(update)
                    update.done()
    assert ledger.hashes == hashes(OLD[:2], NEW, blocks_of("n", "n11", 12, 1))


class ObservedTransport(StreamTransport):
    """Counts the questions for the ends of topics that the node did not answer."""

    unanswered = 0

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        try:
            return await super().ends(topics)
        except ClientError:
            self.unanswered += 1
            raise


async def test_a_node_that_is_away_within_a_reorg_ends_no_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the silence of a node that starts again is not that of the producer."""
    monkeypatch.setattr(sys.modules[consume.__module__], "REORG_CHECK_S", 0.1)
    ledger = Ledger()

    async def read_to(name: str) -> None:
        while ledger.hashes[-1] != hash_of(name):
            update = await anext(updates)
            ledger.apply(update)
            update.done()

    with NodeProcess(tmp_path / "data") as node:
        async with connect(node.address, answer_timeout_s=0.5) as client, transport_to(node.address) as sending:
            transport = ObservedTransport(client, partitions=3)
            async with publish(EVERYTHING, sending) as publisher:
                await publisher.send(OLD)
            channel = ReorgChannel(EVERYTHING.producer(), OLD[1].payload.hash, 2, 100)
            await sending.send(channel.begin())
            await sending.send({channel.topic: channel.add_block(payload("n3", "o2", 3, 31))})
            async with consume(EVERYTHING, transport, checkpoint=GENESIS) as updates:
                with trio.fail_after(PATIENCE_S):
                    await read_to("n3")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(read_to, "n4")
                        node.kill()
                        while not transport.unanswered:
                            await trio.sleep(0.05)
                        node.start()
                        await sending.send({channel.topic: channel.add_block(payload("n4", "n3", 4, 41))})


@pytest.mark.parametrize("unordered", [False, True])
async def test_a_consumer_of_one_prefix_reads_its_topics_only(tmp_path: Path, unordered: bool) -> None:
    transport = FileTransport(tmp_path / "recording", partitions=2)
    async with publish(EVERYTHING, transport, redundant=False) as publisher:
        await publisher.send(OLD)
    ends = await transport.ends(EVERYTHING.topics)
    needed = sum(end for source, end in ends.items() if not source.startswith("tb:"))
    wants = Tracked(("a/",))
    found: dict[bytes, dict[str, bytes]] = {}
    if unordered:
        async with consume_unordered(EVERYTHING, transport, tracked=wants, stop_at_end=True) as arrivals:
            async for arrival in arrivals:
                found[arrival.batch.hash] = dict(arrival.batch.values)
            assert arrivals.statistics().reassembly.messages == needed < sum(ends.values())
    else:
        async with consume(EVERYTHING, transport, start=GENESIS.start, tracked=wants, stop_at_end=True) as updates:
            async for update in updates:
                found |= {batch.hash: dict(batch.values) for batch in update.added}
            assert updates.statistics().reassembly.messages == needed < sum(ends.values())
    transport.close()
    assert list(found.values()) == [{f"a/o{number}": b"o%d" % number} for number in range(1, 11)]


async def test_a_topic_that_is_tracked_again_misses_nothing(tmp_path: Path) -> None:
    """Claim: a consumer that tracks less for a while keeps how far it has read the other topics, and begins none of
    their finished blocks again. Method: three lives; the second one tracks less than the others."""
    transport, store = FileTransport(tmp_path / "recording", partitions=2), FileCheckpoints(tmp_path / "checkpoint")
    ledger, lives = Ledger(), list[Checkpoint]()
    more = blocks_of("o", "o10", 11, 4)
    for blocks, wants in ((OLD, None), (more[:2], Tracked(("a/",))), (more[2:], None)):
        async with publish(EVERYTHING, transport, redundant=False) as publisher:
            await publisher.send(blocks)
        async with consume(
            EVERYTHING, transport, store, start=GENESIS.start, tracked=wants, stop_at_end=True
        ) as updates:
            async for update in updates:
                ledger.apply(update)
                update.done()
            lives.append(updates.checkpoint())
    transport.close()
    for each in lives:
        assert {source.split(":")[0] for source in each.read} == {"default", "ta", "tb"}
    assert lives[1].position.keys() == lives[0].position.keys()
    assert ledger.hashes == hashes(OLD, more)
    for block in more[2:]:
        assert ledger.batches[block.payload.hash].values == values_of(block)


async def test_a_pattern_that_meets_no_prefix_is_told(tmp_path: Path) -> None:
    transport, events = FileTransport(tmp_path / "recording"), list[Any]()
    wants = Tracked(("a/", "ba/", "zz"))
    async with consume(APPLICATION, transport, tracked=wants, stop_at_end=True, on_event=events.append):
        pass
    transport.close()
    assert events == [PrefixUnmet("ba/"), PrefixUnmet("zz")]
    assert "ba/1" not in Tracked(("a/",))


@pytest.mark.parametrize(
    ("pattern", "other", "expected"),
    [
        ("a/", "a/", True),
        ("a/", "b/", False),
        ("a/", "ba/", False),
        ("b/s", "b/", True),
        ("a/[0-9]+", "a/", True),
        ("c/1/b/[0-9a-f]+/h", "c/1/b/[0-9a-f]+/r/", False),
        ("c/1/b/[0-9a-f]+/h", "c/1/b/[0-9a-f]+/h", True),
        ("c/1/b/[0-9a-f]+/h", "c/1/a/", False),
        ("c/1/s\\Z", "c/1/s\\Z", True),
        (".*", "a/", True),
        ("[^x]+/h", "c/1/", True),
        ("a.c", "abc/d", True),
        ("a/?b/c", "ab/c", True),
        ("a/{2}b", "a//b", True),
    ],
)
def test_which_patterns_can_meet(pattern: str, other: str, expected: bool) -> None:
    assert can_meet(pattern, other) is can_meet(other, pattern) is expected


def test_the_topics_of_an_ethereum_header() -> None:
    application = evm()
    assert application.topics_of(application.tracked()) == application.topics
    assert application.topics_of(Tracked(("c/1/b/[0-9a-f]+/h",))) == ("evm-1-blocks",)
    assert application.topics_of(Tracked(("c/1/a/",))) == ("evm-1-blocks", "evm-1-state")
