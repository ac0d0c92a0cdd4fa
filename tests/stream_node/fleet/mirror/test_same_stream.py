"""Goal: a mirror is the same stream as its source for whoever reads it: a consumer goes on at a promoted mirror where
it stood, and is not told of another stream.

Method: two real servers; a consumer at the source, then one with its name at the mirror, and one that runs on.
"""

from __future__ import annotations

from pathlib import Path

import trio

from stream_client import connect, list_positions
from stream_node.fleet.mirror.protocol import MirrorAction
from tests.stream_node.fleet.mirror.mirrors import add, follows_to, request, wait_for
from tests.support.served import PATIENCE_S, served


async def test_a_consumer_goes_on_at_the_promoted_mirror_as_in_the_same_stream(tmp_path: Path) -> None:
    events: list[object] = []
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b:
        async with connect(a.address) as client:
            stream = await client.create("s")
            async with stream.publisher() as publisher:
                await publisher.push_many([b"%d" % number for number in range(20)])
            async with stream.consumer("c") as consumer:
                messages = consumer.messages()
                assert [(await anext(messages)).index for _ in range(12)] == list(range(12))
            created_us = (await stream.info()).created_us
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(20))
        async with connect(b.address) as client:
            with trio.fail_after(PATIENCE_S):
                while [each.index async for each in list_positions(client, stream_name="s")] != [12]:
                    await trio.sleep(0.02)
            await request(b.address, MirrorAction.PROMOTE, "s", force=True)
            (stream,) = (await client.get_stream("s")).partitions
            assert (await stream.info()).created_us == created_us
            async with stream.consumer("c", on_event=events.append) as consumer:
                assert [each.index async for each in consumer.messages(stop_at_end=True)] == list(range(12, 20))
    assert events == []
