"""Goal: a numbered message is stored once or reported, whatever is lost. Method: cases of the client's machine in
its queue. `test_sequence_model` holds it against the node's own machine.
"""

from __future__ import annotations

from collections import deque

import pytest

from ockam.actors.message import Message
from ockam.transport.wire_legacy import LEGACY
from stream_client.core.client_core import ClientCore
from stream_client.core.push_queue import DOUBTFUL_CHECKS_MAX, PushQueue
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import ClientError, ConnectionLost, PushNotStored, PushUnknown
from stream_service.extensions import RICH_PUSH, Outcome, RichStatus
from tests.client.machines.far_end import FarEnd, connected_core, opened, rich_pushes


def ids() -> deque[bytes]:
    return deque(b"id %d" % number for number in range(1_000))


def sequenced_queue(core: ClientCore, far: FarEnd, machine: SequenceMachine | None = None) -> PushQueue:
    (handle,) = opened(core, far)
    names = ids()
    return core.open_queue(handle, machine or SequenceMachine(names.popleft(), 0, names.popleft))


def numbers(messages: list[Message]) -> list[tuple[bytes, int, bytes]]:
    """Publisher, number and data of each push sent."""
    return [
        (push.sequence.publisher_id, push.sequence.sequence, push.data)
        for push in rich_pushes(messages)
        if push.sequence is not None
    ]


def test_nobody_comes_before_the_first_message() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    pushed = [queue.push_keyed(b"%d" % number, None, ()) for number in range(4)]
    sent = far.sent()
    assert numbers(sent) == [(b"id 0", 0, b"0")]
    far.confirm_rich(sent[0], 10)
    sent = far.sent()
    assert numbers(sent) == [(b"id 0", number, b"%d" % number) for number in (1, 2, 3)]
    for index, message in enumerate(sent, start=11):
        far.confirm_rich(message, index, RichStatus.DUPLICATE if index == 12 else RichStatus.OK)
    assert [push.result() for push in pushed] == [10, 11, 12, 13]


def test_a_failure_fails_what_was_sent_behind_it_and_begins_anew() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    opening = queue.push_keyed(b"0", None, ())
    far.confirm_rich(far.sent()[0], 0)
    pushed = [queue.push_keyed(b"%d" % number, None, ()) for number in (1, 2, 3)]
    first, second, third = far.sent()
    far.confirm_rich(second, 0, RichStatus.OUT_OF_ORDER, 1)
    assert not pushed[1].done, "the one before it may still be stored"
    far.fail(first, "full")
    assert [isinstance(push.error, PushNotStored) for push in pushed] == [True, True, False]
    behind = queue.push_keyed(b"4", None, ())
    (new,) = far.sent()
    assert numbers([new]) == [(b"id 1", 0, b"4")]
    far.confirm_rich(third, 0, RichStatus.OUT_OF_ORDER, 1)
    far.confirm_rich(new, 1)
    assert isinstance(pushed[2].error, PushNotStored)
    assert (opening.result(), behind.result(), len(queue.failed or ())) == (0, 1, 3)


def test_a_failed_opening_lets_the_next_one_try() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    first, second = (queue.push_keyed(b"%d" % number, None, ()) for number in (0, 1))
    far.fail(far.sent()[0], "full")
    sent = far.sent()
    assert numbers(sent) == [(b"id 1", 0, b"1")]
    far.confirm_rich(sent[0], 0)
    assert (first.error is not None, second.result()) == (True, 0)


def test_a_chosen_publisher_id_ends_with_a_failure() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far, SequenceMachine(b"mine", 7, None))
    first, second = (queue.push_keyed(b"%d" % number, None, ()) for number in (0, 1))
    sent = far.sent()
    assert numbers(sent) == [(b"mine", 7, b"0")]
    far.confirm_rich(sent[0], 0, RichStatus.OUT_OF_ORDER, 5)
    assert "number 7 of this publisher does not follow: the node expects 5" in str(first.error)
    later = queue.push_keyed(b"2", None, ())
    assert far.sent() == []
    assert isinstance(second.error, PushNotStored)
    assert isinstance(later.error, PushNotStored)
    assert not queue.pushes


def test_what_cannot_be_sent_takes_no_number() -> None:
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    queue = sequenced_queue(core, far)
    large = queue.push_keyed(bytes(70_000), None, ())
    small = queue.push_keyed(b"x", None, ())
    sent = far.sent()
    assert large.error is not None
    assert numbers(sent) == [(b"id 0", 0, b"x")]
    far.confirm_rich(sent[0], 0)
    assert small.result() == 0


def test_a_large_message_found_too_late_ends_its_numbers() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    queue.push_keyed(b"0", None, ())
    far.confirm_rich(far.sent()[0], 0)
    large = queue.push_keyed(bytes(70_000), None, ())
    core.disconnected()
    far = FarEnd(core, LEGACY)
    far.answer_create(far.sent()[0])
    assert large.error is not None, "it was sent over the head framing, and does not fit this one"
    queue.push_keyed(b"1", None, ())
    assert numbers(far.sent()) == [(b"id 1", 0, b"1")], "the node may have stored it under its number"


def test_what_was_given_up_may_be_stored_so_its_numbers_end() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    waiting = [queue.push_keyed(b"%d" % number, None, ()) for number in (0, 1)]
    far.sent()
    core.fail_all(ConnectionLost("no more patience"))
    assert [isinstance(push.error, ConnectionLost) for push in waiting] == [True, True]
    queue.push_keyed(b"2", None, ())
    assert numbers(far.sent()) == [(b"id 1", 0, b"2")]


def test_what_is_in_doubt_waits_with_all_behind_it_and_is_sent_again_in_order() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    opening = queue.push_keyed(b"0", None, ())
    far.confirm_rich(far.sent()[0], 0)
    pushed = [queue.push_keyed(b"%d" % number, None, ()) for number in (1, 2)]
    first, second = far.sent()
    far.fail(first, "the sync failed", Outcome.UNKNOWN)
    far.fail(second, "nothing is written any more")
    assert [push.done for push in pushed] == [False, False]
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    again = far.sent()
    assert numbers(again) == [(b"id 0", 1, b"1"), (b"id 0", 2, b"2")]
    far.confirm_rich(again[0], 1, RichStatus.DUPLICATE)
    far.confirm_rich(again[1], 2)
    assert [push.result() for push in (opening, *pushed)] == [0, 1, 2]


def test_a_node_that_cannot_tell_for_long_is_given_up() -> None:
    core, far = connected_core()
    queue = sequenced_queue(core, far)
    push = queue.push_keyed(b"0", None, ())
    for _ in range(3 * DOUBTFUL_CHECKS_MAX):
        for message in far.sent():
            if RICH_PUSH.is_in(message.payload):
                far.fail(message, "the sync failed", Outcome.UNKNOWN)
            else:
                far.answer_create(message)
        core.check_progress()
    with pytest.raises(PushUnknown, match="the sync failed; sent again for minutes"):
        push.result()
    assert not queue.pushes


def test_every_client_error_says_whose_fault_it_is() -> None:
    kinds: list[type[ClientError]] = [ClientError, *ClientError.__subclasses__()]
    assert len(kinds) > 8
    for kind in kinds:
        assert kind.fault in ("caller", "node", "network")
        assert isinstance(kind.retriable, bool)
        assert kind.__doc__
