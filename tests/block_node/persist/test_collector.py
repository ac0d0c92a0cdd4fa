"""Goal: what is stored of a block is exactly its serialized form, however its items come and whatever is staged.

Method: against the plain join of tags, lengths and items.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.items import make_item
from block_node.persist import plugin as collector_module
from block_node.persist.plugin import BlockCollector, prefix_of
from tests.block_node.persist.block_samples import root_of, serialized

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 127, 128, 200]))


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=30), st.integers(1, 5))
def test_the_parts_are_the_block_however_it_comes(pieces: list[tuple[int, bool]], run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("block_node.persist.mark.PART_BYTES_MAX", 64)
        patch.setattr(collector_module, "PART_BYTES_MAX", 64)
        patch.setattr(collector_module, "cut", lambda data: [data[at : at + 64] for at in range(0, len(data), 64)])
        collector, staged = BlockCollector(7), list[bytes]()
        items = [bytes((at % 256,)) * size for at, (size, _) in enumerate(pieces)]
        for at in range(0, len(items), run):
            collector.add(items[at : at + run])
            if pieces[at][1]:
                first, parts = collector.take_parts()
                assert first == len(staged)
                staged += parts
        block = collector.finish(3, root_of(items))
        parts = [*staged, *block.parts]
        assert b"".join(parts) == serialized(items)
        assert (block.items, block.size_bytes, block.staged) == (len(items), len(serialized(items)), len(staged))
        assert all(len(part) == 64 for part in parts[:-1])
        assert block.attempt == (7 if staged else None)


@pytest.mark.parametrize("size_bytes", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_length_of_an_item_is_written_as_protobuf_does(size_bytes: int) -> None:
    tag, *length = prefix_of(size_bytes)
    assert tag == 0x0A
    assert sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(length)) == size_bytes
    assert [byte >= 0x80 for byte in length] == [True] * (len(length) - 1) + [False]
    assert len(length) == max(1, -(-size_bytes.bit_length() // 7))


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(1, 90))
def test_an_item_in_pieces_is_stored_as_the_whole_one(sizes: list[int], piece_bytes: int) -> None:
    whole, pieces = BlockCollector(1), BlockCollector(1)
    items = [make_item(4, bytes(size)) for size in sizes]
    for item in items:
        whole.add([item])
        for at in range(0, len(item), piece_bytes):
            pieces.add_piece(item[at : at + piece_bytes], last=at + piece_bytes >= len(item))
    assert b"".join(pieces.finish(3, b"").parts) == b"".join(whole.finish(3, b"").parts) == serialized(items)
    assert pieces.item_count == len(items)
    assert not pieces.broken


@pytest.mark.parametrize("change", [lambda item: item[:-1], lambda item: item + b"x", lambda item: b"\xff" * 30])
def test_pieces_that_are_no_item_are_noticed(change: Callable[[bytes], bytes]) -> None:
    collector, item = BlockCollector(1), change(make_item(4, bytes(100)))
    collector.add_piece(item[:50], last=False)
    collector.add_piece(item[50:], last=True)
    assert collector.broken
