"""Goal: two complaints of users of real nodes that are about time do not befall this one.

Method: the block node, its gRPC door and its peer over simulated sockets, in virtual time: an hour costs nothing, and
what waits is seen by the clock that the seed moves, not by the machine's.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from block_node.grpc.calls.services import GrpcServices, block_methods
from block_node.grpc.client.channel import AskingConnection
from block_node.grpc.http2.connection import CallHandler, DoorCounts, GrpcCall, Route, ServerConnection
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import MessageBudget
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import NO_BLOCK, read_message, write_message
from block_node.read.services import ReadServices
from ockam.actors.message import Origin
from tests.block_node.publish.samples import Bench, bench, chain_of
from tests.simulation.consensus_node import PACKAGE
from tests.simulation.grpc_link import LinkEnd, make_link
from tests.simulation.grpc_world import WINDOW_S_MAX, GrpcWorld
from tests.support.virtual_time import run_seeded

SUBSCRIBE = f"{PACKAGE}.BlockStreamSubscribeService/subscribeBlockStream".encode()
IDLE_S_MAX = 1_800.0
"""After so long, the reference block node cut an idle subscription."""
SEEDS = range(10, 19)


@pytest.mark.slow
def test_a_window_is_given_back_within_a_quarter_second_while_there_is_room(ground: Path) -> None:
    """hiero-consensus-node 21675: "Flow control update wait time-out", since the receiver waited with the window.

    The metric shows it: it stays below while there is room, also where disks are slow, and rises in a node that has to
    hold publishers back.
    """
    worlds = [(seed, GrpcWorld(random.Random(seed), ground / str(seed))) for seed in SEEDS]
    for seed, world in worlds:
        run_seeded(seed, world.run)
    longest = {crowded: [w.closed_s_longest for _, w in worlds if w.is_crowded == crowded] for crowded in (False, True)}
    assert len(longest[False]) >= 3
    assert max(longest[False]) <= WINDOW_S_MAX < max(longest[True])


class Subscriber:
    """blocks: those that came whole."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.status: GrpcStatus | None = None
        self._changed = trio.Event()

    def take(self, message: bytes) -> None:
        response = read_message("SubscribeStreamResponse", message)
        if "end_of_block" in response:
            self.blocks.append(response["end_of_block"].get("block_number", 0))
            self._changed.set()

    def room(self) -> None:
        pass

    def done(self, status: GrpcStatus, text: str) -> None:
        self.status = status
        self._changed.set()

    async def wait_block(self, number: int) -> None:
        while number not in self.blocks:
            assert self.status is None
            self._changed = trio.Event()
            await self._changed.wait()


class Door:
    """A node with one subscriber. here: the subscriber's end of the connection."""

    def __init__(self, world: Bench, services: GrpcServices, here: LinkEnd, counts: DoorCounts) -> None:
        self.world = world
        self.services = services
        self.here = here
        self.counts = counts
        self.subscriber = Subscriber()


@asynccontextmanager
async def subscribed(directory: Path) -> AsyncIterator[Door]:
    async with bench(directory) as world, trio.open_nursery() as nursery:
        read = ReadServices(world.node, world.block_node, version="", new_id=lambda: "r")
        services = GrpcServices(world.node, world.block_node, read, GrpcLimits())
        services.start()
        here, there = make_link(random.Random(0), 0.01)
        door = Door(world, services, here, DoorCounts())

        def subscribe(call: GrpcCall) -> CallHandler:
            return block_methods(GrpcLimits())[SUBSCRIBE].open(services, call)

        limits = Http2Limits(idle_s_max=IDLE_S_MAX)
        server = ServerConnection(
            there,
            {SUBSCRIBE: Route(subscribe, 1_000)},
            limits,
            MessageBudget(1 << 20),
            door.counts,
            address="mirror:1",
            peer=Origin("grpc", "mirror:1"),
            batch=world.node.batch,
        )
        nursery.start_soon(server.run)
        client = AskingConnection(here, "node", limits, DoorCounts())
        nursery.start_soon(client.run)
        request = {"start_block_number": 0, "end_block_number": NO_BLOCK}
        client.ask(SUBSCRIBE, door.subscriber, write_message("SubscribeStreamRequest", request))
        yield door
        nursery.cancel_scope.cancel()


async def be_idle_for_an_hour(directory: Path) -> None:
    async with subscribed(directory) as door:
        first, second = chain_of(2)
        publisher = await door.world.publisher()
        publisher.block(first)
        await door.subscriber.wait_block(0)
        await trio.sleep(3_600.0)
        publisher.block(second)
        await door.subscriber.wait_block(1)
        assert door.subscriber.blocks == [0, 1]
        assert not door.counts.closed


async def be_idle_and_lose_power(directory: Path) -> None:
    async with subscribed(directory) as door:
        publisher = await door.world.publisher()
        publisher.block(chain_of(1)[0])
        await door.subscriber.wait_block(0)
        door.here.lose_power()
        limits = Http2Limits()
        await trio.sleep(limits.ping_s + limits.ping_answer_s + 1.0)
        assert door.counts.closed == {"silent": 1}
        assert door.services.statistics().subscribe.sessions == 0


def test_an_idle_subscription_of_an_hour_goes_on(ground: Path) -> None:
    """pbj 888: every subscription was cut when it had been idle for half an hour, although both sides were alive."""
    run_seeded(0, partial(be_idle_for_an_hour, ground))


def test_an_idle_subscription_of_a_subscriber_without_power_ends(ground: Path) -> None:
    """The PINGs that keep an idle subscription also find that nobody is there any more."""
    run_seeded(0, partial(be_idle_and_lose_power, ground))
