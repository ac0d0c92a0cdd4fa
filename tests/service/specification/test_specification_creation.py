"""Goal: the specification's rules about addresses and stream creation. Method: raw requests to a whole server.

Each docstring begins with the chapter and the words of the rule (see `test_specification.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.protocol import error_payload
from stream_client import connect
from stream_service.names import stream_address
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PUSH,
    CreateStream,
    PushConfirm,
    Status,
    StreamCreated,
)
from tests.support.fake_node import Answers, fake_node
from tests.support.served import served
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("each_database")


async def test_addresses_have_a_prefix(tmp_path: Path) -> None:
    """Addresses: "Each stream MAY have a prefix "MAILBOX" or the stream service address prefix".

    Stream creation: "`<stream_address>` MAY have some prefix". Ours is the one that the real services use.
    """
    async with served(tmp_path) as server:
        peer = await server.peer()
        for name in ("one", "two", None):
            (address,) = await peer.create(name)
            assert address.value.startswith(b"ST_S_")


async def test_the_address_comes_from_the_name(tmp_path: Path) -> None:
    """Stream creation: "`<stream_address>` SHOULD be created based on the `stream_name`".

    So it is the same on every node, and other names have other addresses.
    """
    async with served(tmp_path / "a") as first, served(tmp_path / "b") as second:
        routes = [await (await node.peer()).create("orders") for node in (first, second)]
        other = await (await first.peer()).create("orders2")
    assert routes[0] == routes[1] == (stream_address("orders", 0),)
    assert other != routes[0]


async def test_without_a_name_the_stream_is_a_new_one_each_time(tmp_path: Path) -> None:
    """Stream creation: "If `stream_name` is not provided, the stream service SHOULD create a random stream address"."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        answers = [await peer.ask(SERVICE, CREATE.encode_request(CreateStream(None))) for _ in range(20)]
    names = {CREATE.decode_response(answer.payload).stream_name for answer in answers}
    assert len({answer.return_route for answer in answers}) == len(names) == 20


async def test_the_init_says_the_name_and_of_a_partition_also_its_number(tmp_path: Path) -> None:
    """Stream creation: "Payload MAY contain some additional information about the stream"."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        init = await peer.ask(SERVICE, CREATE.encode_request(CreateStream("orders")))
        assert init.payload == CREATE.encode_response(StreamCreated("orders"))
        ((partition, _),) = await peer.create_partitions("orders", 1)
        assert (partition.stream_name, partition.partition) == ("orders", 0)


@pytest.mark.parametrize("hops", [(local("anything"),), (local("far"), Address(1, b"10.0.0.1:4000"), local("s"))])
async def test_our_client_pushes_to_the_return_route_of_the_init(hops: tuple[Address, ...]) -> None:
    """Stream creation: "The client MUST use stream address from the return route"."""
    pushed: list[Message] = []

    def answer(message: Message) -> Answers:
        if CREATE.is_in(message.payload):
            return [(hops, CREATE.encode_response(StreamCreated("orders")))]
        if not PUSH.is_in(message.payload):
            return [(message.onward_route[:1], error_payload("not served here"))]
        pushed.append(message)
        request_id = PUSH.decode_request(message.payload).request_id
        return [(hops, PUSH.encode_response(PushConfirm(request_id, Status.OK, 5)))]

    async with fake_node(answer) as address, connect(address) as client:
        assert await (await client.create("orders")).push(b"data") == 5
    (message,) = pushed
    assert message.onward_route == hops


async def test_streams_and_their_names_are_known_after_a_restart(tmp_path: Path) -> None:
    """Stream creation: "The stream service MUST be aware of created"."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("orders")
        await peer.push(route, b"kept")
        assert server.statistics().services.streams == 1
    async with served(tmp_path) as server:
        assert server.statistics().services.streams == 1
        peer = await server.peer()
        assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"kept"]
        assert await peer.create("orders") == route
        assert (await peer.push(route, b"more")).index == 1
        assert server.statistics().services.streams == 1


async def test_whoever_creates_an_existing_stream_gets_its_init_from_the_stream(tmp_path: Path) -> None:
    """Stream creation: "If a CREATE request comes with existing stream, the stream worker MUST send the INIT".

    To the sender of that CREATE, under the protocol that it used.
    """
    async with served(tmp_path) as server:
        first, second = await server.peer(), await server.peer()
        route = await first.create("orders")
        await first.push(route, b"kept")
        assert await second.create("orders") == route
        ((init, again),) = await second.create_partitions("orders", 1, CREATE_PARTITIONED)
        assert (init.stream_name, init.partition, again) == ("orders", 0, route)
        assert [message.data for message in (await second.pull(route, 0, 10)).messages] == [b"kept"]
