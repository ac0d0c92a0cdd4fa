"""Goal: a publisher sends what its node wants next, as the protocol says, and drops only what is acknowledged.

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
    PublishResponse,
    PublishStatus,
    ResendBlock,
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
    machine.take(Acknowledgement(1))
    assert (machine.kept, machine.acknowledged) == ([2], 1)
    assert [machine.add(number) for number in (0, 1, 2, 3)] == [False, False, False, True]
    assert machine.next_block() == 3


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
    assert not machine.too_far_behind


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
    assert machine.too_far_behind
    machine.session_begins()
    machine.take(SessionOpened(b"", 6, 7))
    assert (machine.too_far_behind, machine.next_block()) == (False, 7)


def test_the_end_of_a_stream_acknowledges_too() -> None:
    machine = machine_with(0, 1, 2)
    machine.begin(2)
    ended = StreamEnded(PublishStatus.TIMEOUT, 1, 2, "slow")
    machine.take(ended)
    assert (machine.ended, machine.sending, machine.kept) == (ended, None, [2])


ANSWERS = st.one_of(
    st.builds(Acknowledgement, st.integers(0, 9)),
    st.builds(SkipBlock, st.integers(0, 9)),
    st.builds(ResendBlock, st.integers(0, 9)),
    st.builds(lambda number, last: DuplicateBlock(number, max(number, last)), st.integers(0, 9), st.integers(0, 9)),
    st.builds(lambda number, last: Behind(number, last, last + 1), st.integers(0, 9), st.integers(0, 9)),
)


@given(st.lists(st.one_of(st.just(None), ANSWERS), max_size=40))
def test_nothing_is_dropped_without_an_acknowledgement(answers: list[PublishResponse | None]) -> None:
    machine = machine_with(*range(10))
    for answer in answers:
        if answer is None:
            number = machine.next_block()
            if number is not None:
                machine.begin(number)
                machine.finish(number)
        else:
            machine.take(answer)
        lowest = 0 if machine.acknowledged is None else machine.acknowledged + 1
        assert machine.kept == list(range(lowest, 10))
        assert machine.next_block() is None or machine.next_block() in machine.kept
