"""Both sides of the Reorg protocol: beyond the threshold, with redundant producers, again, and wrong."""

from __future__ import annotations

import random

import pytest

from cardinal_streams.errors import ReorgOrder, UnknownSubBatch
from cardinal_streams.limits import ConsumerLimits
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    ChainUpdate,
    CloseReorgChannel,
    Evicted,
    EvictionReason,
    Feeds,
    MissingState,
    NeedsReorg,
    OpenReorgChannel,
    ReorgRefused,
    Revert,
)
from cardinal_streams.message.messages import Record, Reorg, ReorgComplete, encode
from cardinal_streams.produce.producer import ReorgChannel
from tests.cardinal_streams.helpers import hash_of, payload, records_of
from tests.cardinal_streams.shell import Application, Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, World, chain, producer_of, send, send_reorg


class TestReorg:
    def test_beyond_the_threshold(self) -> None:
        world = World()
        shell = world.shell()
        shell.run()
        assert shell.application.hashes == world.expected
        assert shell.application.reverts == 1
        kinds = [type(event) for event in shell.events if not isinstance(event, ChainUpdate)]
        assert kinds == [OpenReorgChannel, Revert]
        assert shell.consumer.statistics().reorgs_finished == 1
        for block in (*world.new, *world.after):
            contents = shell.application.contents[block.hash].values
            assert contents == dict(block.updates) | {"b/s/1": block.hash}

    def test_the_normal_feed_rests_while_it_goes_on(self) -> None:
        world = World()
        shell = world.shell()
        shell.run_until(lambda: shell.application.reverts == 1)
        ancestor = world.old[1].hash
        assert shell.consumer.feeds == Feeds(normal=False, channels=(ancestor,))
        first_new = world.logs.channels[ancestor][1]
        shell.read_one(ancestor)
        assert shell.consumer.why_incomplete(first_new.key[1:33]).state is not MissingState.UNKNOWN

    def test_given_up_by_the_consumer_the_normal_feed_goes_on(self) -> None:
        world = World()
        shell = world.shell()
        shell.run_until(lambda: shell.application.reverts == 1)
        ancestor = world.old[1].hash
        assert not shell.consumer.feeds.normal
        shell.consumer.abandon_reorg(ancestor)
        assert shell.consumer.feeds.normal
        # There is no reorg left that could be given up.
        assert shell.consumer.abandon_reorg(ancestor) == []

    def test_redundant_producers(self) -> None:
        world = World(producers=3)
        shell = world.shell()
        shell.run()
        assert shell.application.hashes == world.expected
        assert shell.application.reverts == 1

    def test_it_waits_for_the_common_ancestor(self) -> None:
        """The announcement overtakes the blocks on other partitions."""
        logs = Logs()
        old = chain("o", "g", 1, 6)
        announcement = encode(Reorg(old[3].hash, 4))
        shell = Shell(logs, Application(GENESIS_HASH), 1, GENESIS)
        logs.send_one("default", announcement)
        shell.run()
        assert not shell.consumer.feeds.channels
        send(logs, producer_of(), old[:3])
        shell.run()
        assert not shell.consumer.feeds.channels
        send(logs, producer_of(), old[3:])
        shell.run()
        assert shell.consumer.feeds.channels == (old[3].hash,)

    def test_announced_again_later_nothing_happens(self) -> None:
        world = World()
        shell = world.shell()
        shell.run()
        world.logs.send_one("default", encode(Reorg(world.old[1].hash, 2)))
        shell.channel_position.clear()
        shell.run()
        assert shell.application.hashes == world.expected
        assert shell.application.reverts == 1
        assert shell.consumer.statistics().reorgs_repeated == 1
        send(world.logs, producer_of(), chain("n", "n14", 15, 1, bonus=5))
        shell.run()
        assert shell.application.hashes[-1] == hash_of("n15")

    @pytest.mark.parametrize("from_the_beginning", [False, True])
    def test_a_second_one_to_the_same_ancestor(self, from_the_beginning: bool) -> None:
        world = World()
        shell = world.shell()
        shell.run()
        third = chain("t", "o2", 3, 14, bonus=9)
        send_reorg(world.logs, producer_of(), world.old[1], third, 145)
        if from_the_beginning:
            shell.channel_position.clear()
        shell.run()
        assert shell.application.hashes == [*world.expected[:3], *(block.hash for block in third)]
        assert shell.application.reverts == 2

    def test_one_after_another(self) -> None:
        world = World()
        third = chain("t", "n5", 6, 14, bonus=9)
        send_reorg(world.logs, producer_of(), world.new[2], third, 145)
        shell = world.shell()
        shell.run()
        assert shell.application.hashes[-1] == third[-1].hash
        assert shell.application.reverts == 2

    def test_blocks_that_came_early_are_held_and_then_used(self) -> None:
        """All of the normal feed first, also what follows the reorg; then its channel."""
        world = World()
        shell = world.shell()
        ancestor = world.old[1].hash
        shell.run(choose=lambda found: found[0] if isinstance(found[0], str) else ancestor)
        assert shell.application.hashes == world.expected

    def test_another_producer_that_sends_the_new_chain_on_the_normal_feed(self) -> None:
        """Its blocks came, and were adopted or given up as too deep, before the reorg was announced."""
        for threshold in (4, 32):
            world = World()
            logs = Logs()
            for blocks in (world.old, world.new, world.after):
                send(logs, producer_of(), blocks)
            shell = Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)
            shell.run()
            send_reorg(logs, producer_of(), world.old[1], world.new, 100)
            shell.run()
            assert shell.application.hashes == world.expected
            assert shell.application.reverts == 1

    def test_a_channel_without_blocks_is_told(self) -> None:
        world = World()
        shell = world.shell()
        world.logs.channels[world.old[1].hash] = [
            encode(Reorg(world.old[1].hash, 2)),
            encode(ReorgComplete(b"e" * 32, 2)),
        ]
        shell.run()
        assert [event for event in shell.events if isinstance(event, ReorgRefused)]
        assert shell.consumer.feeds.normal

    def test_what_a_channel_has_of_a_block_is_told_when_it_is_closed(self) -> None:
        """Goal: an incomplete block is told, and not at the end of a section: another producer can send the rest.
        Method: the last message of the last block is missing; then many reorgs are announced, so that the channel is
        closed."""
        world = World()
        shell = world.shell()
        ancestor = world.old[1].hash
        lost = world.logs.channels[ancestor].pop(-2)
        shell.run()
        assert not [event for event in shell.events if isinstance(event, Evicted)]
        events = []
        for number in range(1, shell.consumer.limits.announced_max + 1):
            events += shell.consumer.receive(*encode(Reorg(hash_of(number), 900 + number)), "default:9", number)
        (evicted,) = [event for event in events if isinstance(event, Evicted)]
        assert (evicted.hash, evicted.reason) == (world.new[-1].hash, EvictionReason.CLOSED)
        assert CloseReorgChannel(ancestor) in events
        whole = World()
        whole.logs.channels[ancestor].pop(-2)
        whole.logs.send_on(ancestor, [lost])
        shell = whole.shell()
        shell.run()
        assert shell.application.hashes == whole.expected

    def test_a_block_too_deep_is_told(self) -> None:
        logs = Logs()
        send(logs, producer_of(), chain("o", "g", 1, 10))
        shell = Shell(logs, Application(GENESIS_HASH), 4, GENESIS)
        shell.run()
        send(logs, producer_of(), [payload("deep", "o2", 3, 1_000)])
        shell.run()
        assert NeedsReorg(hash_of("deep"), 3, 1_000) in shell.events

    @pytest.mark.parametrize("seed", range(8))
    def test_a_fork_that_begins_too_deep_is_told_once_it_is_heavier(self, seed: int) -> None:
        """Goal: also where its first blocks are numbered so low that nobody wants them any more. Method: the fork comes
        in order (seed 0) or in disorder, and is the heavier one from its ninth block on."""
        logs = Logs()
        send(logs, producer_of(), chain("o", "g", 1, 10))
        shell = Shell(logs, Application(GENESIS_HASH), 4, GENESIS)
        shell.run()
        fork = chain("d", "o2", 3, 12, bonus=-5)
        if seed:
            random.Random(seed).shuffle(fork)
        send(logs, producer_of(), fork)
        shell.run()
        told = [event for event in shell.events if isinstance(event, NeedsReorg)]
        assert len(told) == 1
        assert told[0].weight > 100
        assert shell.application.hashes[-1] == hash_of("o10")

    def test_a_restart_after_going_back_goes_on_in_the_channel(self) -> None:
        """Goal: what the normal feed still has of the removed chain does not come between."""
        world = World()
        shell = world.shell()
        shell.run_until(lambda: shell.application.reverts == 1)
        shell.restart(shell.consumer.checkpoint())
        ancestor = world.old[1].hash
        assert shell.consumer.feeds == Feeds(normal=False, channels=(ancestor,))
        assert shell.consumer.channels == (ancestor,)
        shell.run()
        assert shell.application.hashes == world.expected
        assert shell.application.reverts == 1

    def test_two_channels_are_not_read_at_once(self) -> None:
        world = World()
        shell = world.shell()
        shell.run_until(lambda: shell.application.reverts == 1)
        shell.consumer.receive(*encode(Reorg(world.old[0].hash, 1)), "default:9", 0)
        with pytest.raises(RuntimeError, match="another reorg is going on"):
            shell.consumer.receive_reorg(world.old[0].hash, *encode(Reorg(world.old[0].hash, 1)), "x:0", 0)

    def test_only_so_many_are_known(self) -> None:
        limits = ConsumerLimits(announced_max=2)
        consumer = ChainConsumer(reorg_threshold=4, checkpoint=GENESIS, limits=limits)
        events = []
        for number in range(1, 4):
            events += consumer.receive(*encode(Reorg(hash_of(number), number)), "default:0", number)
        assert [event.hash for event in events if isinstance(event, ReorgRefused)] == [hash_of(1)]
        assert CloseReorgChannel(hash_of(1)) in events
        consumer.check()

    def test_only_so_many_blocks_are_held(self) -> None:
        consumer = ChainConsumer(reorg_threshold=4, limits=ConsumerLimits(held_max=2))
        consumer.receive(*encode(Reorg(hash_of("a"), 1)), "default:0", 0)
        consumer.receive_reorg(hash_of("a"), *encode(Reorg(hash_of("a"), 1)), "re:0", 0)
        events = []
        for number in range(1, 4):
            (record,) = records_of(producer_of().add_block(payload(f"h{number}", f"h{number - 1}", number)))
            events += consumer.receive(*record, "default:0", number)
        assert events == []
        assert consumer.statistics().held == 2
        assert hash_of("h3") in consumer.checkpoint().needed, "it is read again"
        consumer.check()


class TestProducersSide:
    def test_steps_out_of_order_are_refused(self) -> None:
        channel = ReorgChannel(producer_of(), hash_of("a"), 1, 10)
        block = payload("b", "a", 2, 20, sub_batches={"b/s": hash_of(1)})
        with pytest.raises(ReorgOrder, match="that is new cannot be given"):
            channel.add_block(block)
        with pytest.raises(ReorgOrder, match="that is new cannot be completed"):
            channel.complete()
        channel.begin()
        with pytest.raises(ReorgOrder, match="that is open cannot be begun"):
            channel.begin()
        with pytest.raises(ReorgOrder, match="does not follow"):
            channel.add_block(payload("c", "x", 3, 30))
        with pytest.raises(ReorgOrder, match="number 1 does not follow"):
            channel.add_block(payload("c", "a", 1, 30))
        channel.add_block(payload("l", "a", 2, 10))
        with pytest.raises(ReorgOrder, match="the new chain weighs 10"):
            channel.complete()
        channel.add_block(payload("b", "l", 3, 20, sub_batches={"b/s": hash_of(1)}))
        with pytest.raises(ReorgOrder, match="1 sub batches are not sent"):
            channel.complete()
        with pytest.raises(UnknownSubBatch):
            channel.send_sub_batch(hash_of("b"), hash_of(2))
        assert len(channel.send_sub_batch(hash_of("b"), hash_of(1))) == 1
        assert channel.complete() == [encode(ReorgComplete(hash_of("a"), 1))], "the ancestor, as the Reorg"
        with pytest.raises(ReorgOrder, match="that is complete"):
            channel.complete()

    def test_both_places_are_told_and_the_channel_first(self) -> None:
        channel = ReorgChannel(producer_of(), hash_of("a"), 1, 10)
        record: Record = encode(Reorg(hash_of("a"), 1))
        assert list(channel.begin().items()) == [(f"default-re-{hash_of('a').hex()}", [record]), ("default", [record])]

    def test_blocks_that_were_sent_before_are_sent_again_and_not_after(self) -> None:
        producer = producer_of()
        producer.add_block(payload("b", "a", 2, 20))
        channel = ReorgChannel(producer, hash_of("a"), 1, 10)
        channel.begin()
        assert len(channel.add_block(payload("b", "a", 2, 20))) == 1
        assert len(channel.add_block(payload("c", "b", 3, 30))) == 1
        assert producer.add_block(payload("c", "b", 3, 30)) == {}
