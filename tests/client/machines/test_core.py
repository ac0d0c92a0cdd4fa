"""Goal: every state of the client's core. Method: bytes in and out, no I/O, no clock."""

from __future__ import annotations

import pytest

from ockam.actors.address import Address, local
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.core.calls import pulled
from stream_client.core.client_core import ClientCore
from stream_client.errors import AuthenticationFailed, ClientError, PushNotStored, PushUnknown, RequestRefused
from stream_service.extensions import LIST, ListRequest, Outcome, RichStatus, StreamKey
from stream_service.names import stream_address
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    CreatePartitions,
    CreateStream,
    PartitionCreated,
    PullResponse,
    Status,
    StreamCreated,
    StreamMessage,
)
from tests.client.machines.far_end import FarEnd, connected_core, is_create, opened, pushes


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
    assert core.connection.data_to_send() == b"\x01" + len(create).to_bytes(4, "big") + create
    init = b"\x84\x81\x82\x00\x42c1\x81\x82\x00\x42ST" + b"\x56\x0dstream_create\x07\x06orders" + b"\xf6"
    data = b"\x01" + len(init).to_bytes(4, "big") + init
    for at in range(len(data)):
        assert not call.done
        core.receive_data(data[at : at + 1])
    (handle,) = core.streams.handles(call)
    handle.queue.push(b"hi")
    push = b"\x84\x81\x82\x00\x42ST\x81\x82\x00\x4fnode/1/batch/c2" + b"\x51\x0bstream_push\x04\x00\x02hi" + b"\xf6"
    assert core.connection.data_to_send() == len(push).to_bytes(4, "big") + push


def test_the_first_bytes_in_the_legacy_framing() -> None:
    core = ClientCore(via=(Address(1, b"h:1"),))
    core.connected(LEGACY)
    # Through another node, the first question is whether that one passes anything on.
    question = b"\x01\x02\x01\x03h:1\x00\x0estream_service\x01\x00\x02c1\x18\x12node/stream_list/1\x04\x00\x00\x00\x01"
    assert core.connection.data_to_send() == len(question).to_bytes(2, "big") + question
    core.create(None)
    body = b"\x01\x02\x01\x03h:1\x00\x0estream_service\x01\x00\x02c2\x10\x0dstream_create\x01\x00"
    assert core.connection.data_to_send() == len(body).to_bytes(2, "big") + body


def test_what_is_asked_without_a_connection_goes_out_with_the_first() -> None:
    core = ClientCore()
    call = core.create("s")
    core.notify("stream_index_service", b"lost")
    far = FarEnd(core)
    (create,) = far.sent()
    assert CREATE.decode_request(create.payload) == CreateStream("s")
    far.answer_create(create)
    assert (call.done, call.error) == (True, None)


def test_on_outgoing_is_called_when_there_is_something_after_nothing() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    far.sent()
    woken: list[int] = []
    core.connection.on_outgoing = lambda: woken.append(core.connection.outgoing_bytes)
    for _ in range(3):
        handle.queue.push(b"x")
    assert woken == [0]
    size = core.connection.outgoing_bytes
    assert len(core.connection.data_to_send()) == size > 0
    assert (core.connection.data_to_send(), core.connection.outgoing_bytes) == (b"", 0)


def test_confirms_finish_pushes_in_any_order_and_once() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    first, second, third = (handle.queue.push(b"%d" % number) for number in range(3))
    sent = far.sent()
    assert handle.unconfirmed == 3
    room = handle.queue.room()
    far.confirm(sent[1], 7)
    assert (first.done, second.index, third.done, room.done) == (False, 7, False, True)
    far.confirm(sent[1], 8)
    far.confirm(sent[0], 6)
    far.fail(sent[2], "the disk is full")
    assert (first.result(), second.result(), handle.unconfirmed) == (6, 7, 0)
    with pytest.raises(PushNotStored, match="has not been stored: the disk is full"):
        third.result()
    with pytest.raises(ValueError, match="no answer yet"):
        handle.queue.push(b"x").result()


def test_a_lost_connection_sends_again_what_has_no_answer_in_order() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    sent_before = [handle.queue.push(b"%d" % number) for number in range(3)]
    confirmed, *_ = far.sent()
    far.confirm(confirmed, 0)
    pull = core.pull(handle, 5, 1)
    core.disconnected()
    pushed_while_down = handle.queue.push(b"3")
    assert (core.connection.data_to_send(), handle.route) == (b"", None)
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
    (handle,) = opened(core, far)
    before = handle.queue.push(b"before")
    core.disconnected()
    meanwhile = handle.queue.push(b"meanwhile")
    far = FarEnd(core)
    far.answer_create(far.sent()[0])
    for message in far.sent():
        far.fail(message, "the disk is full")
    assert isinstance(before.error, PushUnknown), "the first copy may have been stored"
    assert isinstance(meanwhile.error, PushNotStored)


def test_a_request_that_was_sent_before_its_refusal_is_in_doubt() -> None:
    """Claim: the node may have carried out a request whose connection ended before the answer, also if the client's
    token was revoked meanwhile; a later request was never sent. Method: a create of each kind, and one refusal."""
    core, far = connected_core()
    sent = core.create("orders")
    assert far.sent()
    core.disconnected()
    held = core.create("bills")
    core.close(AuthenticationFailed("it was revoked", "revoked"))
    assert isinstance(sent.error, AuthenticationFailed)
    assert isinstance(held.error, AuthenticationFailed)
    assert (str(sent.error), sent.error.kind, sent.error.in_doubt) == ("it was revoked", "revoked", True)
    assert not held.error.in_doubt


def test_a_request_that_was_sent_again_before_its_refusal_is_in_doubt() -> None:
    """Claim: the answer to the first copy can be lost on the way, so its refusal says only what became of the second
    one. Method: a request that is refused at once, and one that waits for so long that it is sent again."""
    core, far = connected_core()
    at_once = core.create("orders")
    far.refuse(far.sent()[0])
    late = core.create("bills")
    (first,) = far.sent()
    core.check_progress()
    core.check_progress()
    (again,) = far.sent()
    assert again.payload == first.payload
    far.refuse(again)
    assert isinstance(at_once.error, RequestRefused)
    assert isinstance(late.error, RequestRefused)
    assert (at_once.error.in_doubt, late.error.in_doubt) == (False, True)


def test_a_create_of_which_a_part_was_refused_is_in_doubt() -> None:
    """Claim: a refusal does not hide a partition that was made. Method: in a cluster, the owner of one partition
    answers, and the owner of the other one refuses."""
    core, far = connected_core()
    call = core.create("orders", 2)
    (create,) = far.sent()
    far.answer(create, CREATE_PARTITIONED.encode_response(PartitionCreated("orders", 1)), local("ST1"))
    far.refuse(create)
    assert isinstance(call.error, RequestRefused)
    assert call.error.in_doubt


def test_an_error_of_a_service_that_gives_no_reason_denies_nothing() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    plain, keyed = handle.queue.push(b"1"), handle.queue.push_keyed(b"2", b"k", ())
    first, second = far.sent()
    far.confirm(first, 0, Status.ERROR)
    far.confirm_rich(second, 0, RichStatus.ERROR)
    for push in (plain, keyed):
        with pytest.raises(PushUnknown, match="neither why nor whether"):
            push.result()


@pytest.mark.parametrize(
    ("outcome", "kind", "in_doubt"),
    [
        (Outcome.NOT_STORED, PushNotStored, False),
        (Outcome.UNKNOWN, PushUnknown, True),
        (Outcome.REFUSED, RequestRefused, False),
    ],
)
def test_each_outcome_is_an_error_of_its_own(outcome: Outcome, kind: type[ClientError], in_doubt: bool) -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    for push in (handle.queue.push(b"1"), handle.queue.push_keyed(b"2", b"k", ())):
        for message in far.sent():
            far.fail(message, "because", outcome)
        assert type(push.error) is kind
        assert "because" in str(push.error)
        assert push.error.in_doubt is in_doubt


def test_a_stream_of_many_partitions_is_made_again_by_one_create() -> None:
    core, far = connected_core()
    handles = opened(core, far, "s", 3)
    opened(core, far, "other")
    assert [(handle.partition, handle.route) for handle in handles] == [
        (part, (local(f"ST{part}"),)) for part in range(3)
    ]
    handles[2].queue.push(b"x")
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
    assert [handle.partition for handle in core.streams.handles(call)] == [0, 1]


def test_a_generated_name_is_kept_after_a_reconnect() -> None:
    core, far = connected_core()
    call = core.create(None)
    (create,) = far.sent()
    far.answer(create, CREATE.encode_response(StreamCreated("generated_1")), local("ST"))
    core.streams.handles(call)
    core.disconnected()
    (create,) = FarEnd(core).sent()
    assert CREATE.decode_request(create.payload) == CreateStream("generated_1")


def test_a_stream_made_twice_has_one_port() -> None:
    core, far = connected_core()
    (first,), (second,) = opened(core, far), opened(core, far)
    assert first is second
    first.queue.push(b"x")
    far.sent()
    call = core.create("s")
    (create,) = far.sent()
    far.answer(create, CREATE.encode_response(StreamCreated("s")), local("MOVED"))
    core.streams.handles(call)
    (moved,) = far.sent()
    assert moved.onward_route == (local("MOVED"),), "what has no confirm follows the stream"


def test_a_port_found_by_name_creates_nothing() -> None:
    core, far = connected_core()
    (handle,) = core.find_handles("s", [3])
    handle.queue.push(b"x")
    (push,) = far.sent()
    assert push.onward_route == (stream_address("s", 3),)
    core.disconnected()
    far = FarEnd(core)
    (push,) = far.sent()
    assert push.onward_route == (stream_address("s", 3),)
    core.check_progress()
    core.check_progress()
    asked, push = far.sent()
    assert push.onward_route == (stream_address("s", 3),)
    assert LIST.decode_request(asked.payload) == ListRequest(0, "s", StreamKey("s", 2), 1), "whether it is there still"


def test_a_second_drop_of_a_handle_leaves_its_successor_alone() -> None:
    """Goal: a partition that is in use again keeps its pushes. Method: drop the handle of a deleted partition twice."""
    core = ClientCore()
    (old,) = core.find_handles("s", [0])
    core.find_handles("s", [1])
    core.streams.drop(old)
    (new,) = core.find_handles("s", [0])
    core.streams.drop(old)
    push = new.queue.push(b"data")
    far = FarEnd(core)
    for asked in far.sent():
        far.confirm(asked, 7)
    assert push.index == 7
