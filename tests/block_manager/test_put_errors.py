"""Which error a branch with more than one fault gets: the one that the real Rust block manager raises.

The vectors are 400 branches of up to four blocks, in disorder, with gaps, repetitions and falling numbers, each
with the answer of the real block manager. What that one takes, ours takes or refuses for a reason of its own.
"""

from __future__ import annotations

import json

import pytest

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockConflict,
    BlockManager,
    BlockManagerError,
    MemoryStore,
    MissingPredecessor,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
)
from tests.block_manager.samples import FaultyStore, StoreBroken, chain
from tests.block_manager.vector_driver import OURS

CASES = json.loads((OURS / "put_errors.json").read_bytes())["cases"]

OUR_OWN = {"NumberNotIncreasing", "BlockConflict"}
"""Errors that the real block manager does not have: it checks no numbers and compares no blocks."""


def blocks(text: str) -> list[Block]:
    found = []
    for block_id, parent, number in (token.split(":") for token in text.split()):
        found.append(Block(block_id, NULL_BLOCK_ID if parent == "NULL" else parent, int(number)))
    return found


def test_the_real_answers_come_first() -> None:
    answers: dict[str, int] = {}
    for case in CASES:
        manager = BlockManager()
        if case["before"]:
            manager.put(blocks(case["before"]))
        if case["persisted"] != "-":
            manager.add_store("s", MemoryStore())
            manager.persist(case["persisted"], "s")
        try:
            manager.put(blocks(case["put"]))
            answer = "Ok"
        except BlockManagerError as error:
            answer = type(error).__name__
        assert answer == case["result"] or (case["result"] == "Ok" and answer in OUR_OWN), (case, answer)
        manager.check_integrity()
        answers[answer] = answers.get(answer, 0) + 1
    assert answers.keys() == {"Ok", "MissingPredecessor", "MissingPredecessorInBranch"} | OUR_OWN


@pytest.mark.parametrize(
    ("branch", "error"),
    [
        (chain("B", "A", 2) + chain("A"), MissingPredecessor),
        (chain("B", "Q", 2) + chain("D", "C", 1), MissingPredecessor),
        (chain("B", "Q", 2) + chain("C", "B", 2), MissingPredecessor),
        ([*chain("B", "Q"), Block(NULL_BLOCK_ID, "B", 2)], MissingPredecessor),
        (chain("X", "P", 1) + chain("Y", "Z", 9), MissingPredecessorInBranch),
        (chain("X") + chain("Y", "X", 1) + chain("Z", "V", 3), MissingPredecessorInBranch),
        (chain("X Y") + chain("X", "Y", 3) + chain("Z", "V", 4), MissingPredecessorInBranch),
        ([*chain("X", "P", 1), Block("P", "X", 2, b"other")], NumberNotIncreasing),
        (chain("X Y") + chain("X", "Y", 2), NumberNotIncreasing),
        (chain("X", "P", 9) + chain("P", "X", 10), BlockConflict),
    ],
)
def test_one_of_two_faults_is_told(branch: list[Block], error: type[BlockManagerError]) -> None:
    manager = BlockManager()
    manager.put(chain("P", number=5))
    with pytest.raises(error):
        manager.put(branch)
    assert manager.statistics().tree.block_count == 1
    manager.check_integrity()


def test_the_message_names_the_block_that_is_missing() -> None:
    manager = BlockManager()
    with pytest.raises(MissingPredecessor, match="the parent A of block B is not here; put it first"):
        manager.put(chain("B", "A", 2) + chain("A"))
    manager.put(chain("A"))
    with pytest.raises(MissingPredecessorInBranch, match="block A names 0000000000000000 as its parent, but follows B"):
        manager.put(chain("B", "A", 2) + chain("A"))


def test_a_store_that_cannot_be_read_is_told_before_any_fault() -> None:
    manager = BlockManager()
    store = FaultyStore()
    manager.add_store("s", store)
    store.unreadable = 1
    with pytest.raises(StoreBroken):
        manager.put(chain("B", "A", 2) + chain("D", "C", 1))
    with pytest.raises(MissingPredecessor):
        manager.put(chain("B", "A", 2) + chain("D", "C", 1))
