"""Goal: the three clients share a stream alike. Method: two members in one scenario, against a real server.

Leases last 10 s; members are told to renew at once, so that the tests need not wait for it.
"""

from __future__ import annotations

import pytest

from index_service.protocol import INDEX, GetIndex
from stream_client import LeaseLost, LeaseMember, RequestRefused, SharedConsumer, StreamClient
from tests.client.shells import Tools, World

PARTITIONS = 4


async def take(consumer: SharedConsumer, count: int) -> list[tuple[int, int]]:
    """Partition and index of the next messages."""
    found: list[tuple[int, int]] = []
    if count:
        async for partition, message in consumer:
            found.append((partition, message.index))
            if len(found) == count:
                break
    return found


async def filled(client: StreamClient, name: str, count: int) -> None:
    stream = await client.create_partitioned(name, PARTITIONS)
    for part in stream.partitions:
        async with part.publisher() as publisher:
            await publisher.push_many([b"%d" % number for number in range(count)])


async def renew(client: StreamClient, *members: LeaseMember) -> None:
    """Let each member ask for its leases, and have its answer: the index service answers in order."""
    for member in members:
        member.renew()
        await client.session.ask("stream_index_service", INDEX, GetIndex("anybody", "anything"))


def test_one_member_has_everything_and_saves_it(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            await filled(client, world.name, 5)
            stream = await client.create_partitioned(world.name, PARTITIONS)
            for expected in (5 * PARTITIONS, 0):
                member = tools.lease_member(client, "c", "only")
                async with stream.shared_consumer(member) as consumer:
                    seen = [(part, each.index) async for part, each in consumer.messages(stop_at_end=True)]
                    assert len(seen) == consumer.processed == expected
                    assert set(consumer.fences) == set(range(PARTITIONS))
                    assert member.members == 1
            for partition in range(PARTITIONS):
                assert await tools.saved_indexes(client, "c").get(world.name, partition) == 5

    world.run(scenario)


def test_a_second_member_gets_its_share_and_nothing_twice(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            await filled(client, world.name, 50)
            stream = await client.create_partitioned(world.name, PARTITIONS)
            first, second = (tools.lease_member(client, "c", name) for name in ("first", "second"))
            async with stream.shared_consumer(first, page_messages=10) as one:
                seen = await take(one, 15)
                fences = one.fences
                async with stream.shared_consumer(second, page_messages=10) as two:
                    while len(two.fences) < PARTITIONS // 2:
                        await renew(client, second, first)
                        seen += await take(one, 1)
                        await renew(client, first, second)
                        await two.save()
                    kept = {partition: fences[partition] for partition in one.fences}
                    assert one.fences == kept, "what stays is not interrupted"
                    assert len(kept) == PARTITIONS // 2
                    assert one.fences.keys().isdisjoint(two.fences)
                    assert all(two.fences[partition] > fences[partition] for partition in two.fences)
                    seen += [(part, each.index) async for part, each in two.messages(stop_at_end=True)]
                seen += [(part, each.index) async for part, each in one.messages(stop_at_end=True)]
            assert sorted(seen) == [(part, index) for part in range(PARTITIONS) for index in range(50)]

    world.run(scenario)


def test_a_lost_lease_is_an_error_inside_the_iteration_which_goes_on(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            await filled(client, world.name, 20)
            stream = await client.create_partitioned(world.name, PARTITIONS)
            member = tools.lease_member(client, "c", "same name")
            async with stream.shared_consumer(member, page_messages=5) as consumer:
                before = await take(consumer, 8)
                fences = consumer.fences
                # The operator's hand: the member is made to leave by somebody else under its name.
                thief = tools.lease_member(client, "c", "same name")
                thief.join(world.name, PARTITIONS, lambda: None)
                await thief.leave()
                member.renew()
                with pytest.raises(LeaseLost) as caught:
                    await take(consumer, 1_000)
                assert caught.value.partitions == tuple(sorted(fences))
                assert caught.value.retriable
                seen = [(part, each.index) async for part, each in consumer.messages(stop_at_end=True)]
                assert all(consumer.fences[partition] > fences[partition] for partition in fences)
            assert sorted({*before, *seen}) == [(part, index) for part in range(PARTITIONS) for index in range(20)]

    world.run(scenario)


def test_a_refused_membership_is_told(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 2)
            member = tools.lease_member(client, "c" * 2_000, "m")
            consumer = stream.shared_consumer(member)
            with pytest.raises(RequestRefused):
                await take(consumer, 1)

    world.run(scenario)
