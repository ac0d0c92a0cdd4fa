"""What comes again after a restart and was done with: it is recognised, and holds no position."""

from __future__ import annotations

import random

import pytest

from cardinal_streams.limits import ConsumerLimits, ReassemblyLimits
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    ChainUpdate,
    Checkpoint,
    Completed,
    Evicted,
    OpenReorgChannel,
    Start,
)
from cardinal_streams.machines.reading_again import Reread
from cardinal_streams.machines.unordered_machine import UnorderedConsumer
from cardinal_streams.message.messages import BatchMsg, Reorg, encode
from cardinal_streams.produce.simulation_machine import GENESIS, SimulationOptions, simulate
from cardinal_streams.transports.transport import partition_of, source_of
from tests.cardinal_streams.helpers import hash_of, message_records, payload

PARTITIONS = 4


def test_only_what_was_read_before_and_is_not_needed_is_done() -> None:
    reread = Reread({"a:0": 5}, [hash_of("needed")])
    done, needed = BatchMsg(hash_of("done"), "k", b""), BatchMsg(hash_of("needed"), "k", b"")
    assert reread.is_done(done, "a:0", 4)
    assert not reread.is_done(needed, "a:0", 4)
    assert not reread.is_done(done, "b:0", 4)
    assert not reread.is_done(Reorg(hash_of("done"), 1), "a:0", 4)
    assert reread.read({"a:0": 2, "b:0": 8}) == {"a:0": 5, "b:0": 9}
    assert reread.needed([hash_of("more")], lambda _: False) == (hash_of("more"), hash_of("needed"))
    assert reread.needed([hash_of("more")], lambda _: True) == (hash_of("more"),)
    assert not reread.is_done(done, "a:0", 5)
    assert reread.left == {}
    assert reread.needed([hash_of("more")], lambda _: False) == (hash_of("more"),)


LOST = Checkpoint(start=Start(hash_of("o5"), 5, 5), position={"t:0": 0}, read={"t:0": 1}, needed=(hash_of("lost"),))
GONE = Checkpoint(start=Start(hash_of("o5"), 5, 5), position={"gone:0": 0}, read={"gone:0": 5})


@pytest.mark.parametrize("known", [LOST, GONE])
def test_a_chain_that_has_all_its_blocks_waits_for_nothing_from_before_a_restart(known: Checkpoint) -> None:
    """Goal: a reorg beyond the threshold is followed although something that was needed before the restart never comes:
    a block whose other messages are deleted, or a topic that is not read any more. Method: ten blocks of two messages
    follow the start, so that the first block is given up as idle; then a reorg to a block below all of them."""
    limits = ConsumerLimits(reassembly=ReassemblyLimits(idle_messages_max=5))
    consumer = ChainConsumer(reorg_threshold=2, checkpoint=known, limits=limits)
    rows = [encode(BatchMsg(hash_of("lost"), "a/lost", b"v"))]
    for number in range(6, 16):
        rows += message_records(payload(f"o{number}", f"o{number - 1}", number, updates={f"a/{number}": b"v"}))
    events = [event for offset, row in enumerate(rows) for event in consumer.receive(*row, "t:0", offset)]
    assert [event.hash for event in events if isinstance(event, Evicted)] == [hash_of("lost")]
    announced = consumer.receive(*encode(Reorg(hash_of("o2"), 2)), "t:0", len(rows))
    assert announced == [OpenReorgChannel(hash_of("o2"), 2)]
    consumer.check()


def test_a_chain_that_lacks_blocks_waits_before_it_goes_back() -> None:
    """Claim: until the chain has a final block, a lower number does not prove that it has the ancestor of a reorg."""
    consumer = ChainConsumer(reorg_threshold=2, checkpoint=GONE)
    rows = [encode(Reorg(hash_of("o2"), 2))]
    for number in (6, 7):
        rows += message_records(payload(f"o{number}", f"o{number - 1}", number))
    opened = [
        offset
        for offset, row in enumerate(rows)
        for event in consumer.receive(*row, "t:0", offset)
        if isinstance(event, OpenReorgChannel)
    ]
    assert opened == [2]


Row = tuple[bytes, bytes, str, int]


def simulated(seed: int, blocks: int, duplicate_rate: float = 0.1) -> tuple[list[Row], bytes]:
    """A simulation without deep reorgs as deliveries of four partitions a topic, and its head."""
    options = SimulationOptions(blocks=blocks, deep_reorgs=0, duplicate_rate=duplicate_rate)
    simulation = simulate(random.Random(seed), options)
    ends: dict[str, int] = {}
    rows = []
    for topic, (key, value) in ((step.topic, step.record) for step in simulation.steps):
        source = source_of(topic, partition_of(key, PARTITIONS))
        ends[source] = offset = ends.get(source, -1) + 1
        rows.append((key, value, source, offset))
    return rows, simulation.chain[-1].hash


@pytest.mark.parametrize("seed", range(4))
def test_many_restarts_read_little_again(seed: int) -> None:
    """Goal: how much is read again after a restart is what is under way, and does not grow from restart to restart.
    Method: a restart after every 200 new messages; at each, what lies behind the position and was read is counted, and
    what is incomplete. Messages come up to 300 places late, of blocks of up to 13."""
    rows, head = simulated(seed, 200)
    known = Checkpoint(start=GENESIS)
    for end in range(200, len(rows) + 200, 200):
        consumer = ChainConsumer(reorg_threshold=8, checkpoint=known)
        again = [row for row in rows[:end] if row[3] >= known.position.get(row[2], 0)]
        for row in again:
            for event in consumer.receive(*row):
                if isinstance(event, ChainUpdate):
                    consumer.done(event)
        consumer.check()
        assert len(again) - 200 < 600
        assert consumer.statistics().reassembly.incomplete < 60
        known = consumer.checkpoint()
    assert consumer.head is not None
    assert consumer.head.hash == head


@pytest.mark.parametrize("seed", range(8))
def test_unordered_nothing_that_is_done_is_told_again(seed: int) -> None:
    """Goal: where every message comes once, every block is told once over all restarts, but for those that were told
    and not done. Method: as above, and a fifth of what is told is not done before the next restart."""
    rows, _ = simulated(seed, 100, duplicate_rate=0)
    known = Checkpoint(start=None)
    randomness = random.Random(seed)
    done: list[bytes] = []
    for end in range(150, len(rows) + 150, 150):
        consumer = UnorderedConsumer(checkpoint=known)
        for row in (row for row in rows[:end] if row[3] >= known.position.get(row[2], 0)):
            for event in consumer.receive(*row):
                if isinstance(event, Completed) and (randomness.random() < 0.8 or end >= len(rows)):
                    consumer.done(event)
                    done.append(event.batch.hash)
        consumer.check()
        known = consumer.checkpoint()
    assert len(done) == len(set(done))
    assert {row[0][1:33] for row in rows} == set(done)
