"""Goal: a position belongs to the stream of which it was saved, and to whoever set it last. A consumer of a stream that
was deleted and made again reads the new stream whole, and a running consumer obeys an operator who sets its position.

Method: one scenario each, against a real server, through every shell; the other one is a blocking client of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from stream_client import (
    LeaseLost,
    NodeFailed,
    PositionReset,
    StreamNotFound,
    StreamRemade,
    blocking,
)
from stream_client.consume import readings
from tests.client.shells import Tools, World

Event = StreamRemade | PositionReset


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "CHECK_S", 0.05)


def make(address: str, name: str, messages: int, partitions: int = 1) -> None:
    with blocking.connect(address) as client:
        for stream in client.create_partitioned(name, partitions).partitions:
            with stream.publisher() as publisher:
                publisher.push_many([b"%d" % number for number in range(messages)])


def remake(address: str, name: str, messages: int, *, keep_positions: bool, partitions: int = 1) -> None:
    with blocking.connect(address) as client:
        client.get_stream(name).delete(keep_positions=keep_positions)
    make(address, name, messages, partitions)


def positions_of(address: str, name: str) -> dict[int, int]:
    with blocking.connect(address) as client:
        return {each.partition: each.index for each in blocking.list_positions(client, stream_name=name)}


@pytest.mark.parametrize("keep_positions", [False, True])
@pytest.mark.parametrize("messages", [12, 40])
def test_a_consumer_reads_a_stream_that_was_made_again_from_its_beginning(
    world: World, keep_positions: bool, messages: int
) -> None:
    """The new stream has fewer messages than the position, and then more: only the latter looks as if nothing were."""

    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 33)
        for name in ("c", "plain"):
            async with tools.connect() as client:
                (stream,) = (await client.get_stream(world.name)).partitions
                if name == "plain":
                    # As an older client saves: the node is not told of which stream the position is.
                    await tools.saved_indexes(client, name).save(world.name, {0: 33})
                    continue
                async with stream.consumer(name) as consumer:
                    assert len([each async for each in consumer.messages(stop_at_end=True)]) == 33
        remake(tools.address, world.name, messages, keep_positions=keep_positions)
        assert positions_of(tools.address, world.name) == ({0: 33} if keep_positions else {})
        for name in ("c", "plain"):
            told: list[Event] = []
            async with tools.connect() as client:
                (stream,) = (await client.get_stream(world.name)).partitions
                async with stream.consumer(name, on_event=told.append) as consumer:
                    seen = [each.index async for each in consumer.messages(stop_at_end=True)]
                assert (seen, consumer.holes) == (list(range(messages)), 0)
                assert [(type(each), getattr(each, "index")) for each in told] == (  # noqa: B009
                    [(StreamRemade, 33)] if keep_positions else []
                )
                async with stream.consumer(name) as consumer:
                    assert [each async for each in consumer.messages(stop_at_end=True)] == [], "its position is kept"

    world.run(scenario)


def test_a_running_consumer_goes_on_at_the_beginning_of_the_new_stream(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 5)
        told: list[Event] = []
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            async with stream.consumer("c", on_event=told.append) as consumer:
                messages = consumer.messages()
                for index in range(5):
                    assert (await anext(messages)).index == index
                remake(tools.address, world.name, 7, keep_positions=True)
                seen: list[int] = []
                while len(seen) < 7:
                    # The pull that waited for a message may have been answered by the deletion.
                    with suppress(StreamNotFound):
                        seen.append((await anext(messages)).index)
                assert seen == list(range(7))
            assert [type(each) for each in told] == [StreamRemade]
            assert positions_of(tools.address, world.name) == {0: 7}

    world.run(scenario)


def test_a_new_beginning_that_failed_is_made_once_more(world: World) -> None:
    """Goal: an error does not make the former position one of the new stream. Method: the first save in the new stream
    is sent, and its answer is not waited for."""
    if world.shell == "blocking":
        pytest.skip("nothing is cancelled without an event loop")

    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 33)
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            async with stream.consumer("c") as consumer:
                assert len([each async for each in consumer.messages(stop_at_end=True)]) == 33
        remake(tools.address, world.name, 40, keep_positions=True)
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            positions: Any = tools.saved_indexes(client, "c")
            begin, failures = positions.begin, [NodeFailed("its answer was not waited for")]

            async def begin_impatiently(*given: Any) -> Any:
                if not failures:
                    return await begin(*given)
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await begin(*given)
                raise failures.pop()

            positions.begin = begin_impatiently
            async with stream.consumer(positions) as consumer:
                with pytest.raises(NodeFailed):
                    await anext(consumer.messages(stop_at_end=True))
                seen = [each.index async for each in consumer.messages(stop_at_end=True)]
            assert (seen, consumer.holes) == (list(range(40)), 0)

    world.run(scenario)


def test_a_late_save_of_the_former_stream_does_not_move_the_position_of_the_new_one(world: World) -> None:
    """Goal: the save is refused, whoever made the new stream and read it meanwhile. Method: the first consumer has read
    everything and saves nothing; it ends after the second one has begun."""

    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 30)
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            late = stream.consumer("c", save_messages=1000, save_interval_s=1000.0)
            async with late:
                messages = late.messages()
                for _ in range(30):
                    await anext(messages)
                remake(tools.address, world.name, 50, keep_positions=False)
                with blocking.connect(tools.address) as other:
                    new = other.get_stream(world.name).partitions[0]
                    with new.consumer("c") as consumer:
                        for _ in zip(range(4), consumer, strict=False):
                            pass
                assert positions_of(tools.address, world.name) == {0: 4}
            assert positions_of(tools.address, world.name) == {0: 4}

    world.run(scenario)


@pytest.mark.parametrize("to", [0, 2, None])
def test_a_running_consumer_hears_of_a_position_that_somebody_sets(world: World, to: int | None) -> None:
    """The consumer is quiet at the end of the stream, so that it saves nothing by itself."""

    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 5)
        told: list[Event] = []
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            async with stream.consumer("c", on_event=told.append, save_interval_s=0.01) as consumer:
                messages = consumer.messages()
                seen = [(await anext(messages)).index for _ in range(5)]
                await consumer.save(with_last=True)
                with blocking.connect(tools.address) as other:
                    assert blocking.set_position(other, "c", world.name, 0, to) == 5
                seen += [(await anext(messages)).index for _ in range(5 - (to or 0))]
            assert seen == [*range(5), *range(to or 0, 5)]
            assert [(type(each), each.index) for each in told] == [(PositionReset, to or 0)]
            assert positions_of(tools.address, world.name) == {0: 5}

    world.run(scenario)


def test_a_busy_consumer_does_not_overwrite_a_position_that_somebody_sets(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 60)
        told: list[Event] = []
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            async with stream.consumer("c", on_event=told.append, save_messages=1, page_messages=10) as consumer:
                messages = consumer.messages()
                for _ in range(30):
                    await anext(messages)
                await consumer.save()
                with blocking.connect(tools.address) as other:
                    blocking.set_position(other, "c", world.name, 0, 1)
                # This save comes too late, and says so to the loop.
                await anext(messages)
                await consumer.save()
                assert positions_of(tools.address, world.name) == {0: 1}
                assert (await anext(messages)).index == 1
            assert [type(each) for each in told] == [PositionReset]

    world.run(scenario)


def test_a_group_reads_a_stream_that_was_made_again_from_its_beginning(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 9, 2)
        told: list[Event] = []
        for messages, wanted in ((0, 9), (6, 6), (12, 12)):
            if messages:
                remake(tools.address, world.name, messages, keep_positions=True, partitions=2)
            seen: list[tuple[int, int]] = []
            async with tools.connect() as client:
                jobs = await client.get_stream(world.name)
                async with jobs.shared_consumer("c", on_event=told.append) as group:
                    with suppress(LeaseLost):
                        async for partition, message in group.messages(stop_at_end=True):
                            seen.append((partition, message.index))
            assert sorted(seen) == [(partition, index) for partition in (0, 1) for index in range(wanted)]
        assert [type(each) for each in told] == [StreamRemade] * 4
        assert positions_of(tools.address, world.name) == {0: 12, 1: 12}

    world.run(scenario)


def test_the_events_are_warnings_without_a_function_for_them(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(tools: Tools) -> None:
        make(tools.address, world.name, 3)
        for _ in range(2):
            async with tools.connect() as client:
                (stream,) = (await client.get_stream(world.name)).partitions
                async with stream.consumer("c") as consumer:
                    assert len([each async for each in consumer.messages(stop_at_end=True)]) == 3
            remake(tools.address, world.name, 3, keep_positions=True)

    world.run(scenario)
    assert [record.name for record in caplog.records if "created again" in record.message] == ["stream_client"]
