"""Goal: a stream has one role, and every way from one to another is written in the table.

Method: the table itself, and all walks through it.
"""

from __future__ import annotations

from itertools import product

import pytest

from stream_service.mirroring import SourceRole
from stream_service.role_machine import (
    FOLLOWING,
    SOURCE_ROLES,
    STORED,
    TRANSITIONS,
    UNDER_PROMOTION,
    RoleEvent,
    StreamRole,
    find_next,
)


def reached(begin: StreamRole, events: set[RoleEvent]) -> set[StreamRole]:
    found, fresh = {begin}, {begin}
    while fresh:
        after = {find_next(role, event) for role, event in product(fresh, events)}
        fresh = {role for role in after if role is not None} - found
        found |= fresh
    return found


def test_the_numbers_of_stored_roles_are_those_of_earlier_versions() -> None:
    assert {role.name: int(role) for role in STORED} == {"FOLLOWING": 1, "FENCING": 2, "PROMOTING": 4, "RESTORING": 5}
    assert set(StreamRole) == STORED | {StreamRole.PRIMARY}


def test_every_role_can_be_reached_and_left() -> None:
    assert reached(StreamRole.PRIMARY, set(RoleEvent)) == set(StreamRole)
    for role in StreamRole:
        assert any(before is role and after is not role for (before, _), after in TRANSITIONS.items())


@pytest.mark.parametrize("role", StreamRole)
def test_any_stream_can_follow(role: StreamRole) -> None:
    assert find_next(role, RoleEvent.FOLLOW) is StreamRole.FOLLOWING


@pytest.mark.parametrize("role", sorted(FOLLOWING))
def test_a_mirror_can_always_become_a_primary_without_its_source(role: StreamRole) -> None:
    assert find_next(role, RoleEvent.TAKE) is StreamRole.FENCING
    assert find_next(role, RoleEvent.LEAVE) is StreamRole.PRIMARY


def test_only_a_promotion_that_still_goes_on_finishes() -> None:
    able = {role for role in StreamRole if find_next(role, RoleEvent.FINISH) is not None}
    assert able == {StreamRole.PROMOTING}


def test_a_promotion_that_gives_back_never_finishes_by_itself() -> None:
    steps = {RoleEvent.GIVE_BACK, RoleEvent.GAVE_BACK, RoleEvent.FINISH}
    assert reached(StreamRole.RESTORING, steps) == {StreamRole.RESTORING, StreamRole.FOLLOWING}


def test_the_steps_of_a_promotion_can_be_repeated_after_a_kill() -> None:
    for event, role in ((RoleEvent.PROMOTE, StreamRole.PROMOTING), (RoleEvent.GIVE_BACK, StreamRole.RESTORING)):
        assert find_next(role, event) is role


def test_a_mirror_that_asks_gets_the_role_of_each_stream() -> None:
    assert {role: SourceRole(number) for role, number in SOURCE_ROLES.items()} == {
        StreamRole.PRIMARY: SourceRole.PRIMARY,
        StreamRole.FOLLOWING: SourceRole.MIRROR,
        StreamRole.FENCING: SourceRole.SUCCESSOR,
        **dict.fromkeys(UNDER_PROMOTION, SourceRole.PROMOTED),
    }
