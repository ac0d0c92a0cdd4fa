"""Goal: clients that nobody here wrote publish real and generated blocks, read them back, and leave in the middle.

Method: `@grpc/grpc-js` and grpc-java over netty, which is the stack of a mirror node, as programs of their own
(`foreign_client.py`) against a node on a real database. Both compress with gzip if they are told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from block_node.blocks.errors import Level
from block_node.blocks.items import Item, split_block
from block_node.blocks.settings import VerifierSettings
from block_node.grpc.messages import NO_BLOCK, WireMessage, read_message, write_message
from tests.block_node.grpc.calls.block_door import (
    GET,
    PUBLISH,
    STATUS,
    SUBSCRIBE,
    block_door,
    blocks_of,
    range_of,
)
from tests.block_node.grpc.foreign.foreign_client import KINDS, ForeignClient, foreign_client
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.publish.samples import chain_of
from tests.support.blocks import real_blocks

pytestmark = pytest.mark.slow

OK, CANCELLED, INVALID_ARGUMENT, UNIMPLEMENTED = 0, 1, 3, 12
# The proofs of the real chain need keys that are not here.
VERIFIER = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.CHAIN)
PATIENCE_S = 180


def requests_of(number: int, items: Sequence[Item]) -> list[bytes]:
    sets: list[WireMessage] = [
        {"block_items": {"block_items": list(items[at : at + 500])}} for at in range(0, len(items), 500)
    ]
    sets.append({"end_of_block": {"block_number": number}})
    return [write_message("PublishStreamRequest", each) for each in sets]


def answer_of(kind: str, number: int) -> bytes:
    return write_message("PublishStreamResponse", {kind: {"block_number": number}})


async def publish(client: ForeignClient, blocks: Sequence[Sequence[Item]], first: int = 0) -> None:
    """Publishes blocks on one call. Each is acknowledged in order, and the call ends well."""
    requests = [each for number, items in enumerate(blocks, first) for each in requests_of(number, items)]
    last = first + len(blocks) - 1
    result = await client.call(PUBLISH, requests, until=answer_of("acknowledgement", last))
    assert result.status == OK
    found = [read_message("PublishStreamResponse", each) for each in result.answers]
    numbers = [each["acknowledgement"].get("block_number", 0) for each in found]
    assert numbers == sorted(numbers)
    assert numbers[-1] == last


@pytest.fixture
def blocks(request: pytest.FixtureRequest) -> list[list[Item]]:
    if request.param == "real":
        return [list(split_block(each)) for each in real_blocks(request.getfixturevalue("shared_dir"), "SCHNORR")]
    return [list(each.items) for each in chain_of(8)]


@pytest.mark.parametrize(
    ("kind", "encoding", "blocks"),
    [
        pytest.param(*each, marks=pytest.mark.skipif(bool(KINDS[each[0]].missing), reason=KINDS[each[0]].missing))
        for each in (
            ("grpc-js", "gzip", "real"),
            ("grpc-js", "identity", "generated"),
            ("grpc-java", "gzip", "real"),
            ("grpc-java", "identity", "generated"),
        )
    ],
    indirect=["blocks"],
)
async def test_blocks_are_published_and_read_and_calls_are_cancelled(
    tmp_path: Path, kind: str, encoding: str, blocks: list[list[Item]]
) -> None:
    last = len(blocks) - 1
    async with (
        block_door(tmp_path, verifier=VERIFIER, patience_s=PATIENCE_S) as door,
        foreign_client(KINDS[kind], door.port, encoding) as client,
    ):
        await publish(client, blocks[:last])
        # A publisher that leaves in the middle of a block gives it up at once (hiero-block-node 2055).
        half = requests_of(last, blocks[last])[:1]
        cancelled = await client.call(PUBLISH, half, until="any", ending="cancel")
        assert (cancelled.status, cancelled.answers) == (CANCELLED, [answer_of("acknowledgement", last - 1)])
        await publish(client, blocks[last:], last)
        assert door.world.stored() == list(range(last + 1))
        again = await client.call(PUBLISH, half, until="any")
        assert (again.status, again.answers[0]) == (OK, answer_of("skip_block", last))

        [status] = (await client.call(STATUS)).answers
        assert read_message("ServerStatusResponse", status)["next_expected_block"] == last + 1
        for number, items in enumerate(blocks):
            [block] = (await client.call(GET, [write_message("BlockRequest", {"block_number": number})])).answers
            assert read_message("BlockResponse", block) == {"status": 1, "block": {"items": items}}
        whole = await client.call(SUBSCRIBE, [range_of(0, last)])
        parts = [read_message("SubscribeStreamResponse", each) for each in whole.answers]
        assert (whole.status, parts[-1]) == (OK, {"status": 1})
        assert blocks_of(parts) == dict(enumerate(blocks))

        left = await client.call(SUBSCRIBE, [range_of(0, NO_BLOCK)], until="any", ending="cancel")
        assert left.status == CANCELLED
        await wait_until(lambda: door.services.statistics().subscribe.ended.get("LEFT") == 1)

        assert (await client.call(SUBSCRIBE, [b"\xff"])).status == INVALID_ARGUMENT
        assert (await client.call(f"{STATUS}s")).status == UNIMPLEMENTED
        wrong = await client.call(PUBLISH, [b"\xff"])
        [end] = [read_message("PublishStreamResponse", each) for each in wrong.answers]
        assert (wrong.status, end["end_stream"]["block_number"]) == (OK, last)
