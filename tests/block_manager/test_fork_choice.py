"""The choice of the heaviest branch, against the simplest model: all blocks in a dictionary, and a path to the head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockManager,
    BlockStoreError,
    ForkChoice,
    MemoryStore,
    NumberNotIncreasing,
    open_store,
)


def weight_of(block: Block) -> int:
    return int(block.data or b"0")


@st.composite
def arrivals(draw: st.DrawFn) -> list[Block]:
    """A tree of blocks with weights that can be equal, in any order, some of them twice."""
    blocks = [Block("b0", NULL_BLOCK_ID, 0, b"0")]
    for index in range(1, draw(st.integers(2, 25))):
        # A parent among the last few makes long branches.
        parent = blocks[draw(st.integers(max(0, index - 4), index - 1))]
        gain = draw(st.integers(0, 2))
        blocks.append(Block(f"b{index}", parent.block_id, parent.number + 1, b"%d" % (weight_of(parent) + gain)))
    return draw(st.permutations(blocks)) + draw(st.lists(st.sampled_from(blocks), max_size=5))


class Model:
    """What a program has that obeys the changes, and what it should have."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.applied: list[Block] = []
        self.heaviest = -1

    def add(self, block: Block) -> None:
        self.blocks[block.block_id] = block
        weights = [weight_of(each) for each in self.blocks.values() if self.path_to(each)]
        self.heaviest = max([self.heaviest, *weights])

    def path_to(self, block: Block) -> list[Block]:
        path = [block]
        while path[-1].previous_id != NULL_BLOCK_ID:
            if path[-1].previous_id not in self.blocks:
                return []
            path.append(self.blocks[path[-1].previous_id])
        return path[::-1]


@pytest.mark.parametrize("keep_blocks", [None, 3])
@given(blocks=arrivals())
def test_the_changes_lead_to_the_heaviest_branch_whatever_comes_first(
    keep_blocks: int | None, blocks: list[Block]
) -> None:
    """Goal: after each block, what was applied and not undone is a whole branch, and none that is known is heavier;
    nothing that is on it is lost, and nothing stays in memory that nobody needs."""
    manager, model = BlockManager(), Model()
    manager.add_store("final", MemoryStore())
    choice = ForkChoice(manager, weight_of, None if keep_blocks is None else "final", keep_blocks=keep_blocks or 99)
    undone_max = 0
    for block in blocks:
        before, change = choice.head, choice.add(block)
        model.add(block)
        if change is None:
            assert choice.head == before
        else:
            assert before is None or weight_of(change.apply[-1]) > weight_of(before)
            undone_max = max(undone_max, len(change.undo))
            for undone in change.undo:
                assert model.applied.pop() == undone
            model.applied += change.apply
        assert choice.head == (model.applied[-1] if model.applied else None)
        if choice.head is not None:
            assert model.applied == model.path_to(choice.head)
            if keep_blocks is None:
                assert weight_of(choice.head) == model.heaviest
    manager.check_integrity()
    choice.persist()
    stored = manager.head("final")
    if keep_blocks is None:
        assert not list(choice.orphans())
        assert stored is None
    elif len(model.applied) > keep_blocks >= undone_max:
        # A heavier branch can be shorter, and nothing shortens a stored branch.
        assert stored in model.applied[-1 - keep_blocks :]
    manager.check_integrity()


def test_orphans_are_bounded_and_the_last_ones_go(tmp_path: Path) -> None:
    manager = BlockManager()
    choice = ForkChoice(manager, lambda block: block.number, orphans_max=2)
    chain = [Block(f"c{n}", f"c{n - 1}" if n else NULL_BLOCK_ID, n) for n in range(5)]
    for block in reversed(chain[1:]):
        assert choice.add(block) is None
    assert choice.dropped_count == 2
    change = choice.add(chain[0])
    assert change is not None
    assert change.apply == tuple(chain[:3])
    with pytest.raises(NumberNotIncreasing):
        choice.add(Block("d", "c2", 2))
    choice.add(Block("f", "e", 3))
    assert choice.add(Block("e", "c2", 3)) is not None
    assert (choice.dropped_count, list(choice.orphans())) == (3, [])


def test_an_orphan_whose_id_another_block_has_costs_only_itself() -> None:
    """Claim: an orphan that cannot be put, as another block took its id meanwhile, keeps no other one from the branch.
    Method: the parent comes after two children, of which the first has the id of the head."""
    choice = ForkChoice(BlockManager(), lambda block: block.number)
    choice.add(Block("g", NULL_BLOCK_ID, 0))
    choice.add(Block("x", "g", 1, b"one"))
    for orphan in (Block("x", "p", 2, b"another"), Block("y", "p", 3), Block("z", "y", 4)):
        choice.add(orphan)
    change = choice.add(Block("p", "g", 1))
    assert change is not None
    assert [block.block_id for block in change.apply] == ["p", "y", "z"]
    assert choice.dropped_count == 1


def test_an_add_that_failed_is_repeated_with_its_orphans() -> None:
    """Claim: after a store that could not be read, the same call leads to the whole branch, and counts a dropped orphan
    once. Method: the store fails at each of its reads in turn; each time the block is added once more."""

    class Failing(MemoryStore):
        reads_left = -1

        def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
            self.reads_left -= 1
            if self.reads_left == -1:
                raise BlockStoreError("no answer")
            return super().get(block_ids)

    failures = 0
    for reads in range(30):
        store, manager = Failing([Block("g", NULL_BLOCK_ID, 0)]), BlockManager()
        manager.add_store("chain", store)
        choice = ForkChoice(manager, lambda block: block.number, "chain")
        for orphan in (Block("low", "p", 1), Block("y", "p", 3), Block("w", "p", 2), Block("z", "y", 4)):
            choice.add(orphan)
        store.reads_left = reads
        try:
            change = choice.add(Block("p", "g", 1))
        except BlockStoreError:
            failures += 1
            change = choice.add(Block("p", "g", 1))
        assert change is not None
        assert [block.block_id for block in change.apply] == ["p", "y", "z"]
        assert (choice.dropped_count, list(choice.orphans())) == (1, [])
        manager.check_integrity()
    assert 2 < failures < 30


def test_a_head_without_a_reference_of_its_own_gets_one() -> None:
    """Goal: the choice goes on from the head of a store, however the store came there, and releases it once.

    Method: a store whose newest block has a child in memory when it is added, and two choices, one after the other.
    """
    chain = [Block("a", NULL_BLOCK_ID, 0), Block("b", "a", 1)]
    manager = BlockManager()
    manager.put([*chain, Block("c", "b", 2)])
    manager.add_store("chain", MemoryStore(chain))
    for fork in ("d", "e"):
        choice = ForkChoice(manager, lambda block: block.number, "chain")
        change = choice.add(Block(fork, "b", 2))
        assert change is not None
        assert [block.block_id for block in change.apply] == [fork]
        assert manager.get_reference_count("b").external == 0
        manager.check_integrity()


def test_a_store_on_disk_goes_on_where_it_was(tmp_path: Path) -> None:
    """Goal: one import opens it; forks before the kept end are dropped, and the next life begins at the stored head."""
    chain = [Block(f"c{n}", f"c{n - 1}" if n else NULL_BLOCK_ID, n) for n in range(20)]
    with open_store(tmp_path) as store:
        manager = BlockManager()
        manager.add_store("chain", store)
        choice = ForkChoice(manager, lambda block: block.number, "chain", keep_blocks=4)
        for block in (*chain[:6], Block("fork", "c3", 4), *chain[6:]):
            choice.add(block)
        choice.persist()
        assert manager.head("chain") == chain[15]
        assert not manager.contains("fork")
        assert manager.statistics().tree.block_count == 4
    with open_store(tmp_path) as store:
        manager = BlockManager()
        manager.add_store("chain", store)
        choice = ForkChoice(manager, lambda block: block.number, "chain", keep_blocks=4)
        assert choice.head == chain[15]
        other = [Block(f"o{n}", f"o{n - 1}" if n > 14 else "c13", n) for n in range(14, 20)]
        changes = [change for block in other if (change := choice.add(block)) is not None]
        assert [block.block_id for block in changes[0].undo] == ["c15", "c14"]
        assert [block.block_id for block in changes[0].apply] == ["o14", "o15", "o16"]
        choice.persist()
        assert manager.head("chain") == other[1]
        assert not manager.contains("c15")
        manager.check_integrity()
