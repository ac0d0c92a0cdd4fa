"""Goal: the blocks that we serve are blocks by the network's own schema, byte by byte.

Method: the classes that protoc made of the full `block.stream` schema, from the PyPI package hiero-sdk-python, read the
answers of getBlock and of a subscription to real blocks, and write them again. The variable HIERO_SDK_FOLDER names the
folder into which that package was unpacked. Its other modules want packages that are not here, so they stay unread.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from block_node.blocks.errors import Level
from block_node.blocks.items import split_block
from block_node.blocks.settings import VerifierSettings
from block_node.grpc.messages import read_message, write_message
from tests.block_node.grpc.calls.block_door import GET, SUBSCRIBE, ask, block_door, blocks_of, publisher, range_of
from tests.support.blocks import join_block, real_blocks

PACKAGE = Path(os.environ.get("HIERO_SDK_FOLDER", ".")) / "hiero_sdk_python"

pytest.importorskip("google.protobuf", reason="protobuf comes with the extra otel")
pytestmark = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="no hiero-sdk-python: unpack it, name the folder by HIERO_SDK_FOLDER"
)


@pytest.fixture
def stream_block(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the message `com.hedera.hapi.block.stream.Block`."""
    package = ModuleType("hiero_sdk_python")
    package.__path__ = [str(PACKAGE)]
    monkeypatch.setitem(sys.modules, "hiero_sdk_python", package)
    return importlib.import_module("hiero_sdk_python.hapi.block.stream.block_pb2").Block


@pytest.mark.parametrize("recording", ["SCHNORR", "SOLO_4N"])
async def test_the_networks_own_schema_reads_what_we_serve(
    tmp_path: Path, shared_dir: Path, stream_block: Any, recording: str
) -> None:
    blocks = real_blocks(shared_dir, recording)
    # The proofs of the chains need keys that are not here.
    async with block_door(tmp_path, verifier=VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE)) as door:
        async with publisher(door) as one:
            for number, block in enumerate(blocks):
                items = list(split_block(block))
                for at in range(0, len(items), 500):
                    await one.items(items[at : at + 500])
                await one.end_block(number)
            await one.wait_for("acknowledgement", len(blocks) - 1)
        for number, block in enumerate(blocks):
            # The block is field 2 of the answer, behind the status.
            answer = (await ask(door, GET, write_message("BlockRequest", {"block_number": number}))).messages()[0]
            assert answer.endswith(block)
            read = stream_block.FromString(answer[-len(block) :])
            assert read.items[0].block_header.number == number
            assert all(item.WhichOneof("item") for item in read.items)
            assert read.SerializeToString() == block
        messages = (await ask(door, SUBSCRIBE, range_of(0, len(blocks) - 1))).messages()
        subscribed = blocks_of([read_message("SubscribeStreamResponse", message) for message in messages])
        assert list(subscribed) == list(range(len(blocks)))
        for number, items in subscribed.items():
            assert stream_block.FromString(join_block(items)).SerializeToString() == blocks[number]
