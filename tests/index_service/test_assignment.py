"""Goal: shares that are even and move as little as can be. Method: properties, also where members know different
numbers of partitions."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from index_service.assignment import Candidate, assign

names = st.lists(st.text("abcdefgh", min_size=1, max_size=2), min_size=1, max_size=8, unique=True)


def shares(assigned: dict[int, str], candidates: list[Candidate]) -> list[int]:
    owners = list(assigned.values())
    return [owners.count(each.member_id) for each in candidates]


def test_nobody_gets_nothing() -> None:
    assert assign([], {}) == {}
    assert assign([], {0: "gone"}) == {}


def test_more_members_than_partitions_leave_some_without() -> None:
    assert assign([Candidate(name, 1) for name in "abc"], {0: "b"}) == {0: "b"}


@given(names, st.integers(1, 60), st.data())
def test_shares_are_even_whoever_had_what(members: list[str], partitions: int, data: st.DataObject) -> None:
    everybody = st.sampled_from([*members, "gone"])
    owners = data.draw(st.dictionaries(st.integers(0, partitions + 5), everybody))
    settled = data.draw(st.sets(st.integers(0, partitions)))
    candidates = [Candidate(name, partitions) for name in members]
    assigned = assign(candidates, owners, settled)
    assert sorted(assigned) == list(range(partitions))
    assert max(shares(assigned, candidates)) - min(shares(assigned, candidates)) <= 1
    assert assign(candidates, assigned, settled) == assigned


@given(names, st.integers(1, 60))
def test_a_newcomer_takes_its_share_and_who_leaves_gives_its_own(members: list[str], partitions: int) -> None:
    candidates = [Candidate(name, partitions) for name in members]
    before = assign(candidates, {})
    joined = assign([*candidates, Candidate("newcomer", partitions)], before)
    moved = {partition for partition in before if before[partition] != joined[partition]}
    assert {joined[partition] for partition in moved} <= {"newcomer"}
    assert len(moved) <= ceil(partitions / (len(members) + 1))
    left = assign(candidates, joined)
    assert all(left[each] == owner for each, owner in joined.items() if owner != "newcomer")


def test_it_takes_first_what_its_owner_was_to_give_up_anyway() -> None:
    candidates = [Candidate("a", 4), Candidate("b", 4)]
    assert assign(candidates, dict.fromkeys(range(4), "a"), {0, 2}) == {0: "a", 2: "a", 1: "b", 3: "b"}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
def test_who_knows_fewer_partitions_gets_only_those(known: list[int], data: st.DataObject) -> None:
    candidates = [Candidate(f"m{place}", count) for place, count in enumerate(known)]
    owners = data.draw(st.dictionaries(st.integers(0, 35), st.sampled_from([each.member_id for each in candidates])))
    assigned = assign(candidates, owners)
    assert sorted(assigned) == list(range(max(known)))
    knows = {each.member_id: each.partitions for each in candidates}
    assert all(partition < knows[owner] for partition, owner in assigned.items())
    fresh = shares(assign(candidates, {}), candidates)
    # Even, as far as what they know allows: nobody has two more than somebody who knows all of them.
    for share, each in zip(fresh, candidates, strict=True):
        others = [fresh[place] for place, other in enumerate(candidates) if other.partitions >= each.partitions]
        assert share <= min(others) + 1
