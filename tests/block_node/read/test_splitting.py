"""Goal: what a subscriber gets is the items of the stored block, in messages that are not too large. (S11)

Method: bytes of blocks in cuts at any place; items are joined again from what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.errors import BlockFormatError
from block_node.item_splitting import ItemBatch, ItemSplitter, split_items, split_piece
from block_node.protocol import Piece
from tests.support.blocks import join_block

ITEMS = st.lists(
    st.integers(0, 300).map(lambda size: bytes(range(256))[: size % 256] + b"x" * (size // 2)), max_size=20
)


def joined(chunks: Iterable[ItemBatch], chunk_bytes: int) -> list[bytes]:
    """The items that these chunks have. Raises AssertionError where a chunk breaks a rule."""
    items: list[bytes] = []
    inside = False
    for chunk in chunks:
        assert chunk.items
        assert chunk.size_bytes == sum(map(len, chunk.items)) <= chunk_bytes
        if chunk.piece is Piece.WHOLE:
            assert not inside
            items += chunk.items
            continue
        assert inside == (chunk.piece is not Piece.FIRST)
        assert len(chunk.items) == 1
        inside = chunk.piece is not Piece.LAST
        if chunk.piece is Piece.FIRST:
            items.append(b"")
        items[-1] += chunk.items[0]
    assert not inside
    return items


@given(ITEMS, st.integers(32, 200), st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_s11_a_block_in_any_cuts_gives_its_items(items: list[bytes], chunk_bytes: int, cuts: list[int]) -> None:
    data, splitter, chunks, at = join_block(items), ItemSplitter(chunk_bytes), list[ItemBatch](), 0
    while at < len(data):
        size_bytes = cuts[len(chunks) % len(cuts)]
        chunks += splitter.feed(data[at : at + size_bytes])
        at += size_bytes
    chunks += splitter.finish()
    assert joined(chunks, chunk_bytes) == items
    assert joined(split_items(items, chunk_bytes), chunk_bytes) == items


@given(st.binary(min_size=1, max_size=300), st.integers(32, 100), st.integers(1, 299))
def test_s11_a_piece_that_is_too_large_is_cut_once_more(item: bytes, chunk_bytes: int, cut: int) -> None:
    assert joined(split_piece(item, Piece.WHOLE, chunk_bytes), chunk_bytes) == [item]
    first, last = item[:cut], item[cut:]
    chunks = split_piece(first, Piece.FIRST, chunk_bytes) + split_piece(last, Piece.LAST, chunk_bytes)
    assert joined(chunks, chunk_bytes) == [item]


def test_s11_small_large_oversized_and_empty() -> None:
    """A small block is one message, a large one several, an oversized item comes alone, an empty block is none."""

    def sizes(items: list[bytes]) -> list[tuple[Piece, int]]:
        splitter = ItemSplitter(1_000)
        return [(chunk.piece, chunk.size_bytes) for chunk in [*splitter.feed(join_block(items)), *splitter.finish()]]

    assert sizes([b"a" * 10] * 3) == [(Piece.WHOLE, 30)]
    assert sizes([b"a" * 400] * 5) == [(Piece.WHOLE, 800), (Piece.WHOLE, 800), (Piece.WHOLE, 400)]
    assert sizes([b"a", b"b" * 2_500, b"c"]) == [
        (Piece.WHOLE, 1),
        (Piece.FIRST, 1_000),
        (Piece.MIDDLE, 1_000),
        (Piece.LAST, 500),
        (Piece.WHOLE, 1),
    ]
    assert sizes([]) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x12\x01a", "a block has only items - at byte 0"),
        (b"\x0a\x05ab", "within an item, 3 bytes are missing"),
        (b"\x0a\x01a\x0a" + b"\xff" * 11, "more than 64 bits - at byte 4"),
    ],
)
def test_what_is_no_block_is_said(data: bytes, says: str) -> None:
    def split() -> None:
        splitter = ItemSplitter(1_000)
        splitter.feed(data)
        splitter.finish()

    with pytest.raises(BlockFormatError, match=says):
        split()
