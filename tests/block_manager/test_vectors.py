"""The vectors of the real Rust block manager: the same results, step by step, except where it is listed as wrong.

tests/vectors/block_manager has all scenarios and every tenth random sequence, the folder beside the repository
has all. After a sequence has met a listed difference its state is another one, so from there on the naive model
says what is right; before, and in every other sequence, upstream and the model both do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.block_manager.vector_driver import OURS, Driver, ManagerSubject, ModelSubject, Step, agrees, load

RELEASED = "releasing a stored block never drops it, nor the counts of its ancestors (RFC, unref, step 1)"
REPEATED = "a new block is counted at its parent, wherever in the list its parent was named (RFC, put, step 2a)"
NUMBERS = "a branch is sorted by increasing number (RFC, put, condition 2)"
BELOW_ZERO = "a release below zero is an error, not the end of the process (RFC, unref_block)"
TWICE = "a second store of one name is an error, and the first keeps its blocks (RFC, add_store)"
SHORTER = "a branch that the store has is in the store: nothing to do (RFC, persist)"
UNCOUNTED = "the parent of a new block is counted wherever it is stored (RFC, put, step 1)"
COUNTED = "displaced blocks come back under their counts, so they can be released"

ABC = "A:0:1:pool B:0:1:pool C:1:0:pool"
STORED_ABC = "A:0:1:- B:0:1:- C:1:0:-"

# By scenario and step: what we answer where upstream answers otherwise, and why.
DIFFERENT: dict[str, tuple[str, dict[int, str]]] = {
    "put_block_num_not_checked": (NUMBERS, {0: "Err(NumberNotIncreasing)", 1: ""}),
    "put_extends_existing_inside_list": (
        REPEATED,
        {
            3: "A:0:1:pool B:1:1:pool C:1:0:pool",
            4: "Ok(false)",
            5: ABC,
            6: "Ok(true)",
            8: "C,B,A",
        },
    ),
    "unref_inner_below_zero": (BELOW_ZERO, {1: "Err(ReferenceBelowZero)", 2: ABC, 3: "Ok(true)"}),
    "add_store_twice": (TWICE, {3: "Err(StoreExists)", 5: "C,B,A"}),
    "persist_ancestor_rolls_back": (SHORTER, {4: "C,B,A", 5: STORED_ABC}),
    "unref_persisted_tip": (RELEASED, {3: "Ok(false)"}),
    "store_with_history_fork_from_old": (UNCOUNTED, {5: "Ok(true)", 6: STORED_ABC}),
    "store_with_history_persist_fork": (
        COUNTED,
        {
            4: "A:0:1:- B:0:2:- C:0:1:pool D:1:0:pool X:0:1:- Y:0:1:- Z:1:0:-",
            5: "Ok(true)",
            6: "A:0:1:- B:0:1:- X:0:1:- Y:0:1:- Z:1:0:-",
            7: "-,-",
        },
    ),
    "put_block_already_in_store": (REPEATED, {4: "A:0:1:- B:1:1:- C:1:0:pool"}),
}

# Random sequences that meet a listed difference, with the first step that shows it.
LEAVES: dict[str, tuple[int, str]] = {
    "fuzz_070": (22, RELEASED),
    "fuzz_080": (13, RELEASED),
    "fuzz_156": (7, RELEASED),
    "fuzz_158": (9, RELEASED),
    "fuzz_198": (7, RELEASED),
    "fuzz_200": (14, RELEASED),
    "fuzz_222": (7, RELEASED),
    "fuzz_224": (12, SHORTER),
    "fuzz_254": (13, RELEASED),
    "fuzz_272": (12, RELEASED),
    "fuzz_274": (9, RELEASED),
    "fuzz_304": (32, SHORTER),
    "fuzz_314": (22, RELEASED),
    "fuzz_322": (16, RELEASED),
    "fuzz_386": (27, RELEASED),
    "fuzz_394": (24, SHORTER),
}

SCENARIOS = load(OURS / "scenarios.json")
SEQUENCES = load(OURS / "random_sequences.json")


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    subject = ManagerSubject()
    driver, model = Driver(subject), Driver(ModelSubject())
    _, different = DIFFERENT.get(name, ("", {}))
    for number, step in enumerate(SCENARIOS[name]):
        ours = driver.run(step.op)
        assert ours == model.run(step.op)
        if number in different:
            assert (ours, agrees(step, ours)) == (different[number], False), step
        else:
            assert agrees(step, ours), (number, step, ours)
        subject.manager.check_integrity()


def test_every_listed_difference_is_of_a_scenario() -> None:
    assert DIFFERENT.keys() <= SCENARIOS.keys()


@pytest.mark.parametrize("name", SEQUENCES)
def test_random_sequence(name: str) -> None:
    check_sequence(name, SEQUENCES[name])


def test_all_random_sequences(shared_dir: Path) -> None:
    sequences = load(shared_dir / "vectors" / "block_manager" / "random_sequences.json")
    assert sequences.keys() > SEQUENCES.keys()
    assert sequences.keys() >= LEAVES.keys()
    for name, steps in sequences.items():
        check_sequence(name, steps)


def check_sequence(name: str, steps: list[Step]) -> None:
    subject = ManagerSubject()
    driver, model = Driver(subject), Driver(ModelSubject())
    leaves, _ = LEAVES.get(name, (None, ""))
    for number, step in enumerate(steps):
        ours = driver.run(step.op)
        assert ours == model.run(step.op), (name, number, step)
        if leaves is None or number < leaves:
            assert agrees(step, ours), (name, number, step, ours)
        elif number == leaves:
            assert not agrees(step, ours), (name, number, step, ours)
        subject.manager.check_integrity()
