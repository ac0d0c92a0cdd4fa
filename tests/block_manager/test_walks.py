"""`branch` and `branch_diff`: what they give, and what they hold for how long."""

from __future__ import annotations

import gc

import pytest

from block_manager import BlockManager, MemoryStore, ReferenceBelowZero, UnknownBlock
from tests.block_manager.samples import FaultyStore, StoreBroken, chain, counts, ids, in_memory


@pytest.fixture
def manager() -> BlockManager:
    """A B C, and D E F from A, with other numbers."""
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E F", "A", 2))
    return manager


def test_branch_walks_from_the_tip_to_the_root(manager: BlockManager) -> None:
    assert ids(manager.branch("C")) == "C B A"
    assert ids(manager.branch("A")) == "A"


@pytest.mark.parametrize(
    ("tip", "exclude", "walked"),
    [
        ("C", "F", "C B"),
        ("F", "C", "F E D"),
        ("C", "C", ""),
        ("C", "A", "C B"),
        ("A", "C", ""),
        ("B", "F", "B"),
    ],
)
def test_branch_diff(manager: BlockManager, tip: str, exclude: str, walked: str) -> None:
    assert ids(manager.branch_diff(tip, exclude)) == walked


def test_branch_diff_of_branches_whose_numbers_leave_gaps() -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.put(chain("C D", "B", 90) + chain("E", "D", 1_000))
    manager.put(chain("F G H I", "B", 4))
    assert ids(manager.branch_diff("E", "I")) == "E D C"
    assert ids(manager.branch_diff("I", "E")) == "I H G F"


def test_branch_diff_without_a_common_ancestor_is_the_branch() -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.put(chain("X Y Z"))
    assert ids(manager.branch_diff("B", "Z")) == "B A"
    assert ids(manager.branch_diff("Z", "B")) == "Z Y X"


def test_unknown_blocks_raise_at_creation_and_leave_no_hold(manager: BlockManager) -> None:
    with pytest.raises(UnknownBlock):
        manager.branch("Z")
    with pytest.raises(UnknownBlock):
        manager.branch_diff("Z", "C")
    with pytest.raises(UnknownBlock):
        manager.branch_diff("C", "Z")
    assert counts(manager, "C") == "C:1:0"


def test_a_walk_holds_what_it_walks(manager: BlockManager) -> None:
    walk = manager.branch("C")
    assert counts(manager, "C") == "C:2:0"
    assert not manager.unref_block("C"), "the walk has it"
    assert ids(walk) == "C B A"
    assert not manager.contains("C"), "the walk is over"
    assert list(walk) == []


def test_a_diff_holds_both_sides(manager: BlockManager) -> None:
    walk = manager.branch_diff("F", "C")
    manager.unref_block("F")
    manager.unref_block("C")
    assert ids(walk) == "F E D"
    assert in_memory(manager) == 0


def test_a_walk_over_one_block_twice_gives_back_both_holds(manager: BlockManager) -> None:
    walk = manager.branch_diff("C", "C")
    assert counts(manager, "C") == "C:3:0"
    assert list(walk) == []
    assert counts(manager, "C") == "C:1:0"


def test_close_ends_a_walk(manager: BlockManager) -> None:
    with manager.branch("C") as walk:
        assert next(walk).block_id == "C"
        manager.unref_block("C")
    assert not manager.contains("C")
    assert list(walk) == []
    walk.close()
    assert counts(manager, "A") == "A:0:1"


def test_a_forgotten_walk_lets_go(manager: BlockManager) -> None:
    walk = manager.branch("C")
    next(walk)
    manager.unref_block("C")
    del walk
    assert not manager.contains("C")


def test_a_walk_that_the_garbage_collector_finds_lets_go(manager: BlockManager) -> None:
    """Collection may run while the manager is locked, even by its own allocations, so nothing is released inside."""
    circle: list[object] = [manager.branch("C")]
    circle.append(circle)
    del circle
    with manager._known.lock():
        gc.collect()
        assert manager._known.tree.find_references("C").external == 2  # type: ignore[union-attr]
    assert counts(manager, "C") == "C:1:0"


def test_nobody_else_can_release_the_hold_of_a_walk(manager: BlockManager) -> None:
    walk = manager.branch("C")
    assert not manager.unref_block("C")
    with pytest.raises(ReferenceBelowZero):
        manager.unref_block("C")
    assert ids(walk) == "C B A"


def test_a_walk_goes_on_where_blocks_have_moved(manager: BlockManager) -> None:
    manager.add_store("s", MemoryStore())
    manager.persist("C", "s")
    up, down = manager.branch("C"), manager.branch("F")
    assert (next(up).block_id, next(down).block_id) == ("C", "F")
    manager.persist("F", "s")
    assert (ids(up), ids(down)) == ("B A", "E D A")


def test_a_step_that_failed_can_be_repeated() -> None:
    manager = BlockManager()
    store = FaultyStore(chain("A B"))
    manager.add_store("s", store)
    manager.put(chain("C", "B", 3))
    walk = manager.branch("C")
    assert next(walk).block_id == "C"
    store.unreadable = 2
    for _ in range(2):
        with pytest.raises(StoreBroken):
            next(walk)
    assert ids(walk) == "B A"


def test_a_walk_ends_at_the_oldest_block_of_a_store() -> None:
    manager = BlockManager()
    manager.add_store("s", MemoryStore(chain("M N", "L", 13)))
    assert ids(manager.branch("N")) == "N M"
    manager.put(chain("O", "N", 15))
    assert ids(manager.branch("O")) == "O N M"
