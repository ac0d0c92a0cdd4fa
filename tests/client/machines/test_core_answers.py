"""Goal: answers of every kind reach who asked, and nobody else. Method: bytes only, no sockets, no clock."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.errors import RemoteProtocolError
from ockam.protocol import error_payload
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.core.calls import pulled
from stream_client.core.client_core import SILENT_CHECKS_MAX, ClientCore
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import (
    AccessDenied,
    ClientClosed,
    ClientError,
    ConnectionLost,
    PushFailed,
    PushUnknown,
    RequestRefused,
    StreamNotFound,
    UnexpectedAnswer,
)
from stream_service.extensions import Outcome, RichStatus
from stream_service.protocol import CREATE, PULL, PUSH, CreateStream, PullResponse, PushConfirm, Status
from tests.client.machines.far_end import FarEnd, connected_core, is_create, opened, pushes


def test_an_error_answer_is_for_who_asked() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push, pull = handle.queue.push(b"x"), core.pull(handle, 0, 1)
    pushed, asked = far.sent()
    far.refuse(asked, "not today")
    assert str(pull.error) == "Invalid request: not today"
    assert not push.done
    far.refuse(pushed, "no pushes")
    with pytest.raises(RequestRefused, match="no pushes"):
        push.result()
    assert core.statistics().unanswered == 0


def test_answers_that_are_none_are_told_or_ignored() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push, pull = handle.queue.push(b"x"), core.pull(handle, 0, 1)
    pushed, asked = far.sent()
    far.answer(pushed, b"\xff garbage")
    far.answer(pushed, PUSH.encode_response(PushConfirm(99, Status.OK, 5)))
    far.answer(pushed, PUSH.tag + b"\x01\x00")
    assert not push.done
    far.answer(asked, b"\x04what\x00")
    with pytest.raises(UnexpectedAnswer, match="not an answer to a stream_pull"):
        pulled(pull)
    call = core.create("t")
    (create,) = far.sent()
    far.answer(create, b"\x04what\x00")
    assert isinstance(call.error, UnexpectedAnswer)
    far.answer(Message(create.return_route, (local("nobody"),), b""), error_payload("for nobody"))
    unreadable = core.pull(handle, 0, 1)
    (asked,) = far.sent()
    far.answer(asked, b"\x05error\x01\x09")
    assert "cannot be read" in str(unreadable.error)


def test_a_refused_re_create_fails_what_waits_for_the_stream() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    opened(core, far, "other")
    push, pull = handle.queue.push(b"x"), core.pull(handle, 0, 1)
    core.disconnected()
    later = handle.queue.push(b"y")
    far = FarEnd(core)
    first, second = far.sent()
    far.refuse(first, "full")
    assert isinstance(push.error, PushUnknown)
    assert isinstance(later.error, RequestRefused)
    assert isinstance(pull.error, RequestRefused)
    far.answer_create(second)
    assert handle.route is None
    # The next connection tries again.
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    assert handle.route == (local("ST0"),)


def test_bytes_that_are_no_frame_end_the_connection_behind_the_good_ones() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push = handle.queue.push(b"x")
    (sent,) = far.sent()
    good = far.frame(sent.return_route, PUSH.encode_response(PushConfirm(0, Status.OK, 3)), local("ST0"))
    with pytest.raises(RemoteProtocolError):
        core.receive_data(good + b"\x00\x00\x00\x01\x00")
    assert push.result() == 3
    core, _ = connected_core()
    with pytest.raises(RemoteProtocolError, match="it answered HTTP"):
        core.receive_data(b"HTTP/1.1")
    waiting = core.pull(core.find_handles("s", [0])[0], 0, 1)
    core.disconnected(UnexpectedAnswer("no node"))
    assert isinstance(waiting.error, UnexpectedAnswer)


def test_what_is_too_large_fails_at_once_and_alone() -> None:
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    (handle,) = opened(core, far)
    large, small = handle.queue.push(bytes(65_000)), handle.queue.push(b"x")
    assert len(pushes(far.sent())) == 1
    with pytest.raises(RequestRefused, match="64000"):
        large.result()
    assert not small.done
    call = core.call(handle, bytes(70_000))
    assert isinstance(call.error, RequestRefused)
    with pytest.raises(RequestRefused):
        core.notify("stream_index_service", bytes(70_000))


def test_no_answer_is_asked_for_again_after_two_checks() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push, pull = handle.queue.push(b"x"), core.call(handle, b"patient", patience=4)
    index = core.call(core.route_to("stream_index_service"), b"get")
    far.sent()
    core.check_progress()
    assert far.sent() == []
    core.check_progress()
    create, asked_again = sorted(far.sent(), key=is_create, reverse=True)
    assert is_create(create)
    assert asked_again.payload == b"get"
    far.answer_create(create)
    assert [message.payload == b"patient" for message in far.sent()] == [False, True]
    far.answer(asked_again, b"answer")
    assert index.answers == [b"answer"]
    assert not push.done
    assert not pull.done


def test_a_push_that_makes_progress_is_not_sent_again() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    for number in range(6):
        handle.queue.push(b"x")
        (sent,) = far.sent()
        core.check_progress()
        far.confirm(sent, number)
        assert far.sent() == []


def test_a_silent_connection_is_given_up_while_something_waits() -> None:
    core, far = connected_core()
    for _ in range(2 * SILENT_CHECKS_MAX):
        assert not core.check_progress()
    (handle,) = opened(core, far)
    handle.queue.push(b"x")
    assert [core.check_progress() for _ in range(SILENT_CHECKS_MAX)] == [False] * (SILENT_CHECKS_MAX - 1) + [True]
    far.answer_create(next(message for message in far.sent() if is_create(message)))
    assert not core.check_progress()
    core.disconnected()
    assert not core.check_progress()


def test_a_queue_goes_when_its_publisher_is_done_and_everything_answered() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    queue = core.open_queue(handle)
    push = queue.push(b"x")
    core.streams.close_queue(handle, queue)
    assert len(handle.queues) == 2
    (sent,) = far.sent()
    far.confirm(sent, 4)
    assert (push.result(), len(handle.queues)) == (4, 1)
    core.streams.close_queue(handle, core.open_queue(handle))
    assert len(handle.queues) == 1


def test_queues_have_windows_and_failures_of_their_own() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    one, two = core.open_queue(handle), core.open_queue(handle)
    one.push(b"1")
    two.push(b"2")
    first, second = far.sent()
    assert first.return_route != second.return_route
    far.refuse(first)
    assert [len(one.pushes), len(two.pushes), handle.unconfirmed] == [0, 1, 1]
    assert [len(one.failed or ()), two.failed] == [1, []]


def test_a_deleted_port_is_not_made_again() -> None:
    core, far = connected_core()
    first, second = opened(core, far, "s", 2)
    push, pull = second.queue.push(b"x"), core.pull(second, 0, 1)
    core.streams.drop(second)
    for each in (push, pull):
        assert isinstance(each.error, StreamNotFound)
    assert isinstance(second.queue.push(b"late").error, StreamNotFound)
    with pytest.raises(StreamNotFound):
        core.pull(second, 0, 1)
    core.disconnected()
    far = FarEnd(core)
    assert [CREATE.decode_request(create.payload) for create in far.sent()] == [CreateStream("s")]
    core.streams.drop(first)
    core.disconnected()
    assert FarEnd(core).sent() == []


def test_a_closed_core_fails_everything_then_and_later() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push, pull = handle.queue.push(b"x"), core.pull(handle, 0, 1)
    core.close()
    assert isinstance(push.error, ClientClosed)
    assert isinstance(pull.error, ClientClosed)
    for ask in (lambda: handle.queue.push(b"x"), lambda: core.pull(handle, 0, 1), lambda: core.notify("s", b"")):
        with pytest.raises(ClientClosed):
            ask()
    core, far = connected_core()
    core.close(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        core.create("s")


def test_a_call_that_is_forgotten_stays_unanswered() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    call = core.pull(handle, 0, 1)
    (asked,) = far.sent()
    core.calls.forget(call)
    core.calls.forget(call)
    far.answer(asked, PULL.encode_response(PullResponse(0, [])))
    assert not call.done
    single = handle.queue.push(b"x")
    handle.queue.forget(single)
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    assert far.sent() == []


def test_callbacks_come_once_and_can_be_taken_back() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    push = handle.queue.push(b"x")
    called: list[str] = []

    def never() -> None:
        called.append("never")

    push.when_done(lambda: called.append("first"))
    push.when_done(never)
    push.when_done(lambda: called.append("second"))
    push.forget(never)
    far.confirm(far.sent()[0], 0)
    push.finish(PushFailed("too late"))
    push.when_done(lambda: called.append("late"))
    push.forget(never)
    assert (called, push.error) == (["first", "second", "late"], None)


def test_an_error_among_plain_pushes_never_says_that_one_was_not_stored() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    several = [handle.queue.push(b"%d" % number) for number in range(3)]
    far.refuse(far.sent()[1], "too large")
    assert all(isinstance(push.error, UnexpectedAnswer) for push in several)
    assert "may have been stored" in str(several[0].error)
    alone = handle.queue.push(b"alone")
    far.refuse(far.sent()[0], "too large")
    assert isinstance(alone.error, RequestRefused)


def test_a_node_that_does_not_know_keys_refuses_only_messages_with_keys() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    plain, keyed = handle.queue.push(b"1"), handle.queue.push_keyed(b"2", b"k", ())
    first, second = far.sent()
    far.refuse(second, "serves no such thing")
    assert isinstance(keyed.error, RequestRefused)
    assert not plain.done
    far.confirm(first, 0)
    assert plain.result() == 0


def test_a_refused_keyed_push_fails_alone() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    keyed = [handle.queue.push_keyed(b"%d" % number, b"k", ()) for number in range(3)]
    sent = far.sent()
    far.confirm_rich(sent[1], 0, RichStatus.REFUSED)
    far.confirm_rich(sent[0], 0)
    far.confirm_rich(sent[2], 1)
    assert [push.error is None for push in keyed] == [True, False, True]
    assert isinstance(keyed[1].error, RequestRefused)


def test_an_error_after_a_reconnect_does_not_say_that_a_push_was_not_stored() -> None:
    """Claim: a push that was sent before is in doubt if the node refuses it now. Method: the connection ends before the
    answer, as it does when the rules of the node change, and the next copy is refused by the new rules."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    before = handle.queue.push(b"1")
    far.sent()
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    far.refuse(far.sent()[0], "access denied: write on 's'")
    with pytest.raises(PushUnknown, match="access denied"):
        before.result()
    first = handle.queue.push(b"2")
    far.refuse(far.sent()[0], "access denied: write on 's'")
    assert isinstance(first.error, AccessDenied)


@pytest.mark.parametrize("refused", ["push", "keyed", "numbered", "create", "framing"])
def test_no_refusal_after_a_reconnect_says_that_a_push_was_not_stored(refused: str) -> None:
    """Claim: a push that was sent before is in doubt, however the next copy is refused. Method: by the node's answer to
    a push of each kind, by its answer to the request that makes the stream, and by a framing without room for it."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    queue = handle.queue if refused != "numbered" else core.open_queue(handle, SequenceMachine(b"id", 0, None))
    is_plain = refused not in ("keyed", "numbered")
    before = queue.push(bytes(65_000)) if is_plain else queue.push_keyed(b"1", b"k", ())
    far.sent()
    core.disconnected()
    far = FarEnd(core, LEGACY if refused == "framing" else HEAD)
    (create,) = far.sent()
    if refused == "create":
        far.refuse(create, "access denied: create on 's'")
    else:
        far.answer_create(create)
    if refused in ("push", "keyed", "numbered"):
        far.fail(far.sent()[0], "access denied: write on 's'", Outcome.REFUSED)
    assert isinstance(before.error, PushUnknown)


def test_a_node_that_knows_keys_can_be_followed_by_one_that_does_not() -> None:
    """Claim: what one node knows is not expected of the next. Method: a push with a key is confirmed; the next
    connection leads to a node that refuses such pushes, and takes plain ones."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    handle.queue.push_keyed(b"0", b"k", ())
    far.confirm_rich(far.sent()[0], 0)
    core.disconnected()
    plain, keyed = handle.queue.push(b"1"), handle.queue.push_keyed(b"2", b"k", ())
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    first, second = far.sent()
    far.refuse(second, "serves no such thing")
    assert isinstance(keyed.error, RequestRefused)
    far.confirm(first, 1)
    assert plain.result() == 1


def test_a_push_that_is_too_large_for_the_next_connection_wakes_its_publisher() -> None:
    """Claim: a publisher that waits for its last push goes on when it fails. Method: the push is made without a
    connection, and the next one has a framing that cannot carry it."""
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    (handle,) = opened(core, far)
    core.disconnected()
    large, room = handle.queue.push(bytes(65_000)), handle.queue.room()
    far = FarEnd(core, LEGACY)
    far.answer_create(far.sent()[0])
    assert isinstance(large.error, RequestRefused)
    assert room.done


def test_the_end_of_one_queue_leaves_no_other_closed() -> None:
    """Claim: a reconnect opens every queue of a partition. Method: the first of two publishers has ended, and its last
    push fails at that moment, since the framing has no room for it; so its queue goes away."""
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    (handle,) = opened(core, far)
    ended, other = (core.streams.open_queue(handle, None) for _ in range(2))
    core.disconnected()
    ended.push(bytes(65_000))
    core.streams.close_queue(handle, ended)
    waiting = other.push(b"x")
    far = FarEnd(core, LEGACY)
    far.answer_create(far.sent()[0])
    assert ended not in handle.queues
    (push,) = far.sent()
    far.confirm(push, 0)
    assert waiting.result() == 0
    core.check()


def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    """Claim: each request to an ended client costs no memory for good. Method: the tracebacks of the same error, which
    retain the frames of everybody who got it."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    gone, *_ = core.find_handles("gone", [0])
    core.streams.drop(gone)
    push = gone.queue.push(b"x")
    core.close()
    asks: tuple[Callable[[], object], ...] = (
        lambda: handle.queue.push(b"x"),
        lambda: core.pull(handle, 0, 1),
        push.result,
        lambda: core.streams.open_queue(gone, None),
    )
    for ask in asks:
        depths = []
        for _ in range(3):
            with pytest.raises(ClientError) as caught:
                ask()
            depths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
        assert depths == depths[:1] * 3
