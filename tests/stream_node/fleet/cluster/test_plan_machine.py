"""Goal: members agree about who owns which shard, take what is free or dead, and leave what lives.

Method: the machine gets views made by hand, and times as numbers.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import local
from stream_node.fleet.cluster.plan_machine import GAP_S, LIVES_S, SETTLE_S, PlanMachine
from stream_node.fleet.cluster.view import SHARDS, UNOWNED, ClusterView, Shard, StoredMember, choose_owner, find_shard
from stream_service.names import stream_address

NAMES = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=6)


def view_of(*names: str, owner: str = UNOWNED, beats: int = 0) -> ClusterView:
    members = {name: StoredMember(name, f"{name}:4000", f"token of {name}", beats, False) for name in names}
    return ClusterView(members, (Shard(owner, 0),) * SHARDS)


def beaten(view: ClusterView, *names: str) -> ClusterView:
    """The view after a beat of these members."""
    members = {
        name: msgspec.structs.replace(member, beats=member.beats + (name in names))
        for name, member in view.members.items()
    }
    return ClusterView(members, view.shards)


@given(NAMES, st.data())
def test_only_the_shards_of_a_member_that_goes_move(names: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    for shard in range(SHARDS):
        before, after = choose_owner(shard, names), choose_owner(shard, names - {gone})
        assert before in (after, gone)


def test_members_get_about_the_same_number_of_shards() -> None:
    counts = Counter(choose_owner(shard, ["a", "b", "c", "d"]) for shard in range(SHARDS))
    assert min(counts.values()) > SHARDS / 4 * 0.6


def test_every_stream_has_a_shard_and_other_addresses_have_none() -> None:
    """The shard is read from the address by hand."""
    found = {find_shard(stream_address(f"s{number}", 0)) for number in range(4_000)}
    assert found == set(range(SHARDS))
    address = stream_address("orders", 3)
    assert find_shard(address) == int(address.value.decode()[5:7], 16)
    others = ("stream_service", "ST_S_", "ST_S_zz", "ST_S_-1abc", "ST_S_+f00", "ST_S_ 1", "ST_S_1", "ST_S_FF", "TCP_00")
    assert [find_shard(local(name)) for name in others] == [None] * len(others)


@given(st.integers(1, 4))
def test_all_members_together_take_every_free_shard_once(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    view = view_of(*names)
    taken: list[int] = []
    for name in names:
        machine = PlanMachine(name, 0.0)
        machine.note(view, 0.0)
        assert machine.plan(view).take == [], "a member waits for the others before it takes free shards"
        machine.note(view, SETTLE_S)
        plan = machine.plan(view)
        assert not plan.fences
        assert not plan.give
        taken += [shard for shard, _ in plan.take]
    assert sorted(taken) == list(range(SHARDS))


def test_a_member_that_lives_keeps_its_shards_until_it_gives_them_away() -> None:
    view = view_of("a", "b", owner="a")
    a, b = PlanMachine("a", 0.0), PlanMachine("b", 0.0)
    for now_s in range(20):
        view = beaten(view, "a", "b")
        a.note(view, now_s)
        b.note(view, now_s)
        assert b.plan(view).take == []
    give = a.plan(view).give
    assert list(give) == ["b"]
    assert give["b"] == [shard for shard in range(SHARDS) if choose_owner(shard, ["a", "b"]) == "b"]


def test_a_silent_member_is_fenced_and_its_shards_are_shared() -> None:
    view = view_of("a", "b", "c", owner="a")
    machine = PlanMachine("b", 0.0)
    now_s = 0.0
    machine.note(view, now_s)
    while now_s < LIVES_S:
        assert machine.plan(view).take == []
        now_s += 1
        view = beaten(view, "b", "c")
        machine.note(view, now_s)
    plan = machine.plan(view)
    assert plan.fences == {"a": "token of a"}
    assert [shard for shard, before in plan.take if before == "a"] == [
        shard for shard in range(SHARDS) if choose_owner(shard, ["b", "c"]) == "b"
    ]


def test_a_member_that_could_not_read_takes_nobody_for_dead() -> None:
    """A failover of the database stops the beats of all members."""
    view = view_of("a", "b", owner="a")
    machine = PlanMachine("b", 0.0)
    machine.note(view, 0.0)
    machine.note(view, LIVES_S + GAP_S)
    assert machine.lives(view, "a")
    assert machine.plan(view).take == []
    # From here on it reads every second again.
    for second in range(1, int(LIVES_S) + 1):
        assert machine.lives(view, "a")
        machine.note(view, LIVES_S + GAP_S + second)
    assert not machine.lives(view, "a")
    machine.check()


def test_a_new_process_of_a_name_lives_although_the_old_one_was_silent() -> None:
    view = view_of("a", "b", owner="a")
    machine = PlanMachine("b", 0.0)
    for second in range(int(LIVES_S) + 1):
        machine.note(view, second)
    assert not machine.lives(view, "a")
    again = ClusterView({**view.members, "a": StoredMember("a", "a:4000", "another", 0, False)}, view.shards)
    machine.note(again, LIVES_S + 1)
    assert machine.lives(again, "a")


def test_a_member_that_leaves_gives_everything_and_gets_nothing() -> None:
    view = view_of("a", "b", owner="a")
    view = ClusterView({**view.members, "a": msgspec.structs.replace(view.members["a"], leaves=True)}, view.shards)
    machine = PlanMachine("a", 0.0)
    machine.note(view, SETTLE_S)
    assert machine.plan(view).give == {"b": list(range(SHARDS))}
    alone = ClusterView({"a": view.members["a"]}, view.shards)
    machine.note(alone, SETTLE_S)
    assert machine.plan(alone).give == {}


def test_members_that_all_leave_serve_the_shards_of_one_that_has_died() -> None:
    """Drained members are of use as long as nobody else is there."""
    view = view_of("a", "b", "c", owner="c")
    drained = {name: msgspec.structs.replace(view.members[name], leaves=True) for name in ("a", "b")}
    view = ClusterView({**view.members, **drained}, view.shards)
    taken: list[int] = []
    for name in ("a", "b"):
        machine = PlanMachine(name, 0.0)
        for second in range(int(LIVES_S) + 1):
            view = beaten(view, "a", "b")
            machine.note(view, second)
        plan = machine.plan(view)
        assert plan.fences == {"c": "token of c"}
        taken += [shard for shard, _ in plan.take]
    assert sorted(taken) == list(range(SHARDS))


def test_silence_is_counted_from_the_last_beat_that_was_read() -> None:
    """A beat ends it, and so does a pause of this member itself. Of itself and of strangers a member knows nothing."""
    view = view_of("a", "b", owner="a")
    machine = PlanMachine("a", 0.0)
    for now_s in (0.0, 1.0, 2.0, 3.0):
        machine.note(view, now_s)
    assert (machine.silent_s("b"), machine.silent_s("a"), machine.silent_s("c")) == (3.0, 0.0, 0.0)
    view = beaten(view, "b")
    machine.note(view, 4.0)
    assert machine.silent_s("b") == 0.0
    machine.note(view, 5.0)
    assert machine.silent_s("b") == 1.0
    machine.note(view, 6.0 + GAP_S)
    assert machine.silent_s("b") == 0.0
