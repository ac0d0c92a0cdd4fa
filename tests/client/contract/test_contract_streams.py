"""Goal: the three clients do the same. Method: one scenario each, against a real server, through every shell.

Here: connecting, making streams, pushing and pulling.
"""

from __future__ import annotations

import threading
import time

import pytest

from stream_client import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    Header,
    NodeUnreachable,
    PushesFailed,
    Reconnect,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_service.names import partition_of
from stream_service.protocol import PULL, PullRequest
from tests.client.shells import ShellName, Tools, World, run_in
from tests.client.sockets import listener, unused_address


def test_what_is_pushed_can_be_pulled(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            assert list(await stream.pull()) == []
            assert [await stream.push(b"%d" % number) for number in range(3)] == [0, 1, 2]
            assert [(each.index, each.data) for each in await stream.pull(1)] == [(1, b"1"), (2, b"2")]
            assert [each.index for each in await stream.pull(0, 2)] == [0, 1]
            assert list(await stream.pull(3)) == []
            assert (stream.name, stream.partition, stream.unconfirmed) == (world.name, 0, 0)
            assert client.address == tools.address

    world.run(scenario)


def test_a_stream_is_made_once_and_gets_a_name_if_it_has_none(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            first, second = await client.create(world.name), await client.create(world.name)
            assert [await first.push(b"a"), await second.push(b"b")] == [0, 1]
            generated = [(await client.create()).name for _ in range(2)]
            assert len(set(generated)) == 2
            assert all(name.startswith("generated_") for name in generated)
            with pytest.raises(RequestRefused, match="stream name"):
                await client.create("")

    world.run(scenario)


def test_partitions_are_streams_of_their_own(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 3)
            assert [(part.name, part.partition) for part in stream.partitions] == [
                (world.name, 0),
                (world.name, 1),
                (world.name, 2),
            ]
            for part in stream.partitions:
                assert await part.push(b"to %d" % part.partition) == 0
            more = await client.create_partitioned(world.name, 4)
            found = [[each.data for each in await part.pull()] for part in more.partitions]
            assert found == [[b"to 0"], [b"to 1"], [b"to 2"], []]
            with pytest.raises(RequestRefused, match="partitions"):
                await client.create_partitioned(world.name, 0)

    world.run(scenario)


def test_a_publisher_keeps_its_window_and_tells_each_result(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            most = 0
            async with stream.publisher(window=10) as publisher:
                pushes = []
                for number in range(100):
                    pushes.append(await publisher.push(b"%d" % number))
                    most = max(most, publisher.unconfirmed)
                assert await publisher.wait(pushes[50]) == 50
            assert 0 < most <= 10
            assert [push.result() for push in pushes] == list(range(100))
            async with stream.publisher() as publisher:
                assert await publisher.push_many([b"x", b"y"]) == [100, 101]
                first = await publisher.push(b"z")
                await publisher.flush()
                assert (first.done, first.index, publisher.unconfirmed) == (True, 102, 0)

    world.run(scenario)


def test_a_push_that_fails_is_told_though_nobody_asks(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(framing="legacy") as client:
            stream = await client.create(world.name)
            pushes = []

            async def push_both() -> None:
                async with stream.publisher() as publisher:
                    pushes.append(await publisher.push(b"small"))
                    pushes.append(await publisher.push(bytes(70_000)))

            with pytest.raises(PushesFailed, match="1 message was not confirmed") as caught:
                await push_both()
            assert (pushes[0].result(), list(caught.value.pushes)) == (0, pushes[1:])
            with pytest.raises(RequestRefused, match="too large to send"):
                pushes[1].result()
            async with stream.publisher() as publisher:
                push = await publisher.push(bytes(70_000))
                with pytest.raises(RequestRefused):
                    await publisher.wait(push)
            async with stream.publisher(keep_failed=True) as publisher:
                push = await publisher.push(bytes(70_000))
            assert isinstance(push.error, RequestRefused)
            with pytest.raises(RequestRefused, match="64000"):
                await stream.push(bytes(70_000))

    world.run(scenario)


def test_key_headers_and_time_are_stored_beside_the_data(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            before_us = time.time_ns() // 1000
            headers = [Header("kind", b"a"), Header("kind", b"\xff"), Header("", b"")]
            assert await stream.push(b"single", key=b"k", headers=headers) == 0
            async with stream.publisher() as publisher:
                await publisher.push(b"plain")
                await publisher.push(b"keyed", key=b"")
                await publisher.push(b"headed", headers=headers[:1])
            page = await stream.pull_page()
            seen = [(each.index, each.key, each.headers, each.data) for each in page.messages]
            assert seen == [
                (0, b"k", headers, b"single"),
                (1, None, [], b"plain"),
                (2, b"", [], b"keyed"),
                (3, None, headers[:1], b"headed"),
            ]
            times_us = [each.time_us for each in page.messages]
            assert times_us == sorted(times_us)
            assert before_us <= times_us[0] <= time.time_ns() // 1000
            assert (page.first_index, page.next_index, page.resume_index, page.at_end) == (0, 4, 4, True)
            assert [each.data for each in await stream.pull()] == [b"single", b"plain", b"keyed", b"headed"]

    world.run(scenario)


def test_a_numbered_message_is_stored_once_over_two_lives_of_its_publisher(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        lines = [b"line %d" % number for number in range(20)]
        for first in (0, 12):
            async with tools.connect() as client:
                stream = await client.create(world.name)
                async with stream.publisher(publisher_id=b"importer", first_number=first) as publisher:
                    indexes = await publisher.push_many(lines[first : first + 15])
                assert indexes == list(range(first, first + len(indexes)))
        async with tools.connect() as client:
            stream = await client.create(world.name)
            assert [each.data for each in await stream.pull()] == lines
            publisher = stream.publisher(publisher_id=b"importer", first_number=25)
            with pytest.raises(PushesFailed, match="the node expects 20"):
                async with publisher:
                    await publisher.push(b"skips five")
            async with stream.publisher(idempotent=True) as publisher:
                assert await publisher.push_many([b"same", b"same"]) == [20, 21]
            assert len(await stream.pull()) == 22

    world.run(scenario)


def test_messages_go_to_the_partition_of_their_key_or_in_turn(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 3)
            keys = [b"key %d" % (number % 5) for number in range(20)]
            async with stream.publisher(window=4) as publisher:
                for key in keys:
                    await publisher.push(b"x", key=key)
                await publisher.flush()
                assert publisher.unconfirmed == 0
            for part in stream.partitions:
                stored = [each.key for each in (await part.pull_page()).messages]
                assert stored == [key for key in keys if partition_of(key, 3) == part.partition]
                assert stream.partition_for(b"key 1").partition == partition_of(b"key 1", 3)
            turns = await client.create_partitioned(world.name + " in turn", 3)
            async with turns.publisher(idempotent=True) as publisher:
                for number in range(7):
                    await publisher.push(b"%d" % number)
            found = [[each.data for each in await part.pull()] for part in turns.partitions]
            assert found == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]
            assert await turns.push(b"single", partition_key=b"k") == len(found[partition_of(b"k", 3)])
            (message,) = await turns.partition_for(b"k").pull(len(found[partition_of(b"k", 3)]))
            assert message.data == b"single"

    world.run(scenario)


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
def test_both_framings_are_spoken(world: World, framing: str) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(framing=framing) as client:
            stream = await client.create(world.name)
            assert await stream.push(b"hello") == 0
            assert [each.data for each in await stream.pull()] == [b"hello"]

    world.run(scenario)


def test_an_own_exception_leaves_the_block_as_it_is(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async def fail(error: Exception) -> None:
            async with tools.connect() as client:
                await client.create(world.name)
                raise error

        for error in (KeyError("mine"), ExceptionGroup("mine", [ValueError("inner")])):
            with pytest.raises(type(error), match="mine"):
                await fail(error)

    world.run(scenario)


def test_a_closed_client_says_so(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
        for ask in (stream.pull, lambda: stream.push(b"x"), stream.info, client.create):
            with pytest.raises(ClientClosed) as caught:
                await ask()
            assert (caught.value.retriable, caught.value.fault) == (False, "caller")

    world.run(scenario)


def test_a_node_that_is_not_there_is_told_at_once(shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        with pytest.raises(NodeUnreachable, match="cannot reach a node at") as caught:
            async with tools.connect():
                pytest.fail("there is nobody to connect to")
        assert (caught.value.retriable, caught.value.fault) == (True, "network")

    run_in(shell, scenario, unused_address())


def test_what_is_no_node_is_told(shell: ShellName) -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            with pytest.raises(UnexpectedAnswer, match="is no stream node: it answered HTTP") as caught:
                await client.create("x")
            assert (caught.value.retriable, caught.value.fault) == (False, "node")

    with listener() as (address, listening):
        server = threading.Thread(target=serve)
        server.start()
        run_in(shell, scenario, address)
        server.join()


def test_a_time_out_is_for_no_answer_only(shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(answer_timeout_s=0.05) as client:
            with pytest.raises(RequestTimeout, match="has not answered for") as caught:
                await client.create("x")
            assert (caught.value.retriable, caught.value.fault) == (True, "network")
            assert client.statistics().unanswered == 0

    with listener() as (address, _):
        run_in(shell, scenario, address)


def test_without_reconnect_a_lost_connection_is_an_error_then_and_later(shell: ShellName) -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(100)
        connection.close()

    async def scenario(tools: Tools) -> None:
        async with tools.connect(reconnect=None) as client:
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await client.create("x")

    with listener() as (address, listening):
        server = threading.Thread(target=serve)
        server.start()
        run_in(shell, scenario, address)
        server.join()


def test_giving_up_fails_what_waits(shell: ShellName) -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(100)
        listening.close()
        connection.close()

    async def scenario(tools: Tools) -> None:
        reconnect = Reconnect(delay_s=0.01, delay_s_max=0.02, give_up_s=0.05)
        async with tools.connect(reconnect=reconnect, answer_timeout_s=None) as client:
            for _ in range(2):
                with pytest.raises(NodeUnreachable):
                    await client.create("x")

    with listener() as (address, listening):
        server = threading.Thread(target=serve)
        server.start()
        run_in(shell, scenario, address)
        server.join()


def test_a_service_can_be_asked_by_payload(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            payload = PULL.encode_request(PullRequest(1, 0, 1))
            core = client.session.core
            with pytest.raises(RequestRefused, match="Invalid request: the stream service serves no 'stream_pull'"):
                await client.session.answered(core.call(core.route_to("stream_service"), payload))
            assert client.statistics().connections == 1
            assert issubclass(RequestRefused, ClientError)

    world.run(scenario)
