"""Goal: a client that connects and speaks later is served, hellos are answered at once, and silence keeps nobody out.

Method: a node and raw peers. A clock that stands still or jumps shows which answers wait for time to pass.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ockam.actors.address import local, tcp
from ockam.actors.message import Message
from ockam.transport.sockets import send_nowait
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD, NULL
from ockam.transport.wire_legacy import LEGACY
from tests.ockam.tcp_server import serve
from tests.support.peer import Peer
from tests.support.served import wait_until

WIRES = [pytest.param(HEAD, id="head"), pytest.param(LEGACY, id="legacy")]


async def test_a_head_client_that_waits_for_our_byte_gets_it_at_once(mock_clock: trio.testing.MockClock) -> None:
    """The clock stands still: an answer that waits for any time to pass never comes."""
    got: list[bytes] = []
    async with serve() as server, trio.open_nursery() as nursery:
        stream = await server.connect()
        await stream.send_all(b"\x01")

        async def receive() -> None:
            got.append(bytes(await stream.receive_some()))

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert got == [b"\x01"]
        peer = Peer(stream, HEAD)
        peer.hello = b""
        await peer.send((local("echo"),), b"hello")
        assert (await peer.receive()).payload == b"hello"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_speaks_later_is_served(mock_clock: trio.testing.MockClock, wire: Wire) -> None:
    """An hour before the hello, one behind it, and one between two messages; but a frame that has begun must end."""
    async with serve() as server:
        stream = await server.connect()
        peer = Peer(stream, wire)
        for part in (b"", wire.hello):
            await stream.send_all(part)
            await trio.testing.wait_all_tasks_blocked(0.02)
            mock_clock.jump(3_600)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.transport.statistics().silent == 1
        for number in range(2):
            await peer.send((local("echo"),), bytes((number,)))
            assert (await peer.receive()).payload == bytes((number,))
            mock_clock.jump(3_600)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.transport.statistics().silent == 0
        assert server.transport.statistics().closed == {}
        await stream.send_all(peer.frame((local("echo"),), b"half")[:-1])
        await trio.testing.wait_all_tasks_blocked(0.02)
        mock_clock.jump(29)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.transport.statistics().closed == {}
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.transport.statistics().closed == {"slow_frame": 1}


async def test_a_first_frame_has_its_time_from_its_first_byte_on(mock_clock: trio.testing.MockClock) -> None:
    async with serve() as server:
        stream = await server.connect()
        for part in (b"", b"\x00"):
            await stream.send_all(part)
            await trio.testing.wait_all_tasks_blocked(0.02)
            mock_clock.jump(29)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert server.transport.statistics().closed == {}
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.transport.statistics().closed == {"slow_frame": 1}


async def test_a_legacy_frame_torn_behind_its_first_byte_ends_its_connection_unread() -> None:
    """Its first byte was answered as a hello, so that its client could not read any answer."""
    async with serve() as server:
        stream = await server.connect()
        frame = Peer(stream, LEGACY).frame((local("echo"),), bytes(280))
        assert frame[:1] == HEAD.hello
        await stream.send_all(frame[:1])
        assert bytes(await stream.receive_some()) == HEAD.hello
        await stream.send_all(frame[1:])
        await server.wait_closed_because("torn_header")
        assert server.node.statistics().routed == 0


async def test_where_there_are_too_many_the_longest_silent_gives_way() -> None:
    """A connection that has sent a message stays, even if that message has not been read yet."""
    async with serve(connections_max=4) as server:
        spoke = await server.peer(HEAD)
        await spoke.send((local("echo"),), b"1")
        await spoke.receive()
        silent = []
        for opening in (HEAD.hello, b"", HEAD.hello):
            silent.append(await server.connect())
            await silent[-1].send_all(opening)
            await wait_until(lambda: server.transport.statistics().accepted == 1 + len(silent))
        late = [await server.peer(HEAD) for _ in range(2)]
        for number, peer in enumerate(late):
            await peer.send((local("echo"),), b"late")
            assert (await peer.receive()).payload == b"late", number
        for stream in silent[:2]:
            await Peer(stream, HEAD).wait_closed()
        await spoke.send((local("echo"),), b"2")
        assert (await spoke.receive()).payload == b"2"
        peer = Peer(silent[2], HEAD)
        await peer.send((local("echo"),), b"at last")
        assert (await peer.receive()).payload == b"at last"
        assert server.transport.statistics().closed == {"gave_way": 2}
        assert server.transport.statistics().silent == 0
        refused = await server.connect()
        await Peer(refused, HEAD).wait_closed()
        assert server.transport.statistics().closed == {"gave_way": 2, "too_many_connections": 1}


async def test_a_message_that_waits_in_the_socket_counts_as_spoken() -> None:
    async with serve(connections_max=2) as server:
        speaks, silent = await server.peer(HEAD), await server.connect()
        await wait_until(lambda: server.transport.statistics().accepted == 2)
        # Both come in one turn of the event loop: the message is there when the third is accepted, and is not read yet.
        assert not send_nowait(speaks.stream.socket, speaks.frame((local("echo"),), b"here"))
        await (third := await server.peer(HEAD)).send((local("echo"),), b"third")
        assert (await third.receive()).payload == b"third"
        assert (await speaks.receive()).payload == b"here"
        await Peer(silent, HEAD).wait_closed()


async def test_a_forwarding_node_sends_as_soon_as_the_other_nodes_hello_has_come(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The clock stands still: a message that waits for any time to pass never comes."""
    got: list[bytes] = []
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()[:2]
    async with serve() as near, trio.open_nursery() as nursery:

        async def take() -> None:
            async with await listener.accept() as stream:
                await stream.send_all(HEAD.hello)
                while not b"".join(got).endswith(b"at once" + bytes((NULL,))):
                    got.append(bytes(await stream.receive_some()))

        nursery.start_soon(take)
        near.node.send(Message((tcp(f"{host}:{port}"), local("far")), (local("me"),), b"at once"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert b"".join(got).startswith(HEAD.hello)
        assert b"at once" in b"".join(got)
    await listener.aclose()
