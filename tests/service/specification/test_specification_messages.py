"""Goal: the specification's rules about pushing and pulling. Method: raw requests to a whole server, and our client.

Each docstring begins with the chapter and the words of the rule (see `test_specification.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route, local
from ockam.actors.message import Message
from ockam.protocol import error_payload
from stream_client import connect
from stream_service.protocol import CREATE, PULL, PUSH, PullRequest, PushConfirm, PushRequest, Status, StreamCreated
from tests.support.data_dir import truncate_before
from tests.support.fake_node import Answers, HangUp, fake_node
from tests.support.served import Served, served
from tests.support.stream_peer import StreamPeer

pytestmark = pytest.mark.usefixtures("each_database")

STREAM = (local("a stream"),)


def pull_request(limit: int) -> bytes:
    return PULL.encode_request(PullRequest(request_id=77, index=0, limit=limit))


class Stream:
    """The far end of one stream: it notes the pushes that come, and answers each with what `confirm` says."""

    def __init__(self, confirm: Callable[[PushRequest], Iterable[PushConfirm]]) -> None:
        self._confirm = confirm
        self.pushes: list[PushRequest] = []

    def answer(self, message: Message) -> Answers:
        if CREATE.is_in(message.payload):
            return [(STREAM, CREATE.encode_response(StreamCreated("orders")))]
        if not PUSH.is_in(message.payload):
            return [(message.onward_route[:1], error_payload("not served here"))]
        push = PUSH.decode_request(message.payload)
        self.pushes.append(push)
        return [(STREAM, PUSH.encode_response(confirm)) for confirm in self._confirm(push)]


async def stream(server: Served, name: str = "orders") -> tuple[StreamPeer, Route]:
    peer = await server.peer()
    return peer, await peer.create(name)


async def test_our_client_sends_again_what_was_not_confirmed_and_nothing_else() -> None:
    """Pushing/pulling messages: "MAY re-send messages if it didn't get the Status: OK response"."""
    indexes = iter(range(10))

    def confirm(push: PushRequest) -> list[PushConfirm]:
        """Hang up on the second message when it comes for the first time."""
        if push.data == b"second" and sum(each.data == b"second" for each in far.pushes) == 1:
            raise HangUp
        return [PushConfirm(push.request_id, Status.OK, next(indexes))]

    far = Stream(confirm)
    async with fake_node(far.answer) as address, connect(address) as client:
        stream = await client.create("orders")
        assert await stream.push(b"first") == 0
        assert await stream.push(b"second") == 1
    assert [push.data for push in far.pushes] == [b"first", b"second", b"second"]


async def test_messages_of_one_request_id_are_all_saved(tmp_path: Path) -> None:
    """Pushing/pulling messages: "Messages pushed with the same request id WILL ALL BE SAVED"."""
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        data = [b"same", b"same", b"other"]
        assert [(await peer.push(route, each, request_id=1)).index for each in data] == [0, 1, 2]
        assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == data


async def test_each_message_of_one_request_id_gets_its_own_confirm(tmp_path: Path) -> None:
    """Pushing/pulling messages: "it SHOULD expect multiple confirm responses for this id"."""
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        push = peer.frame(route, PUSH.encode_request(PushRequest(9, b"same")))
        await peer.stream.send_all(push * 5)
        confirms = [PUSH.decode_response((await peer.receive()).payload) for _ in range(5)]
    assert confirms == [PushConfirm(9, Status.OK, index) for index in range(5)]


async def test_our_client_uses_each_request_id_once() -> None:
    """Pushing/pulling messages: "The client SHOULD use different request_id for different messages".

    A confirm that comes twice is for one message, the second changes nothing.
    """
    far = Stream(lambda push: [PushConfirm(push.request_id, Status.OK, int(push.data))] * 2)
    async with fake_node(far.answer) as address, connect(address) as client:
        stream = await client.create("orders")
        async with stream.publisher(window=20) as publisher:
            indexes = await publisher.push_many([b"%d" % number for number in range(100)])
    assert indexes == list(range(100))
    assert len({push.request_id for push in far.pushes}) == len(far.pushes) == 100


async def test_indexes_are_unique_and_rise_under_many_publishers(tmp_path: Path) -> None:
    """Pushing/pulling messages: "Each message in the stream MUST have unique index".

    Pushing/pulling messages: "Index MUST be monotonically increasing", in the order in which a publisher pushed.
    """
    confirmed: list[list[int]] = []

    async def publish(server: Served) -> None:
        peer, route = await stream(server)
        confirms = await peer.push_all(route, [b"data"] * 50)
        assert [confirm.request_id for confirm in confirms] == list(range(50))
        confirmed.append([confirm.index for confirm in confirms])

    async with served(tmp_path) as server, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(publish, server)
    assert sorted(index for indexes in confirmed for index in indexes) == list(range(250))
    assert all(earlier < later for indexes in confirmed for earlier, later in pairwise(indexes))


async def test_the_index_of_a_confirm_finds_the_message_and_tells_whether_it_was_consumed(tmp_path: Path) -> None:
    """Pushing/pulling messages: "Index MAY be used to consume the messages and to check their consumption status"."""
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        indexes = [(await peer.push(route, data)).index for data in (b"a", b"b", b"c")]
        (found,) = (await peer.pull(route, indexes[1], 1)).messages
        assert (found.index, found.data) == (indexes[1], b"b")
        await peer.save_index("consumer", "orders", found.index + 1)
        position = await peer.get_index("consumer", "orders")
        assert position is not None
        assert [index < position for index in indexes] == [True, True, False]


async def test_indexes_belong_to_the_stream_and_not_to_the_publisher(tmp_path: Path) -> None:
    """Pushing/pulling messages: "Index MUST be scoped per stream and NOT per publisher".

    Pushing/pulling messages: "a publisher MAY receive non-uniform sequence (e.g. [1,2,5,7,8])".
    """
    async with served(tmp_path) as server:
        (first, route), (second, _), (third, other) = [await stream(server, name) for name in ("s", "s", "t")]
        got: dict[StreamPeer, list[int]] = {first: [], second: []}
        for publisher in (first, first, second, first, second, second):
            got[publisher].append((await publisher.push(route, b"data")).index)
        assert got == {first: [0, 1, 3], second: [2, 4, 5]}
        assert (await third.push(other, b"data")).index == 0


@pytest.mark.parametrize("deleted", [0, 3])
async def test_pull_from_0_begins_at_the_earliest_stored(tmp_path: Path, deleted: int) -> None:
    """Pushing/pulling messages: "`index` MAY be 0, which means to start from the earliest message possible"."""
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        await peer.push_all(route, [b"%d" % number for number in range(5)])
    truncate_before(tmp_path, "orders", deleted)
    async with served(tmp_path) as server:
        peer = await server.peer()
        page = (await peer.pull(route, 0, 2)).messages
    assert [(message.index, message.data) for message in page] == [
        (index, b"%d" % index) for index in (deleted, deleted + 1)
    ]


@pytest.mark.parametrize("limit", [0, 1, 4, 5, 6, 2**64 - 1])
async def test_a_pull_is_answered_with_0_to_limit_messages(tmp_path: Path, limit: int) -> None:
    """Pushing/pulling messages: "The stream worker MUST send a PullResponse message with 0 - `limit` messages".

    To the request's return route, whatever that is, with the request's id; also where there is nothing.
    """
    back = (local("consumer"), local("behind it"))
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        request = pull_request(limit=limit)
        await peer.stream.send_all(peer.frame(route, request, back))
        empty = await peer.receive()
        await peer.push_all(route, [b"data"] * 5)
        await peer.stream.send_all(peer.frame(route, request, back))
        full = await peer.receive()
    for message, count in ((empty, 0), (full, min(limit, 5))):
        response = PULL.decode_response(message.payload)
        assert message.onward_route == back
        assert response.request_id == 77
        assert [each.index for each in response.messages] == list(range(count))


async def test_data_comes_back_as_it_was_pushed(tmp_path: Path) -> None:
    """Pushing/pulling messages: "`data` of the message MUST be the same as `data` sent in PushRequest"."""
    data = [b"", b"\0", bytes(range(256)), "ü\ud7ff".encode(), b"x" * 300_000, b"\xff" * 127, b"\xff" * 128]
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        await peer.push_all(route, data)
        assert [message.data for message in (await peer.pull(route, 0, 100)).messages] == data


@pytest.mark.parametrize("deleted", [0, 2, 4])
async def test_pulled_indexes_are_never_below_the_one_asked_for(tmp_path: Path, deleted: int) -> None:
    """Pushing/pulling messages: "MAY NOT start with the requested index, but MUST NOT be lower".

    They start later where the messages in between have been deleted.
    """
    async with served(tmp_path) as server:
        peer, route = await stream(server)
        await peer.push_all(route, [b"data"] * 6)
    truncate_before(tmp_path, "orders", deleted)
    async with served(tmp_path) as server:
        peer = await server.peer()
        for index in range(8):
            page = (await peer.pull(route, index, 10)).messages
            assert [message.index for message in page] == list(range(max(index, deleted), 6))
