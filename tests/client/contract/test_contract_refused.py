"""Goal: a message that cannot be stored fails alone, whatever is pushed beside it. Method: one scenario each, against a
real server, through every shell.
"""

from __future__ import annotations

import pytest

from stream_client import Header, PushesFailed, PushFailed, RequestRefused
from stream_service.limits import StreamLimits
from tests.client.shells import Tools, World

LIMITS = StreamLimits()
LARGE_KEY = bytes(LIMITS.key_bytes_max + 1)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_refused_message_of_a_publisher_fails_alone(world: World, idempotent: bool) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            async with stream.publisher(idempotent=idempotent, keep_failed=True) as publisher:
                before = [await publisher.push(b"%d" % number) for number in range(200)]
                bad = await publisher.push(b"bad", key=LARGE_KEY)
                behind = [await publisher.push(b"%d" % number, key=b"k") for number in range(200)]
            assert isinstance(bad.error, RequestRefused)
            assert (bad.error.fault, bad.error.retriable) == ("caller", False)
            assert [push.result() for push in (*before, *behind)] == list(range(400))
            assert (await stream.info()).count == 400

    world.run(scenario)


def test_every_limit_of_a_message_is_known_to_the_client(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            most_headers = [Header("name", bytes(LIMITS.headers_bytes_max - 4))]
            assert await stream.push(b"", key=LARGE_KEY[1:], headers=most_headers) == 0
            for refused, named in (
                ({"data": b"", "key": LARGE_KEY}, "key of 4097"),
                ({"data": b"", "headers": [*most_headers, Header("x", b"")]}, "headers of 16385"),
                ({"data": b"", "headers": [Header("\ud800", b"")]}, "UTF-8"),
                ({"data": bytes(LIMITS.message_bytes_max)}, "message of"),
                ({"data": bytes(LIMITS.message_bytes_max), "key": b"k"}, "message with its key"),
            ):
                with pytest.raises(RequestRefused, match=named):
                    await stream.push(**refused)
            with pytest.raises(ValueError, match="publisher id of 65 bytes"):
                stream.publisher(publisher_id=bytes(65))
            assert (await stream.info()).count == 1

    world.run(scenario)


def test_a_publisher_that_counts_its_messages_stops_at_a_refused_one(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            async with stream.publisher(publisher_id=b"p", first_number=7, keep_failed=True) as publisher:
                pushes = [
                    await publisher.push(b"%d" % number, key=LARGE_KEY if number == 3 else None) for number in range(6)
                ]
            assert [push.index for push in pushes[:3]] == [0, 1, 2]
            assert isinstance(pushes[3].error, RequestRefused)
            assert all(isinstance(push.error, PushFailed) for push in pushes[4:])
            async with stream.publisher(publisher_id=b"p", first_number=10) as publisher:
                assert await publisher.push_many([b"number 10"]) == [3]

    world.run(scenario)


def test_failures_follow_their_causes_and_are_told_once(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            with pytest.raises(PushesFailed, match="1 message was not") as caught:
                async with stream.publisher() as publisher:
                    await publisher.push(b"bad", key=LARGE_KEY)
            assert (caught.value.fault, caught.value.retriable) == ("caller", False)
            async with stream.publisher() as publisher:
                for _ in range(1_000):
                    push = await publisher.push(b"bad", key=LARGE_KEY)
                    with pytest.raises(RequestRefused):
                        push.result()
                assert not publisher.failed
            async with stream.publisher(keep_failed=True) as publisher:
                await publisher.push(b"bad", key=LARGE_KEY)
                assert not publisher.failed

    world.run(scenario)
