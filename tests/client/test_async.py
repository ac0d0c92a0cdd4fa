"""Goal: tasks, cancellation and lost connections of the async client. Method: a real server, and listening sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest
import trio

from ockam.actors.message import Message
from ockam.protocol import error_payload
from stream_client import (
    ConnectionLost,
    LeaseMember,
    NodeUnreachable,
    Push,
    Reconnect,
    RequestTimeout,
    SavedIndexes,
    blocking,
    connect,
)
from stream_client.shell import async_shell as async_client
from stream_client.shell import blocking_shell
from stream_client.shell.base_shell import Backoff
from stream_node.node.process import NodeProcess
from stream_service.protocol import CREATE, StreamCreated
from tests.client.sockets import listener
from tests.support.fake_node import Answers, fake_node
from tests.support.served import PATIENCE_S


async def test_many_tasks_share_a_client(node: NodeProcess) -> None:
    async with connect(node.address) as client:
        stream = await client.create("many tasks")
        indexes: list[int] = []

        async def push(number: int) -> None:
            indexes.append(await stream.push(b"%d" % number))
            assert len(await stream.pull(0, 1)) == 1

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(push, number)
        assert sorted(indexes) == list(range(50))
        assert client.statistics().unanswered == client.statistics().unconfirmed == 0


async def test_several_tasks_wait_for_one_push(node: NodeProcess) -> None:
    async with connect(node.address) as client:
        stream = await client.create("several wait")
        async with stream.publisher() as publisher:
            push = await publisher.push(b"x")
            found: list[int] = []

            async def wait() -> None:
                found.append(await publisher.wait(push))

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait)
        assert found == [0, 0, 0]


async def test_a_cancelled_push_is_not_sent_again(node: NodeProcess) -> None:
    async with connect(node.address) as client:
        stream = await client.create("cancelled push")
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.push(b"given up")
        assert stream.unconfirmed == 0
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.pull()
        assert client.statistics().unanswered == 0


async def test_a_cancelled_consumer_has_saved_what_it_had_processed(node: NodeProcess) -> None:
    async with connect(node.address) as client:
        stream = await client.create("cancelled consumer")
        async with stream.publisher() as publisher:
            await publisher.push_many([b"x"] * 5)
    processed = 0
    with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
        async with (
            connect(node.address) as client,
            (await client.create("cancelled consumer")).consumer(
                SavedIndexes(client, "c"), save_messages=100, save_interval_s=100.0
            ) as consumer,
        ):
            async for _ in consumer:
                processed += 1
                if processed == 5:
                    scope.cancel()
    assert scope.cancelled_caught
    async with connect(node.address) as client:
        assert await SavedIndexes(client, "c").get("cancelled consumer") == 5


async def test_a_cancelled_member_leaves(node: NodeProcess) -> None:
    async with connect(node.address) as client:
        await client.create_partitioned("cancelled member", 2)
    with trio.move_on_after(0.2):
        async with connect(node.address) as client:
            stream = await client.create_partitioned("cancelled member", 2)
            async with stream.shared_consumer(LeaseMember(client, "c", member_id="first")) as consumer:
                async for _ in consumer:
                    pass
    async with connect(node.address) as client:
        stream = await client.create_partitioned("cancelled member", 2)
        member = LeaseMember(client, "c", member_id="second")
        async with stream.shared_consumer(member) as consumer:
            await consumer.messages(stop_at_end=True).aclose()
            with trio.fail_after(5):
                while len(consumer.fences) < 2:
                    await trio.sleep(0.01)
                    await consumer.save()


def test_an_asyncio_task_that_is_cancelled_ends(node: NodeProcess) -> None:
    async def follow() -> None:
        async with connect(node.address) as client:
            async for _ in (await client.create("asyncio cancelled")).follow():
                pytest.fail("nothing was pushed")

    async def main() -> None:
        task = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


async def test_a_connection_that_brings_nothing_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that vanished says nothing, not even that the connection is over."""
    monkeypatch.setattr(async_client, "CHECK_INTERVAL_S", 0.01)
    accepted: list[tuple[socket.socket, object]] = []

    def accept() -> None:
        # Two of them may be looks at who is there, which are no connections of the client's own.
        while len(accepted) < 5:
            accepted.append(listening.accept())

    with listener() as (address, listening):
        async with connect(address) as client:
            with trio.move_on_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.create, "x")
                    await trio.to_thread.run_sync(accept)
                    nursery.cancel_scope.cancel()
            assert client.statistics().connections >= 3
        for connection, _ in accepted:
            connection.close()


async def test_the_end_of_a_client_reports_what_has_no_answer() -> None:
    def answer(message: Message) -> Answers:
        if CREATE.is_in(message.payload):
            return [(message.onward_route[-1:], CREATE.encode_response(StreamCreated("s")))]
        return []

    pushes: list[Push] = []
    async with fake_node(answer) as address:
        async with connect(address) as client:
            publisher = (await client.create("s")).publisher()
            pushes += [await publisher.push(b"%d" % number) for number in range(3)]
        assert [type(push.error).__name__ for push in pushes] == ["ClientClosed"] * 3


async def test_a_client_without_reconnect_reports_at_once() -> None:
    def refuse(message: Message) -> Answers:
        return [(message.onward_route[-1:], error_payload("no"))]

    async with fake_node(refuse) as address, connect(address, reconnect=None) as client:
        with pytest.raises(Exception, match="no"):
            await client.create("s")
    with listener() as (address, listening):
        async with connect(address, reconnect=None) as client:
            await trio.to_thread.run_sync(lambda: listening.accept()[0].close())
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await client.create("s")


@pytest.mark.parametrize("shell", ["async", "blocking"])
async def test_a_node_that_takes_connections_and_stands_still_is_given_up(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `give_up_s` holds also where connections are taken and nothing comes. Method: a socket nobody reads."""
    for module in (async_client, blocking_shell):
        monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(blocking_shell, "SLICE_S", 0.01)
    with listener() as (address, _), trio.fail_after(PATIENCE_S):
        reconnect = Reconnect(give_up_s=0.3)
        if shell == "async":
            async with connect(address, reconnect=reconnect, answer_timeout_s=None) as client:
                with pytest.raises(NodeUnreachable, match="sends nothing"):
                    await client.create("s")
            return
        with (
            blocking.connect(address, reconnect=reconnect, answer_timeout_s=None) as blocked,
            pytest.raises(NodeUnreachable, match="sends nothing"),
        ):
            await trio.to_thread.run_sync(blocked.create, "s")


async def test_why_a_node_cannot_be_reached_is_told() -> None:
    with listener() as (address, listening):
        listening.close()
        with pytest.raises(NodeUnreachable, match="refused"):
            async with connect(address):
                pass
    # Trio refuses this name of a host.
    with pytest.raises(NodeUnreachable, match="cannot reach a node at \u0660:1: "):
        async with connect("\u0660:1"):
            pass


def test_a_node_that_is_back_is_noticed_within_a_fifth_of_the_time_that_it_was_away() -> None:
    """Goal: the clients of a node that was restarted in s seconds are back half a second later, for s up to 2.5."""
    for draw in (0.0, 0.5, 1.0):
        backoff = Backoff(Reconnect(), lambda draw=draw: draw)  # type: ignore[misc]
        away_s = 0.0
        while away_s < 2.5:
            delay_s = backoff.next_delay_s()
            assert delay_s <= max(0.05, away_s / 5 + 0.05)
            away_s += delay_s
    assert [Backoff(Reconnect(), lambda: 1.0).next_delay_s() for _ in range(100)][-1] <= Reconnect().delay_s_max


def test_delays_grow_with_jitter_and_begin_anew() -> None:
    draws = iter((0.0, 1.0, 0.5, 1.0, 1.0, 1.0))
    backoff = Backoff(Reconnect(delay_s=1.0, delay_s_max=1.5, give_up_s=10.0), lambda: next(draws))
    assert [backoff.next_delay_s() for _ in range(5)] == pytest.approx([0.5, 1.2, 0.75 * 1.44, 1.5, 1.5])
    backoff.succeeded()
    assert backoff.next_delay_s() == 1.0
    assert not backoff.is_over(1e9)
    backoff.lost(100.0)
    backoff.lost(105.0)
    assert (backoff.is_over(109.9), backoff.is_over(110.0)) == (False, True)
    backoff.succeeded()
    assert not backoff.is_over(1e9)
    assert not Backoff(Reconnect(), lambda: 0.0).is_over(1e9)


def test_a_blocking_client_of_a_silent_host_connects_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("CHECK_INTERVAL_S", "SLICE_S"):
        monkeypatch.setattr(blocking_shell, bound, 0.01)
    with listener() as (address, _), blocking.connect(address, answer_timeout_s=0.5) as client:
        with pytest.raises(RequestTimeout):
            client.create("x")
        assert client.statistics().connections >= 2
