"""Goal: a push can be awaited, and a request that nobody serves is no silence of the node. Method: a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from ockam.actors.address import local
from stream_client import RequestRefused, RequestTimeout, connect
from stream_client.core.pushes import PLAIN_BYTES_MAX
from stream_node.node.process import NodeProcess
from tests.client.shells import Tools, World


@pytest.mark.parametrize("run", [trio.run, lambda main: asyncio.run(main())], ids=["trio", "asyncio"])
def test_a_push_is_awaited(run: Callable[[Callable[[], Awaitable[None]]], Any], node: NodeProcess) -> None:
    async def main() -> None:
        async with connect(node.address) as client:
            stream = await client.create()
            async with stream.publisher() as publisher:
                pushes = [await publisher.push(b"%d" % number) for number in range(5)]
                assert [await push for push in reversed(pushes)] == [4, 3, 2, 1, 0]
                assert await pushes[2] == 2
                refused = await publisher.push(bytes(PLAIN_BYTES_MAX + 1))
                with pytest.raises(RequestRefused):
                    await refused

    run(main)


def test_a_request_that_nobody_serves(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            party = await client.correspondent(f"{world.name} inbox")
            with pytest.raises(RequestTimeout, match=r"nobody who reads .* the request is stored there"):
                await party.request(world.name, (local("echo"),), b"hello", timeout_s=0.1)
            # A consumer reads what is stored, as the documentation of `routed` says.
            stream = await client.create(world.name)
            async with stream.consumer("server") as consumer:
                assert (await anext(party.routed(consumer))).payload == b"hello"

    world.run(scenario)
