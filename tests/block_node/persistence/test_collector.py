"""Goal: what is stored of a block is exactly its serialized form, however its items come and whatever is staged.

Method: against the plain join of tags, lengths and items.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node import persistence_collector
from block_node.persistence_collector import BlockCollector, prefix_of
from tests.block_node.persistence.block_samples import root_of, serialized

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 127, 128, 200]))


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=30), st.integers(1, 5))
def test_the_parts_are_the_block_however_it_comes(pieces: list[tuple[int, bool]], run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("block_node.persistence_mark.PART_BYTES_MAX", 64)
        patch.setattr(persistence_collector, "PART_BYTES_MAX", 64)
        patch.setattr(persistence_collector, "cut", lambda data: [data[at : at + 64] for at in range(0, len(data), 64)])
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
