"""Goal: a subscriber that asks for it gets items compressed with zstd, backfill does, and nodes of before still answer.

Method: whole servers; what is packed is read with zstd and BARE alone; a node of before knows the old messages only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import pytest
import trio
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import bare
from block_node import protocol_reading as p
from block_node.backfill import route_source
from block_node.blocks.generator import GeneratedBlock
from block_node.client import connect
from block_node.protocol import Piece
from block_node.read import subscribe
from block_node.read.packing import UNPACKED_BYTES_MAX, packed, unpacked
from ockam.protocol import Protocol, ProtocolError
from stream_client import connect as connect_streams
from tests.block_node.backfill.served_blocks import QUICK, chain, source, wait_ranges
from tests.block_node.client.chains import fetch
from tests.support.served import PATIENCE_S, served

OLD = Protocol[p.SubscribeRequest, p.SubscribeResponse](
    "block_subscribe",
    cast(
        "type[p.SubscribeRequest]",
        Annotated[
            p.Subscribe | p.Received | p.Unsubscribe, bare.Union({0: p.Subscribe, 1: p.Received, 2: p.Unsubscribe})
        ],
    ),
    cast(
        "type[p.SubscribeResponse]",
        Annotated[
            p.Subscribed | p.SubscribedItems | p.SubscribedBlockEnd | p.SubscribedBlockWithdrawn | p.SubscriptionEnded,
            bare.Union(
                {
                    0: p.Subscribed,
                    1: p.SubscribedItems,
                    2: p.SubscribedBlockEnd,
                    3: p.SubscribedBlockWithdrawn,
                    4: p.SubscriptionEnded,
                }
            ),
        ],
    ),
)
"""The messages that a node of before knows."""


def blocks_of(count: int) -> tuple[GeneratedBlock, ...]:
    """Blocks whose items are no noise, as most generated ones are."""
    return chain(count, item_count=200, item_bytes=0)


def items_of(*items: bytes) -> p.SubscribedItems:
    return p.SubscribedItems(1, 2, 3, True, list(items), Piece.WHOLE)


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_packed_items_are_the_same_items(items: list[bytes]) -> None:
    for each in (items, [item * 20 for item in items]):
        sent = packed(items_of(*each))
        assert unpacked(sent) == items_of(*each)
        if isinstance(sent, p.PackedItems):
            # Read by others, without what packs them here.
            data = zstandard.ZstdDecompressor().decompress(sent.packed)
            assert bare.decode(data, list[bytes]) == each
            assert len(sent.packed) < len(data)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"no frame",
        zstandard.ZstdCompressor().compress(b"\x05x"),
        zstandard.ZstdCompressor().compress(bytes(UNPACKED_BYTES_MAX + 1)),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"\x00"),
        zstandard.ZstdCompressor().compress(b"\x01\x01x")[:-1],
    ],
    ids=["empty", "no frame", "no list", "too long", "without its length", "cut short"],
)
def test_what_cannot_be_read_is_an_error(damaged: bytes) -> None:
    with pytest.raises(ProtocolError, match="packed items"):
        unpacked(p.PackedItems(1, 0, 0, True, damaged, Piece.WHOLE))


async def test_who_asks_gets_packed_items_and_nobody_else(tmp_path: Path) -> None:
    async with source(tmp_path, blocks_of(3)) as running:
        kinds: dict[bool, set[type]] = {}
        for packs in (False, True):
            request = p.Subscribe(1, 0, 2, False, 1 << 20)
            async with connect_streams(running.address) as connection:
                conversation = connection.converse("block_subscribe")
                await conversation.send(p.SUBSCRIBE.encode_request(p.SubscribePacked(request) if packs else request))
                kinds[packs] = set()
                while p.SubscriptionEnded not in kinds[packs]:
                    payload = await conversation.receive(PATIENCE_S)
                    assert payload is not None
                    kinds[packs].add(type(p.SUBSCRIBE.decode_response(payload)))
        assert p.PackedItems not in kinds[False]
        assert p.PackedItems in kinds[True]
        for compress in (False, True):
            async with (
                connect(running.address) as blocks_client,
                blocks_client.subscribe(0, 2, compress=compress) as received,
            ):
                got = [(block.number, block.root, tuple(block.items)) async for block in received]
            assert got == [(block.number, block.root, block.items) for block in blocks_of(3)]


@pytest.mark.parametrize("old", [False, True], ids=["packs", "of before"])
async def test_backfill_takes_packed_items_from_those_who_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    if old:
        monkeypatch.setattr(subscribe, "SUBSCRIBE", OLD)
    kinds: set[type] = set()

    def seen(message: p.SubscribeResponse) -> p.UnpackedResponse:
        kinds.add(type(message))
        return unpacked(message)

    monkeypatch.setattr(route_source, "unpacked", seen)
    blocks = blocks_of(12)
    async with source(tmp_path / "one", blocks, error_delay_s=0.01) as one:
        async with served(tmp_path / "two", **QUICK, backfill_block_node_sources=(one.address,)) as two:
            with trio.fail_after(PATIENCE_S):
                await wait_ranges(two, (0, 11))
            assert (p.PackedItems in kinds, p.SubscribedItems in kinds) == (not old, old)
            for block in blocks:
                assert (await fetch(two.address, block.number))[1] == block.root
        async with connect(one.address) as blocks_client, blocks_client.subscribe(0, 11, compress=True) as received:
            assert [block.number async for block in received] == list(range(12))
