"""Reorgs beyond the threshold as the specification and the reference producer end them: ReorgComplete has the common
ancestor, several producers write to one channel, and messages come twice. A consumer ends where one that read a single
undisturbed producer ends. Logs of older producers of this package are read as well."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cardinal_streams.consume.consuming import consume
from cardinal_streams.machines.events import BadMessage, Checkpoint, NeedsReorg, ReadAgain, ReorgRefused
from cardinal_streams.message.messages import Record, Reorg, ReorgComplete, encode
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import Outgoing
from cardinal_streams.produce.simulation_machine import GENESIS as FIRST
from cardinal_streams.produce.simulation_machine import SIMULATED, Simulation, SimulationOptions, simulate
from cardinal_streams.transports.transport import is_reorg_topic
from tests.cardinal_streams.chains import Ledger, served_transport
from tests.cardinal_streams.helpers import records_of
from tests.cardinal_streams.shell import Application, Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, chain, producer_of, send

SOME, MANY = range(40), range(40, 3_040)
OLD = chain("o", "g", 1, 10)
NEW = chain("n", "o2", 3, 9, bonus=5)
NEXT = chain("n", "n11", 12, 3, bonus=5)
ANCESTOR = OLD[1].hash
REORG, COMPLETE = encode(Reorg(ANCESTOR, 2)), encode(ReorgComplete(ANCESTOR, 2))


def records(blocks: list[Payload]) -> list[Record]:
    """All messages of these blocks, as a fresh producer makes them."""
    producer, found = producer_of(), []
    for block in blocks:
        found += records_of(producer.add_block(block))
        for id_ in block.sub_batches.values():
            found += records_of(producer.send_sub_batch(block.hash, id_, (), {"b/s/1": block.hash}))
    return found


def section(blocks: list[Payload]) -> list[Record]:
    """A whole reorg, as the specification has it."""
    return [REORG, *records(blocks), COMPLETE]


def doubled(messages: list[Record]) -> list[Record]:
    return [message for each in messages for message in (each, each)]


def mixed(randomness: random.Random, *sections: list[Record]) -> list[Record]:
    left = [each for records in sections for each in [iter(records)] * len(records)]
    randomness.shuffle(left)
    return [next(each) for each in left]


def shell_of(channel: list[Record], threshold: int, after: list[Payload], announced: int = 1) -> Shell:
    """The old chain, the announcements of a reorg, and the blocks after it on the normal feed; the reorg's channel."""
    logs = Logs()
    send(logs, producer_of(), OLD)
    for _ in range(announced):
        logs.send_one("default", REORG)
    send(logs, producer_of(), after)
    logs.send_on(ANCESTOR, channel)
    return Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)


def hashes(*chains: list[Payload]) -> list[bytes]:
    return [GENESIS_HASH, *(block.hash for blocks in chains for block in blocks)]


def read_normal_first(shell: Shell) -> None:
    shell.run(choose=lambda found: found[0] if isinstance(found[0], str) else found[-1])


@pytest.mark.parametrize("threshold", [4, 32])
class TestAsTheSpecificationEndsIt:
    @pytest.mark.parametrize(
        "channel",
        [
            section(NEW),
            section(NEW) + section(NEW),
            doubled(section(NEW)),
            doubled(section(NEW) + section(NEW)),
            [*section(NEW), REORG],
            [*section(NEW), COMPLETE, REORG],
            [REORG, REORG, *doubled(records(NEW)), COMPLETE, *records(NEW), COMPLETE],
        ],
        ids=["once", "twice", "doubled", "doubled twice", "Reorg again", "end and Reorg again", "overlapping"],
    )
    @pytest.mark.parametrize("announced", [1, 4])
    def test_a_repetition_is_passed_over(self, threshold: int, channel: list[Record], announced: int) -> None:
        shell = shell_of(channel, threshold, NEXT, announced)
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT)
        assert shell.application.reverts == 1
        assert shell.consumer.feeds.normal, "the normal feed is read again"
        assert not [event for event in shell.events if isinstance(event, (ReorgRefused, ReadAgain, BadMessage))]

    def test_a_reorg_that_only_the_normal_feed_announces(self, threshold: int) -> None:
        """Goal: blocks on a channel without a Reorg message are taken (specification: a Reorg message is emitted, it
        does not say where)."""
        shell = shell_of(section(NEW)[1:], threshold, NEXT)
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT)

    @pytest.mark.parametrize("seed", range(6))
    def test_a_producer_that_knows_more(self, threshold: int, seed: int) -> None:
        """Goal: a second producer sent two more old blocks, which are heavier than the first producer's reorg, and then
        a longer reorg. Method: the sections are mixed, or one after the other; the first producer is dead after that,
        so that block 12 comes on the channel only."""
        more = chain("o", "o10", 11, 2)
        first, second = section(NEW), section([*NEW, *NEXT[:2]])
        randomness = random.Random(seed)
        channel = [*first, *second] if seed == 0 else mixed(randomness, first, second)
        shell = shell_of(doubled(channel), threshold, [*more, NEXT[2]], announced=2)
        for _ in range(seed):
            shell.run(choose=randomness.choice, reads_max=randomness.randrange(150))
            shell.restart(shell.consumer.checkpoint())
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT)

    def test_the_one_that_knew_more_dies(self, threshold: int) -> None:
        """Goal: a reorg that is lighter than what the consumer has leads on once its chain gets heavier. Method: the
        second producer sends two more old blocks, and nothing after that."""
        shell = shell_of(section(NEW), threshold, chain("o", "o10", 11, 2))
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD, chain("o", "o10", 11, 2)), "it is the heaviest"
        for block in reversed(NEXT):
            send(shell.logs, producer_of(), [block])
            read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT)

    def test_one_gives_up_what_another_completes(self, threshold: int) -> None:
        """Goal: in mixed sections, the end of one does not end the other. Method: any mix, restarts anywhere."""
        for seed in range(20):
            randomness = random.Random(seed)
            given_up = [REORG, *records(NEW[:4]), Record(b"\xfe" + ANCESTOR, REORG.value)]
            channel = doubled(mixed(randomness, given_up, section(NEW)))
            shell = shell_of(channel, threshold, NEXT, announced=2)
            for _ in range(randomness.randrange(4)):
                shell.run(choose=randomness.choice, reads_max=randomness.randrange(150))
                shell.restart(shell.consumer.checkpoint())
            read_normal_first(shell)
            assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT), f"seed {seed}"


@pytest.mark.parametrize("threshold", [4, 32])
class TestOldLogs:
    """Older producers of this package ended a reorg by ReorgComplete with the last block, and gave it up by
    ReorgComplete with the ancestor."""

    def test_a_reorg_that_ended_with_its_last_block(self, threshold: int) -> None:
        channel = [*section(NEW)[:-1], encode(ReorgComplete(NEW[-1].hash, 11))]
        shell = shell_of(doubled(channel) + channel, threshold, NEXT, announced=2)
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT)
        assert shell.application.reverts == 1

    @pytest.mark.parametrize("blocks", [0, 3, 7])
    def test_one_that_was_given_up(self, threshold: int, blocks: int) -> None:
        more = chain("o", "o10", 11, 2)
        shell = shell_of(section(NEW[:blocks]), threshold, more)
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD, more)
        shell.logs.send_on(ANCESTOR, [*section([*NEW, NEXT[0]])[:-1], encode(ReorgComplete(NEXT[0].hash, 12))])
        read_normal_first(shell)
        assert shell.application.hashes == hashes(OLD[:2], NEW, NEXT[:1]), "another attempt"


def simulated(seed: int, *, producers: int, is_disturbed: bool) -> Simulation:
    rates = {} if is_disturbed else {"duplicate_rate": 0.0, "loss_rate": 0.0, "delay_max": 0}
    options = {"blocks": 40, "keys": 1, "deep_reorgs": 1 + seed % 2, "producers": producers, **rates}
    return simulate(random.Random(seed), SimulationOptions(**options))  # type: ignore[arg-type]


def logs_of(simulation: Simulation, *, is_doubled: bool) -> Logs:
    logs = Logs(partitions=3)
    for step in simulation.steps:
        for _ in range(1 + is_doubled):
            if is_reorg_topic(step.topic):
                logs.send_on(bytes.fromhex(step.topic[-64:]), [step.record])
            else:
                logs.send_one(step.topic, step.record)
    return logs


def contents_of(shell: Shell) -> list[tuple[bytes, dict[str, bytes]]]:
    application = shell.application
    return [(hash_, dict(application.contents[hash_].values)) for hash_ in application.hashes[1:]]


def undisturbed(seed: int) -> list[tuple[bytes, dict[str, bytes]]]:
    logs = logs_of(simulated(seed, producers=1, is_disturbed=False), is_doubled=False)
    shell = Shell(logs, Application(FIRST.hash), SIMULATED.reorg_threshold, Checkpoint(start=FIRST))
    read_normal_first(shell)
    return contents_of(shell)


def assert_equal(seed: int) -> None:
    """Two redundant producers, every message doubled, the feeds read in any order, and restarts anywhere."""
    randomness = random.Random(seed)
    logs = logs_of(simulated(seed, producers=2, is_disturbed=True), is_doubled=True)
    shell = Shell(logs, Application(FIRST.hash), SIMULATED.reorg_threshold, Checkpoint(start=FIRST))
    for _ in range(randomness.randrange(3)):
        shell.run(choose=randomness.choice, reads_max=randomness.randrange(2_000))
        shell.restart(shell.consumer.checkpoint())
    shell.run(choose=randomness.choice)
    assert contents_of(shell) == undisturbed(seed), f"seed {seed}"
    assert shell.consumer.feeds.normal, f"seed {seed}"
    assert not [event for event in shell.events if isinstance(event, (NeedsReorg, BadMessage))], f"seed {seed}"


@pytest.mark.parametrize("seeds", [SOME, pytest.param(MANY, marks=pytest.mark.soak)], ids=["some", "thousands"])
def test_two_producers_and_every_message_twice(seeds: range) -> None:
    for seed in seeds:
        assert_equal(seed)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 150), marks=pytest.mark.soak)], ids=["some", "many"])
async def test_the_same_over_a_node(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        simulation = simulated(seed, producers=2, is_disturbed=True)
        async with served_transport(tmp_path / str(seed)) as (_, transport):
            for at in range(0, len(simulation.steps), 500):
                outgoing: Outgoing = {}
                for step in simulation.steps[at : at + 500]:
                    outgoing.setdefault(step.topic, []).extend((step.record, step.record))
                await transport.send(outgoing)
            ledger = Ledger(FIRST.hash)
            async with consume(SIMULATED, transport, checkpoint=Checkpoint(start=FIRST), stop_at_end=True) as updates:
                async for update in updates:
                    ledger.apply(update)
                    update.done()
        found = [(hash_, dict(ledger.batches[hash_].values)) for hash_ in ledger.hashes[1:]]
        assert found == undisturbed(seed), f"seed {seed}"
