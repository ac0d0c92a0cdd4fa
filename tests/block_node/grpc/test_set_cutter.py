"""Goal: however a block is cut into parts, its messages end at the ends of items and together are its bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import item_prefix
from block_node.grpc.messages import ItemSet
from block_node.item_splitting import SET_BYTES, SetCutter

SIZES = st.lists(
    st.one_of(
        st.integers(0, 300),
        st.sampled_from([127, 128, 16_383, 16_384, 500_000, SET_BYTES - 4, SET_BYTES, SET_BYTES + 1, 3_000_000]),
    ),
    max_size=12,
)


CUTS = st.lists(st.integers(50_000, 1_500_000), min_size=1, max_size=10)


@given(SIZES, CUTS)
def test_messages_are_whole_items_and_all_bytes(sizes: list[int], cuts: list[int]) -> None:
    check(sizes, cuts)


@given(st.lists(st.integers(0, 300), max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_small_items_come_in_small_parts(sizes: list[int], cuts: list[int]) -> None:
    check(sizes, cuts)


def check(sizes: list[int], cuts: list[int]) -> None:
    items = [bytes([size % 251]) * size for size in sizes]
    block = b"".join(item_prefix(len(item)) + item for item in items)
    cutter = SetCutter()
    sets: list[bytearray] = []
    announced: list[int] = []
    at = place = 0
    while at < len(block):
        step = cuts[place % len(cuts)]
        for begins_bytes, pieces in cutter.feed(block[at : at + step]):
            if begins_bytes is not None:
                # The set before is complete.
                assert [len(each) for each in sets] == announced
                announced.append(begins_bytes)
                sets.append(bytearray())
            sets[-1] += b"".join(pieces)
        at += step
        place += 1
    cutter.finish()
    assert [len(each) for each in sets] == announced
    assert b"".join(sets) == block
    found = [ItemSet(bytes(each)).take(len(each), len(each))[0] for each in sets]
    assert [item for each in found for item in each] == items
    # A set above the usual size has one item.
    assert all(len(each) == 1 for each, size in zip(found, announced, strict=True) if size > SET_BYTES)


@pytest.mark.parametrize("data", [b"\x0b\x01a", b"\x0a\x01a\x0c", b"\x12\x00"])
def test_what_is_no_block_is_refused(data: bytes) -> None:
    with pytest.raises(BlockFormatError):
        SetCutter().feed(data)


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x80", b"\x0a\x05abc", b"\x0a\x80\x80\x80\x01" + bytes(10)])
def test_a_block_that_is_cut_short_is_noticed_at_its_end(data: bytes) -> None:
    cutter = SetCutter()
    cutter.feed(data)
    with pytest.raises(BlockFormatError):
        cutter.finish()
