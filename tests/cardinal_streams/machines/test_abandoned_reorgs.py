"""Reorgs that are given up, by their producer or by the application, and what a restart makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_streams.consume.checkpoints import format_checkpoint, parse_checkpoint
from cardinal_streams.errors import ReorgOrder
from cardinal_streams.limits import DEFAULT_CONSUMER_LIMITS, ConsumerLimits
from cardinal_streams.machines.events import CloseReorgChannel, NeedsReorg, ReadAgain, Revert
from cardinal_streams.message.messages import ReorgAbandoned, ReorgComplete, encode
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import ReorgChannel
from tests.cardinal_streams.helpers import hash_of
from tests.cardinal_streams.shell import Application, Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, chain, producer_of, send, send_reorg
from tests.support.examples import examples

OLD = chain("o", "g", 1, 10)
NEW = chain("n", "o2", 3, 9, bonus=5)
MORE = chain("o", "o10", 11, 2)
ANCESTOR = OLD[1].hash


def hashes(*chains: list[Payload]) -> list[bytes]:
    return [GENESIS_HASH, *(block.hash for blocks in chains for block in blocks)]


def send_part(logs: Logs, blocks: list[Payload]) -> ReorgChannel:
    """A reorg to `ANCESTOR` that stops after these blocks; its channel is still open."""
    channel = ReorgChannel(producer_of(), ANCESTOR, 2, 100)
    begin = channel.begin()
    logs.send_on(ANCESTOR, begin[channel.topic])
    logs.send({"default": begin["default"]})
    for block in blocks:
        logs.send_on(ANCESTOR, channel.add_block(block))
        for id_ in block.sub_batches.values():
            logs.send_on(ANCESTOR, channel.send_sub_batch(block.hash, id_, (), {"b/s/1": block.hash}))
    return channel


def abandoned(
    threshold: int, attempts: int = 1, blocks: int = 3, limits: ConsumerLimits = DEFAULT_CONSUMER_LIMITS
) -> Shell:
    """Ten blocks, then reorgs that their producer gives up after some blocks, then two more of the old chain."""
    logs = Logs()
    send(logs, producer_of(), OLD)
    for _ in range(attempts):
        logs.send_on(ANCESTOR, send_part(logs, NEW[:blocks]).abandon())
    send(logs, producer_of(), MORE)
    return Shell(logs, Application(GENESIS_HASH), threshold, GENESIS, limits)


class TestProducer:
    def test_it_says_so_by_a_message_of_its_own(self) -> None:
        channel = ReorgChannel(producer_of(), ANCESTOR, 2, 100)
        channel.begin()
        channel.add_block(NEW[0])
        assert channel.abandon() == [encode(ReorgAbandoned(ANCESTOR, 2))]
        with pytest.raises(ReorgOrder, match="that is abandoned cannot be given a block"):
            channel.add_block(NEW[1])
        with pytest.raises(ReorgOrder, match="that is abandoned cannot be abandoned"):
            channel.abandon()

    def test_what_was_not_begun_needs_no_word(self) -> None:
        channel = ReorgChannel(producer_of(), ANCESTOR, 2, 100)
        assert channel.abandon() == []
        with pytest.raises(ReorgOrder, match="that is abandoned cannot be begun"):
            channel.begin()

    def test_a_complete_reorg_is_not_given_up(self) -> None:
        logs = Logs()
        channel = send_part(logs, NEW)
        channel.complete()
        with pytest.raises(ReorgOrder, match="that is complete cannot be abandoned"):
            channel.abandon()


def normal_first(choose: Callable[[list[str | bytes]], str | bytes]) -> Callable[[list[str | bytes]], str | bytes]:
    """Reads a channel only where nothing is left of the normal feed."""
    return lambda found: choose([feed for feed in found if isinstance(feed, str)] or found)


class TestConsumer:
    @pytest.mark.parametrize("threshold", [4, 32])
    @pytest.mark.parametrize("blocks", [0, 3, 7])
    @pytest.mark.parametrize("attempts", [1, 3])
    def test_the_old_chain_returns(self, threshold: int, blocks: int, attempts: int) -> None:
        """Whether the ancestor is still held (32) or lies below everything that is (4), and also where more blocks of
        the reorg came than the threshold lets be removed. Method: the normal feed is read first, so that the chain is
        at its end when the channel begins."""
        shell = abandoned(threshold, attempts, blocks)
        shell.run(choose=lambda found: found[0])
        assert shell.application.hashes == hashes(OLD, MORE)
        assert shell.consumer.statistics().reorgs_abandoned == 1
        assert not any(isinstance(event, CloseReorgChannel) for event in shell.events)
        assert any(isinstance(event, ReadAgain) for event in shell.events) == (threshold == 4)
        assert not any(isinstance(event, NeedsReorg) for event in shell.events)
        offset = shell.consumer.checkpoint().open_reorgs[0].offset
        assert offset == (1 if blocks else len(shell.logs.channels[ANCESTOR])), "its blocks can still get heavier"

    @pytest.mark.parametrize("threshold", [4, 32])
    def test_another_attempt_is_taken(self, threshold: int) -> None:
        shell = abandoned(threshold)
        shell.run()
        send_reorg(shell.logs, producer_of(), OLD[1], NEW + chain("n", "n11", 12, 2, bonus=5), 120)
        shell.run()
        assert shell.application.hashes == hashes(OLD[:2], NEW, chain("n", "n11", 12, 2, bonus=5))
        assert shell.consumer.statistics().reorgs_finished >= 1

    @pytest.mark.parametrize("held", [4, 5, 6])
    def test_another_attempt_of_more_blocks_than_are_kept_is_taken(self, held: int) -> None:
        """Goal: its blocks get heavier than the chain only at the end, after more of them came than are kept. Method:
        the normal feed is read first, so that the first attempt is begun and given up."""
        shell = abandoned(4, limits=ConsumerLimits(held_max=held))
        shell.run(choose=lambda found: found[0])
        assert shell.application.hashes == hashes(OLD, MORE)
        more = chain("n", "n11", 12, 2, bonus=5)
        send_reorg(shell.logs, producer_of(), OLD[1], NEW + more, 120)
        shell.run()
        assert shell.application.hashes == hashes(OLD[:2], NEW, more)

    @pytest.mark.parametrize("threshold", [4, 32])
    def test_another_producer_completes_what_one_gave_up(self, threshold: int) -> None:
        logs = Logs()
        send(logs, producer_of(), OLD)
        logs.send_on(ANCESTOR, send_part(logs, NEW[:2]).abandon())
        send_reorg(logs, producer_of(), OLD[1], NEW, 100)
        shell = Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)
        shell.run()
        assert shell.application.hashes == hashes(OLD[:2], NEW)

    @pytest.mark.parametrize("threshold", [4, 32])
    def test_a_heavier_chain_stays(self, threshold: int) -> None:
        """Goal: a producer that names the ancestor at the end of a whole reorg is understood."""
        logs = Logs()
        send(logs, producer_of(), OLD)
        send_part(logs, NEW)
        logs.send_on(ANCESTOR, [encode(ReorgComplete(ANCESTOR, 2))])
        shell = Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)
        shell.run()
        assert shell.application.hashes == hashes(OLD[:2], NEW)

    @pytest.mark.parametrize("threshold", [4, 32])
    def test_the_application_gives_up(self, threshold: int) -> None:
        logs = Logs()
        send(logs, producer_of(), OLD)
        send_part(logs, NEW[:3])
        send(logs, producer_of(), MORE)
        shell = Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)
        assert shell.consumer.abandon_reorg(ANCESTOR) == []
        shell.run()
        assert shell.application.hashes == hashes(OLD[:2], NEW[:3])
        shell._handle(shell.consumer.abandon_reorg(ANCESTOR))
        shell.run()
        assert shell.application.hashes == hashes(OLD, MORE)
        assert shell.consumer.abandon_reorg(hash_of("nobody")) == []

    @pytest.mark.parametrize("threshold", [4, 32])
    @pytest.mark.parametrize("completed", [False, True])
    def test_a_restart_after_any_delivery(self, threshold: int, completed: bool) -> None:
        """Goal: wherever a consumer restarts, it ends on the right chain, and goes back at most once for an attempt,
        and once when that is given up. Method: a run for each place."""
        whole = abandoned(threshold)
        if completed:
            send_reorg(whole.logs, producer_of(), OLD[1], NEW + chain("n", "n11", 12, 2, bonus=5), 120)
        whole.run()
        expected = whole.application.hashes
        for reads in range(1, whole.reads):
            shell = Shell(whole.logs, Application(GENESIS_HASH), threshold, GENESIS)
            shell.run(reads_max=reads)
            shell.restart(shell.consumer.checkpoint())
            shell.run()
            assert shell.application.hashes == expected, f"restarted after {reads} deliveries"
            reverts = sum(isinstance(event, Revert) for event in shell.events)
            assert 1 <= reverts <= 2 + completed, f"restarted after {reads} deliveries"

    @settings(max_examples=examples(40))
    @given(st.integers(0, 1 << 32), st.sampled_from([1, 2, 4, 8, 32]), st.booleans())
    def test_any_number_of_restarts_anywhere(self, seed: int, threshold: int, completed: bool) -> None:
        """Goal: several attempts of any length are given up, and the last may be completed; whatever comes in between,
        the application ends on the chain that the producer has. Method: the normal feed is read first, so that what
        an attempt has to outweigh is known; the checkpoint goes through its text each time."""
        randomness = random.Random(seed)
        logs = Logs()
        send(logs, producer_of(), OLD)
        for _ in range(randomness.randint(1, 3)):
            logs.send_on(ANCESTOR, send_part(logs, NEW[: randomness.randrange(8)]).abandon())
        send(logs, producer_of(), MORE)
        expected = hashes(OLD, MORE)
        if completed:
            new = NEW + chain("n", "n11", 12, 2, bonus=5)
            send_reorg(logs, producer_of(), OLD[1], new, 120)
            expected = hashes(OLD[:2], new)
        shell = Shell(logs, Application(GENESIS_HASH), threshold, GENESIS)
        choose = normal_first(randomness.choice)
        for _ in range(randomness.randrange(8)):
            shell.run(choose, reads_max=randomness.randrange(200))
            shell.restart(parse_checkpoint(format_checkpoint(shell.consumer.checkpoint())))
        shell.run(choose)
        assert shell.application.hashes == expected

    @pytest.mark.parametrize("threshold", [4, 32])
    def test_a_restart_after_every_few_deliveries(self, threshold: int) -> None:
        """The checkpoint goes through its text each time. Between restarts there is room for a whole attempt."""
        shell = abandoned(threshold)
        send_reorg(shell.logs, producer_of(), OLD[1], NEW + chain("n", "n11", 12, 2, bonus=5), 120)
        longest = max(map(len, shell.logs.channels.values()))
        for _ in range(50):
            shell.run(reads_max=2 * longest)
            shell.restart(parse_checkpoint(format_checkpoint(shell.consumer.checkpoint())))
        assert shell.application.hashes == hashes(OLD[:2], NEW, chain("n", "n11", 12, 2, bonus=5))
