"""Goal: connections over sockets: framings, time limits, backpressure, forwarding. Method: a node and raw peers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from ockam.actors.address import TCP, Address, local, tcp
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.errors import ConnectFailed, InvalidAddress
from ockam.transport import connection_machine
from ockam.transport.connection_machine import ConnectionLimits
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from tests.ockam.tcp_server import serve
from tests.support.peer import Peer
from tests.support.served import wait_until

WIRES = [pytest.param(HEAD, id="head"), pytest.param(LEGACY, id="legacy")]


@pytest.mark.parametrize("wire", WIRES)
async def test_both_framings_on_one_port_and_the_hop_rules(wire: Wire) -> None:
    """reply.onward is the request's return route, byte for byte; reply.return is the one address that answered."""
    async with serve() as server:
        peer = await server.peer(wire)
        back = (Address(0, b"\xff\xfe"), local("b"), Address(1, b"10.0.0.1:4000"))
        await peer.stream.send_all(peer.frame((local("echo"), local("extra")), b"hello", back))
        answer = await peer.receive()
        assert answer.onward_route == back
        assert answer.return_route == (local("echo"),)
        assert answer.payload == b"hello"


@pytest.mark.parametrize("wire", WIRES)
async def test_heartbeats_empty_frames_and_unknown_addresses_keep_the_connection(wire: Wire) -> None:
    async with serve() as server:
        peer = await server.peer(wire)
        await peer.stream.send_all(wire.heartbeat + bytes(wire.length_bytes))
        await peer.send((local("nobody"),), b"dropped")
        await peer.send((local("echo"),), b"answered")
        assert (await peer.receive()).payload == b"answered"
        assert server.node.statistics().dropped == {"unknown_address": 1}


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        pytest.param(b"\x00\x05garba", "undecodable", id="legacy-garbage"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "slow_frame", id="http"),
        pytest.param(b"\x01\x00\x00\x00\x05garba", "undecodable", id="head-garbage"),
        pytest.param(b"\x01\xff\xff\xff\xff\x84", "oversized", id="head-4-GiB"),
        pytest.param(b"\x01\x01\x00\x00\x01\x84", "oversized", id="head-above-16-MiB"),
        pytest.param(b"\x01\x00\x00\x00\x20\x84\x81", "slow_frame", id="half-a-frame"),
        pytest.param(b"\x01\x00", "slow_frame", id="two-bytes"),
    ],
)
async def test_bad_openings_are_closed_and_counted_and_others_notice_nothing(opening: bytes, reason: str) -> None:
    limits = ConnectionLimits(frame_s=0.2)
    async with serve(limits=limits) as server:
        good = await server.peer(HEAD)
        await good.send((local("echo"),), b"1")
        await good.receive()
        bad = await server.connect()
        await bad.send_all(opening)
        await server.wait_closed_because(reason)
        await Peer(bad, HEAD).wait_closed()
        await good.send((local("echo"),), b"2")
        assert (await good.receive()).payload == b"2"


async def test_a_health_check_that_only_connects_is_counted_and_not_logged_as_an_error() -> None:
    async with serve() as server:
        stream = await server.connect()
        await stream.aclose()
        await server.wait_closed_because("closed_before_header")


async def test_bytes_that_trickle_do_not_extend_the_time_of_a_frame() -> None:
    async with serve(limits=ConnectionLimits(frame_s=0.3)) as server:
        peer = await server.peer(HEAD)
        frame = peer.frame((local("echo"),), bytes(1000))

        async def trickle() -> None:
            for byte in frame:
                await peer.stream.send_all(bytes((byte,)))
                await trio.sleep(0.01)

        with pytest.raises(trio.BrokenResourceError):
            await trickle()
        assert server.transport.statistics().closed == {"slow_frame": 1}


async def test_a_peer_that_never_reads_is_closed_as_a_slow_consumer_and_reading_from_it_stops_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 100_000)
    async with serve(limits=ConnectionLimits(send_s=0.3)) as server:
        good, bad = await server.peer(HEAD), await server.peer(HEAD)
        frame = bad.frame((local("echo"),), bytes(100_000))

        async def send_and_never_read() -> None:
            with trio.fail_after(20):
                while True:
                    await bad.stream.send_all(frame)

        with pytest.raises(trio.BrokenResourceError):
            await send_and_never_read()
        await server.wait_closed_because("slow_consumer")
        await good.send((local("echo"),), b"still here")
        assert (await good.receive()).payload == b"still here"


async def test_too_much_unsent_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", 1_000_000)

    class Flood(Worker):
        def handle(self, message: Message) -> None:
            for _ in range(100):
                self.reply(message, bytes(100_000))

    async with serve() as server:
        server.node.register([local("flood")], Flood)
        peer = await server.peer(HEAD)
        await peer.send((local("flood"),), b"")
        await server.wait_closed_because("slow_consumer")


async def test_more_connections_than_allowed_are_refused() -> None:
    async with serve(connections_max=1) as server:
        first = await server.peer(HEAD)
        await first.send((local("echo"),), b"1")
        await first.receive()
        second = await server.connect()
        await Peer(second, HEAD).wait_closed()
        assert server.transport.statistics().closed == {"too_many_connections": 1}


async def test_a_remote_peer_cannot_use_the_node_as_a_relay() -> None:
    async with serve() as far, serve() as near:
        peer = await near.peer(HEAD)
        await peer.send((tcp(far.address), local("echo")), b"relay me")
        await peer.send((local("echo"),), b"alive")
        assert (await peer.receive()).payload == b"alive"
        assert near.node.statistics().dropped == {"forward_refused": 1}
        assert far.transport.statistics().accepted == 0


@pytest.mark.parametrize("wire", WIRES)
async def test_a_chain_of_nodes_when_the_operator_allows_it(wire: Wire) -> None:
    """Three nodes in a row; the answer's return route leads back to the far worker through all of them."""
    async with (
        serve() as far,
        serve(allow_forward=[far.address]) as middle,
        serve(allow_forward=[middle.address]) as near,
    ):
        peer = await near.peer(wire)
        await peer.send((tcp(middle.address), tcp(far.address), local("echo")), b"out and back")
        answer = await peer.receive()
        assert answer.payload == b"out and back"
        assert answer.onward_route == (local("me"),)
        assert answer.return_route[-1] == local("echo")
        await peer.send(answer.return_route, b"again, by the route that the answer gave")
        assert (await peer.receive()).payload == b"again, by the route that the answer gave"
        assert middle.transport.statistics().accepted == 1


async def test_forwarding_to_a_destination_that_does_not_answer_drops_and_counts() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    host, port = listener.socket.getsockname()[:2]
    await listener.aclose()
    async with serve(allow_forward=[f"{host}:{port}"]) as near:
        peer = await near.peer(HEAD)
        await peer.send((tcp(f"{host}:{port}"), local("echo")), b"lost")
        with trio.fail_after(10):
            while "forward_failed" not in near.node.statistics().dropped:
                await trio.sleep(0.005)
        await peer.send((local("echo"),), b"alive")
        assert (await peer.receive()).payload == b"alive"


@pytest.mark.parametrize("destination", ["a..b:1", "x" * 64 + ":1", "\u0660:1", "a:\u00b2", "a:" + "1" * 5_000])
async def test_a_destination_that_can_be_none_fails_and_the_node_goes_on(destination: str) -> None:
    """Goal: no text in a route ends the node. Method: hosts that Python's encoding of names refuses, one that only trio
    refuses, and ports that `int` refuses; in a route of the node itself, and in a call."""
    async with serve() as near:
        near.node.send(Message((Address(TCP, destination.encode()), local("echo")), (local("me"),), b"lost"))
        await wait_until(lambda: near.node.statistics().dropped.get("forward_failed"))
        with pytest.raises((ConnectFailed, InvalidAddress)):
            await near.transport.connect(destination)
        peer = await near.peer(HEAD)
        await peer.send((local("echo"),), b"alive")
        assert (await peer.receive()).payload == b"alive"


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
async def test_we_can_call_in_either_framing(framing: Any) -> None:
    async with serve() as far, serve() as near:
        connection = await near.transport.connect(far.address, framing)
        got: list[bytes] = []

        class Caller(Worker):
            def handle(self, message: Message) -> None:
                got.append(message.payload)

        near.node.register([local("caller")], Caller)
        near.node.send(Message((connection, local("echo")), (local("caller"),), b"hello"))
        with trio.fail_after(10):
            while not got:
                await trio.sleep(0.005)
        (statistics,) = far.transport.statistics().connections
        assert statistics.framing == ("legacy" if framing == "legacy" else "head")


async def test_a_legacy_connection_gets_no_frame_above_65000_bytes() -> None:
    async with serve() as server:
        peer = await server.peer(LEGACY)
        await peer.send((local("echo"),), bytes(64_900))

        class Grow(Worker):
            def handle(self, message: Message) -> None:
                self.reply(message, bytes(65_000))

        server.node.register([local("grow")], Grow)
        await peer.send((local("grow"),), b"")
        await peer.send((local("echo"),), b"still open")
        assert (await peer.receive()).payload == bytes(64_900)
        assert (await peer.receive()).payload == b"still open"
        assert server.node.statistics().dropped == {"frame_too_large": 1}


async def test_a_call_that_is_answered_while_the_node_drains_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for the call still goes out."""
    taken: list[bytes] = []

    class Far(Worker):
        def handle(self, message: Message) -> None:
            taken.append(message.payload)

    open_stream, answered = trio.open_tcp_stream, trio.Event()

    async def call(host: str, port: int) -> trio.SocketStream:
        await answered.wait()
        return await open_stream(host, port)

    async with serve() as far, serve() as near, trio.open_nursery() as nursery:
        far.node.register([local("far")], Far)
        monkeypatch.setattr(trio, "open_tcp_stream", call)
        near.node.deliver(Message((tcp(far.address), local("far")), (local("me"),), b"last words"))
        with trio.fail_after(10):
            near.transport.stop_reading()
            nursery.start_soon(near.transport.close_when_sent, trio.current_time() + 1_000)
            await trio.testing.wait_all_tasks_blocked()
            answered.set()
            await near.wait_closed_because("drained")
            while not taken:
                await trio.sleep(0.005)
    assert taken == [b"last words"]
