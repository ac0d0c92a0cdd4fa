"""Goal: a message that loops between nodes that forward to each other is dropped at its second visit, and a good client
does not notice many such messages. Method: two real nodes, a peer whose routes go round, and a neighbour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio

import bare
from ockam.actors.address import LOCAL, Address, Route, local, tcp
from ockam.actors.message import Message, Origin
from ockam.protocol import ERROR
from ockam.transport import connection_machine
from ockam.transport.forwarding import CONNECTION_PREFIX
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import Server, serve

OWN = bare.encode("node/stream_pull/1", str) + b"\x00"
ROUNDS = 31
"""With the worker at the end, as many as a route may have hops."""
FLOOD = 20_000
BODY = bytes(1_000)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Server, Server]]:
    """Each may pass on to the other. They are told so when they listen, since only then their addresses are known."""
    async with serve() as first, serve() as second:
        for server in (first, second):
            server.transport.allow_forward([first.address, second.address])
        yield first, second


def dropped(server: Server) -> int:
    return server.node.statistics().dropped.get("forward_circle", 0)


async def all_stopped(first: Server, second: Server, count: int) -> None:
    with trio.fail_after(60):
        while dropped(first) + dropped(second) < count:
            await trio.sleep(0.005)


def circle(first: Server, second: Server) -> Route:
    return (tcp(second.address), tcp(first.address)) * ROUNDS + (local("echo"),)


async def test_there_and_back_is_no_circle() -> None:
    """A node may be reached through its neighbour; only passing on a second time is too much."""
    async with two_nodes() as (first, second):
        peer = await first.peer(HEAD)
        await peer.send((tcp(second.address), tcp(first.address), local("echo")), b"hello")
        assert (await peer.receive()).payload == b"hello"
        assert dropped(first) + dropped(second) == 0


async def test_a_circle_ends_at_its_second_visit_and_says_so() -> None:
    async with two_nodes() as (first, second):
        peer = await first.peer(HEAD)
        await peer.send(circle(first, second), b"not one of ours")
        await peer.send(circle(first, second), OWN)
        answer = await peer.receive()
        assert answer.onward_route == (local("me"),)
        assert ERROR.decode_response(answer.payload).reason == (
            "Invalid request: not passed on: it has passed through this node before"
        )
        await all_stopped(first, second, 2)
        assert (dropped(first), dropped(second)) == (2, 0)
        # Out of each node once: what came to the first node again went no further.
        received = [each.received for server in (first, second) for each in server.transport.statistics().connections]
        assert sum(received) <= 2 + 2 + 2 + 2


async def test_a_circle_by_the_addresses_of_connections_ends_too() -> None:
    """Answers tell these addresses, and a route may be made of them as well."""
    async with two_nodes() as (first, second):
        peer = await first.peer(HEAD)
        await peer.send((tcp(second.address), local("echo")), b"x")
        there = (await peer.receive()).return_route[0]
        other = await second.peer(HEAD)
        await other.send((tcp(first.address), local("echo")), b"x")
        back = (await other.receive()).return_route[0]
        await peer.send((there, back) * ROUNDS + (local("echo"),), OWN)
        answer = await peer.receive()
        assert "not passed on" in ERROR.decode_response(answer.payload).reason


async def test_a_message_that_loops_is_dropped_also_behind_one_of_this_nodes_own() -> None:
    """Both are in one run of the connection. The node's own message is sent."""
    async with two_nodes() as (first, second):
        there = await first.transport.connect(second.address)
        looped = Message((there, local("echo")), (local("TCP_in"), there), b"", Origin("tcp", "10.0.0.1:5"))
        first.node.send_run([Message((there, local("echo")), (local("nobody"),), b"own"), looped])
        await all_stopped(first, second, 1)
        (connection,) = first.transport.statistics().connections
        assert (dropped(first), connection.sent) == (1, 1)


@pytest.mark.slow
async def test_a_good_client_is_answered_during_and_after_a_flood_of_circles() -> None:
    async with two_nodes() as (first, second):
        good, bad = await first.peer(HEAD), await first.peer(HEAD)
        frame = bad.frame(circle(first, second), BODY)
        flooded = trio.Event()

        async def flood() -> None:
            for _ in range(FLOOD // 100):
                await bad.stream.send_all(frame * 100)
            flooded.set()

        asked = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            # Its way goes through both nodes, as the flood does.
            while not flooded.is_set() or asked < 10:
                await good.send((tcp(second.address), local("echo")), b"%d" % asked)
                assert (await good.receive(patience_s=30)).payload == b"%d" % asked
                asked += 1
        await all_stopped(first, second, FLOOD)
        await good.send((tcp(second.address), local("echo")), b"after")
        assert (await good.receive()).payload == b"after"


async def test_nodes_that_forward_to_each_other_do_not_stop_each_other() -> None:
    """The attack: four connections send large frames that go there and back, at both nodes, without reading an answer.
    A good client goes the same way and is answered during and after it."""
    async with two_nodes() as (first, second):
        ends = [(first, second), (second, first)] * 2
        good = await first.peer(HEAD)
        body = OWN + bytes(60_000)
        async with trio.open_nursery() as nursery:
            stop = trio.Event()

            async def attack(here: Server, there: Server, *, has_worker: bool) -> None:
                bad = await here.peer(HEAD)
                # At its second visit a message is refused; with a worker before that, it is answered.
                route = (tcp(there.address), tcp(here.address), local("echo")) if has_worker else circle(here, there)
                frame = bad.frame(route, body)
                # The node closes those that do not take their answers.
                with suppress(trio.BrokenResourceError), trio.CancelScope() as scope:
                    nursery.start_soon(cancel_at, stop, scope)
                    for _ in range(600):
                        await bad.stream.send_all(frame)

            async def cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
                await event.wait()
                scope.cancel()

            for at, (here, there) in enumerate(ends):
                nursery.start_soon(partial(attack, here, there, has_worker=at > 1))
            for asked in range(30):
                await good.send((tcp(second.address), local("echo")), b"%d" % asked)
                assert (await good.receive(patience_s=25)).payload == b"%d" % asked
            stop.set()
        await good.send((tcp(second.address), local("echo")), b"after")
        assert (await good.receive(patience_s=25)).payload == b"after"


async def test_what_another_node_has_passed_on_is_refused_where_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is told. The sender of what comes here first waits instead, and loses nothing."""
    monkeypatch.setattr(connection_machine, "FORWARDED_BYTES_MAX", -1)
    async with two_nodes() as (first, second):
        peer = await first.peer(HEAD)
        await peer.send((tcp(second.address), tcp(first.address), local("echo")), OWN)
        reason = ERROR.decode_response((await peer.receive()).payload).reason
        assert reason == "Invalid request: not passed on: too much waits for that node already; ask again later"
        assert second.node.statistics().dropped == {"forward_full": 1}
        await peer.send((tcp(second.address), local("echo")), b"directly")
        assert (await peer.receive()).payload == b"directly"


async def ask_and_not_read(first: Server, second: Server) -> None:
    """Asks for 60 MB of answers that come through a link, and takes none."""
    bad = await first.peer(HEAD)
    frame = bad.frame((tcp(second.address), local("echo")), bytes(1_000_000))
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for _ in range(60):
            await bad.stream.send_all(frame)


async def test_a_peer_that_takes_nothing_does_not_hold_the_answers_of_others() -> None:
    """Also while its connection is open, so that one that takes a little now and then does not hold them either."""
    async with two_nodes() as (first, second), trio.open_nursery() as nursery:
        good = await first.peer(HEAD)
        nursery.start_soon(ask_and_not_read, first, second)
        with trio.fail_after(25):
            while first.transport.memory.unread_bytes <= connection_machine.BACKLOG_BYTES_SOFT:
                await trio.sleep(0.005)
        for _ in range(5):
            await good.send((tcp(second.address), local("echo")), b"answered")
            assert (await good.receive(patience_s=25)).payload == b"answered"
        assert "slow_consumer" not in first.transport.statistics().closed
        nursery.cancel_scope.cancel()


async def test_what_waits_for_a_peer_that_takes_nothing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", connection_machine.BACKLOG_BYTES_SOFT)
    async with two_nodes() as (first, second), trio.open_nursery() as nursery:
        nursery.start_soon(ask_and_not_read, first, second)
        await first.wait_closed_because("slow_consumer")
        nursery.cancel_scope.cancel()


async def test_a_sender_that_pretends_for_some_messages_waits_as_others_do() -> None:
    """The attack: of each two messages, the small one says that another node has passed it on. The node that both go to
    takes nothing. Before, 688 MB of the large ones were in memory after 8 s."""
    async with serve() as first, trio.open_nursery() as nursery:

        async def take_nothing(stream: trio.SocketStream) -> None:
            await stream.send_all(HEAD.hello)
            await trio.sleep_forever()

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, take_nothing, [listener])
        silent = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        first.transport.allow_forward([silent])
        bad, sent = await first.peer(HEAD), 0
        route = tcp(silent), local("echo")
        small = bad.frame(route, b"x", (local("me"), Address(LOCAL, CONNECTION_PREFIX + b"x")))
        frames = (small + bad.frame(route, bytes(30_000))) * 4

        async def attack() -> None:
            nonlocal sent
            while True:
                await bad.stream.send_all(frames)
                sent += len(frames)

        nursery.start_soon(attack)
        before = -1
        while before < sent:
            before = sent
            await trio.sleep(1)
            assert sent < 100_000_000, "it does not have to wait"
        nursery.cancel_scope.cancel()
