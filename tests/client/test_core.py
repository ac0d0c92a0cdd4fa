"""Goal: every state of the client's core. Method: bytes in and out, no I/O, no clock."""

from __future__ import annotations

import pytest

from ockam.address import Address, local
from ockam.errors import RemoteProtocolError
from ockam.message import Message
from ockam.protocol import error_payload
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY
from stream_service.client.core import SILENT_CHECKS_MAX, ClientCore
from stream_service.client.errors import (
    ClientClosed,
    ConnectionLost,
    PushFailed,
    RequestRefused,
    UnexpectedAnswer,
)
from stream_service.client.payloads import pulled
from stream_service.names import stream_address
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PartitionCreated,
    PullResponse,
    PushConfirm,
    Status,
    StreamCreated,
    StreamMessage,
)
from tests.client.far_end import FarEnd, connected_core, is_create, opened, pushes


def test_the_first_bytes_of_a_create_and_a_push() -> None:
    core = ClientCore()
    core.connected(HEAD)
    call = core.create("orders")
    create = (
        b"\x84\x81\x82\x00\x4estream_service\x81\x82\x00\x42c1"
        + b"\x57"
        + (b"\x0dstream_create" + b"\x08\x01\x06orders")
        + b"\xf6"
    )
    assert core.data_to_send() == b"\x01" + len(create).to_bytes(4, "big") + create
    init = b"\x84\x81\x82\x00\x42c1\x81\x82\x00\x42ST" + b"\x56\x0dstream_create\x07\x06orders" + b"\xf6"
    data = b"\x01" + len(init).to_bytes(4, "big") + init
    for at in range(len(data)):
        assert not call.done
        core.receive_data(data[at : at + 1])
    (port,) = core.ports(call)
    core.push(port, b"hi")
    push = b"\x84\x81\x82\x00\x42ST\x81\x82\x00\x42c2" + b"\x51\x0bstream_push\x04\x00\x02hi" + b"\xf6"
    assert core.data_to_send() == len(push).to_bytes(4, "big") + push


def test_the_first_bytes_in_the_legacy_framing() -> None:
    core = ClientCore(via=(Address(1, b"h:1"),))
    core.connected(LEGACY)
    core.create(None)
    body = b"\x01\x02\x01\x03h:1\x00\x0estream_service\x01\x00\x02c1\x10\x0dstream_create\x01\x00"
    assert core.data_to_send() == len(body).to_bytes(2, "big") + body


def test_what_is_asked_without_a_connection_goes_out_with_the_first() -> None:
    core = ClientCore()
    call = core.create("s")
    core.tell("stream_index_service", b"lost")
    far = FarEnd(core)
    (create,) = far.sent()
    assert CREATE.decode_request(create.payload) == CreateStream("s")
    far.answer_create(create)
    assert (call.done, call.error) == (True, None)


def test_on_outgoing_is_called_when_there_is_something_after_nothing() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    far.sent()
    woken: list[int] = []
    core.link.on_outgoing = lambda: woken.append(core.link.outgoing_bytes)
    for _ in range(3):
        core.push(port, b"x")
    assert woken == [0]
    size = core.link.outgoing_bytes
    assert len(core.data_to_send()) == size > 0
    assert (core.data_to_send(), core.link.outgoing_bytes) == (b"", 0)


def test_confirms_finish_pushes_in_any_order_and_once() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    first, second, third = (core.push(port, b"%d" % number) for number in range(3))
    sent = far.sent()
    assert port.unconfirmed == 3
    room = port.lane.room()
    far.confirm(sent[1], 7)
    assert (first.done, second.index, third.done, room.done) == (False, 7, False, True)
    far.confirm(sent[1], 8)
    far.confirm(sent[0], 6)
    far.confirm(sent[2], 0, Status.ERROR)
    assert (first.result(), second.result(), port.unconfirmed) == (6, 7, 0)
    with pytest.raises(PushFailed, match="has not been stored"):
        third.result()
    with pytest.raises(ValueError, match="no answer yet"):
        core.push(port, b"x").result()


def test_a_lost_connection_sends_again_what_has_no_answer_in_order() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    sent_before = [core.push(port, b"%d" % number) for number in range(3)]
    confirmed, *_ = far.sent()
    far.confirm(confirmed, 0)
    pull = core.pull(port, 5, 1)
    core.disconnected()
    pushed_while_down = core.push(port, b"3")
    assert (core.data_to_send(), port.route) == (b"", None)
    far = FarEnd(core)
    (create,) = far.sent()
    assert is_create(create)
    far.answer_create(create, "NEW")
    again = far.sent()
    assert [push.data for push in pushes(again)] == [b"1", b"2", b"3"]
    assert {message.onward_route for message in again} == {(local("NEW0"),)}
    for index, message in enumerate(again[:3], start=1):
        far.confirm(message, index)
    far.answer(again[3], PULL.encode_response(PullResponse(0, [StreamMessage(5, b"x")])))
    assert [push.result() for push in (*sent_before, pushed_while_down)] == [0, 1, 2, 3]
    assert pulled(pull)[0].data == b"x"
    assert core.statistics().sent_again == 2


def test_a_failure_of_what_was_sent_again_says_that_nobody_knows() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    before = core.push(port, b"before")
    core.disconnected()
    meanwhile = core.push(port, b"meanwhile")
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    for message in far.sent():
        far.confirm(message, 0, Status.ERROR)
    assert isinstance(before.error, ConnectionLost), "the first copy may have been stored"
    assert isinstance(meanwhile.error, PushFailed)


def test_a_stream_of_many_partitions_is_made_again_by_one_create() -> None:
    core, far = connected_core()
    ports = opened(core, far, "s", 3)
    opened(core, far, "other")
    assert [(port.partition, port.route) for port in ports] == [(part, (local(f"ST{part}"),)) for part in range(3)]
    core.push(ports[2], b"x")
    core.disconnected()
    far = FarEnd(core)
    creates = far.sent()
    assert [CREATE_PARTITIONED.decode_request(creates[0].payload), CREATE.decode_request(creates[1].payload)] == [
        CreatePartitions("s", 3),
        CreateStream("other"),
    ]
    far.answer_create(creates[0])
    assert [push.data for push in pushes(far.sent())] == [b"x"]


def test_a_create_asked_again_counts_no_partition_twice() -> None:
    core, far = connected_core()
    call = core.create("s", 2)
    (create,) = far.sent()
    init = CREATE_PARTITIONED.encode_response(PartitionCreated("s", 0))
    far.answer(create, init, local("ST0"))
    for _ in range(2):
        core.check_progress()
    (again,) = far.sent()
    far.answer(create, init, local("ST0"))
    assert not call.done
    far.answer_create(again)
    assert [port.partition for port in core.ports(call)] == [0, 1]


def test_a_generated_name_is_kept_after_a_reconnect() -> None:
    core, far = connected_core()
    call = core.create(None)
    (create,) = far.sent()
    far.answer(create, CREATE.encode_response(StreamCreated("generated_1")), local("ST"))
    core.ports(call)
    core.disconnected()
    (create,) = FarEnd(core).sent()
    assert CREATE.decode_request(create.payload) == CreateStream("generated_1")


def test_a_stream_made_twice_has_one_port() -> None:
    core, far = connected_core()
    (first,), (second,) = opened(core, far), opened(core, far)
    assert first is second
    core.push(first, b"x")
    far.sent()
    call = core.create("s")
    (create,) = far.sent()
    far.answer(create, CREATE.encode_response(StreamCreated("s")), local("MOVED"))
    core.ports(call)
    (moved,) = far.sent()
    assert moved.onward_route == (local("MOVED"),), "what has no confirm follows the stream"


def test_a_port_found_by_name_creates_nothing() -> None:
    core, far = connected_core()
    (port,) = core.find_ports("s", [3])
    core.push(port, b"x")
    (push,) = far.sent()
    assert push.onward_route == (stream_address("s", 3),)
    core.disconnected()
    far = FarEnd(core)
    (push,) = far.sent()
    assert push.onward_route == (stream_address("s", 3),)
    core.check_progress()
    core.check_progress()
    assert [message.onward_route for message in far.sent()] == [(stream_address("s", 3),)]


def test_an_error_answer_is_for_who_asked() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    push, pull = core.push(port, b"x"), core.pull(port, 0, 1)
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
    (port,) = opened(core, far)
    push, pull = core.push(port, b"x"), core.pull(port, 0, 1)
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
    unreadable = core.pull(port, 0, 1)
    (asked,) = far.sent()
    far.answer(asked, b"\x05error\x01\x09")
    assert "cannot be read" in str(unreadable.error)


def test_a_refused_re_create_fails_what_waits_for_the_stream() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    opened(core, far, "other")
    push, pull = core.push(port, b"x"), core.pull(port, 0, 1)
    core.disconnected()
    far = FarEnd(core)
    first, second = far.sent()
    far.refuse(first, "full")
    assert isinstance(push.error, RequestRefused)
    assert isinstance(pull.error, RequestRefused)
    far.answer_create(second)
    assert port.route is None
    # The next connection tries again.
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    assert port.route == (local("ST0"),)


def test_bytes_that_are_no_frame_end_the_connection_behind_the_good_ones() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    push = core.push(port, b"x")
    (sent,) = far.sent()
    good = far.frame(sent.return_route, PUSH.encode_response(PushConfirm(0, Status.OK, 3)), local("ST0"))
    with pytest.raises(RemoteProtocolError):
        core.receive_data(good + b"\x00\x00\x00\x01\x00")
    assert push.result() == 3
    core, _ = connected_core()
    with pytest.raises(RemoteProtocolError, match="head framing"):
        core.receive_data(b"HTTP/1.1")
    waiting = core.pull(core.find_ports("s", [0])[0], 0, 1)
    core.disconnected(UnexpectedAnswer("no node"))
    assert isinstance(waiting.error, UnexpectedAnswer)


def test_what_is_too_large_fails_at_once_and_alone() -> None:
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    (port,) = opened(core, far)
    large, small = core.push(port, bytes(65_000)), core.push(port, b"x")
    assert len(pushes(far.sent())) == 1
    with pytest.raises(RequestRefused, match="65000"):
        large.result()
    assert not small.done
    call = core.call(port, bytes(70_000))
    assert isinstance(call.error, RequestRefused)
    with pytest.raises(RequestRefused):
        core.tell("stream_index_service", bytes(70_000))


def test_no_answer_is_asked_for_again_after_two_checks() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    push, pull = core.push(port, b"x"), core.call(port, b"patient", patience=4)
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
    (port,) = opened(core, far)
    for number in range(6):
        core.push(port, b"x")
        (sent,) = far.sent()
        core.check_progress()
        far.confirm(sent, number)
        assert far.sent() == []


def test_a_silent_connection_is_given_up_while_something_waits() -> None:
    core, far = connected_core()
    for _ in range(2 * SILENT_CHECKS_MAX):
        assert not core.check_progress()
    (port,) = opened(core, far)
    core.push(port, b"x")
    assert [core.check_progress() for _ in range(SILENT_CHECKS_MAX)] == [False] * (SILENT_CHECKS_MAX - 1) + [True]
    far.answer_create(next(message for message in far.sent() if is_create(message)))
    assert not core.check_progress()
    core.disconnected()
    assert not core.check_progress()


def test_a_lane_goes_when_its_publisher_is_done_and_everything_answered() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    lane = core.open_lane(port)
    push = lane.push(b"x")
    core.close_lane(port, lane)
    assert len(port.lanes) == 2
    (sent,) = far.sent()
    far.confirm(sent, 4)
    assert (push.result(), len(port.lanes)) == (4, 1)
    core.close_lane(port, core.open_lane(port))
    assert len(port.lanes) == 1


def test_lanes_have_windows_and_failures_of_their_own() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    one, two = core.open_lane(port), core.open_lane(port)
    one.push(b"1")
    two.push(b"2")
    first, second = far.sent()
    assert first.return_route != second.return_route
    far.refuse(first)
    assert [len(one.pushes), len(two.pushes), port.unconfirmed] == [0, 1, 1]
    assert [len(one.failed or ()), two.failed] == [1, []]


def test_a_deleted_port_is_not_made_again() -> None:
    core, far = connected_core()
    first, second = opened(core, far, "s", 2)
    push, pull = core.push(second, b"x"), core.pull(second, 0, 1)
    core.drop(second)
    for each in (push, pull):
        assert isinstance(each.error, RequestRefused)
    core.disconnected()
    far = FarEnd(core)
    assert [CREATE.decode_request(create.payload) for create in far.sent()] == [CreateStream("s")]
    core.drop(first)
    core.disconnected()
    assert FarEnd(core).sent() == []


def test_a_closed_core_fails_everything_then_and_later() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    push, pull = core.push(port, b"x"), core.pull(port, 0, 1)
    core.close()
    assert isinstance(push.error, ClientClosed)
    assert isinstance(pull.error, ClientClosed)
    for ask in (lambda: core.push(port, b"x"), lambda: core.pull(port, 0, 1), lambda: core.tell("s", b"")):
        with pytest.raises(ClientClosed):
            ask()
    core, far = connected_core()
    core.close(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        core.create("s")


def test_a_call_that_is_forgotten_stays_unanswered() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    call = core.pull(port, 0, 1)
    (asked,) = far.sent()
    core.forget(call)
    core.forget(call)
    far.answer(asked, PULL.encode_response(PullResponse(0, [])))
    assert not call.done
    single = core.push(port, b"x")
    port.lane.forget(single)
    core.disconnected()
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    assert far.sent() == []


def test_callbacks_come_once_and_can_be_taken_back() -> None:
    core, far = connected_core()
    (port,) = opened(core, far)
    push = core.push(port, b"x")
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
