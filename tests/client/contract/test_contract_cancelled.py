"""Goal: a call that is given up, or that its caller's own function ends, loses no message and no error.

Method: one scenario each, against a real server; cancelled under trio and asyncio, which can cancel, and ended by an
exception of the caller's in all three shells.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from stream_client import LeaseLost, RichMessage, Stream
from tests.client.shells import Tools, World

MESSAGES = 40
PAGE = 4


@pytest.fixture
def cancelling(world: World) -> World:
    if world.shell == "blocking":
        pytest.skip("nothing is cancelled without an event loop")
    return world


async def filled(stream: Stream) -> Stream:
    async with stream.publisher() as publisher:
        await publisher.push_many([b"%d" % number for number in range(MESSAGES)])
    return stream


async def taken_impatiently(messages: AsyncIterator[RichMessage]) -> list[int]:
    """The indexes of all messages, where every second call is cancelled at its first chance."""
    found: list[int] = []
    while len(found) < MESSAGES and (not found or found[-1] < MESSAGES - 1):
        with anyio.move_on_after(0):
            found.append((await anext(messages)).index)
        if len(found) == MESSAGES:
            break
        with anyio.fail_after(20):
            found.append((await anext(messages)).index)
    return found


def test_a_cancelled_follower_goes_on_behind_its_last_message(cancelling: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await filled(await client.create(cancelling.name))
            follower = stream.follow(page_messages=PAGE)
            assert await taken_impatiently(follower) == list(range(MESSAGES))
            assert (follower.holes, follower.next_index) == (0, MESSAGES)

    cancelling.run(scenario)


def test_a_cancelled_consumer_skips_nothing_and_saves_nothing_that_it_did_not_hand_out(cancelling: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await filled(await client.create(cancelling.name))
            positions = tools.saved_indexes(client, "c")
            async with stream.consumer(positions, page_messages=PAGE) as consumer:
                assert await taken_impatiently(consumer.messages()) == list(range(MESSAGES))
                assert (consumer.holes, consumer.next_index) == (0, MESSAGES - 1)
            assert await positions.get(cancelling.name) == MESSAGES

    cancelling.run(scenario)


def test_a_cancelled_shared_consumer_skips_nothing(cancelling: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(cancelling.name, 1)
            await filled(stream.partitions[0])
            async with stream.shared_consumer(tools.lease_member(client, "c", "m"), page_messages=PAGE) as consumer:
                assert await taken_impatiently(WithoutPartition(consumer.messages())) == list(range(MESSAGES))
                assert consumer.holes == 0

    cancelling.run(scenario)


def test_a_lost_lease_is_told_though_the_call_that_noticed_it_was_cancelled(cancelling: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(cancelling.name, 1)
            await filled(stream.partitions[0])
            member = tools.lease_member(client, "c", "same name")
            async with stream.shared_consumer(member, page_messages=PAGE) as consumer:
                messages = consumer.messages()
                await anext(messages)
                fence = consumer.fences[0]
                thief = tools.lease_member(client, "c", "same name")
                thief.join(cancelling.name, 1, lambda: None)
                await thief.leave()
                member.renew()
                with anyio.fail_after(20):
                    while member.find_fence(0) in (None, fence):
                        await anyio.sleep(0.01)
                with anyio.move_on_after(0):
                    await anext(messages)
                with pytest.raises(LeaseLost):
                    await anext(messages)
                partition, message = await anext(messages)
                assert (partition, message.index) == (0, 0), "what was not saved comes again"

    cancelling.run(scenario)


def test_a_page_whose_holes_the_caller_objects_to_is_not_lost(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await filled(await client.create(world.name))
            follower = stream.follow(page_messages=PAGE, on_hole=object_to)
            consumer = stream.consumer(tools.saved_indexes(client, "c"), page_messages=PAGE, on_hole=object_to)
            for messages in (follower, consumer.messages()):
                await anext(messages)
            await stream.truncate(20)
            for messages in (follower, consumer.messages()):
                found: list[int] = []
                objections = 0
                while not found or found[-1] < MESSAGES - 1:
                    try:
                        found.append((await anext(messages)).index)
                    except ValueError:
                        objections += 1
                assert (objections, found[-20:]) == (1, list(range(20, MESSAGES)))

    world.run(scenario)


class WithoutPartition:
    """The messages of a shared consumer alone."""

    def __init__(self, messages: AsyncIterator[tuple[int, RichMessage]]) -> None:
        self._messages = messages

    def __aiter__(self) -> AsyncIterator[RichMessage]:
        return self

    async def __anext__(self) -> RichMessage:
        return (await anext(self._messages))[1]


def object_to(partition: int, first_missing: int, next_there: int) -> None:
    raise ValueError(f"{first_missing} to {next_there} are missing in {partition}")
