"""`check_integrity` finds each kind of damage of the tree in memory. Method: a right tree is damaged in one place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from block_manager import BlockManager, IntegrityBroken, MemoryStore
from block_manager.tree import ForkTree, References
from tests.block_manager.samples import chain


def count_wrongly(tree: ForkTree) -> None:
    tree._entries["E"].dependents += 1


def forget_counts(tree: ForkTree) -> None:
    del tree._entries["F"]


def keep_a_stored_block(tree: ForkTree) -> None:
    tree._blocks["B"] = chain("B", "A", 2)[0]
    tree._entries["B"] = References(external=1)
    tree._entries["A"].dependents += 1


def lose_a_parent(tree: ForkTree) -> None:
    del tree._blocks["D"]


def own_more_than_all(tree: ForkTree) -> None:
    tree._entries["F"].owned = 2


def hold_a_block_that_is_nowhere(tree: ForkTree) -> None:
    tree._entries["X"] = References(external=1)


def lose_the_counts_of_a_parent(tree: ForkTree) -> None:
    del tree._entries["A"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (count_wrongly, "block E does not have the dependents of its count"),
        (forget_counts, "block F has no reference count"),
        (keep_a_stored_block, "block B is in memory and in a store"),
        (lose_a_parent, "block E is here without its parent D"),
        (own_more_than_all, "block F has the impossible counts"),
        (hold_a_block_that_is_nowhere, "block X is held, but is nowhere"),
        (lose_the_counts_of_a_parent, r"the dependents of \['A'\] are not counted"),
    ],
)
def test_damage_is_found(damage: Callable[[ForkTree], None], told: str) -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D E F", "A", 2))
    manager.add_store("s", MemoryStore())
    manager.persist("C", "s")
    manager.check_integrity()
    damage(manager._known.tree)
    with pytest.raises(IntegrityBroken, match=told):
        manager.check_integrity()
