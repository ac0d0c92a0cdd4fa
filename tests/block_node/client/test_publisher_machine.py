"""Goal: a publisher sends what its node wants next, as the protocol says, and drops only what is known to be durable.

Method: the pure machine, answer by answer.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.client.publisher_machine import PublisherMachine
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    DurableBlock,
    PublishResponse,
    PublishStatus,
    ResendBlock,
    RootAcknowledgement,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)


def machine_with(*numbers: int, last: int | None = None, wanted: int = 0) -> PublisherMachine:
    machine = PublisherMachine()
    for number in numbers:
        machine.add(number)
    machine.session_begins()
    machine.take(SessionOpened(b"", last, wanted))
    return machine


@pytest.mark.parametrize(
    ("last", "wanted", "begins", "kept"),
    [(None, 0, 3, [3, 4, 5]), (3, 4, 4, [4, 5]), (None, 4, 4, [3, 4, 5]), (5, 6, None, []), (None, 9, None, [3, 4, 5])],
)
def test_a_session_begins_where_the_node_is(last: int | None, wanted: int, begins: int | None, kept: list[int]) -> None:
    machine = machine_with(3, 4, 5, last=last, wanted=wanted)
    assert (machine.next_block(), machine.kept) == (begins, kept)


def test_blocks_are_sent_in_order_and_kept_until_they_are_acknowledged() -> None:
    machine = machine_with(0, 1, 2)
    for number in (0, 1, 2):
        assert machine.next_block() == number
        machine.begin(number)
        machine.finish(number)
    assert (machine.next_block(), machine.kept) == (None, [0, 1, 2])
    machine.take(RootAcknowledgement(1, [own(0), own(1)]))
    assert (machine.kept, machine.acknowledged, machine.take_settled()) == ([2], 1, [0, 1])
    assert [machine.add(number) for number in (2, 3)] == [False, True]
    assert machine.next_block() == 3


def own(number: int) -> DurableBlock:
    return DurableBlock(number, bytes(48), True)


def test_what_is_not_named_as_this_sessions_own_is_compared_first() -> None:
    """The root that the node named goes with it; `acknowledged` does not pass over what is not compared."""
    machine = machine_with(0, 1, 2, 3, 4)
    machine.take(RootAcknowledgement(3, [own(0), DurableBlock(1, b"r", False), own(3)]))
    assert (machine.to_compare, machine.acknowledged, machine.take_settled()) == ({1: b"r", 2: b""}, 0, [0, 3])
    machine.compared(2)
    assert (machine.acknowledged, machine.take_settled()) == (0, [2])
    machine.compared(1)
    assert (machine.acknowledged, machine.take_settled(), machine.kept) == (3, [1], [4])


def test_what_was_durable_and_is_given_again_is_compared() -> None:
    machine = machine_with(0, 1)
    machine.take(RootAcknowledgement(1, [own(0), own(1)]))
    assert machine.add(1)
    assert not machine.add(1)
    assert (machine.to_compare, machine.kept) == ({1: b""}, [])


def test_what_one_node_has_is_not_what_the_next_one_has() -> None:
    """What was not compared at the first one is sent to the second one, which has less."""
    machine = machine_with(0, 1, 2, last=1)
    assert machine.to_compare == {0: b"", 1: b""}
    machine.session_begins()
    machine.take(SessionOpened(b"", 0, 1))
    assert (machine.to_compare, machine.kept, machine.next_block()) == ({0: b""}, [1, 2], 1)


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        (SkipBlock(2), 3),
        (DuplicateBlock(2, 2), 3),
        (DuplicateBlock(2, 4), 5),
        (Acknowledgement(3), 4),
        (Behind(2, None, 1), 1),
        (Behind(2, 0, 1), 1),
    ],
)
def test_an_answer_that_ends_the_block_under_way(answer: PublishResponse, following: int) -> None:
    machine = machine_with(1, 2, 3, 4, 5)
    machine.begin(2)
    machine.take(answer)
    assert machine.sending is None
    assert machine.next_block() == following
    assert machine.needed is None


def test_an_answer_about_another_block_changes_nothing() -> None:
    machine = machine_with(1, 2, 3)
    machine.begin(2)
    machine.take(SkipBlock(1))
    machine.take(Acknowledgement(1))
    assert machine.sending == 2


def test_a_resend_follows_the_block_under_way() -> None:
    machine = machine_with(0, 1, 2, 3, wanted=2)
    machine.begin(2)
    for number in (1, 0, 2, 9):
        machine.take(ResendBlock(number))
    assert machine.sending == 2
    machine.finish(2)
    assert machine.next_block() == 0
    machine.begin(0)
    machine.finish(0)
    assert machine.next_block() == 1


def test_what_is_not_kept_makes_a_session_vain() -> None:
    machine = machine_with(7, 8)
    assert machine.next_block() == 7
    machine.begin(7)
    machine.take(Behind(7, 2, 3))
    assert machine.needed is not None
    machine.session_begins()
    machine.take(SessionOpened(b"", 6, 7))
    assert [machine.needed, machine.next_block()] == [None, 7]


def test_the_end_of_a_stream_acknowledges_too() -> None:
    machine = machine_with(0, 1, 2)
    machine.begin(2)
    ended = StreamEnded(PublishStatus.TIMEOUT, 1, 2, "slow")
    machine.take(ended)
    assert (machine.ended, machine.sending, machine.kept) == (ended, None, [2])


ANSWERS = st.one_of(
    st.builds(Acknowledgement, st.integers(0, 9)),
    st.builds(
        lambda number, named: RootAcknowledgement(number, [own(each) for each in named]),
        st.integers(0, 9),
        st.sets(st.integers(0, 9)),
    ),
    st.builds(SkipBlock, st.integers(0, 9)),
    st.builds(ResendBlock, st.integers(0, 9)),
    st.builds(lambda number, last: DuplicateBlock(number, max(number, last)), st.integers(0, 9), st.integers(0, 9)),
    st.builds(lambda number, last: Behind(number, last, last + 1), st.integers(0, 9), st.integers(0, 9)),
)


@given(st.lists(st.one_of(st.none(), st.integers(0, 9), ANSWERS), max_size=40))
def test_nothing_is_dropped_that_is_not_known_to_be_durable(happened: list[PublishResponse | int | None]) -> None:
    """None: the next block is sent. A number: that block was compared, where that is due."""
    machine = machine_with(*range(10))
    settled: set[int] = set()
    covered, allowed = -1, set[int]()
    for each in happened:
        if each is None:
            number = machine.next_block()
            if number is not None:
                machine.begin(number)
                machine.finish(number)
        elif isinstance(each, int):
            if each in machine.to_compare:
                machine.compared(each)
                allowed.add(each)
        else:
            if isinstance(each, RootAcknowledgement) and each.block_number > covered:
                fresh = range(covered + 1, each.block_number + 1)
                allowed |= {block.block_number for block in each.blocks if block.block_number in fresh}
            covered = max(covered, _covers(each))
            machine.take(each)
        settled |= set(machine.take_settled())
        assert settled <= allowed
        assert sorted([*machine.kept, *machine.to_compare, *settled]) == list(range(10))
        assert machine.kept == list(range(covered + 1, 10))
        known = machine.acknowledged
        assert known is None or set(range(known + 1)) <= settled
        assert machine.next_block() is None or machine.next_block() in machine.kept


def _covers(response: PublishResponse) -> int:
    """Up to which block the node says that it has all."""
    if isinstance(response, Acknowledgement | RootAcknowledgement):
        return response.block_number
    last = response.last_block if isinstance(response, DuplicateBlock | Behind) else None
    return -1 if last is None else last
