"""A reorg beyond the threshold under any interleaving of partitions, producers and the channel, any duplication, and
restarts anywhere: the application ends on the same chain with equal blocks."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cardinal_streams.machines.events import BadMessage, Dropped, Evicted, NeedsReorg, Refused, ReorgRefused
from tests.cardinal_streams.shell import Application, Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, World, chain, producer_of, send
from tests.support.examples import examples

NEVER = (BadMessage, Refused, Evicted, Dropped, ReorgRefused)


def duplicate(logs: Logs, randomness: random.Random) -> None:
    """Some messages of the normal feed are delivered again, at the latest two dozen deliveries later."""
    for records in logs.normal.values():
        for at in sorted(randomness.sample(range(len(records)), len(records) // 4), reverse=True):
            records.insert(min(len(records), at + randomness.randrange(24)), records[at])


def assert_ends_well(shell: Shell, world: World) -> None:
    assert shell.application.hashes == world.expected
    for block in (*world.old[:2], *world.new, *world.after):
        batch = shell.application.contents[block.hash]
        assert batch.values == dict(block.updates) | {"b/s/1": block.hash}
    assert not [event for event in shell.events if isinstance(event, NEVER)]


@settings(max_examples=40)
@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_any_interleaving_of_redundant_producers_and_the_channel(seed: int, producers: int) -> None:
    randomness = random.Random(seed)
    world = World(producers)
    duplicate(world.logs, randomness)
    shell = world.shell()
    shell.run(choose=randomness.choice)
    assert_ends_well(shell, world)
    assert shell.application.reverts == 1


@settings(max_examples=examples(40))
@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(1, 7), st.integers(0, 5), st.booleans())
@example(seed=115, producers=1, threshold=3, after=3, is_mixed=False)
def test_restarts_anywhere(seed: int, producers: int, threshold: int, after: int, is_mixed: bool) -> None:
    """Also where one more producer knows nothing of the reorg, and sends the new chain as it sends any block."""
    randomness = random.Random(seed)
    world = World(producers, after)
    if is_mixed:
        another = producer_of()
        send(world.logs, another, world.old[: randomness.randrange(11)])
        send(world.logs, another, world.new[: randomness.randrange(10)])
    duplicate(world.logs, randomness)
    shell = Shell(world.logs, Application(GENESIS_HASH), threshold, GENESIS)
    for _ in range(randomness.randrange(8)):
        shell.run(choose=randomness.choice, reads_max=randomness.randrange(200))
        shell.restart(shell.consumer.checkpoint())
    shell.run(choose=randomness.choice)
    assert shell.application.hashes == world.expected
    assert not [event for event in shell.events if isinstance(event, NEVER)]


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_forks_within_the_threshold_and_restarts_anywhere(seed: int) -> None:
    """Three forks of one chain, none deeper than the threshold, sent as they grow."""
    randomness = random.Random(seed)
    logs = Logs(partitions=3)
    main = chain("m", "g", 1, 8)
    side = chain("s", "m4", 5, 3, bonus=3)
    third = chain("t", "s6", 7, 5, bonus=7)
    for blocks in (main[:6], side, main[6:], third):
        send(logs, producer_of(), blocks)
    duplicate(logs, randomness)
    shell = Shell(logs, Application(GENESIS_HASH), 32, GENESIS)
    for _ in range(randomness.randrange(4)):
        shell.run(choose=randomness.choice, reads_max=randomness.randrange(100))
        shell.restart(shell.consumer.checkpoint())
    shell.run(choose=randomness.choice)
    expected = [*main[:4], *side[:2], *third]
    assert shell.application.hashes == [GENESIS_HASH, *(block.hash for block in expected)]
    assert not [event for event in shell.events if isinstance(event, (*NEVER, NeedsReorg))]


@pytest.mark.parametrize("lost", range(0, 40, 7))
def test_what_is_lost_and_sent_again_is_not_missing(lost: int) -> None:
    """The producer's messages of a whole partition never arrive, until they are sent again."""
    logs = Logs(partitions=5)
    blocks = chain("m", "g", 1, 20)
    send(logs, producer_of(), blocks)
    source = sorted(logs.normal)[lost % len(logs.normal)]
    missing, logs.normal[source] = logs.normal[source], []
    shell = Shell(logs, Application(GENESIS_HASH), 32, GENESIS)
    shell.run()
    assert len(shell.application.hashes) < 21
    stuck = blocks[len(shell.application.hashes) - 1].hash
    assert "nothing is missing" not in str(shell.consumer.why_incomplete(stuck))
    logs.normal[source] = missing
    shell.run()
    assert shell.application.hashes == [GENESIS_HASH, *(block.hash for block in blocks)]
