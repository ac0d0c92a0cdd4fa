"""Goal: every plugin gets every event in one order; a slow gating plugin holds up the sources, a slow other one is
dropped and told; a plugin that fails ends what is under way and is made anew. (M1 to M3 of facts/block_node.md §6.4.)

Method: plugins on a real node, which note what they are handed.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio
import trio.testing

from block_node import facility as facility_module
from block_node.events import (
    BlockBegun,
    BlockEnded,
    Event,
    ItemEvent,
    ItemsReceived,
    NewestBlockKnownToNetwork,
    NodeFailure,
    Notification,
)
from block_node.facility import Facility, Plugin
from ockam.actors.address import local
from ockam.actors.node import Node


class Noting(Plugin):
    """Keeps what it gets; answers block 7 with one of block 70, and fails on block 13 if it is to."""

    name: ClassVar[str] = "noting"

    def __init__(self, facility: Facility, seen: list[Event], *, fails: bool = False) -> None:
        super().__init__(facility)
        self.seen = seen
        self.fails = fails
        self.lagged = False

    def handle_items(self, event: ItemEvent) -> None:
        self.seen.append(event)

    def handle_notification(self, notification: Notification) -> None:
        self.seen.append(notification)
        if self.fails and notification == NewestBlockKnownToNetwork(13):
            raise RuntimeError("block 13")
        if notification == NewestBlockKnownToNetwork(7):
            self.facility.publish(NewestBlockKnownToNetwork(70))

    def handle_lag(self) -> None:
        self.lagged = True


class Loose(Noting):
    name: ClassVar[str] = "loose"
    gating: ClassVar[bool] = False


def add(node: Node, plugin: Noting, address: str) -> Noting:
    node.register([local(address)], lambda: plugin)
    return plugin


async def test_every_plugin_sees_one_order_and_only_what_comes_after_it(nursery: trio.Nursery) -> None:
    node, facility = Node(nursery), Facility()
    first = add(node, Noting(facility, []), "first")
    facility.publish(NewestBlockKnownToNetwork(1))
    second = add(node, Loose(facility, []), "second")
    for event in (BlockBegun(1, 1), NewestBlockKnownToNetwork(7), ItemsReceived(1, 1, [b"x"], 1), BlockEnded(1, 1)):
        facility.publish(event)
    assert first.seen[1:] == second.seen
    assert second.seen.count(NewestBlockKnownToNetwork(70)) == 2, "both answer, and both are heard by both"
    node.unregister(local("second"))
    facility.publish(NewestBlockKnownToNetwork(2))
    assert second.seen[-1] != first.seen[-1] == NewestBlockKnownToNetwork(2)


async def test_a_slow_gating_plugin_makes_the_sources_wait(nursery: trio.Nursery) -> None:
    node, facility = Node(nursery), Facility()
    slow, quick = add(node, Noting(facility, []), "slow"), add(node, Loose(facility, []), "quick")
    slow.inlet.pause()
    room = []
    size = facility_module.GATING_BYTES_MAX // 4
    for count in range(4):
        assert not facility.full, count
        facility.publish(ItemsReceived(1, 1, [b""], size))
    assert facility.full
    facility.when_room(lambda: room.append(True))
    assert not room
    assert len(quick.seen) == 4, "only the slow one waits"
    slow.inlet.resume()
    assert room == [True]
    assert slow.seen == quick.seen


class Halting(Noting):
    """Takes one event, and the next one when it is resumed."""

    name: ClassVar[str] = "halting"

    def handle_items(self, event: ItemEvent) -> None:
        super().handle_items(event)
        self.inlet.pause()


async def test_a_full_plugin_that_goes_on_is_told_from_one_that_hangs(nursery: trio.Nursery) -> None:
    node, facility = Node(nursery), Facility()
    halting, other = add(node, Halting(facility, []), "halting"), add(node, Noting(facility, []), "other")
    for _ in range(5):
        assert facility.full_at is None
        facility.publish(ItemsReceived(1, 1, [b""], facility_module.GATING_BYTES_MAX // 4))
    assert facility.full_at == 1
    facility.publish(NewestBlockKnownToNetwork(1))
    assert other.seen[-1] == NewestBlockKnownToNetwork(1)
    assert facility.full_at == 1, "what the others take does not count"
    facility.publish(ItemsReceived(1, 1, [b""], facility_module.GATING_BYTES_MAX // 4))
    halting.inlet.resume()
    assert facility.full_at == 2


@pytest.mark.parametrize("by", ["events", "bytes"])
async def test_a_slow_plugin_that_is_not_gating_is_dropped_and_told(nursery: trio.Nursery, by: str) -> None:
    node, facility = Node(nursery), Facility()
    gating = add(node, Noting(facility, []), "gating")
    slow, other = add(node, Loose(facility, []), "slow"), add(node, Loose(facility, []), "other")
    slow.inlet.pause()
    most = facility_module.LOOSE_EVENTS_MAX if by == "events" else 64
    size = 0 if by == "events" else facility_module.LOOSE_BYTES_MAX // most
    for _ in range(most + 1):
        assert not facility.full
        facility.publish(ItemsReceived(1, 1, [], size))
    assert slow.lagged
    assert not other.lagged
    assert not slow.seen
    assert len(gating.seen) == len(other.seen) == most + 1
    assert facility.statistics().dropped == 1
    assert len(facility.statistics().inlets) == 2


async def test_a_failing_gating_plugin_ends_what_is_under_way(nursery: trio.Nursery) -> None:
    """While it is away nothing new is let in; its successor goes on with an empty queue."""
    node, facility = Node(nursery), Facility()
    seen: list[Event] = []
    lives: list[Noting] = []

    def make() -> Noting:
        lives.append(Noting(facility, seen, fails=True))
        return lives[-1]

    node.register([local("failing")], make)
    witness = add(node, Loose(facility, []), "witness")
    facility.publish(BlockBegun(13, 1))
    facility.publish(NewestBlockKnownToNetwork(13))
    assert facility.full
    failed = witness.seen[-1]
    assert isinstance(failed, NodeFailure)
    assert "noting" in failed.reason
    room = []
    facility.when_room(lambda: room.append(True))
    with trio.fail_after(5):
        while not room:
            await trio.sleep(0.01)
    assert len(lives) == 2
    facility.publish(BlockBegun(14, 2))
    assert seen[-1] == BlockBegun(14, 2)


async def test_a_failing_plugin_that_is_not_gating_disturbs_nobody(nursery: trio.Nursery) -> None:
    node, facility = Node(nursery), Facility()
    gating_seen: list[Event] = []

    add(node, Noting(facility, gating_seen), "gating")
    add(node, Loose(facility, [], fails=True), "failing")
    facility.publish(NewestBlockKnownToNetwork(13))
    assert not facility.full
    facility.publish(NewestBlockKnownToNetwork(2))
    assert gating_seen == [NewestBlockKnownToNetwork(13), NewestBlockKnownToNetwork(2)]
