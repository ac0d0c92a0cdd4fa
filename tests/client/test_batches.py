"""Goal: many pushes in one message mean the same as each push alone: same order, indexes and errors, and nothing twice.

Method: a core and the bytes of a far end; then a real node, whose side of the wire is read by a decoder of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import local
from ockam.protocol import ERROR
from stream_client import connect
from stream_client.core.client_connection import BATCH_BYTES_MAX, BATCHED_DATA_BYTES_MAX
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PushNotStored, PushUnknown
from stream_client.shell.base_shell import Framing
from stream_service.extensions import (
    BATCH_MESSAGES_MAX,
    BATCHED,
    PUSH_BATCH,
    BatchAnswer,
    BatchFailure,
    Outcome,
    PushBatch,
)
from stream_service.limits import StreamLimits
from stream_service.protocol import PULL, PUSH, PushConfirm, PushRequest, Status
from tests.client.machines.far_end import FarEnd, batches, connected_core, opened, pushes
from tests.support.data_dir import stored_messages
from tests.support.served import served


def batching() -> tuple[ClientCore, FarEnd, PartitionHandle]:
    """A core whose far end has said that it takes batches, and a handle of a stream."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    first, second = handle.queue.push(b"a"), handle.queue.push(b"b")
    sent = far.sent()
    assert [each.data for each in pushes(sent)] == [b"a", b"b"]
    far.confirm_many(sent[0], 2, 5)
    assert (first.result(), second.result()) == (5, 6)
    core.check()
    return core, far, handle


def test_pushes_go_alone_until_the_node_says_that_it_takes_batches() -> None:
    core, far = connected_core()
    (handle,) = opened(core, far)
    for turn in range(3):
        given = [handle.queue.push(b"x") for _ in range(3)]
        sent = far.sent()
        assert len(pushes(sent)) == 3
        for position, message in enumerate(sent):
            far.confirm(message, 3 * turn + position)
        assert [push.result() for push in given] == [3 * turn, 3 * turn + 1, 3 * turn + 2]


def test_what_is_pushed_before_the_bytes_are_taken_goes_in_one_message() -> None:
    core, far, handle = batching()
    given = [handle.queue.push(b"%d" % number) for number in range(5)]
    core.check()
    (message,) = far.sent()
    assert batches([message]) == [PushBatch(2, [b"0", b"1", b"2", b"3", b"4"])]
    # The node may cut its answers as it likes.
    far.confirm_many(message, 3, 7)
    assert [push.index for push in given] == [7, 8, 9, -1, -1]
    far.confirm_many(message, 2, 20, 5)
    assert [push.index for push in given] == [7, 8, 9, 20, 21]
    core.check()


def test_a_single_push_is_the_same_message_as_ever() -> None:
    _core, far, handle = batching()
    push = handle.queue.push(b"alone")
    (message,) = far.sent()
    assert PUSH.decode_request(message.payload) == PushRequest(2, b"alone")
    far.confirm(message, 9)
    assert push.result() == 9


def test_a_pull_comes_behind_the_pushes_before_it() -> None:
    core, far, handle = batching()
    handle.queue.push(b"1")
    handle.queue.push(b"2")
    core.pull(handle, 0, 10)
    handle.queue.push(b"3")
    handle.queue.push(b"4")
    batch, pull, behind = far.sent()
    assert batches([batch, behind]) == [PushBatch(2, [b"1", b"2"]), PushBatch(4, [b"3", b"4"])]
    assert PULL.is_in(pull.payload)


def test_large_pushes_and_pushes_with_a_key_go_alone_and_keep_the_order() -> None:
    _, far, handle = batching()
    data = [b"1", b"2", bytes(BATCHED_DATA_BYTES_MAX + 1), b"4", b"5", bytes(BATCHED_DATA_BYTES_MAX)]
    for each in data:
        handle.queue.push(each)
    handle.queue.push_keyed(b"keyed", b"key", [])
    handle.queue.push(b"last")
    first, large, second, keyed, last = far.sent()
    assert batches([first]) == [PushBatch(2, data[:2])]
    assert PUSH.decode_request(large.payload).data == data[2]
    assert batches([second]) == [PushBatch(5, data[3:])]
    assert b"keyed" in keyed.payload
    assert PUSH.decode_request(last.payload) == PushRequest(9, b"last")


@pytest.mark.parametrize("size", [0, 100, BATCHED_DATA_BYTES_MAX])
def test_a_batch_is_bounded(size: int) -> None:
    _core, far, handle = batching()
    for _ in range(3_000):
        handle.queue.push(bytes(size))
    sent = batches(far.sent())
    assert sum(len(batch.messages) for batch in sent) == 3_000
    for batch in sent:
        assert len(batch.messages) <= BATCH_MESSAGES_MAX
        assert sum(map(len, batch.messages)) < BATCH_BYTES_MAX + BATCHED_DATA_BYTES_MAX


def test_a_new_connection_begins_with_single_pushes_again() -> None:
    """The node behind it may be an older one."""
    core, far, handle = batching()
    given = [handle.queue.push(b"%d" % number) for number in range(3)]
    far.sent()
    given += [handle.queue.push(b"%d" % number) for number in range(3, 6)]
    core.disconnected()
    core.check()
    far = FarEnd(core)
    (create,) = far.sent()
    far.answer_create(create)
    sent = far.sent()
    assert [(each.request_id, each.data) for each in pushes(sent)] == [(2 + n, b"%d" % n) for n in range(6)]
    for index, message in enumerate(sent):
        far.confirm(message, index)
    assert [push.result() for push in given] == list(range(6))


def test_a_failed_batch_fails_each_of_its_pushes_and_no_other() -> None:
    core, far, handle = batching()
    given = [handle.queue.push(b"x") for _ in range(3)]
    (message,) = far.sent()
    for request_id, outcome in ((2, Outcome.NOT_STORED), (3, Outcome.UNKNOWN)):
        failure = BatchFailure(outcome, "the disk is full")
        far.answer(message, PUSH_BATCH.encode_response(BatchAnswer(request_id, 1, 0, failure)))
    with pytest.raises(PushNotStored, match="the disk is full"):
        given[0].result()
    with pytest.raises(PushUnknown):
        given[1].result()
    assert not given[2].done
    core.check()


@pytest.mark.parametrize(
    "answer", [BatchAnswer(0, 1 << 63, 0, None), BatchAnswer(1 << 63, 5, 0, None), BatchAnswer(9, 0, 0, None)]
)
def test_an_answer_to_what_was_never_asked_costs_nothing(answer: BatchAnswer) -> None:
    core, far, handle = batching()
    push = handle.queue.push(b"x")
    (message,) = far.sent()
    far.answer(message, PUSH_BATCH.encode_response(answer))
    assert push.done == (answer.request_id == 0)
    core.check()


@pytest.mark.parametrize("framing", ["head", "legacy"])
async def test_a_node_stores_batches_as_if_each_push_came_alone(tmp_path: Path, framing: Framing) -> None:
    """Some messages are too large for a batch. Independent: the database is read by SQLite alone."""
    expected = [b"%d" % number + bytes(40 * (number % 200) * (number % 7 == 0)) for number in range(5_000)]
    async with served(tmp_path) as server, connect(server.address, framing=framing) as client:
        stream = await client.create("s")
        async with stream.publisher(window=700) as publisher:
            given = [await publisher.push(data) for data in expected]
        assert [push.result() for push in given] == list(range(5_000))
        await stream.push(b"end")
    assert stored_messages(tmp_path, "s") == [*expected, b"end"]


async def test_a_stream_joins_its_answers_only_for_who_understands_them(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for address, joins in (("me", False), ("node/1/me", False), (f"{BATCHED.decode()}me", True)):
            frames = b"".join(
                peer.frame(route, PUSH.encode_request(PushRequest(number, b"x")), (local(address),))
                for number in range(4)
            )
            await peer.stream.send_all(frames)
            answered, joined = 0, False
            while answered < 4:
                payload = (await peer.receive()).payload
                if PUSH_BATCH.is_in(payload):
                    answer = PUSH_BATCH.decode_response(payload)
                    assert (answer.request_id, answer.failure) == (answered, None)
                    answered, joined = answered + answer.count, True
                else:
                    assert PUSH.decode_response(payload).request_id == answered
                    answered += 1
            assert joined is joins


async def test_a_batch_from_anybody_is_answered_as_a_batch(tmp_path: Path) -> None:
    async with served(tmp_path, error_delay_s=0.05) as server:
        peer = await server.peer()
        route = await peer.create("s")
        answer = await peer.ask(route, PUSH_BATCH.encode_request(PushBatch(40, [b"a", b"b", b""])))
        assert PUSH_BATCH.decode_response(answer.payload) == BatchAnswer(40, 3, 0, None)
        one = await peer.ask(route, PUSH_BATCH.encode_request(PushBatch(43, [b"c"])))
        assert PUSH_BATCH.decode_response(one.payload) == BatchAnswer(43, 1, 3, None)
        plain = await peer.ask(route, PUSH.encode_request(PushRequest(1, b"d")))
        assert PUSH.decode_response(plain.payload) == PushConfirm(1, Status.OK, 4)
        for count in (0, BATCH_MESSAGES_MAX + 1):
            refused = await peer.ask(route, PUSH_BATCH.encode_request(PushBatch(1, [b"x"] * count)))
            reason = ERROR.decode_response(refused.payload).reason
            assert reason == f"Invalid request: a batch of {count} messages; it has 1 to {BATCH_MESSAGES_MAX}"
        large = [bytes(StreamLimits().message_bytes_max // 2)] * 2
        failure = PUSH_BATCH.decode_response(
            (await peer.ask(route, PUSH_BATCH.encode_request(PushBatch(9, large)))).payload
        ).failure
        assert failure is not None
        assert (failure.outcome, "a stream keeps at most" in failure.reason) == (Outcome.REFUSED, True)
    assert stored_messages(tmp_path, "s") == [b"a", b"b", b"", b"c", b"d"]


async def test_a_nearly_full_disk_fails_a_batch_as_not_stored(tmp_path: Path) -> None:
    async with served(tmp_path, error_delay_s=0.05, free_disk_bytes_min=2**60) as server:
        peer = await server.peer()
        route = await peer.create("s")
        answer = PUSH_BATCH.decode_response(
            (await peer.ask(route, PUSH_BATCH.encode_request(PushBatch(3, [b"a", b"b"])))).payload
        )
        assert (answer.request_id, answer.count, answer.index) == (3, 2, 0)
        assert answer.failure is not None
        assert answer.failure.outcome is Outcome.NOT_STORED
        assert "nearly full" in answer.failure.reason


async def test_a_flood_of_small_batches_becomes_bounded_appends(tmp_path: Path) -> None:
    """Goal: the messages of a mailbox full of batches do not all become objects of one append."""
    batch = PUSH_BATCH.encode_request(PushBatch(0, [b""] * BATCH_MESSAGES_MAX))
    count = 60
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, peer.frame(route, batch) * count)
            answered = 0
            while answered < count * BATCH_MESSAGES_MAX:
                answer = PUSH_BATCH.decode_response((await peer.receive()).payload)
                assert answer.index == answered
                answered += answer.count
    assert len(stored_messages(tmp_path, "s")) == count * BATCH_MESSAGES_MAX
