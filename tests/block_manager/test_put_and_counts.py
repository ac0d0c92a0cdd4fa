"""Putting blocks and counting references, without stores: upstream's own tests, bad input, and what is easy to
get wrong."""

from __future__ import annotations

import pytest

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockConflict,
    BlockManager,
    BlockManagerError,
    MissingInput,
    MissingPredecessor,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
    ReferenceBelowZero,
    ReferenceCount,
    UnknownBlock,
)
from tests.block_manager.samples import chain, counts, ids, in_memory


@pytest.fixture
def manager() -> BlockManager:
    """A, B, C in a row; D beside C."""
    manager = BlockManager()
    manager.put(chain("A B C"))
    manager.put(chain("D", "B", 3))
    return manager


def test_put_gives_every_block_a_count_of_one() -> None:
    manager = BlockManager()
    manager.put(chain("A B C"))
    assert counts(manager, "A B C") == "A:0:1 B:0:1 C:1:0"
    assert manager.get_reference_count("A").total == 1


def test_put_takes_any_iterable_once() -> None:
    manager = BlockManager()
    manager.put(block for block in chain("A B"))
    assert manager.contains("B")


def test_put_twice_changes_nothing(manager: BlockManager) -> None:
    manager.put(chain("A B C"))
    assert counts(manager, "A B C D") == "A:0:1 B:0:2 C:1:0 D:1:0"
    assert manager.unref_block("C")
    assert not manager.contains("C")


def test_put_counts_at_a_parent_that_is_not_the_tip(manager: BlockManager) -> None:
    manager.put(chain("E", "A", 2))
    assert counts(manager, "A B") == "A:0:2 B:0:2"


@pytest.mark.parametrize(
    ("branch", "error"),
    [
        ([], MissingInput),
        (chain("X", "Q"), MissingPredecessor),
        (chain("A") + chain("C", "B", 3), MissingPredecessorInBranch),
        (chain("A") * 2, MissingPredecessorInBranch),
        (chain("X") + chain("Y", "X", 1), NumberNotIncreasing),
        (chain("X", "C", 3), NumberNotIncreasing),
        (chain("X", "C", 4) + chain("C", "X", 5), BlockConflict),
        (chain("X Y") + chain("X", "Y", 3), BlockConflict),
        ([Block("A", NULL_BLOCK_ID, 1, b"other")], BlockConflict),
        ([*chain("A"), Block("B", "A", 2, b"other"), *chain("Z", "B", 3)], BlockConflict),
        ([Block(NULL_BLOCK_ID, "C", 4)], BlockConflict),
        (chain("C", "D", 4), BlockConflict),
    ],
)
def test_put_refuses_what_is_no_branch_and_adds_nothing(
    manager: BlockManager, branch: list[Block], error: type[BlockManagerError]
) -> None:
    with pytest.raises(error):
        manager.put(branch)
    assert counts(manager, "A B C D") == "A:0:1 B:0:2 C:1:0 D:1:0"
    assert in_memory(manager) == 4
    manager.check_integrity()


def test_errors_say_which_block() -> None:
    manager = BlockManager()
    with pytest.raises(MissingPredecessor, match="the parent Q of block X is not here") as missing:
        manager.put(chain("X", "Q"))
    assert (missing.value.block_id, missing.value.previous_id) == ("X", "Q")
    with pytest.raises(MissingPredecessorInBranch, match="block C names B as its parent, but follows A") as gap:
        manager.put(chain("A") + chain("C", "B"))
    assert (gap.value.block_id, gap.value.previous_id, gap.value.expected_id) == ("C", "B", "A")
    with pytest.raises(NumberNotIncreasing, match="block B has number 7, its parent has 9") as number:
        manager.put(chain("A", number=9) + chain("B", "A", 7))
    assert (number.value.number, number.value.previous_number) == (7, 9)


def test_numbers_may_leave_gaps() -> None:
    manager = BlockManager()
    manager.put(chain("A", number=-3) + chain("B", "A", 2**70))
    assert ids(manager.branch("B")) == "B A"


def test_get_has_one_answer_for_each_id_in_order(manager: BlockManager) -> None:
    assert ids(manager.get(["C", "Z", "A", "C", NULL_BLOCK_ID])) == "C - A C -"
    assert list(manager.get([])) == []


def test_get_is_of_one_moment(manager: BlockManager) -> None:
    found = manager.get(["C", "B"])
    manager.unref_block("C")
    assert ids(found) == "C B"
    assert ids(manager.get(["C", "B"])) == "- B"


def test_contains(manager: BlockManager) -> None:
    assert [manager.contains(block_id) for block_id in ("A", "Z", NULL_BLOCK_ID)] == [True, False, True]


def test_unref_drops_the_block_and_what_only_it_needed(manager: BlockManager) -> None:
    assert manager.unref_block("C")
    assert counts(manager, "A B D") == "A:0:1 B:0:1 D:1:0"
    assert manager.unref_block("D")
    assert [manager.contains(block_id) for block_id in "ABCD"] == [False] * 4
    assert manager.statistics().tree.purged_count == 4
    with pytest.raises(MissingPredecessor):
        manager.put(chain("E", "A", 2))


def test_a_hold_keeps_the_block_and_its_ancestors(manager: BlockManager) -> None:
    manager.ref_block("B")
    assert manager.unref_block("C")
    assert manager.unref_block("D")
    assert counts(manager, "A B") == "A:0:1 B:1:0"
    with pytest.raises(MissingPredecessor):
        manager.put(chain("E", "C", 4))
    manager.put(chain("E", "B", 3))
    assert not manager.unref_block("B")
    assert manager.unref_block("E")
    assert in_memory(manager) == 0


def test_the_hand_over_of_the_rfc() -> None:
    manager = BlockManager()
    manager.put(chain("A"))
    manager.ref_block("A")
    assert not manager.unref_block("A"), "the completer still holds it"
    manager.put(chain("B", "A", 2))
    assert not manager.unref_block("A")
    assert counts(manager, "A B") == "A:0:1 B:1:0"


def test_unref_below_zero_raises_and_changes_nothing(manager: BlockManager) -> None:
    with pytest.raises(ReferenceBelowZero, match="block A has no reference left"):
        manager.unref_block("A")
    assert counts(manager, "A B C D") == "A:0:1 B:0:2 C:1:0 D:1:0"


def test_what_is_not_here_cannot_be_held_released_or_counted(manager: BlockManager) -> None:
    manager.unref_block("C")
    for block_id in ("C", "Z", NULL_BLOCK_ID):
        for ask in (manager.ref_block, manager.unref_block, manager.get_reference_count, manager.branch):
            with pytest.raises(UnknownBlock) as unknown:
                ask(block_id)
            assert unknown.value.block_id == block_id


def test_a_context_holds_and_gives_the_block(manager: BlockManager) -> None:
    with manager.ref_block_ctx("C") as block:
        assert block == chain("A B C")[2]
        manager.unref_block("C")
        assert manager.get_reference_count("C") == ReferenceCount(external=1, internal=0)
    assert not manager.contains("C")


def test_a_context_lets_go_when_its_body_raises(manager: BlockManager) -> None:
    with pytest.raises(KeyError), manager.ref_block_ctx("B"):
        raise KeyError
    assert counts(manager, "B") == "B:0:2"


def test_a_context_may_be_entered_again_and_within_itself(manager: BlockManager) -> None:
    context = manager.ref_block_ctx("A")
    with context, context:
        assert counts(manager, "A") == "A:2:1"
    with context:
        assert counts(manager, "A") == "A:1:1"
    assert counts(manager, "A") == "A:0:1"


def test_a_context_of_an_unknown_block_raises_when_entered(manager: BlockManager) -> None:
    context = manager.ref_block_ctx("Z")
    with pytest.raises(UnknownBlock), context:
        pytest.fail("it must not be entered")


def test_nobody_else_can_release_the_hold_of_a_context(manager: BlockManager) -> None:
    with manager.ref_block_ctx("A"):
        with pytest.raises(ReferenceBelowZero):
            manager.unref_block("A")
        assert counts(manager, "A") == "A:1:1"


def test_a_long_branch_is_dropped_without_recursion() -> None:
    manager = BlockManager()
    manager.put(chain(" ".join(map(str, range(20_000)))))
    assert sum(1 for _ in manager.branch("19999")) == 20_000
    assert manager.unref_block("19999")
    assert in_memory(manager) == 0
