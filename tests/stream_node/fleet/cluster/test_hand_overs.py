"""Goal: every member sees every change of an owner, when it was and why.

Method: views made by hand; hand-overs between random views are compared with looking at each shard alone.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_node.fleet.cluster.hand_overs import KEPT_MAX, HandOver, HandOvers
from stream_node.fleet.cluster.view import SHARDS, UNOWNED, ClusterView, Shard, StoredMember

NAMES = ("a", "b", "c")


def member(name: str, token: str = "1", *, leaves: bool = False) -> StoredMember:
    return StoredMember(name, f"{name}:4000", token and name + token, 0, leaves)


def view(owner: str, *members: StoredMember) -> ClusterView:
    """A view in which one member owns all shards."""
    return ClusterView({each.name: each for each in members}, (Shard(owner, 1),) * SHARDS)


A, B, C = (member(name) for name in NAMES)
LEAVING, FENCED, AGAIN = member("a", leaves=True), member("a", ""), member("a", "2")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        pytest.param(view(UNOWNED), view("a", A), "free", id="nobody owned them"),
        pytest.param(view("a", A), view("b", A, B), "joined", id="given to a member that joins"),
        pytest.param(view("a", A, B), view("b", A, B), "joined", id="given to a member whose drain was taken back"),
        pytest.param(view("a", A, B), view("b", LEAVING, B), "left", id="given away by a drained member"),
        pytest.param(view("a", LEAVING, B), view("b", B), "left", id="the member has given them and left"),
        pytest.param(view("a", LEAVING, B), view("b", AGAIN, B), "left", id="it has left and started again"),
        pytest.param(view("a", A), view(UNOWNED), "left", id="it has left without a successor"),
        pytest.param(view("a", A, B), view("b", FENCED, B), "fenced", id="taken from a silent member"),
        pytest.param(view("a", LEAVING, B), view("b", FENCED, B), "fenced", id="it was silent while it left"),
        pytest.param(view("a", FENCED, B, C), view("c", FENCED, B, C), "fenced", id="fenced before, by another member"),
        pytest.param(view("a", A, B), view("b", AGAIN, B), "fenced", id="fenced, and started again since"),
        pytest.param(view("a", A), view("b", AGAIN, B), "joined", id="started again, and gave them to a new member"),
    ],
)
def test_a_hand_over_has_its_reason(before: ClusterView, after: ClusterView, reason: str) -> None:
    found = HandOvers()
    found.note(before, 1.0, 10)
    assert found.latest() == ()
    found.note(after, 2.0, 20)
    old, new = before.shards[0].owner, after.shards[0].owner
    assert found.latest() == (HandOver(20, tuple(range(SHARDS)), old, new, reason),)  # type: ignore[arg-type]
    assert found.moved == {reason: SHARDS}
    # The next read has nothing new.
    found.note(after, 3.0, 30)
    assert len(found.latest()) == 1


VIEWS = st.lists(
    st.builds(
        lambda owners, members: ClusterView(
            {each.name: each for each in members}, tuple(Shard(owner, 0) for owner in owners)
        ),
        st.lists(st.sampled_from((UNOWNED, *NAMES)), min_size=8, max_size=8),
        st.lists(
            st.builds(member, st.sampled_from(NAMES), st.sampled_from(("", "1", "2")), leaves=st.booleans()), max_size=3
        ),
    ),
    max_size=8,
)


@given(VIEWS)
def test_hand_overs_agree_with_each_shard_alone(views: list[ClusterView]) -> None:
    """Each shard goes the way of its owners, and each one without an owner has had none since the first such view."""
    found = HandOvers()
    for number, each in enumerate(views):
        found.note(each, float(number), number)
        found.check()
    assert sum(found.moved.values()) == sum(len(each.shards) for each in found.latest())
    for shard in range(8):
        owners = [each.shards[shard].owner for each in views]
        expected = [
            (time, before, after) for time, (before, after) in enumerate(pairwise(owners), start=1) if before != after
        ]
        moves = [(each.time_us, each.before, each.after) for each in found.latest() if shard in each.shards]
        assert sorted(moves) == expected
        if owners and owners[-1] == UNOWNED:
            since = len(owners)
            while since and owners[since - 1] == UNOWNED:
                since -= 1
            assert found.unowned_s(100.0)[shard] == 100.0 - since
        else:
            assert shard not in found.unowned_s(100.0)


def test_only_the_last_hand_overs_are_kept() -> None:
    found = HandOvers()
    for number in range(3 * KEPT_MAX):
        found.note(view("ab"[number % 2], A, B), float(number), number)
        found.check()
    assert [each.time_us for each in found.latest()] == list(range(3 * KEPT_MAX - 1, 2 * KEPT_MAX - 1, -1))
    assert found.moved["joined"] == SHARDS * (3 * KEPT_MAX - 1)
    with pytest.raises(AttributeError):
        found.latest()[0].before = "c"  # type: ignore[misc]
    assert msgspec.json.encode(found.latest()[0])
