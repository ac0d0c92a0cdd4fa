"""The faults of the first implementation, by their numbers in `facts/block_manager.md`, section 2.3: not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from block_manager import BlockManager, MemoryStore, MissingPredecessor, ReferenceBelowZero, StoreExists
from block_manager.commit_store import CommitStore
from tests.block_manager.commit_samples import open_transactions
from tests.block_manager.samples import chain, counts, ids, in_memory


def stored_manager() -> tuple[BlockManager, MemoryStore]:
    """A B C, put and persisted in `s`."""
    manager, store = BlockManager(), MemoryStore()
    manager.put(chain("A B C"))
    manager.add_store("s", store)
    manager.persist("C", "s")
    return manager, store


def filled_manager() -> tuple[BlockManager, MemoryStore]:
    """A store `s` that had A B C D when it was added."""
    manager, store = BlockManager(), MemoryStore(chain("A B C D"))
    manager.add_store("s", store)
    return manager, store


def test_1_unref_of_a_persisted_block_does_not_drop_it() -> None:
    manager, _ = stored_manager()
    manager.put(chain("X", "B", 3))
    manager.ref_block("A")
    assert not manager.unref_block("C")
    assert counts(manager, "A B C X") == "A:1:1 B:0:2 C:0:0 X:1:0"
    assert ids(manager.branch("C")) == "C B A"


def test_2_unref_of_a_child_of_a_released_persisted_block_returns() -> None:
    manager, _ = stored_manager()
    manager.unref_block("C")
    manager.put(chain("D", "C", 4))
    assert counts(manager, "C D") == "C:0:1 D:1:0"
    assert manager.unref_block("D")
    assert counts(manager, "C") == "C:0:0"
    manager.check_integrity()


def test_2_unref_of_a_fork_from_the_middle_of_a_filled_store_returns() -> None:
    manager, _ = filled_manager()
    manager.put(chain("X", "B", 3))
    assert manager.unref_block("X")
    assert counts(manager, "B D") == "B:0:1 D:1:0"
    manager.check_integrity()


def test_2_unref_of_a_block_displaced_from_a_filled_store_returns() -> None:
    manager, _ = filled_manager()
    manager.put(chain("X Y", "B", 3))
    manager.persist("Y", "s")
    assert manager.unref_block("D")
    assert in_memory(manager) == 0
    manager.check_integrity()


def test_3_put_of_a_list_that_extends_a_known_block_counts_the_new_child() -> None:
    manager = BlockManager()
    manager.put(chain("A B"))
    manager.put(chain("A B C"))
    assert counts(manager, "A B C") == "A:0:1 B:1:1 C:1:0"
    assert not manager.unref_block("B")
    assert ids(manager.branch("C")) == "C B A"
    manager.check_integrity()


def test_4_blocks_displaced_from_a_filled_store_are_counted() -> None:
    manager, store = filled_manager()
    manager.put(chain("X Y Z", "B", 3))
    manager.persist("Z", "s")
    assert ids(store.iter()) == "Z Y X B A"
    assert counts(manager, "B C D") == "B:0:2 C:0:1 D:1:0"
    manager.check_integrity()
    assert manager.unref_block("D")
    assert [manager.contains(block_id) for block_id in "CD"] == [False, False]


@pytest.mark.parametrize(("parent", "before", "after"), [("D", "D:1:0", "D:1:1"), ("B", "B:0:1", "B:0:2")])
def test_5_the_parent_of_a_new_block_is_counted_in_the_store(parent: str, before: str, after: str) -> None:
    manager, _ = filled_manager()
    assert counts(manager, parent) == before
    manager.put(chain("X", parent, 9))
    assert counts(manager, parent) == after
    manager.unref_block("X")
    assert counts(manager, parent) == before


def test_6_every_added_block_has_a_count_of_one() -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    assert [manager.get_reference_count(block_id).total for block_id in "ABC"] == [1, 1, 1]


def test_7_the_commit_store_answers_from_a_cache(tmp_path: Path) -> None:
    with open_transactions(tmp_path) as transactions:
        store = CommitStore(transactions)
        store.put(chain("A B C"))
        assert ids(store.get(["A", "B", "C"])) == "A B C"
        assert (store.statistics().hit_count, store.statistics().miss_count) == (3, 0)


def test_8_persist_of_an_ancestor_of_the_head_takes_nothing_out_of_the_store() -> None:
    manager, store = stored_manager()
    manager.persist("A", "s")
    assert ids(store.iter()) == "C B A"
    assert in_memory(manager) == 0


def test_unref_below_zero_is_an_error_and_no_poison() -> None:
    manager, _ = stored_manager()
    manager.unref_block("C")
    for block_id in "CBA":
        with pytest.raises(ReferenceBelowZero):
            manager.unref_block(block_id)
    assert counts(manager, "A B C") == "A:0:1 B:0:1 C:0:0"


def test_add_store_twice_is_an_error_and_loses_nothing() -> None:
    manager, store = stored_manager()
    with pytest.raises(StoreExists):
        manager.add_store("s", MemoryStore())
    assert ids(store.iter()) == ids(manager.branch("C")) == "C B A"


def test_a_store_with_nothing_but_block_0_has_a_head() -> None:
    store = MemoryStore(chain("A", number=0))
    assert ids(store.iter()) == "A"
    assert ids(store.delete(["A"])) == "A"
    assert ids(store.iter()) == ""


def test_a_ref_of_a_stored_block_can_be_released_again() -> None:
    manager, _ = filled_manager()
    manager.ref_block("B")
    assert counts(manager, "B") == "B:1:1"
    manager.unref_block("B")
    assert counts(manager, "B") == "B:0:1"
    manager.unref_block("D")
    manager.put(chain("X", "A", 2))
    manager.persist("X", "s")
    assert not manager.contains("B")
    with pytest.raises(MissingPredecessor):
        manager.put(chain("Y", "D", 5))
