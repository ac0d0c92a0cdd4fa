"""Goal: one peer can make a node hold only so much, and is not blamed for waiting. Method: raw peers, small limits."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from ockam.actors.address import SHOWN_BYTES_MAX, Address, local, tcp
from ockam.actors.message import Message
from ockam.actors.turns import READ_BYTES_MAX
from ockam.actors.worker import Worker
from ockam.transport import connection_machine
from ockam.transport import tcp as tcp_module
from ockam.transport.connection_machine import ConnectionLimits
from ockam.transport.connection_usage import PARTIAL_FREE_BYTES, PartialFrames
from ockam.transport.listener import OPEN_FILES_RESERVE, connections_that_fit
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import serve
from tests.support.peer import Peer


async def wait_until(true: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not true():
            await trio.sleep(0.005)


class Held(Worker):
    """Takes nothing until it is let."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def started(self) -> None:
        self.context.pause()

    def handle(self, message: Message) -> None:
        self.payloads.append(message.payload)
        self.reply(message, b"taken")


async def test_peers_that_forward_to_a_slow_node_wait_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The far node stops reading; the near one must not take more of the six peers than a few messages each."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 500_000)
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", 3_000_000)
    monkeypatch.setattr("ockam.actors.mailbox.BYTES_MAX", 1_000_000)
    held = Held()
    async with serve() as far, serve(allow_forward=[far.address]) as near, trio.open_nursery() as nursery:
        far.node.register([local("held")], lambda: held)
        peers = [await near.peer(HEAD) for _ in range(6)]
        for peer in peers:
            frame = peer.frame((tcp(far.address), local("held")), bytes(400_000))
            nursery.start_soon(peer.stream.send_all, frame * 50)
        await trio.sleep(0.5)
        taken = sum(connection.received for connection in near.transport.statistics().connections)
        assert taken < 100
        held.context.resume()
        for peer in peers:
            assert {(await peer.receive()).payload for _ in range(50)} == {b"taken"}
    assert len(held.payloads) == 300
    assert near.node.statistics().dropped == far.node.statistics().dropped == {}


async def test_a_peer_that_sends_to_a_connection_that_does_not_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first hop is the other connection's own address, as in an answer that comes back through a node."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 100_000)
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", 10_000_000)
    routes: list[tuple[Address, ...]] = []

    class Routes(Worker):
        def handle(self, message: Message) -> None:
            routes.append(message.return_route)

    async with serve() as server, trio.open_nursery() as nursery:
        server.node.register([local("routes")], Routes)
        slow, fast = await server.peer(HEAD), await server.peer(HEAD)
        await slow.send((local("routes"),), b"")
        await wait_until(lambda: bool(routes))
        nursery.start_soon(fast.stream.send_all, fast.frame(routes[0], bytes(100_000)) * 500)
        await trio.sleep(0.5)
        assert server.transport.statistics().closed == {}
        assert {(await slow.receive()).payload for _ in range(500)} == {bytes(100_000)}


async def test_messages_that_wait_for_a_call_are_bounded_and_a_failed_call_frees_their_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ockam.actors.mailbox.BYTES_MAX", 1_000_000)

    given_up = trio.Event()

    async def hang(host: str, port: int) -> trio.SocketStream:
        await given_up.wait()
        raise OSError("no such road")

    async with serve(allow_forward=["far:1"]) as near, trio.open_nursery() as nursery:
        peer = await near.peer(HEAD)
        monkeypatch.setattr(trio, "open_tcp_stream", hang)
        frame = peer.frame((tcp("far:1"), local("echo")), bytes(400_000))
        nursery.start_soon(peer.stream.send_all, frame * 10 + peer.frame((local("echo"),), b"alive"))
        await trio.sleep(0.3)
        (statistics,) = near.transport.statistics().connections
        assert statistics.received <= 4
        given_up.set()
        assert (await peer.receive()).payload == b"alive"
        await wait_until(lambda: near.node.statistics().dropped.get("forward_failed") == 10)


async def test_a_peer_is_not_blamed_for_the_time_that_a_full_mailbox_made_it_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ockam.actors.mailbox.MESSAGES_MAX", 1)
    held = Held()
    async with serve(limits=ConnectionLimits(frame_s=0.2)) as server:
        server.node.register([local("held")], lambda: held)
        peer = await server.peer(HEAD)
        frame = peer.frame((local("held"),), bytes(100_000))
        await peer.stream.send_all(frame + frame[:50_000])
        await trio.sleep(0.5)
        held.context.resume()
        assert (await peer.receive()).payload == b"taken"
        await peer.stream.send_all(frame[50_000:])
        assert (await peer.receive()).payload == b"taken"


async def test_unfinished_frames_share_one_bound_and_each_still_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_max = 1_000_000
    frames = PartialFrames(bytes_max)
    monkeypatch.setattr(tcp_module, "PartialFrames", lambda: frames)
    most = 0
    async with serve() as server, trio.open_nursery() as nursery:
        peers = [await server.peer(HEAD) for _ in range(10)]
        frame = peers[0].frame((local("echo"),), bytes(2_000_000))

        async def send(peer: Peer) -> None:
            await peer.stream.send_all(frame[:-1])
            await peer.stream.send_all(frame[-1:])

        for peer in peers:
            nursery.start_soon(send, peer)
        for peer in peers:
            while not peer.messages:
                most = max(most, frames.size_bytes)
                data = bytes(await peer.stream.receive_some())
                peer.messages += peer.reader.feed(data.removeprefix(peer.hello))
                peer.hello = b""
        assert most < bytes_max + len(frame) + 10 * (PARTIAL_FREE_BYTES + READ_BYTES_MAX)
    assert frames.size_bytes == 0


async def test_a_frame_that_waits_for_room_still_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = PartialFrames(0)
    monkeypatch.setattr(tcp_module, "PartialFrames", lambda: frames)
    async with serve(limits=ConnectionLimits(frame_s=0.3)) as server:
        for _ in range(3):
            peer = await server.peer(HEAD)
            # On a slow machine, the connection ends before all of it is sent.
            with suppress(trio.BrokenResourceError):
                await peer.stream.send_all(peer.frame((local("echo"),), bytes(200_000))[:-1])
        await wait_until(lambda: server.transport.statistics().closed.get("slow_frame") == 3)
        good = await server.peer(HEAD)
        await good.send((local("echo"),), b"small frames are read all the same")
        assert (await good.receive()).payload
        assert frames.size_bytes == 0


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fit"),
    [(256, 256, 10_000, 256 - OPEN_FILES_RESERVE), (256, 20_000, 10_000, 10_000), (10, 10, 5, 1), (256, -1, 500, 500)],
)
def test_connections_fit_into_the_open_files_of_the_process(
    soft: int, hard: int, wanted: int, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    with capture_logs() as logs:
        assert connections_that_fit(wanted) == fit
    assert set_to == ([] if soft == hard else [(hard, hard)])
    assert ("connections_bounded" in {line["event"] for line in logs}) == (fit < wanted)


def test_a_limit_that_cannot_be_raised_counts_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections_that_fit(10_000) == 256 - OPEN_FILES_RESERVE


@pytest.mark.parametrize("opening", [HEAD.hello + bytes(3), HEAD.hello + b"\x00\x00\x10\x00\x84"])
async def test_a_connection_that_begins_a_first_frame_must_end_it(opening: bytes) -> None:
    async with serve(limits=ConnectionLimits(frame_s=0.3)) as server:
        stream = await server.connect()
        await stream.send_all(opening)
        heartbeats = await server.peer(HEAD)
        await heartbeats.stream.send_all(HEAD.heartbeat)
        await server.wait_closed_because("slow_frame")
        await heartbeats.send((local("echo"),), b"silent all the time")
        assert (await heartbeats.receive()).payload


async def test_log_lines_do_not_bear_all_of_a_peers_address() -> None:
    async with serve() as server:
        peer = await server.peer(HEAD)
        with capture_logs() as logs:
            for kind in (0, 1, 7):
                await peer.send((Address(kind, b"h" * 1_000),), b"")
            await peer.send((local("echo"),), b"alive")
            assert (await peer.receive()).payload == b"alive"
    lines = [line for line in logs if line["event"] in ("forward_refused", "message_dropped")]
    assert len(lines) == 4
    assert max(len(str(line)) for line in lines) < 2 * SHOWN_BYTES_MAX


class Late(Worker):
    """Answers after a while, as a commit does."""

    def handle(self, message: Message) -> None:
        self.context.call_later(0.2, lambda: self.reply(message, message.payload))


@pytest.mark.parametrize("bad", [b"", b"\x00\x00\x00\x01\x00"], ids=["half-closed", "bad-frame"])
async def test_requests_before_the_end_are_answered(bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_machine, "LINGER_QUIET_S", 0.4)
    async with serve() as server:
        server.node.register([local("late")], Late)
        peer = await server.peer(HEAD)
        await peer.stream.send_all(peer.frame((local("late"),), b"x") * 5 + bad)
        if not bad:
            await peer.stream.send_eof()
        assert [(await peer.receive()).payload for _ in range(5)] == [b"x"] * 5
        await peer.wait_closed()
        await server.wait_closed_because("undecodable" if bad else "closed_by_peer")


async def test_a_peer_that_asked_nothing_lately_is_let_go_at_once(mock_clock: trio.testing.MockClock) -> None:
    """Time stands still unless all tasks wait; then it goes on to what the node waits for, which is to be nothing."""
    mock_clock.autojump_threshold = 2.0
    async with serve() as server:
        peer = await server.peer(HEAD)
        await peer.send((local("echo"),), b"x")
        await peer.receive()
        mock_clock.jump(connection_machine.LINGER_S_MAX + 1.0)
        ended_s = trio.current_time()
        await peer.stream.send_eof()
        await peer.wait_closed()
        assert trio.current_time() == ended_s


async def test_a_slow_consumer_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_HARD", 1_000_000)

    class Flood(Worker):
        def handle(self, message: Message) -> None:
            for _ in range(100):
                self.reply(message, bytes(100_000))

    async with serve() as server:
        server.node.register([local("flood")], Flood)
        peer = await server.peer(HEAD)
        with capture_logs() as logs:
            await peer.stream.send_all(peer.frame((local("flood"),), b"") * 20)
            await server.wait_closed_because("slow_consumer")
    assert [line["event"] for line in logs].count("slow_consumer") == 1
