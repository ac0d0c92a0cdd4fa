"""Goal: the eleven behaviours that the real services' own tests assert (facts/ockam.md §7), of the running command.

Method: `stream-node serve` as a child process, raw connections in both framings. One node serves all of these tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_node.node.process import NodeProcess
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PUSH,
    CreateStream,
    PartitionCreated,
    PushConfirm,
    PushRequest,
    Status,
)
from tests.support.stream_peer import SERVICE, StreamPeer, stream_peer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(params=[HEAD, LEGACY], ids=lambda wire: wire.name)
async def peer(request: pytest.FixtureRequest, node: NodeProcess) -> AsyncIterator[StreamPeer]:
    async with stream_peer(node.address, request.param) as connected:
        yield connected


def name_for(peer: StreamPeer, name: str) -> str:
    """The same behaviour is shown once per framing on one node."""
    return f"{name}_{peer.wire.name}"


async def test_can_create_a_named_stream(peer: StreamPeer) -> None:
    name = name_for(peer, "named")
    init = await peer.ask(SERVICE, CREATE.encode_request(CreateStream(name)))
    assert CREATE.decode_response(init.payload).stream_name == name
    assert len(init.return_route) == 1


async def test_can_create_a_partitioned_stream(peer: StreamPeer) -> None:
    name = name_for(peer, "partitioned")
    inits = await peer.create_partitions(name, 2)
    assert {(init.stream_name, init.partition) for init, _ in inits} == {(name, 0), (name, 1)}


async def test_can_create_an_anonymous_stream(peer: StreamPeer) -> None:
    init = await peer.ask(SERVICE, CREATE.encode_request(CreateStream(None)))
    assert CREATE.decode_response(init.payload).stream_name.startswith("generated")


async def test_stream_creation_is_idempotent(peer: StreamPeer) -> None:
    request = CREATE.encode_request(CreateStream(name_for(peer, "idempotent")))
    first, second = await peer.ask(SERVICE, request), await peer.ask(SERVICE, request)
    assert (first.payload, first.return_route) == (second.payload, second.return_route)


async def test_push_message(peer: StreamPeer) -> None:
    route = await peer.create(name_for(peer, "push"))
    assert await peer.push(route, b"message", request_id=100) == PushConfirm(100, Status.OK, 0)


async def test_pull_message(peer: StreamPeer) -> None:
    route = await peer.create(name_for(peer, "pull"))
    confirm = await peer.push(route, b"message", request_id=100)
    response = await peer.pull(route, 0, 10, request_id=200)
    assert response.request_id == 200
    assert [(message.index, message.data) for message in response.messages] == [(confirm.index, b"message")]


async def test_pull_multiple_messages(peer: StreamPeer) -> None:
    """101 pushes with one request id."""
    route = await peer.create(name_for(peer, "pull_many"))
    pushes = [PUSH.encode_request(PushRequest(100, b"message_%d" % number)) for number in range(101)]
    await peer.stream.send_all(b"".join(peer.frame(route, push) for push in pushes))
    for number in range(101):
        assert PUSH.decode_response((await peer.receive()).payload) == PushConfirm(100, Status.OK, number)
    for start in (0, 10):
        page = (await peer.pull(route, start, 10)).messages
        assert [message.data for message in page] == [b"message_%d" % number for number in range(start, start + 10)]


async def test_get_index_that_was_never_saved(peer: StreamPeer) -> None:
    """The real service says none; here a record with 0 is made, as the specification wants. Peers treat both alike."""
    assert not await peer.get_index(name_for(peer, "nobody"), "stream")


async def test_get_index_returns_the_saved_index(peer: StreamPeer) -> None:
    client_id = name_for(peer, "saver")
    await peer.save_index(client_id, "stream", 10)
    assert await peer.get_index(client_id, "stream") == 10


async def test_get_index_returns_the_saved_index_of_a_partition(peer: StreamPeer) -> None:
    client_id = name_for(peer, "partition_saver")
    await peer.save_partition_index(client_id, "stream", 5, 10)
    assert await peer.get_partition_index(client_id, "stream", 5) == 10


async def test_get_index_returns_the_higher_index(peer: StreamPeer) -> None:
    client_id = name_for(peer, "lower_saver")
    for index in (10, 5):
        await peer.save_index(client_id, "stream", index)
    assert await peer.get_index(client_id, "stream") == 10


async def test_a_stream_created_by_either_protocol_is_the_same_stream(peer: StreamPeer) -> None:
    """Beyond the eleven: real publishers create by the partitioned protocol, real Rust clients by the plain one."""
    name = name_for(peer, "both")
    ((init, route),) = await peer.create_partitions(name, 1, CREATE_PARTITIONED)
    assert init == PartitionCreated(name, 0)
    assert await peer.create(name) == route
