"""Goal: the publisher that `ConsensusMachine` decides for reacts to every answer as a consensus node does.

Method: the machine alone, with the answers as they are on the wire and a clock that the test moves.
"""

from __future__ import annotations

import pytest

from block_node.grpc.client.consensus_machine import ConsensusLimits, ConsensusMachine, Heard, SendPosition
from block_node.grpc.messages import NO_BLOCK, read_message, write_message
from block_node.protocol import PublisherEndCode, PublishStatus

RESET, TIMEOUT, ERROR, TOO_FAR_BEHIND = 1, 2, 3, 4
LIMITS = ConsensusLimits()


def opened(first: int = 10, last: int = 19, next_expected: int | None = 15) -> ConsensusMachine:
    """One with the blocks from `first` to `last`, in a stream since second 0."""
    machine = ConsensusMachine()
    for number in range(first, last + 1):
        machine.produced(number)
    machine.opened(0.0, next_expected)
    return machine


def hear(machine: ConsensusMachine, kind: str, number: int, now_s: float = 1.0, **fields: int) -> None:
    """The answer, through the bytes of the wire."""
    message = {kind: {"block_number": number, **fields}}
    machine.take(read_message("PublishStreamResponse", write_message("PublishStreamResponse", message)), now_s)
    machine.check()


def at(machine: ConsensusMachine) -> int | None:
    position = machine.position
    return None if position is None else position.block_number


def send(machine: ConsensusMachine, now_s: float = 1.0) -> None:
    position = machine.position
    assert position is not None
    machine.finished(position, now_s)


def assert_left(machine: ConsensusMachine, heard: Heard, code: int | None, opens_s: float) -> None:
    assert (machine.is_open, machine.left, machine.opens_s) == (False, heard, opens_s)
    farewell = machine.take_farewell()
    assert (farewell and farewell["end_stream"]["end_code"]) == code
    assert machine.take_farewell() is None
    assert machine.position is None


@pytest.mark.parametrize(
    ("next_expected", "begins"), [(None, 19), (15, 15), (20, None), (40, None), (3, 10), (NO_BLOCK, 10)]
)
def test_a_stream_begins_with_the_block_that_the_status_expects(next_expected: int | None, begins: int | None) -> None:
    assert at(opened(next_expected=next_expected)) == begins


def test_blocks_are_sent_in_order_and_a_block_that_does_not_exist_yet_is_waited_for() -> None:
    machine = opened(next_expected=18)
    send(machine)
    assert at(machine) == 19
    send(machine)
    assert machine.position is None
    machine.produced(20)
    assert at(machine) == 20


def test_an_acknowledgement_moves_a_stream_forward_and_never_back() -> None:
    machine = opened()
    hear(machine, "acknowledgement", 14)
    hear(machine, "acknowledgement", 15)
    assert at(machine) == 15
    hear(machine, "acknowledgement", 17)
    assert at(machine) == 18
    hear(machine, "acknowledgement", NO_BLOCK)
    assert (at(machine), machine.acknowledged) == (18, 17)


def test_a_skip_counts_for_the_block_at_the_position_only() -> None:
    machine = opened()
    hear(machine, "skip_block", 16)
    hear(machine, "skip_block", 14)
    assert at(machine) == 15
    hear(machine, "skip_block", 15)
    assert at(machine) == 16


def test_a_block_that_was_moved_from_is_not_finished() -> None:
    machine = opened()
    position = machine.position
    assert position is not None
    hear(machine, "resend_block", 12)
    machine.finished(position, 1.0)
    assert at(machine) == 12


def test_a_block_that_is_asked_for_while_it_is_sent_is_not_begun_anew() -> None:
    machine = opened()
    before = machine.position
    hear(machine, "resend_block", 15)
    assert machine.position == before


@pytest.mark.parametrize("kind", ["resend_block", "node_behind_publisher"])
@pytest.mark.parametrize(
    ("wanted", "heard", "code"),
    [
        (10, None, None),
        (19, None, None),
        (9, Heard.WANTED_EARLIER, TOO_FAR_BEHIND),
        (20, Heard.WANTED_LATER, ERROR),
    ],
)
def test_a_wanted_block_is_sent_or_the_stream_is_left(
    kind: str, wanted: int, heard: Heard | None, code: int | None
) -> None:
    machine = opened()
    hear(machine, kind, wanted if kind == "resend_block" else wanted - 1)
    if heard is None:
        assert at(machine) == wanted
    else:
        assert_left(machine, heard, code, 16.0)


def test_the_farewell_names_the_blocks_that_are_left_and_the_last_durable_one() -> None:
    machine = opened()
    hear(machine, "resend_block", 3)
    assert machine.take_farewell() == {
        "end_stream": {"end_code": TOO_FAR_BEHIND, "earliest_block_number": 10, "latest_block_number": NO_BLOCK}
    }
    machine.opened(16.0, 14)
    hear(machine, "acknowledgement", 14)
    machine.dropped(15, 17.0)
    hear(machine, "resend_block", 3)
    assert machine.take_farewell() == {
        "end_stream": {"end_code": TOO_FAR_BEHIND, "earliest_block_number": 15, "latest_block_number": 14}
    }


def test_a_node_without_blocks_that_is_behind_wants_block_zero() -> None:
    machine = opened(0, 5, 4)
    hear(machine, "node_behind_publisher", NO_BLOCK)
    assert at(machine) == 0


def test_a_second_behind_is_ignored_for_five_seconds_and_ends_the_stream_within_thirty() -> None:
    machine = opened()
    hear(machine, "node_behind_publisher", 11, 1.0)
    hear(machine, "node_behind_publisher", 13, 5.9)
    assert at(machine) == 12
    hear(machine, "node_behind_publisher", 13, 31.1)
    assert at(machine) == 14
    hear(machine, "node_behind_publisher", 13, 36.2)
    assert_left(machine, Heard.BEHIND_TWICE, RESET, 36.2 + LIMITS.cool_down_s)


def test_the_behinds_of_an_earlier_stream_count() -> None:
    machine = opened()
    hear(machine, "node_behind_publisher", 11, 1.0)
    machine.lost(2.0)
    machine.opened(17.0, 15)
    hear(machine, "node_behind_publisher", 11, 18.0)
    assert machine.left is Heard.BEHIND_TWICE


@pytest.mark.parametrize("status", PublishStatus)
def test_the_end_of_a_stream_closes_it_and_acknowledges(status: PublishStatus) -> None:
    is_for_now = status in (
        PublishStatus.TIMEOUT,
        PublishStatus.DUPLICATE_BLOCK,
        PublishStatus.BAD_BLOCK_PROOF,
        PublishStatus.INVALID_REQUEST,
    )
    machine = opened()
    hear(machine, "end_stream", 17, status=int(status), proximate_block_number=15)
    assert machine.acknowledged == 17
    if is_for_now:
        assert_left(machine, Heard.ENDED_FOR_NOW, RESET, 1.0)
    else:
        assert_left(machine, Heard.ENDED, RESET, 1.0 + LIMITS.cool_down_s)


def test_the_sixth_end_within_thirty_seconds_bans_the_node() -> None:
    machine = opened()
    for number in range(5):
        hear(machine, "end_stream", 14, number, status=int(PublishStatus.TIMEOUT))
        assert machine.may_open(number)
        machine.opened(number, 15)
    hear(machine, "end_stream", 14, 5.0, status=int(PublishStatus.TIMEOUT))
    assert_left(machine, Heard.ENDED_TOO_OFTEN, RESET, 5.0 + LIMITS.ban_s)
    # The ends are counted within a time.
    machine.opened(35.1, 15)
    hear(machine, "end_stream", 14, 35.2, status=int(PublishStatus.TIMEOUT))
    assert machine.left is Heard.ENDED_FOR_NOW


def test_a_message_that_waits_too_long_begins_its_block_again() -> None:
    machine = opened()
    before = machine.position
    for _ in range(LIMITS.sends_max):
        machine.not_sent(1.0)
        assert at(machine) == 15
        assert machine.position != before
    machine.not_sent(2.0)
    assert_left(machine, Heard.NOT_SENT_AGAIN, TIMEOUT, 2.0 + LIMITS.cool_down_s)
    assert machine.send_s_max(0) == 3.0
    assert machine.send_s_max(20 * 1024 * 1024) == 13.0


def test_the_next_block_has_its_own_count_of_waits() -> None:
    machine = opened()
    machine.not_sent(1.0)
    send(machine)
    for _ in range(LIMITS.sends_max):
        machine.not_sent(1.0)
    assert at(machine) == 16


def test_five_late_acknowledgements_in_a_row_end_the_stream() -> None:
    machine = opened()
    for number in range(15, 20):
        send(machine, 1.0)
        hear(machine, "acknowledgement", number, 31.5 if number != 16 else 31.0)
    assert machine.is_open
    for number in (20, 21):
        machine.produced(number)
        send(machine, 40.0)
        hear(machine, "acknowledgement", number, 71.0)
    assert_left(machine, Heard.SLOW, TIMEOUT, 71.0 + LIMITS.cool_down_s)


def test_a_stream_is_begun_anew_after_a_day_between_two_blocks() -> None:
    machine = opened()
    send(machine, LIMITS.reset_s - 1)
    assert machine.is_open
    send(machine, LIMITS.reset_s)
    assert_left(machine, Heard.DAY_OVER, RESET, LIMITS.reset_s)
    assert machine.may_open(LIMITS.reset_s)


def test_blocks_that_are_dropped_unsent_end_the_stream() -> None:
    machine = opened()
    machine.dropped(15, 1.0)
    assert at(machine) == 15
    machine.dropped(16, 2.0)
    assert_left(machine, Heard.WANTED_EARLIER, TOO_FAR_BEHIND, 2.0 + LIMITS.cool_down_s)


def test_nothing_is_said_on_a_stream_that_is_lost_and_answers_behind_it_are_ignored() -> None:
    machine = opened()
    machine.lost(1.0)
    assert_left(machine, Heard.LOST, None, 1.0 + LIMITS.cool_down_s)
    hear(machine, "end_stream", 17, 2.0, status=4)
    machine.lost(3.0)
    assert (machine.acknowledged, machine.opens_s) == (None, 1.0 + LIMITS.cool_down_s)


def test_a_message_of_no_known_kind_changes_nothing() -> None:
    machine = opened()
    before = machine.position
    machine.take({}, 1.0)
    assert machine.position == before == SendPosition(15, 1)


def test_the_codes_are_those_of_the_protocol() -> None:
    assert {each.farewell for each in Heard} == {*PublisherEndCode, None} - {PublisherEndCode.UNKNOWN}
