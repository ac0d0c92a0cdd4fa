"""Goal: however a subscription ends, the subscriber is told why, and nobody else notices (S9, S10, ended sources).

Method: the service on a node with real storage; blocks are persisted by the test, subscribers are workers of the node.
"""

from __future__ import annotations

import pytest

from block_node.events import NodeFailure, PublisherStatus
from block_node.persist.store import BlockRetention
from block_node.protocol_reading import Received, Subscribe, SubscribedItems, SubscribeStatus, Unsubscribe
from block_node.read.subscribe import CHUNK_BYTES, SubscribeSession
from ockam.actors.message import Origin
from ockam.quotas.memory import Holdings, PeerMemory
from tests.block_node.persist.block_samples import items_of
from tests.block_node.persist.block_world import World
from tests.block_node.read.conftest import Open
from tests.block_node.read.probe import SERVICE, Subscriber, check_blocks, persist
from tests.support.served import wait_until

SUCCESS, ERROR = SubscribeStatus.SUCCESS, SubscribeStatus.ERROR
NOT_AVAILABLE, SOURCE_ERROR = SubscribeStatus.NOT_AVAILABLE, SubscribeStatus.SOURCE_ERROR


def publishers(made: World, active: int) -> None:
    made.facility.publish(PublisherStatus(active))


POINTS = ("before the first answer", "before the first block", "in a block", "between blocks", "live", "early")


@pytest.mark.parametrize("point", POINTS)
async def test_s9_a_subscriber_that_goes_away_is_forgotten(opened: Open, point: str) -> None:
    """At any moment; the others notice nothing."""
    async with opened(window_bytes_min=1) as (subscribers, _):
        made = subscribers.made
        made.persist(0)
        made.persist(1, [b"x" * CHUNK_BYTES] * 3)
        await made.persisted(2)
        other = subscribers.subscribe(0, None)
        start = 5 if point == "before the first block" else 2 if point in ("live", "early") else 0
        leaving = subscribers.subscribe(start, None, early=point == "early", window_bytes=1, takes=False)
        if point in ("in a block", "between blocks"):
            await leaving.wait_ends(1)
        if point == "in a block":
            leaving.probe.say(Received(1, leaving.probe.taken_bytes))
            await wait_until(lambda: leaving.of(SubscribedItems)[-1].block_number == 1)
        if point == "early":
            attempt = made.begin(2)
            made.add(2, attempt, items_of(2))
            assert leaving.of(SubscribedItems)
            leaving.go_away()
            made.finish(2, attempt)
        elif point == "live":
            await leaving.wait_subscribed()
        leaving.go_away()
        if point != "early":
            made.persist(2)
        await wait_until(lambda: subscribers.service.statistics().sessions == 1)
        await other.wait_ends(3)
        assert other.ends() == [0, 1, 2]
        assert other.status is None


async def test_a_subscriber_with_a_secure_channel_is_forgotten_with_its_connection(opened: Open) -> None:
    """The channel, with which the way back begins, is there for a minute after its connection."""
    async with opened() as (subscribers, _):
        origin = Origin("channel", holdings=Holdings(PeerMemory(), lambda: None, lambda: None))
        subscriber = subscribers.subscribe(None, None, origin=origin)
        await subscriber.wait_subscribed()
        origin.holdings.end()
        await wait_until(lambda: subscribers.service.statistics().sessions == 0)


async def test_s9_a_subscriber_that_says_so_leaves(opened: Open) -> None:
    async with opened() as (subscribers, _):
        subscriber = subscribers.subscribe(None, None)
        await subscriber.wait_subscribed()
        subscriber.probe.say(Unsubscribe(1))
        await persist(subscribers.made, 0)
        assert subscriber.status is None
        assert subscriber.ends() == []
        assert subscribers.service.statistics().sessions == 0
        subscriber.probe.say(Unsubscribe(1))


async def test_s10_a_subscription_that_crashes_ends_with_error(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        subscriber, other = subscribers.subscribe(None, None), subscribers.subscribe(None, None)
        await subscriber.wait_subscribed()
        assert subscriber.probe.session is not None
        worker = made.node.find_worker(subscriber.probe.session)
        assert worker is not None

        def fail() -> None:
            raise RuntimeError("as the test wants it")

        worker.context.guard(fail)()
        assert await subscriber.wait_status() is ERROR
        await persist(made, 0)
        await other.wait_ends(1)
        assert not made.node.is_registered(subscriber.probe.session)


async def test_s10_when_the_node_fails_every_subscription_ends(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        await persist(made, 0)
        both = [subscribers.subscribe(0, None), subscribers.subscribe(None, None, early=True)]
        await both[0].wait_ends(1)
        made.facility.publish(NodeFailure("the disk said no"))
        for subscriber in both:
            assert await subscriber.wait_status() is ERROR
            assert "the disk said no" in str(subscriber.probe.seen[-1])
        again = subscribers.subscribe(0, 0)
        assert await again.wait_status() is SUCCESS


async def test_the_last_source_ends(opened: Open) -> None:
    """Who waits is told, when all has come that was under way; who reads what is stored reads on. (specification)"""
    async with opened() as (subscribers, _):
        made = subscribers.made
        publishers(made, 2)
        await persist(made, 0)
        waiting = subscribers.subscribe(0, None)
        await waiting.wait_ends(1)
        publishers(made, 1)
        attempt = made.send(1, items_of(1))
        publishers(made, 0)
        assert waiting.status is None, "block 1 is complete and may be verified"
        made.verify(1, attempt, items_of(1))
        assert await waiting.wait_status() is SOURCE_ERROR
        check_blocks(waiting, [0, 1])
        again, closed = subscribers.subscribe(2, None), subscribers.subscribe(0, 1)
        assert await closed.wait_status() is SUCCESS
        publishers(made, 1)
        await persist(made, 2)
        await again.wait_ends(1)
        check_blocks(again, [2])


async def test_a_source_that_ends_in_the_middle_of_a_block(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        publishers(made, 1)
        plain, early = subscribers.subscribe(None, None), subscribers.subscribe(None, None, early=True)
        await early.wait_subscribed()
        attempt = made.begin(0)
        made.add(0, attempt, items_of(0))
        made.drop(0, attempt)
        publishers(made, 0)
        for subscriber in (plain, early):
            assert await subscriber.wait_status() is SOURCE_ERROR
            assert subscriber.blocks() == {}


async def test_early_items_are_marked_and_withdrawn(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        plain, early = subscribers.subscribe(0, None), subscribers.subscribe(0, None, early=True)
        await early.wait_subscribed()
        bad = made.send(0, items_of(50))
        made.refuse(0, bad)
        dropped = made.begin(0)
        made.add(0, dropped, items_of(51))
        made.drop(0, dropped)
        await persist(made, 0)
        await early.wait_ends(1)
        await plain.wait_ends(1)
        assert early.blocks() == plain.blocks() == {0: items_of(0)}
        assert early.withdrawn() == [0, 0]
        assert not any(each.verified for each in early.of(SubscribedItems))
        assert plain.withdrawn() == []


async def test_an_early_subscriber_that_falls_behind_gets_the_stored_block(opened: Open) -> None:
    items = [b"x" * 400] * 10
    async with opened(window_bytes_min=1_000) as (subscribers, _):
        made = subscribers.made
        early = subscribers.subscribe(0, None, early=True, window_bytes=1_000, takes=False)
        await early.wait_subscribed()
        made.persist(0, items)
        await made.persisted(1)
        assert early.withdrawn() == [0]
        early.probe.takes = True
        early.probe.say(Received(1, early.probe.taken_bytes))
        await early.wait_ends(1)
        assert early.blocks() == {0: items}
        assert early.of(SubscribedItems)[-1].verified


async def test_a_slow_subscriber_gets_no_more_than_its_window_and_is_told(opened: Open) -> None:
    async with opened(window_bytes_min=1_000, slow_s_max=30.0) as (subscribers, clock):
        await persist(subscribers.made, *range(100))
        slow = subscribers.subscribe(0, 99, window_bytes=1_000, takes=False)
        quick = subscribers.subscribe(0, 99, window_bytes=1_000)
        assert await quick.wait_status() is SUCCESS
        await wait_until(lambda: slow.probe.taken_bytes >= 1_000)
        assert slow.probe.taken_bytes < 1_000 + 60
        slow.probe.say(Received(1, 500))
        clock.now_s += 29.0
        assert slow.status is None
        clock.now_s += 1.0
        assert await slow.wait_status() is SubscribeStatus.TOO_SLOW


def tick(subscriber: Subscriber) -> None:
    """As the service does once in a while."""
    assert subscriber.probe.session is not None
    session = subscriber.made.node.find_worker(subscriber.probe.session)
    assert isinstance(session, SubscribeSession)
    session.tick()


async def test_other_traffic_of_its_connection_makes_no_subscriber_slow(opened: Open) -> None:
    """Claim: only a full window ends a subscription. Method: the connection of two subscribers has much to send for
    longer than the limit. One subscriber has got nothing, and one has not confirmed the little that it got."""
    unsent_bytes = 0
    async with opened(slow_s_max=30.0) as (subscribers, clock):
        origin = Origin("tcp", backlog_bytes=lambda: unsent_bytes, backlog_bytes_max=lambda: 4 * 1024 * 1024)
        await persist(subscribers.made, 0)
        idle = subscribers.subscribe(1, None, origin=origin)
        frugal = subscribers.subscribe(0, None, takes=False, origin=origin)
        await idle.wait_subscribed()
        await frugal.wait_ends(1)
        unsent_bytes = 5 * 1024 * 1024
        for _ in range(3):
            clock.now_s += 31.0
            tick(idle)
            tick(frugal)
        assert (idle.status, frugal.status) == (None, None)
        unsent_bytes = 0
        await persist(subscribers.made, 1)
        await idle.wait_ends(1)
        await frugal.wait_ends(2)
        check_blocks(idle, [1])
        check_blocks(frugal, [0, 1])


async def test_the_time_of_a_slow_subscriber_begins_with_its_full_window(opened: Open) -> None:
    """Claim: whoever confirms late is not slow yet. Method: a few bytes are unconfirmed for an hour, as by the client,
    which waits for a quarter of the window. Then one block fills the window."""
    async with opened(window_bytes_min=1_000, slow_s_max=30.0) as (subscribers, clock):
        await persist(subscribers.made, 0)
        subscriber = subscribers.subscribe(0, None, window_bytes=1_000, takes=False)
        await subscriber.wait_ends(1)
        clock.now_s += 3_600.0
        subscribers.made.persist(1, [b"x" * 600] * 2)
        await subscriber.wait_ends(2)
        for _ in range(2):
            tick(subscriber)
            assert subscriber.status is None
            clock.now_s += 29.0
        assert await subscriber.wait_status() is SubscribeStatus.TOO_SLOW


async def test_blocks_that_retention_evicts_end_a_slow_reading(opened: Open) -> None:
    async with opened(BlockRetention(blocks=3), window_bytes_min=100) as (subscribers, _):
        await persist(subscribers.made, 0, 1, 2)
        slow = subscribers.subscribe(0, None, window_bytes=100, takes=False)
        await slow.wait_ends(1)
        await persist(subscribers.made, *range(3, 12))
        await wait_until(lambda: subscribers.made.store.available.first == 9)
        slow.probe.takes = True
        slow.probe.say(Received(1, slow.probe.taken_bytes))
        assert await slow.wait_status() is NOT_AVAILABLE
        assert slow.ends() == list(range(len(slow.ends())))


async def test_a_hole_that_is_not_filled_is_told_after_a_while(opened: Open) -> None:
    async with opened(missing_s_max=30.0) as (subscribers, clock):
        await persist(subscribers.made, 0, 2)
        given_up, patient = subscribers.subscribe(0, None), subscribers.subscribe(0, None)
        await patient.wait_ends(1)
        clock.now_s += 29.0
        await persist(subscribers.made, 1)
        await patient.wait_ends(3)
        check_blocks(patient, [0, 1, 2])
        await persist(subscribers.made, 4)
        clock.now_s += 31.0
        assert await given_up.wait_status() is NOT_AVAILABLE


@pytest.mark.parametrize("payload", [b"", b"junk", b"\x0fblock_subscribe\x02\x00"])
async def test_what_is_no_request_gets_an_error(opened: Open, payload: bytes) -> None:
    async with opened() as (subscribers, _):
        subscriber = subscribers.subscribe(None, None)
        await subscriber.wait_subscribed()
        assert subscriber.probe.session is not None
        for address in (SERVICE, subscriber.probe.session):
            subscriber.send(address, payload)
        await wait_until(lambda: len(subscriber.probe.errors) == 2)
        subscriber.probe.say(Received(1, 5))
        await wait_until(lambda: "cannot have been taken" in subscriber.probe.errors[-1])
        subscriber.ask(Subscribe(2, 5, 4, False, 0))
        assert await subscriber.wait_status() is SubscribeStatus.INVALID_END_BLOCK


async def test_no_more_subscriptions_than_the_node_bears(opened: Open) -> None:
    async with opened(sessions_max=2) as (subscribers, _):
        made = [subscribers.subscribe(None, None) for _ in range(3)]
        assert await made[2].wait_status() is ERROR
        await made[1].wait_subscribed()
        made[0].probe.say(Unsubscribe(1))
        await wait_until(lambda: subscribers.service.statistics().sessions == 1)
        again = subscribers.subscribe(None, None)
        await again.wait_subscribed()
