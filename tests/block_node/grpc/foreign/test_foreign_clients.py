"""Goal: libraries that nobody here wrote publish real and generated blocks, compressed or not, read them back, and get
gRPC's own statuses.

Method: the programs of `peers.py` against a node on a real database: grpcio with threads and with asyncio,
`@grpc/grpc-js`, and grpc-java over netty, which is the stack of a mirror node.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from block_node.blocks.errors import Level
from block_node.blocks.items import Item, split_block
from block_node.blocks.settings import VerifierSettings
from tests.block_node.grpc.calls.block_door import GET, STATUS, SUBSCRIBE, block_door, blocks_of
from tests.block_node.grpc.conformance.meeting import Meeting
from tests.block_node.grpc.foreign.peers import LIBRARIES, Program, opened_peer
from tests.block_node.publish.samples import chain_of
from tests.support.blocks import real_blocks

pytestmark = pytest.mark.slow

CANCELLED, INVALID_ARGUMENT, UNIMPLEMENTED = 1, 3, 12
# The proofs of the real chain need keys that are not here.
VERIFIER = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.CHAIN)
PATIENCE_S = 180


@pytest.fixture
def blocks(request: pytest.FixtureRequest) -> list[list[Item]]:
    if request.param == "real":
        return [list(split_block(each)) for each in real_blocks(request.getfixturevalue("shared_dir"), "SCHNORR")]
    return [list(each.items) for each in chain_of(8)]


@pytest.mark.parametrize("kind", LIBRARIES)
@pytest.mark.parametrize(("encoding", "blocks"), [("gzip", "real"), ("identity", "generated")], indirect=["blocks"])
async def test_blocks_are_published_and_read_and_statuses_are_understood(
    tmp_path: Path, kind: str, encoding: str, blocks: list[list[Item]]
) -> None:
    last = len(blocks) - 1
    with closing(Program(kind, encoding)) as program:
        async with (
            block_door(tmp_path, verifier=VERIFIER, patience_s=PATIENCE_S) as door,
            opened_peer(program, door.port) as peer,
        ):
            here = Meeting(door, peer)
            one = await here.publisher()
            for number, items in enumerate(blocks):
                for at in range(0, len(items), 500):
                    await one.items(items[at : at + 500])
                await one.end_block(number)
            before = await one.wait_for("acknowledgement", last)
            numbers = [each["acknowledgement"].get("block_number", 0) for each in before]
            assert numbers == sorted(numbers)
            assert (await here.ask(STATUS))["next_expected_block"] == last + 1
            for number, items in enumerate(blocks):
                assert await here.ask(GET, {"block_number": number}) == {"status": 1, "block": {"items": items}}
            subscriber = await here.subscribe(0, last)
            assert await subscriber.until_status() == 1
            assert blocks_of(subscriber.parts[:-1]) == dict(enumerate(blocks))

            await one.call.cancel()
            assert await one.ended() == CANCELLED
            for path, status in ((SUBSCRIBE, INVALID_ARGUMENT), (f"{STATUS}s", UNIMPLEMENTED)):
                call = await peer.call(path)
                await call.send(b"\xff")
                assert await call.status() == status
