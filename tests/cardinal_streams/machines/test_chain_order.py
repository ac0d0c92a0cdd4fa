"""The order of the chain against the real consumer's recorded runs: scenarios, random trees, upstream's own tests."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import ChainUpdate, Revert, Start
from cardinal_streams.payload import CompleteBatch
from tests.cardinal_streams.helpers import block, hash_of, names, vectors

SCENARIOS: dict[str, dict[str, Any]] = {
    case["name"]: case for case in vectors("chain_order_scenarios.json")["scenarios"]
}
RANDOM: dict[str, dict[str, Any]] = {case["name"]: case for case in vectors("chain_order_random.json")["scenarios"]}

Update = tuple[int, list[str], list[str]]  # after which block, removed, added

# Where ours differs: our updates. Facts, sections 1.4 and 1.5 ("Verified quirks").
DIFFERENCES: dict[str, list[Update]] = {
    # The real one needs the ancestor to be replayed; ours takes the start block's hash for what it is.
    "abcd_start_not_replayed": [(0, [], ["b"]), (2, ["b"], ["c", "d"])],
    "abcd_start_not_replayed_then_child": [
        (0, [], ["b"]),
        (2, ["b"], ["c", "d"]),
        (3, [], ["d3"]),
        (4, [], ["d4"]),
    ],
    # The real one emits p13, an orphan, after p11, and p12 never: no chain at all. Ours waits for p12.
    "startup_no_hash": [(0, [], ["p10"]), (1, [], ["p11"]), (3, [], ["p12", "p13"]), (4, [], ["p14"])],
    # The real one panics.
    "zero_weight_child_queued": [(2, [], ["x", "y"])],
    # The real one expects numbers without gaps.
    "sparse_numbers_reorg": [(1, [], ["s5"]), (2, [], ["s10"]), (4, ["s5", "s10"], ["t7", "t20"])],
    # The real one removes 12 blocks at a threshold of 8.
    "reorg_within_lru": [(index, [], [f"m{index}"]) for index in range(1, 13)],
}


def batch_of(given: dict[str, Any]) -> CompleteBatch:
    return block(given["name"], given["parent"], given["num"], given["weight"])


def machine_of(scenario: dict[str, Any]) -> ChainOrder:
    start = scenario["start"]
    return ChainOrder(
        None if start is None else Start(hash_of(start["name"]), start["num"], start["weight"]),
        scenario["reorg_threshold"],
        wanted={int(number): hash_of(name) for number, name in scenario.get("whitelist", {}).items()},
    )


def updates_of(machine: ChainOrder, index: int, batch: CompleteBatch) -> list[Update]:
    events = machine.receive(batch)
    machine.check()
    return [(index, names(event.removed), names(event.added)) for event in events if isinstance(event, ChainUpdate)]


def run(scenario: dict[str, Any]) -> list[Update]:
    machine = machine_of(scenario)
    found: list[Update] = []
    for index, given in enumerate(scenario["order"]):
        for update in scenario["updates"]:
            if update["at"] == index and "reorg_to" in update:
                events = machine.revert(hash_of(update["reorg_to"]), 0)
                assert [names(event.removed) for event in events if isinstance(event, Revert)] == [["b", "e", "f"]]
        found += updates_of(machine, index, batch_of(given))
    return found


def real_updates(scenario: dict[str, Any]) -> list[Update]:
    return [(each["at"], each["removed"], each["added"]) for each in scenario["updates"] if "added" in each]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    real = real_updates(SCENARIOS[name])
    if name in DIFFERENCES:
        assert run(SCENARIOS[name]) == DIFFERENCES[name] != real
    else:
        assert run(SCENARIOS[name]) == real


def heaviest(scenario: dict[str, Any]) -> list[str]:
    """The heaviest chain that hangs on the start block, without it."""
    blocks = {given["name"]: given for given in scenario["order"]}
    start = scenario["start"]["name"]
    best: list[str] = []
    for name in sorted(blocks, key=lambda name: blocks[name]["weight"]):
        chain = [name]
        while chain[-1] in blocks and chain[-1] != start:
            chain.append(blocks[chain[-1]]["parent"])
        if chain[-1] == start:
            best = chain[-2::-1]
    return best


def chain_after(updates: list[Update]) -> list[str]:
    chain: list[str] = []
    for _, removed, added in updates:
        assert chain[len(chain) - len(removed) :] == removed
        chain[len(chain) - len(removed) :] = added
    return chain


def test_there_are_150_random_trees() -> None:
    assert len(RANDOM) == 150
    assert {scenario["reorg_threshold"] for scenario in RANDOM.values()} == {128}


@pytest.mark.parametrize("name", [name for name, each in RANDOM.items() if each["start_replayed_first"]])
def test_random_trees_with_the_start_block_replayed_are_those_of_the_real_one(name: str) -> None:
    updates = run(RANDOM[name])
    assert updates == real_updates(RANDOM[name])
    assert chain_after(updates) == heaviest(RANDOM[name])


@pytest.mark.parametrize("name", [name for name, each in RANDOM.items() if not each["start_replayed_first"]])
def test_random_trees_with_the_start_block_absent(name: str) -> None:
    """The real one cannot remove down to a start block that it does not hold (facts, section 1.5). Up to the first
    update where ours does, both are equal; ours always ends on the heaviest chain."""
    updates, real = run(RANDOM[name]), real_updates(RANDOM[name])
    assert chain_after(updates) == heaviest(RANDOM[name])
    parents = {given["name"]: given["parent"] for given in RANDOM[name]["order"]}
    to_start = [i for i, (_, removed, _) in enumerate(updates) if removed and parents[removed[0]] == "r"]
    same = to_start[0] if to_start else len(updates)
    assert updates[:same] == real[:same]
    if not to_start:
        assert updates == real


PARENTS = {"b": "a", "c": "a", "d": "c", "e": "b", "f": "e", "j": "f", "g": "b", "h": "g", "i": "h", "k": "i"}


def letters(order: str, start: str = "a") -> list[tuple[str, str]]:
    """Upstream's TestReorg: a block's weight is its number; (removed, added) of each update."""
    numbers = {"a": 0}
    for name, parent in PARENTS.items():
        numbers[name] = numbers[parent] + 1
    machine = ChainOrder(Start(hash_of(start), numbers[start], numbers[start]), 128)
    updates: list[Update] = []
    for index, name in enumerate(order.lower()):
        whole = block(name, PARENTS.get(name, "before"), numbers[name], numbers[name])
        updates += updates_of(machine, index, whole)
    return [("".join(removed), "".join(added)) for _, removed, added in updates]


ONE_BY_ONE = [("", "b"), ("", "e"), ("", "f"), ("", "j")]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("ABCD", [("", "b"), ("b", "cd")]),
        ("ABDC", [("", "b"), ("b", "cd")]),
        ("ACDB", [("", "c"), ("", "d")]),
        ("ABCDEF", [("", "b"), ("b", "cd"), ("cd", "bef")]),
        ("AEGFBHI", [("", "bef"), ("ef", "ghi")]),
        ("AEGFHIB", [("", "bghi")]),
        ("AEFHIGB", [("", "bghi")]),
        ("ABEFJHIKG", [*ONE_BY_ONE, ("efj", "ghik")]),
        ("ABEFJGIKH", [*ONE_BY_ONE, ("efj", "ghik")]),
        ("ABEFJGHIK", [*ONE_BY_ONE, ("efj", "ghik")]),
        ("ABEFJIKHG", [*ONE_BY_ONE, ("efj", "ghik")]),
        ("ABEFJGHKI", [*ONE_BY_ONE, ("efj", "ghik")]),
        ("adc", [("", "cd")]),
    ],
)
def test_upstream_reorg(order: str, expected: list[tuple[str, str]]) -> None:
    assert letters(order) == expected


def test_upstream_reorg_from_a_block_in_the_middle() -> None:
    assert letters("ACDBEF", start="c") == [("", "d"), ("cd", "bef")]


def two_chains(first: int, second: int, first_weight: int = 1, lead: int = 0) -> tuple[list[CompleteBatch], ...]:
    """Two chains that fork at block 0, which is the first one's first; their blocks are those that follow."""
    one = [block("x0", "before", 0, 0)]
    one += [block(f"x{n}", f"x{n - 1}", n, n * first_weight) for n in range(1, first)]
    two = [block(f"y{n}", f"y{n - 1}" if n > 1 else "x0", n, n * first_weight - lead) for n in range(1, second + 1)]
    return one, two


def lengths(machine: ChainOrder, batches: list[CompleteBatch]) -> list[tuple[int, int]]:
    updates = [update for index, batch in enumerate(batches) for update in updates_of(machine, index, batch)]
    return [(len(removed), len(added)) for _, removed, added in updates]


def test_upstream_long_reorg() -> None:
    one, two = two_chains(50, 53, first_weight=2, lead=7)
    machine = ChainOrder(Start(hash_of("x0"), 0, 0), 128)
    assert lengths(machine, one) == [(0, 1)] * 49
    assert lengths(machine, two) == [(49, 53)]


def test_upstream_long_reorg_out_of_order() -> None:
    one, two = two_chains(6, 6)
    machine = ChainOrder(Start(hash_of("x0"), 0, 0), 128)
    assert lengths(machine, one) == [(0, 1)] * 5
    assert lengths(machine, [two[number - 1] for number in (5, 6, 3, 4, 1, 2)]) == [(5, 6)]


def test_upstream_startup_reorg() -> None:
    one, two = two_chains(7, 8)
    machine = ChainOrder(Start(hash_of("x6"), 6, 6), 128)
    assert lengths(machine, one) == []
    assert lengths(machine, two) == [(6, 7), (0, 1)]


def test_upstream_startup_reorg_out_of_order() -> None:
    one, two = two_chains(7, 8)
    machine = ChainOrder(Start(hash_of("x6"), 6, 6), 128)
    assert lengths(machine, [*two[4:], *reversed(one), *two[3::-1]]) == [(6, 8)]
    machine = ChainOrder(Start(hash_of("x6"), 6, 6), 128)
    assert lengths(machine, [*two, *reversed(one)]) == [(6, 8)]
