"""Claim: history and the live tail are filled by workers of their own; a look for gaps leaves alone what is being done.

Method: a block node on a real database in virtual time, with sources of which the test decides what they answer when.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import trio
import trio.testing

from block_node.backfill.comparing import Opinion, ask_opinions
from block_node.backfill.plan import Kind
from block_node.backfill.route_source import FetchListener, RootDone, StatusDone
from block_node.backfill.settings import BackfillSettings
from block_node.backfill.state import BackfillState, BackfillStatus
from block_node.backfill.worker import PUBLISHED_PAUSE_S, WORKER_ADDRESS, Backfill, BackfillService
from block_node.events import BackfilledBlockNotification, NewestBlockKnownToNetwork
from block_node.persist.ranges import BlockRanges, NumberRange
from block_node.protocol import Acknowledgement
from ockam.actors.address import local
from stream_storage.contract import Do, Session
from stream_storage.errors import DatabaseLost
from tests.block_node.backfill.served_blocks import remove_blocks
from tests.block_node.publish.samples import Bench, bench, chain_of

BLOCKS = chain_of(20)


class Fetch:
    """A request that waits for the test to answer it."""

    def __init__(self, first: int, last: int, listener: FetchListener) -> None:
        self.first, self.last = first, last
        self.listener = listener
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True

    def answer(self) -> None:
        for number in range(self.first, self.last + 1):
            items = list(BLOCKS[number].items)
            self.listener.grew(sum(map(len, items)))
            self.listener.block(number, items)


class ScriptedSource:
    """Says at once what it `has`, or why it says nothing (`silence`); its blocks come when the test wants it. So do its
    answers while `held` is a list, which has the functions to be called with them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.has = BlockRanges()
        self.silence = ""
        self.held: list[StatusDone] | None = None
        self.asked = 0
        self.is_closed = False
        self.fetches: list[Fetch] = []

    def ask_status(self, on_done: StatusDone) -> None:
        async def answer() -> None:
            on_done(None if self.silence else self.has.copy(), self.silence)

        self.asked += 1
        if self.held is None:
            self._nursery.start_soon(answer)
        else:
            self.held.append(on_done)

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        async def answer() -> None:
            on_done(BLOCKS[number].root, "")

        self._nursery.start_soon(answer)

    def fetch(self, first: int, last: int, listener: FetchListener) -> Fetch:
        self.fetches.append(Fetch(first, last, listener))
        return self.fetches[-1]

    def close(self) -> None:
        self.is_closed = True

    def under_way(self) -> list[tuple[int, int]]:
        return sorted((fetch.first, fetch.last) for fetch in self.fetches if not fetch.is_over)


@asynccontextmanager
async def backfilling(
    directory: Path, *stored: tuple[int, int], first_block: int = 0, **settings: Any
) -> AsyncIterator[tuple[Bench, Backfill, ScriptedSource]]:
    """A node that has these blocks, and a source that has none yet; the first look for gaps is over."""
    async with bench(directory, first_block=first_block) as world, trio.open_nursery() as nursery:
        for first, last in stored:
            for block in BLOCKS[first : last + 1]:
                items = list(block.items)
                roots = () if first >= first_block else (block.root,)
                size_bytes = sum(map(len, items))
                world.block_node.facility.publish(
                    BackfilledBlockNotification(block.number, items, size_bytes, roots=roots)
                )
        await world.settle()
        made, ids = ScriptedSource(nursery), count()
        state = BackfillState(
            world.node,
            world.block_node,
            world.runner,
            BackfillSettings(block_node_sources=("one:1",), **settings),
            new_id=lambda: str(next(ids)),
            make_source=lambda setting: made,
        )
        service = BackfillService(world.node, world.block_node, state)
        service.start()
        await trio.sleep(1)
        worker = world.node.find_worker(local(WORKER_ADDRESS))
        assert isinstance(worker, Backfill)
        yield world, worker, made
        nursery.cancel_scope.cancel()


def works(worker: Backfill) -> bool:
    return worker._state.statistics().state is BackfillStatus.RUNNING


def busy(worker: Backfill, kind: Kind) -> list[NumberRange]:
    """What the worker of that kind looks after."""
    return next(list(filler.machine.holes) for filler in worker._fillers.values() if filler.machine.kind is kind)


async def test_b8_history_is_left_to_its_worker_while_that_works(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """New gaps in history wait for it; the live tail, which has a worker of its own, does not."""
    limits = {"scan_interval_secs": 10.0, "fetch_timeout_secs": 3_600.0}
    async with backfilling(tmp_path, (10, 14), (0, 6), first_block=10, **limits) as (world, worker, source):
        source.has = BlockRanges([(7, 9)])
        await trio.sleep(10)
        assert busy(worker, Kind.HISTORICAL) == [NumberRange(7, 9)]
        assert remove_blocks(tmp_path, 2, 3) == 2
        source.has = BlockRanges([(0, 19)])
        await trio.sleep(20)
        assert busy(worker, Kind.HISTORICAL) == [NumberRange(7, 9)]
        assert busy(worker, Kind.LIVE_TAIL) == [NumberRange(15, 19)]
        assert source.under_way() == [(7, 9), (15, 19)]
        for fetch in list(source.fetches):
            fetch.answer()
        await trio.sleep(20)
        assert busy(worker, Kind.HISTORICAL) == [NumberRange(2, 3)]
        source.fetches[-1].answer()
        await trio.sleep(1)
        assert world.stored() == list(range(20))
        assert [(fetch.first, fetch.last) for fetch in source.fetches] == [(7, 9), (15, 19), (2, 3)]


async def test_the_newest_blocks_come_back_when_they_vanish(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """While the node runs: the end of the chain says which roots the newest block can have, of which there are several
    until the next footer names one. A block with another root does not pass."""
    async with backfilling(tmp_path, (0, 9), scan_interval_secs=10.0) as (world, _, source):
        assert len(world.block_node.verifier.chain.open) > 1
        assert remove_blocks(tmp_path, 7, 9) == 3
        source.has = BlockRanges([(0, 9)])
        await trio.sleep(10)
        asked = source.fetches[-1].listener
        for block in chain_of(10, seed=5)[7:]:
            asked.grew(sum(map(len, block.items)))
            asked.block(block.number, list(block.items))
        await trio.sleep(1)
        assert world.stored() == list(range(7))
        while not source.under_way():
            await trio.sleep(10)
        source.fetches[-1].answer()
        await trio.sleep(1)
        assert world.stored() == list(range(10))


async def test_nothing_is_handed_on_while_the_disk_is_full(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Nor fetched again and again: what has come waits, and is stored when there is room."""
    async with backfilling(tmp_path, (0, 4), scan_interval_secs=10.0) as (world, worker, source):
        world.block_node.store.refusal = "there is no room"
        source.has = BlockRanges([(0, 9)])
        await trio.sleep(10)
        source.fetches[0].answer()
        await trio.sleep(600)
        assert len(source.fetches) == 1
        assert worker._state.statistics().held_bytes
        world.block_node.store.refusal = None
        await trio.sleep(1)
        assert world.stored() == list(range(10))
        assert not works(worker)


async def test_blocks_are_handed_on_with_pauses_while_there_are_publishers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """And asked for some at a time. Without any they come and follow each other at once. The time is the clock's, which
    only waiting moves."""
    spent_s = []
    for publishers in (0, 1):
        async with backfilling(tmp_path / str(publishers), (0, 0), scan_interval_secs=10.0, greedy=True) as (
            world,
            worker,
            source,
        ):
            for _ in range(publishers):
                await world.publisher()
            source.has = BlockRanges([(0, 19)])
            await trio.sleep(10)
            began_s = trio.current_time()
            while works(worker):
                for fetch in source.fetches:
                    if not fetch.is_over:
                        fetch.answer()
                await trio.sleep(PUBLISHED_PAUSE_S / 10)
            assert (len(source.fetches) > 1) == (publishers > 0)
            spent_s.append(trio.current_time() - began_s)
            assert world.stored() == list(range(20))
    assert spent_s[0] < PUBLISHED_PAUSE_S
    assert spent_s[1] >= 18 * PUBLISHED_PAUSE_S


async def test_looks_on_demand_are_one_where_many_are_wanted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A publisher that comes and goes does not make the node ask its sources as often."""
    async with backfilling(tmp_path, (0, 4), scan_interval_secs=3_600.0) as (world, _, source):
        await trio.sleep(10)
        before = source.asked
        for number in range(100):
            world.block_node.facility.publish(NewestBlockKnownToNetwork(10 + number))
        await trio.sleep(0.5)
        assert source.asked == before + 1
        for number in range(100):
            world.block_node.facility.publish(NewestBlockKnownToNetwork(200 + number))
        await trio.sleep(5)
        assert source.asked == before + 2


async def test_a_late_answer_to_a_failed_worker_ends_no_search_of_its_successor(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Two workers share the state, but not the search: what the first one has asked is answered after its failure."""
    async with backfilling(tmp_path, (0, 4), scan_interval_secs=3_600.0) as (world, worker, source):
        source.held = []
        worker.scan_now()
        await trio.sleep(1)
        worker.context.guard(worker.handle_lag)()
        await trio.sleep(1)
        successor = world.node.find_worker(local(WORKER_ADDRESS))
        assert isinstance(successor, Backfill)
        assert successor is not worker
        to_worker, to_successor = source.held
        to_worker(source.has.copy(), "")
        await trio.sleep(1)
        assert works(successor), "it still searches"
        # A search that is asked for meanwhile follows, and does not begin beside the other one.
        successor.scan_now()
        await trio.sleep(1)
        assert len(source.held) == 2
        to_successor(source.has.copy(), "")
        await trio.sleep(1)
        assert len(source.held) == 3
        source.held[-1](source.has.copy(), "")
        await trio.sleep(1)
        assert not works(successor)


async def test_blocks_that_are_verified_and_not_stored_yet_are_no_new_gap(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain is ahead of the disk for a moment, so that a search then splits the gap that is being filled."""
    async with backfilling(tmp_path) as (_, worker, source):
        source.has = BlockRanges([(0, 5)])
        worker.scan_now()
        await trio.sleep(1)
        assert source.under_way() == [(0, 5)]
        items = list(BLOCKS[0].items)
        source.fetches[0].listener.grew(sum(map(len, items)))
        source.fetches[0].listener.block(0, items)
        await trio.sleep(1)
        view = Backfill._view
        monkeypatch.setattr(
            Backfill, "_view", lambda self, *args: msgspec.structs.replace(view(self, *args), next_block=3)
        )
        worker.scan_now()
        await trio.sleep(1)
        statistics = worker._state.statistics()
        assert [(gap.first, gap.last) for gap in statistics.gaps] == [(1, 2), (3, 5)]
        assert statistics.counters.gaps_detected == 1


async def test_a_block_that_a_publisher_sends_meanwhile_is_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Claim: a live block on a slow disk does not end the filling of the tail. Method: block 5 comes from a publisher
    and from the source, and nothing is written for five seconds, in which all that is asked for comes at once."""
    async with backfilling(tmp_path, (0, 4), scan_interval_secs=3_600.0, greedy=True) as (world, worker, source):
        publisher, has_come_back = await world.publisher(), trio.Event()
        source.has = BlockRanges([(0, 19)])
        worker.scan_now()
        await trio.sleep(1)
        assert source.under_way()[0][0] == 5
        world.runner._delay = has_come_back.wait
        publisher.block(BLOCKS[5])
        await trio.testing.wait_all_tasks_blocked()
        assert world.block_node.verifier.chain.next_number == 6
        for _ in range(100):
            for fetch in source.fetches:
                if not fetch.is_over:
                    fetch.answer()
            await trio.sleep(0.05)
        assert world.stored() == list(range(5))
        assert world.block_node.verifier.chain.next_number == 20, "the blocks above it went on"
        assert [fetch.first for fetch in source.fetches].count(5) == 1
        has_come_back.set()
        await publisher.wait_for(Acknowledgement(19))
        assert world.stored() == list(range(20))
        assert not works(worker)
        assert worker._state.counters.given_up == 0


async def test_unknown_is_not_zero(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """What a source had stays missing while it is silent, with the reason; before it ever answers, nobody knows."""
    limits: dict[str, Any] = {
        "scan_interval_secs": 10.0,
        "initial_retry_delay_secs": 1.0,
        "max_backoff_secs": 10.0,
        "max_retries": 1,
    }
    async with backfilling(tmp_path, (0, 9), **limits) as (world, worker, source):
        statistics = worker._state.statistics
        assert (statistics().missing, statistics().state, statistics().problem) == (0, BackfillStatus.IDLE, "")
        source.has = BlockRanges([(0, 19)])
        await trio.sleep(10)
        source.silence = "unreachable: it is down"
        while source.fetches and not source.fetches[-1].is_over:
            source.fetches[-1].listener.ended("the connection is gone", lied=False)
            await trio.sleep(5)
        await trio.sleep(60)
        assert (statistics().missing, statistics().state) == (10, BackfillStatus.ERROR)
        assert statistics().problem == "one:1: unreachable: it is down"
        source.silence = ""
        while not source.under_way():
            await trio.sleep(1)
        source.fetches[-1].answer()
        await trio.sleep(10)
        assert world.stored() == list(range(20))
        assert (statistics().missing, statistics().state, statistics().problem) == (0, BackfillStatus.IDLE, "")
        assert statistics().sources[0].failures == 0
    async with backfilling(tmp_path / "new", **limits) as (_, worker, source):
        source.silence = "unreachable: it is down"
        await trio.sleep(20)
        statistics = worker._state.statistics
        assert (statistics().missing, statistics().state) == (None, BackfillStatus.ERROR)
        # Its silence ends without a block to fetch.
        source.silence = ""
        await trio.sleep(20)
        assert (statistics().missing, statistics().sources[0].failures) == (0, 0)


async def test_a_stored_block_that_cannot_be_read_accuses_no_source(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Claim: sources whose chain cannot be compared with the stored one are not left alone for it. Method: two sources
    with other ranges, so that another block is compared with each; the database is away for the look-ups."""

    def is_away(session: Session) -> NoReturn:
        raise DatabaseLost("said the test")

    async with bench(tmp_path) as world, trio.open_nursery() as nursery:
        publisher = await world.publisher()
        for block in BLOCKS[:8]:
            publisher.block(block)
        await world.settle()
        sources = {name: ScriptedSource(nursery) for name in ("one:1", "two:2")}
        state = BackfillState(
            world.node,
            world.block_node,
            world.runner,
            BackfillSettings(block_node_sources=tuple(sources)),
            new_id=iter("abc").__next__,
            make_source=lambda setting: sources[setting.name],
        )
        for name, last in (("one:1", 4), ("two:2", 9)):
            state.health.claimed(name, BlockRanges([(0, last)]), 0.0)
        read, found = world.runner.submit_read, list[list[Opinion]]()
        world.runner.submit_read = lambda operation: read(Do(is_away, operation.on_done))  # type: ignore[method-assign]
        ask_opinions(state, list(sources), found.append, lambda function: function)
        await trio.sleep(1)
        assert found == [[]]
        nursery.cancel_scope.cancel()
