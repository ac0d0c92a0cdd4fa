"""The consumer as a whole: deliveries to updates, checkpoints, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest

from cardinal_streams.errors import UnknownPrefixByte
from cardinal_streams.limits import ConsumerLimits
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    BadMessage,
    ChainUpdate,
    Checkpoint,
    Feeds,
    OpenReorg,
    ReorgRefused,
    Start,
)
from cardinal_streams.message.messages import Reorg, ReorgComplete, encode
from tests.cardinal_streams.helpers import hash_of, names, payload, records_of, vectors
from tests.cardinal_streams.shell import Application, Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, World, chain, producer_of, send


def test_the_chain_with_a_reorg_of_the_real_producer_and_consumer() -> None:
    """Also backwards within a block, with a real sub batch."""
    consumer = ChainConsumer(reorg_threshold=128, checkpoint=Checkpoint(start=Start(hash_of("blk:A"), 0, 1)))
    offset = 0
    for given in vectors("chain_reorg.json")["blocks"]:
        topics = [given["add_block"], *(sent["messages"] for sent in given.get("send_batch", ()))]
        records = [(topic, message) for each in topics for topic, found in each.items() for message in found]
        updates = []
        for topic, message in reversed(records):
            key, value = bytes.fromhex(message["key"]), bytes.fromhex(message["value"])
            updates += consumer.receive(key, value, f"{topic}:0", offset)
            offset += 1
        consumer.check()
        found = [
            {"added": names(event.added), "removed": names(event.removed)}
            for event in updates
            if isinstance(event, ChainUpdate)
        ]
        real = [
            {side: [f"blk:{name}" for name in each[side]] for side in ("added", "removed")}
            for each in given["chain_updates_after"]
        ]
        assert found == real


def test_what_is_no_message_is_told_and_dropped() -> None:
    consumer = ChainConsumer(reorg_threshold=4)
    (event,) = consumer.receive(b"\x07" + bytes(32), b"", "t:0", 3)
    assert isinstance(event, BadMessage)
    assert (event.source, event.offset) == ("t:0", 3)
    assert isinstance(event.error, UnknownPrefixByte)
    assert consumer.statistics().bad_messages == 1


def test_a_message_of_the_reorg_protocol_in_the_wrong_place_is_told() -> None:
    consumer = ChainConsumer(reorg_threshold=4)
    key, value = encode(ReorgComplete(hash_of("a"), 1))
    assert consumer.receive(key, value, "t:0", 0) == [ReorgRefused(hash_of("a"), "a ReorgComplete on the normal feed")]
    consumer.receive(*encode(Reorg(hash_of("a"), 1)), "t:0", 1)
    (event,) = consumer.receive_reorg(hash_of("a"), *encode(Reorg(hash_of("b"), 1)), "re:0", 0)
    assert isinstance(event, ReorgRefused)
    assert consumer.receive_reorg(hash_of("a"), key, value, "re:0", 1) == []
    assert consumer.statistics().reorgs_refused == 2


def test_a_finished_update_is_one_that_was_told() -> None:
    consumer = ChainConsumer(reorg_threshold=4, checkpoint=GENESIS)
    with pytest.raises(ValueError, match="not among those"):
        consumer.done(ChainUpdate((), ()))


def test_an_application_that_does_not_finish_stops_the_feeds() -> None:
    consumer = ChainConsumer(reorg_threshold=4, checkpoint=GENESIS, limits=ConsumerLimits(unfinished_max=2))
    logs = Logs()
    send(logs, producer_of(), chain("o", "g", 1, 2))
    updates = []
    for source, records in logs.normal.items():
        for offset, (key, value) in enumerate(records):
            updates += consumer.receive(key, value, source, offset)
    assert [type(event) for event in updates] == [ChainUpdate, ChainUpdate]
    assert consumer.feeds == Feeds(normal=False, channels=())
    assert consumer.checkpoint().start == GENESIS.start
    last = updates[-1]
    assert isinstance(last, ChainUpdate)
    consumer.done(last)
    assert consumer.feeds == Feeds(normal=True, channels=())
    assert consumer.checkpoint().start == Start(hash_of("o2"), 2, 20)


class TestCheckpoint:
    def test_it_has_what_an_unfinished_update_removes(self) -> None:
        """Goal: a consumer that is restarted before an update is finished gets that update again, also if the chain
        has grown so far that the removed blocks can never return. Method: a fork as deep as the threshold, heavier by
        two blocks, is taken and not finished; the next consumer begins with the checkpoint of that moment."""
        logs, producer = Logs(), producer_of()
        old = chain("o", "g", 1, 8)
        new = chain("n", "o4", 5, 6, bonus=5)
        send(logs, producer, old)
        shell = Shell(logs, Application(GENESIS_HASH), 4, GENESIS)
        shell.run()
        consumer = shell.consumer
        send(logs, producer, new)
        consumer.done = lambda event: None  # type: ignore[method-assign]
        shell.run()
        assert shell.application.hashes[-1] == new[-1].hash
        again = Shell(logs, Application(GENESIS_HASH), 4, consumer.checkpoint())
        again.application.hashes = [GENESIS_HASH, *(block.hash for block in old)]
        again.run()
        assert again.application.hashes == [GENESIS_HASH, *(block.hash for block in (*old[:4], *new))]

    def test_it_survives_as_text(self) -> None:
        checkpoint = Checkpoint(
            start=Start(hash_of("a"), 1, 1 << 255),
            position={"t:0": 3},
            history={"re:0": 1},
            open_reorgs=(OpenReorg(hash_of("b"), 2),),
            finished_reorgs=(hash_of("c"),),
        )
        assert msgspec.json.decode(msgspec.json.encode(checkpoint), type=Checkpoint) == checkpoint

    def test_a_restart_at_every_delivery_repeats_nothing_and_skips_nothing(self) -> None:
        """Through a reorg beyond the threshold. The application is the same one: it checks that each update fits."""
        world = World()
        whole = world.shell()
        whole.run()
        for reads in range(0, whole.reads, 3):
            shell = world.shell()
            shell.run(reads_max=reads)
            shell.restart(shell.consumer.checkpoint())
            shell.run()
            assert shell.application.hashes == world.expected, f"after {reads} deliveries"

    def test_after_a_restart_a_reorg_within_the_threshold_still_works(self) -> None:
        """Also one that removes blocks of which the messages came on the channel of a finished reorg."""
        world = World(after=0)
        shell = world.shell()
        shell.run()
        assert shell.consumer.checkpoint().open_reorgs[0].offset == 1, "its blocks are not final"
        shell.restart(shell.consumer.checkpoint())
        send(world.logs, producer_of(), chain("f", "n9", 10, 3, bonus=7))
        shell.run()
        assert shell.application.hashes[-4:] == [hash_of(name) for name in ("n9", "f10", "f11", "f12")]

    def test_blocks_that_are_held_are_read_again(self) -> None:
        consumer = ChainConsumer(reorg_threshold=4)
        consumer.receive(*encode(Reorg(hash_of("a"), 1)), "default:0", 7)
        consumer.receive_reorg(hash_of("a"), *encode(Reorg(hash_of("a"), 1)), "re:0", 0)
        (record,) = records_of(producer_of().add_block(payload("h", "g", 1)))
        assert consumer.receive(*record, "default:0", 8) == []
        consumer.receive(*encode(Reorg(hash_of("a"), 1)), "default:0", 9)
        assert consumer.checkpoint().position == {"default:0": 8}

    def test_a_finished_application_has_nothing_to_read_again_but_what_a_reorg_may_need(self) -> None:
        logs = Logs(partitions=1)
        send(logs, producer_of(), [payload(f"o{n}", f"o{n - 1}" if n > 1 else "g", n) for n in range(1, 11)])
        shell = Shell(logs, Application(GENESIS_HASH), 3, GENESIS)
        shell.run()
        assert shell.consumer.checkpoint().position == {"default:0": 6}
