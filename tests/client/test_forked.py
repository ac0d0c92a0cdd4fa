"""Goal: a client that was made before `fork` is of no use to the child, which is told so at once, and the parent's goes
on as if nothing had happened: each message is stored once, and every confirm is that of its own message.

Method: real forks in the middle of pushes; each thing that a child tries is written to a pipe. The node is asked by a
client of its own.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import trio

from block_node.client import blocking as blocks
from cardinal_streams.message.messages import Record
from cardinal_streams.transports.stream_transport import StreamTransport
from stream_client import blocking, connect
from stream_node.node.process import NodeProcess
from tests.client.shells import ShellName, Tools, World, run_in
from tests.client.sockets import listener

MESSAGES = 50
ACTS = 7
PATIENCE_S = 20.0
Act = Callable[[], Awaitable[object]]


def in_child(attempt: Callable[[], str]) -> str:
    """What the attempt says in a child process of this one."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that a fork of a process with threads may deadlock; the child takes no lock of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, attempt().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said


def outcome(coroutine: Coroutine[Any, Any, object]) -> str:
    """How a coroutine ends that has no event loop of its own: an error, or anything else."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return f"returned {done.value}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "waits"


def test_a_child_can_use_nothing_of_the_parents_client(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            consumer = stream.consumer("reader")
            async with stream.publisher() as publisher:
                pushes = [await publisher.push(b"%d" % number) for number in range(MESSAGES)]
                acts: list[Act] = [
                    lambda: stream.push(b"child"),
                    lambda: stream.pull(0),
                    lambda: publisher.push(b"child"),
                    publisher.flush,
                    lambda: publisher.wait(pushes[-1]),
                    lambda: client.create("of the child"),
                    lambda: anext(aiter(consumer)),
                ]
                assert len(acts) == ACTS
                for act in acts:
                    # A push without an answer, since without one there is nothing to wait for.
                    pushes.append(await publisher.push(b"%d" % len(pushes)))
                    said = in_child(lambda act=act: outcome(_awaited(act)))  # type: ignore[misc]
                    assert said.startswith("ClientForked: this client belongs to process"), said
                    assert f"process {os.getpid()}, " in said
                for _ in range(MESSAGES):
                    pushes.append(await publisher.push(b"%d" % len(pushes)))
            assert [push.result() for push in pushes] == list(range(len(pushes)))
            assert client.statistics().connections == 1

    world.run(scenario)
    with blocking.connect(world.address) as reader:
        stored = [message.data for message in reader.create(world.name).pull(0, 1_000)]
        assert stored == [b"%d" % number for number in range(2 * MESSAGES + ACTS)]
        assert reader.find_stream("of the child") is None


async def _awaited(act: Act) -> object:
    return await act()


def test_a_child_in_the_middle_of_a_page_gets_no_more_of_it(world: World) -> None:
    """Otherwise parent and child would both process the rest of the page."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            async with stream.publisher() as publisher:
                await publisher.push_many([b"x"] * 10)
            async with stream.consumer("reader") as consumer:
                messages = aiter(consumer)
                assert (await anext(messages)).index == 0
                said = in_child(lambda: outcome(_awaited(lambda: anext(messages))))
                assert said.startswith("ClientForked"), said
                assert (await anext(messages)).index == 1

    world.run(scenario)


def test_the_connection_ends_with_the_parents_client_while_a_child_lives(shell: ShellName) -> None:
    """A descriptor that the child kept would keep the connection. Method: a child that lives until the test ends."""
    living, end = os.pipe()
    children: list[int] = []

    async def scenario(tools: Tools) -> None:
        async with tools.connect():
            children.append(os.fork())
            if children[-1] == 0:
                os.close(end)
                os.read(living, 1)
                os._exit(0)

    with listener() as (address, listening):
        run_in(shell, scenario, address)
        try:
            connection, _ = listening.accept()
            connection.settimeout(PATIENCE_S)
            while connection.recv(100):
                pass
            connection.close()
        finally:
            os.close(end)
            os.close(living)
            os.waitpid(children[0], 0)


def test_the_other_clients_end_likewise(node: NodeProcess) -> None:
    """The clients of blocks and of Cardinal Streams use the same connection."""

    async def cardinal() -> str:
        async with connect(node.address) as client:
            transport = StreamTransport(client, partitions=1)
            await transport.send({"chain": [Record(b"key", b"value")]})
            return in_child(lambda: outcome(transport.send({"chain": [Record(b"key", b"value")]})))

    assert trio.run(cardinal).startswith("ClientForked")
    with blocks.connect(node.address) as client:
        client.status()
        assert in_child(lambda: outcome(_awaited_value(client.status))).startswith("ClientForked")
        client.status()


async def _awaited_value(act: Callable[[], object]) -> object:
    return act()
