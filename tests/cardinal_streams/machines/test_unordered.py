"""The machine for complete blocks as they come."""

from __future__ import annotations

import random

import pytest

from cardinal_streams.limits import ConsumerLimits, ReassemblyLimits
from cardinal_streams.machines.events import (
    BadMessage,
    Checkpoint,
    CloseReorgChannel,
    Completed,
    MissingState,
    OpenReorgChannel,
    ReadAgain,
)
from cardinal_streams.machines.unordered_machine import UnorderedConsumer
from cardinal_streams.message.messages import Batch, Reorg, encode
from tests.cardinal_streams.helpers import hash_of
from tests.cardinal_streams.world import World

BATCH_PREFIX = 0


def sources(world: World) -> list[tuple[str, bytes | None, int, bytes, bytes]]:
    """Every delivery of a world, as source, ancestor of its channel, offset, key and value; in no order but its
    partition's."""
    found: list[tuple[str, bytes | None, int, bytes, bytes]] = []
    for source, records in world.logs.normal.items():
        found += [(source, None, offset, *record) for offset, record in enumerate(records)]
    for ancestor, records in world.logs.channels.items():
        found += [(f"re-{ancestor.hex()}:0", ancestor, offset, *record) for offset, record in enumerate(records)]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_restarted_anywhere_it_tells_every_block(seed: int) -> None:
    """Goal: blocks of the normal feed and of channels come at least once over a restart, and once within a life.
    Method: deliveries by turns at random, a new machine in the middle, and every second block is done."""
    choice = random.Random(seed)
    world = World(producers=2)
    logs: dict[str, list[tuple[str, bytes | None, int, bytes, bytes]]] = {}
    for delivery in sources(world):
        logs.setdefault(delivery[0], []).append(delivery)
    machine = UnorderedConsumer()
    at = dict.fromkeys(logs, 0)
    told: list[bytes] = []
    done: set[bytes] = set()
    for step in range(100_000):
        if step == 150:
            checkpoint = machine.checkpoint()
            machine = UnorderedConsumer(checkpoint=checkpoint)
            open_offsets = {f"re-{reorg.hash.hex()}:0": reorg.offset for reorg in checkpoint.open_reorgs}
            at = {source: (checkpoint.position | open_offsets).get(source, 0) for source in logs}
            for source, offset in checkpoint.history.items():
                for _, _, each, key, value in logs[source][offset:]:
                    machine.receive_history(key, value, source, each)
            told = [hash_ for hash_ in told if hash_ in done]
        readable = [source for source, log in logs.items() if at[source] < len(log)]
        readable = [s for s in readable if logs[s][0][1] is None or logs[s][0][1] in machine.feeds.channels]
        if not readable:
            break
        source = choice.choice(readable)
        _, ancestor, offset, key, value = logs[source][at[source]]
        at[source] += 1
        if ancestor is None:
            events = machine.receive(key, value, source, offset)
        else:
            events = machine.receive_reorg(ancestor, key, value, source, offset)
        machine.check()
        for event in events:
            if isinstance(event, Completed):
                told.append(event.batch.hash)
                if step % 2 or step > 150:
                    machine.done(event)
                    done.add(event.batch.hash)
    expected = {block.hash for block in (*world.old, *world.new, *world.after)}
    assert set(told) | done == expected


def test_a_channel_stays_open_after_a_section() -> None:
    """Goal: a redundant producer's section, of which the announcement came before the end of the first one, is read."""
    world = World(producers=2)
    machine = UnorderedConsumer()
    ancestor = world.old[1].hash
    assert machine.receive(*encode(Reorg(ancestor, 2)), "default:0", 0) == [OpenReorgChannel(ancestor, 2)]
    assert machine.receive(*encode(Reorg(ancestor, 2)), "default:0", 1) == []
    events = []
    for offset, (key, value) in enumerate(world.logs.channels[ancestor]):
        assert machine.feeds.channels == (ancestor,)
        events += machine.receive_reorg(ancestor, key, value, "re:0", offset)
    assert machine.feeds.channels == (ancestor,)
    assert len(events) == machine.statistics().unfinished == len(world.new)


def test_blocks_of_a_channel_that_were_put_off_are_read_again() -> None:
    """Goal: every block of an open channel is told, though only two may be incomplete at once. Method: the channel has
    the first messages of all blocks before their other ones, and the reader obeys each `ReadAgain`."""
    world = World()
    ancestor = world.old[1].hash
    log = sorted(world.logs.channels[ancestor], key=lambda record: record[0][0] != BATCH_PREFIX)
    machine = UnorderedConsumer(limits=ConsumerLimits(reassembly=ReassemblyLimits(incomplete_max=2)))
    machine.receive(*encode(Reorg(ancestor, 2)), "default:0", 0)
    told: set[bytes] = set()
    at = readings = 0
    while at < len(log) or readings < 20:
        if at < len(log):
            events = machine.receive_reorg(ancestor, *log[at], "re:0", at)
            at += 1
        else:
            events = machine.at_end()
            readings += 1
        for event in events:
            if isinstance(event, Completed):
                told.add(event.batch.hash)
            elif isinstance(event, ReadAgain) and event.ancestor is not None:
                assert event.ancestor == ancestor
                at = event.position["re:0"]
    assert told == {block.hash for block in world.new}
    assert machine.statistics().reassembly.evicted


def test_a_checkpoint_between_the_event_and_the_second_reading_skips_no_block() -> None:
    """Goal: a block that was put off comes after a restart, too. Method: the restart is at once after `ReadAgain`."""
    limits = ConsumerLimits(reassembly=ReassemblyLimits(incomplete_max=1))
    first, second = (Batch(hash_of(name), 1, hash_of("m0"), 1, counts={"a/": 1}) for name in ("one", "two"))
    machine = UnorderedConsumer(limits=limits)
    for offset, batch in enumerate((first, second)):
        machine.receive(*encode(batch), "t:0", offset)
    assert machine.at_end() == [ReadAgain({"t:0": 0})]
    assert machine.checkpoint().position == {"t:0": 0}


def test_only_so_many_channels_are_read() -> None:
    machine = UnorderedConsumer(limits=ConsumerLimits(announced_max=2))
    events = []
    for number in range(1, 4):
        events += machine.receive(*encode(Reorg(hash_of(number), number)), "default:0", number)
    assert CloseReorgChannel(hash_of(1)) in events
    machine.check()


def test_with_too_much_unfinished_nothing_is_read() -> None:
    world = World()
    machine = UnorderedConsumer(limits=ConsumerLimits(unfinished_max=2))
    completed = []
    for source, ancestor, offset, key, value in sources(world):
        if ancestor is None and machine.feeds.normal:
            completed += [e for e in machine.receive(key, value, source, offset) if isinstance(e, Completed)]
    assert len(completed) == 2
    machine.done(completed[0])
    assert machine.feeds.normal


def test_what_is_no_message_is_told() -> None:
    machine = UnorderedConsumer(checkpoint=Checkpoint(start=None))
    (event,) = machine.receive(b"", b"", "default:0", 7)
    assert isinstance(event, BadMessage)
    assert machine.statistics().bad_messages == 1
    assert machine.why_incomplete(hash_of("x")).state is MissingState.UNKNOWN
