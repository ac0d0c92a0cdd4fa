"""Goal: shares that are even and move as little as can be. Method: properties, also where members know different
numbers of partitions."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from index_service.assignment import assign

names = st.lists(st.text("abcdefgh", min_size=1, max_size=2), min_size=1, max_size=8, unique=True)


def shares(assigned: dict[int, str], candidates: dict[str, int]) -> list[int]:
    owners = list(assigned.values())
    return [owners.count(each) for each in candidates]


def test_nobody_gets_nothing() -> None:
    assert assign({}, {}) == {}
    assert assign({}, {0: "gone"}) == {}


def test_more_members_than_partitions_leave_some_without() -> None:
    assert assign(dict.fromkeys("abc", 1), {0: "b"}) == {0: "b"}


@given(names, st.integers(1, 60), st.data())
def test_shares_are_even_whoever_had_what(members: list[str], partitions: int, data: st.DataObject) -> None:
    everybody = st.sampled_from([*members, "gone"])
    owners = data.draw(st.dictionaries(st.integers(0, partitions + 5), everybody))
    settled = data.draw(st.sets(st.integers(0, partitions)))
    candidates = dict.fromkeys(members, partitions)
    assigned = assign(candidates, owners, settled)
    assert sorted(assigned) == list(range(partitions))
    assert max(shares(assigned, candidates)) - min(shares(assigned, candidates)) <= 1
    assert assign(candidates, assigned, settled) == assigned


@given(names, st.integers(1, 60))
def test_a_newcomer_takes_its_share_and_who_leaves_gives_its_own(members: list[str], partitions: int) -> None:
    candidates = dict.fromkeys(members, partitions)
    before = assign(candidates, {})
    joined = assign({**candidates, "newcomer": partitions}, before)
    moved = {partition for partition in before if before[partition] != joined[partition]}
    assert {joined[partition] for partition in moved} <= {"newcomer"}
    assert len(moved) <= ceil(partitions / (len(members) + 1))
    left = assign(candidates, joined)
    assert all(left[each] == owner for each, owner in joined.items() if owner != "newcomer")


def test_it_takes_first_what_its_owner_was_to_give_up_anyway() -> None:
    candidates = {"a": 4, "b": 4}
    assert assign(candidates, dict.fromkeys(range(4), "a"), {0, 2}) == {0: "a", 2: "a", 1: "b", 3: "b"}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
def test_who_knows_fewer_partitions_gets_only_those(known: list[int], data: st.DataObject) -> None:
    candidates = {f"m{place}": count for place, count in enumerate(known)}
    owners = data.draw(st.dictionaries(st.integers(0, 35), st.sampled_from(list(candidates))))
    assigned = assign(candidates, owners)
    assert sorted(assigned) == list(range(max(known)))
    assert all(partition < candidates[owner] for partition, owner in assigned.items())
    fresh = shares(assign(candidates, {}), candidates)
    # Even, as far as what they know allows: nobody has two more than somebody who knows all of them.
    for share, count in zip(fresh, known, strict=True):
        others = [fresh[place] for place, other in enumerate(known) if other >= count]
        assert share <= min(others) + 1
