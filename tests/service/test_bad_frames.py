"""Goal: bytes that are no message, or come too slowly, end their connection, are counted and logged; others go on.

Method: a whole server with short time limits, raw sockets, both framings, and a neighbour who pushes and pulls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import local, tcp
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest
from tests.support.peer import Peer
from tests.support.served import neighbour, served
from tests.support.stream_peer import SERVICE

pytestmark = pytest.mark.usefixtures("short_linger")
BOTH_WIRES = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
SHORT_TIMES = {"frame_timeout_s": 0.3}


def closed_lines(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "connection_closed"]


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        pytest.param(b"\x00\x05garba", "undecodable", id="legacy-garbage"),
        pytest.param(b"\x00\x04\x03\x00\x00\x00", "version", id="legacy-version-3"),
        pytest.param(b"\x00\x06\x01\x00\x00\x00xx", "undecodable", id="legacy-bytes-behind"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "slow_frame", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "tls_unexpected", id="tls"),
        pytest.param(b"\x01\x00\x00\x00\x05garba", "undecodable", id="head-garbage"),
        pytest.param(b"\x01\x00\x00\x00\x04\x83\x80\x80\x40", "undecodable", id="head-array-of-three"),
        pytest.param(b"\x01\xff\xff\xff\xff\x84", "oversized", id="head-4-GiB"),
        pytest.param(b"\x01\x01\x00\x00\x01\x84", "oversized", id="head-16-MiB-and-a-byte"),
        pytest.param(b"\x01\x00\x00\x00\x20\x84\x81", "slow_frame", id="head-half-a-frame"),
        pytest.param(b"\x00\x20\x01\x01", "slow_frame", id="legacy-half-a-frame"),
    ],
)
async def test_bad_openings_are_closed_counted_and_logged(tmp_path: Path, opening: bytes, reason: str) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, **SHORT_TIMES) as server, neighbour(server):
            bad = await server.connect()
            await bad.send_all(opening)
            await Peer(bad, HEAD).wait_closed()
            await server.wait_closed_because(reason)
            assert server.statistics().tcp.closed == {reason: 1}
    (line,) = closed_lines(logs)
    assert line["kind"] == reason
    assert line["peer"].startswith("127.0.0.1:")
    assert line["reason"]


@BOTH_WIRES
async def test_what_came_before_a_bad_frame_is_carried_out(tmp_path: Path, wire: Wire) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer(wire)
        route = await peer.create("s")
        good = peer.frame(route, PUSH.encode_request(PushRequest(1, b"good")))
        bad = (9).to_bytes(wire.length_bytes, "big") + b"\xffbad\xffbad\xff"
        await peer.stream.send_all(good + bad + good)
        await peer.wait_closed()
        await server.wait_closed_because("undecodable")
        other = await server.peer()
        assert [message.data for message in (await other.pull(route, 0, 10)).messages] == [b"good"]


async def trickle(stream: trio.SocketStream, data: bytes) -> None:
    for byte in data:
        await stream.send_all(bytes((byte,)))
        await trio.sleep(0.002)


@BOTH_WIRES
async def test_a_frame_that_trickles_is_closed_however_busy_it_looks(tmp_path: Path, wire: Wire) -> None:
    async with served(tmp_path, frame_timeout_s=0.3) as server, neighbour(server):
        peer = await server.peer(wire)
        route = await peer.create("s")
        frame = peer.frame(route, PUSH.encode_request(PushRequest(1, bytes(5_000))))
        with pytest.raises(trio.BrokenResourceError):
            await trickle(peer.stream, frame)
        await server.wait_closed_because("slow_frame")
        assert (await (await server.peer()).pull(route, 0, 10)).messages == []


@BOTH_WIRES
async def test_a_connection_cut_within_a_frame_stores_nothing_of_it(tmp_path: Path, wire: Wire) -> None:
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer(wire)
        route = await peer.create("s")
        frame = peer.frame(route, PUSH.encode_request(PushRequest(1, b"half")))
        await peer.stream.send_all(frame[:-1])
        await peer.stream.aclose()
        await server.wait_closed_because("closed_by_peer")
        assert (await (await server.peer()).pull(route, 0, 10)).messages == []


async def test_a_peer_that_leaves_before_its_header_is_counted_and_not_logged_as_a_failure(tmp_path: Path) -> None:
    """A health check that only connects."""
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            stream = await server.connect()
            await stream.aclose()
            await server.wait_closed_because("closed_before_header")
    assert closed_lines(logs) == []


async def test_a_silent_peer_is_kept_and_a_frame_that_it_begins_is_not_waited_for(tmp_path: Path) -> None:
    """The time limit is of a frame that has begun; a quiet consumer, or one that has not spoken yet, is no fault."""
    async with served(tmp_path, **SHORT_TIMES) as server:
        quiet, silent = await server.peer(), await server.peer()
        await quiet.create("s")
        half = await server.peer()
        await half.stream.send_all(bytes(3))
        await half.wait_closed()
        assert await quiet.create("s")
        assert await silent.create("s")
        assert server.statistics().tcp.closed == {"slow_frame": 1}


async def test_a_setting_of_older_configurations_is_taken_and_said_to_do_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, header_timeout_s=0.1, **SHORT_TIMES) as server:
            silent, half = await server.peer(), await server.peer()
            await half.stream.send_all(bytes(3))
            await half.wait_closed()
            assert await silent.create("s")
    (line,) = [line for line in logs if line["event"] == "setting_without_effect"]
    assert line["setting"] == "header_timeout_s"
    assert "idle_timeout_s" in line["reason"]


async def test_idle_peers_are_closed_where_the_operator_asks_for_it(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with served(tmp_path, idle_timeout_s=0.2) as server:
            peer, silent = await server.peer(), await server.connect()
            await peer.create("s")
            await peer.wait_closed()
            await Peer(silent, HEAD).wait_closed()
            await server.wait_closed_because("idle", 2)
    assert [line["kind"] for line in closed_lines(logs)] == ["idle", "idle"]


@BOTH_WIRES
async def test_routes_that_lead_nowhere_are_dropped_and_counted(tmp_path: Path, wire: Wire) -> None:
    """Unknown addresses, empty routes and zero-length frames end nothing, like at the real node."""
    async with served(tmp_path) as server:
        peer = await server.peer(wire)
        create = CREATE.encode_request(CreateStream("s"))
        await peer.stream.send_all(bytes(wire.length_bytes) + wire.heartbeat)
        for route in ((local("nobody"),), (local(b"\xff\xfe"),), (local("ST_S_nothing"),)):
            await peer.send(route, create)
        assert await peer.create("s")
        assert server.statistics().node.dropped == {"unknown_address": 3}


@BOTH_WIRES
async def test_a_route_of_too_many_hops_is_no_message(tmp_path: Path, wire: Wire) -> None:
    async with served(tmp_path) as server, neighbour(server):
        for hops, answered in ((64, True), (65, False)):
            peer = await server.peer(wire)
            back = tuple(local(f"hop{number}") for number in range(hops))
            await peer.stream.send_all(peer.frame(SERVICE, CREATE.encode_request(CreateStream("s")), back))
            if answered:
                assert (await peer.receive()).onward_route == back
            else:
                await peer.wait_closed()
        await server.wait_closed_because("undecodable")


@BOTH_WIRES
async def test_a_node_is_no_relay(tmp_path: Path, wire: Wire) -> None:
    """A TCP hop that the operator has not allowed is refused; the far node is never called."""
    with capture_logs() as logs:
        async with served(tmp_path / "a") as near, served(tmp_path / "b") as far, neighbour(near):
            peer = await near.peer(wire)
            await peer.send((tcp(far.address), *SERVICE), CREATE.encode_request(CreateStream("s")))
            assert await peer.create("s")
            assert near.statistics().node.dropped == {"forward_refused": 1}
            assert far.statistics().tcp.accepted == 0
            destination = far.address
    (line,) = [line for line in logs if line["event"] == "forward_refused"]
    assert line["destination"] == destination
