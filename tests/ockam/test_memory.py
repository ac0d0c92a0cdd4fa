"""Goal: the memory that all peers make a node hold has one bound, and the peer that holds most frees its memory first.

Method: the count alone under random changes; then a node with a small bound, greedy raw peers and a modest one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.quotas.memory import SHARE_BYTES_MIN, Holdings, PeerMemory
from ockam.transport import connection_machine
from ockam.transport.tcp import IDLE_INTERVAL_S
from ockam.transport.wire_head import HEAD
from stream_service.extensions import RICH_PULL, FromIndex, RichPull
from tests.ockam.tcp_server import Server, serve
from tests.support.peer import Peer
from tests.support.served import served, wait_until

KIB = 1024


class Held:
    """One connection's account, and what was asked of it."""

    def __init__(self, memory: PeerMemory) -> None:
        self.forgotten = self.answered = 0
        self.closed = False
        self.kept_bytes = 0
        self.holdings = Holdings(memory, self.forget, self.close)

    def forget(self) -> None:
        self.forgotten += 1

    def close(self) -> None:
        self.closed = True

    def park(self, pull: int, size_bytes: int) -> None:
        def give_up(answers: bool) -> None:
            self.answered += answers
            self.holdings.unpark(pull)

        self.holdings.park(pull, size_bytes, give_up)

    def keep_back(self, size_bytes: int) -> None:
        """One more pull waits until the peer has taken its answers."""
        if self.holdings.has_ended:
            return

        def tell(gone: bool) -> None:
            if gone:
                kept, self.kept_bytes = self.kept_bytes, 0
                self.holdings.unwatch(self)
                self.holdings.note_waiting(-kept)

        self.holdings.watch(self, tell)
        self.kept_bytes += size_bytes
        self.holdings.note_waiting(size_bytes)


def test_the_peer_that_holds_most_yields_first_and_only_as_much_as_is_needed() -> None:
    memory = PeerMemory(800)
    large, middle, small = Held(memory), Held(memory), Held(memory)
    small.holdings.note(40, 0)
    middle.holdings.note(200, 0)
    large.holdings.note(300, 0)
    for pull in range(2):
        large.park(pull, 130)
    assert memory.size_bytes == 800
    small.holdings.note(80, 0)
    assert (large.forgotten, large.answered, middle.forgotten, small.forgotten) == (1, 2, 0, 0)
    assert memory.size_bytes == 280
    statistics = memory.statistics()
    assert (statistics.forgotten, statistics.given_up, statistics.closed) == (1, 2, 0)


def test_the_peer_with_most_unread_answers_is_closed_when_nothing_else_helps() -> None:
    memory = PeerMemory(800)
    slow, other = Held(memory), Held(memory)
    other.holdings.note(100, 200)
    slow.holdings.note(0, 500)
    assert not slow.closed
    slow.holdings.note(0, 650)
    assert (slow.closed, other.closed, other.forgotten) == (True, False, 1)
    assert memory.size_bytes == 200


def test_large_answers_wait_for_room_and_each_peer_has_one_at_a_time() -> None:
    memory = PeerMemory(800)
    slow, other = Held(memory), Held(memory)
    told: list[str] = []
    first = slow.holdings.reserve(400, 100, lambda: told.append("first"))
    second = slow.holdings.reserve(400, 100, lambda: told.append("second"))
    third = other.holdings.reserve(400, 100, lambda: told.append("third"))
    fourth = Held(memory).holdings.reserve(400, 100, lambda: told.append("fourth"))
    assert told == ["first", "third"]
    slow.holdings.note(0, 400)
    first.end()
    assert told == ["first", "third"]
    third.end()
    assert told == ["first", "third", "fourth"]
    fourth.end()
    slow.holdings.note(0, 101)
    assert not second.has_come
    slow.holdings.note(0, 100)
    assert told[3:] == ["second"]
    second.end()
    # What is larger than the whole bound comes alone, and the end of a connection frees its room.
    huge = other.holdings.reserve(1_000, 100, lambda: told.append("huge"))
    assert not huge.has_come
    slow.holdings.end()
    assert told[4:] == ["huge"]
    # One that is late waits for the end of other rooms only.
    slow, other = Held(memory), Held(memory)
    slow.holdings.note(0, 300)
    late = other.holdings.reserve(800, 100, lambda: told.append("late"))
    late.insist()
    assert not late.has_come
    huge.end()
    assert told[5:] == ["late"]
    late.end()
    assert not memory.rooms


def test_under_pressure_each_has_its_share() -> None:
    memory = PeerMemory(16 * 1024 * KIB)
    most = 4 * 1024 * KIB
    peers = [Held(memory) for _ in range(4)]
    for peer in peers:
        assert memory.share_bytes(most) == most
        peer.holdings.note(0, 2 * 1024 * KIB + 1)
    assert memory.share_bytes(most) == 2 * 1024 * KIB
    assert memory.share_bytes(10) == 10
    crowd = [Held(memory) for _ in range(1_000)]
    for peer in crowd:
        peer.holdings.note(0, 1)
    assert memory.share_bytes(most) == SHARE_BYTES_MIN


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["note", "park", "unpark", "wait", "end"]),
            st.integers(0, 400),
            st.integers(0, 400),
        ),
        max_size=60,
    )
)
def test_the_sum_is_that_of_all_and_within_the_bound(steps: list[tuple[int, str, int, int]]) -> None:
    memory = PeerMemory(1_000)
    peers = [Held(memory) for _ in range(5)]
    for at, what, first, second in steps:
        holdings = peers[at].holdings
        if what == "note":
            holdings.note(first, second)
        elif what == "park":
            holdings.unpark(first)
            peers[at].park(first, second)
        elif what == "unpark":
            holdings.unpark(first)
        elif what == "wait":
            peers[at].keep_back(second)
        else:
            holdings.end()
            # What comes late from a connection that has ended is not counted any more.
            holdings.note(first, second)
            peers[at].park(first, second)
            assert holdings.size_bytes == 0
            peers[at] = Held(memory)
        each = [peer.holdings for peer in peers]
        assert memory.size_bytes == sum(one.size_bytes for one in each) <= 1_000
        assert memory.behind == sum(one.unread_bytes > 0 for one in each)
        assert set(memory.holders) == {one for one in each if one.size_bytes}


async def ask_along(peer: Peer, routes: list[bytes]) -> None:
    """One echo along each return route."""
    for begin in range(0, len(routes), 64):
        part = routes[begin : begin + 64]
        await peer.stream.send_all(b"".join(peer.frame((local("echo"),), b"x", (local(route),)) for route in part))
        for route in part:
            assert (await peer.receive()).onward_route == (Address(0, route),)


def header_bytes(server: Server) -> int:
    return server.transport.statistics().memory.header_bytes


async def test_routes_that_never_repeat_are_not_kept_and_idle_connections_keep_none(
    mock_clock: trio.testing.MockClock,
) -> None:
    """What made a node keep 13 MiB for each such connection for good: 4,096 return routes, and then silence."""
    mock_clock.rate = 1.0
    async with serve() as server:
        greedy, modest = await server.peer(HEAD), await server.peer(HEAD)
        await ask_along(greedy, [b"%04d" % number + bytes(440) for number in range(4_096)])
        assert header_bytes(server) < 1024 * KIB
        await ask_along(modest, [b"me"])
        for _ in range(3):
            mock_clock.jump(IDLE_INTERVAL_S)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert header_bytes(server) == 0
        await ask_along(greedy, [b"again"])
        await ask_along(modest, [b"me"])
        assert 0 < header_bytes(server) < 10 * KIB


async def test_routes_that_repeat_share_one_bound() -> None:
    async with serve(memory_bytes_max=1024 * KIB) as server:
        peers = [await server.peer(HEAD) for _ in range(8)]
        for _ in range(3):
            for peer in peers:
                await ask_along(peer, [b"%03d" % number + bytes(400) for number in range(200)])
                assert server.transport.statistics().memory.size_bytes <= 1024 * KIB
        memory = server.transport.statistics().memory
        assert memory.forgotten > 0
        assert memory.closed == 0
        for peer in peers:
            peer.stream.socket.close()
        await wait_until(lambda: not server.transport.statistics().memory.size_bytes)


class Gives(Worker):
    """Answers with as much as was asked for."""

    def handle(self, message: Message) -> None:
        self.reply(message, bytes(int(message.payload)))


async def test_unread_answers_share_one_bound_and_the_worst_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty peers that read nothing, and one that reads all it asks for."""
    monkeypatch.setattr(connection_machine, "BACKLOG_BYTES_SOFT", 16 * 1024 * KIB)
    bound = 8 * 1024 * KIB
    async with serve(memory_bytes_max=bound) as server:
        server.node.register([local("gives")], Gives)
        modest = await server.peer(HEAD)
        for number in range(20):
            bad = await server.peer(HEAD)
            size = b"%d" % (3_000_000 + number)
            await bad.stream.send_all(bad.frame((local("gives"),), size) * 2)
            await modest.send((local("gives"),), b"1000")
            assert len((await modest.receive()).payload) == 1_000
            assert server.transport.statistics().memory.size_bytes <= bound
        await wait_until(lambda: server.transport.statistics().memory.closed >= 10)
        assert set(server.transport.statistics().closed) == {"slow_consumer"}
        await modest.send((local("gives"),), b"2000")
        assert len((await modest.receive()).payload) == 2_000


async def test_parked_pulls_share_the_bound_and_the_peer_that_parks_least_waits_on(tmp_path: Path) -> None:
    """One peer leaves thousands of long polls and gets empty pages early; another leaves one and gets its message."""
    poll = RICH_PULL.encode_request(RichPull(1, FromIndex(0), 10, 60_000))
    async with served(tmp_path, peer_memory_bytes_max=1024 * KIB) as server:
        modest, greedy, pusher = [await server.peer() for _ in range(3)]
        route = await modest.create("quiet")
        await modest.send(route, poll)
        await wait_until(lambda: server.statistics().tcp.memory.parked_bytes > 0)
        frames = b"".join(greedy.frame(route, poll, (local(b"%04d" % number + bytes(400)),)) for number in range(2_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greedy.stream.send_all, frames)
            for _ in range(1_000):
                assert RICH_PULL.decode_response((await greedy.receive()).payload).messages == []
        memory = server.statistics().tcp.memory
        assert memory.size_bytes <= memory.bytes_max == 1024 * KIB
        assert memory.closed == 0
        assert not modest.messages
        await pusher.push(route, b"at last")
        page = RICH_PULL.decode_response((await modest.receive()).payload)
        assert [message.data for message in page.messages] == [b"at last"]
        await wait_until(lambda: not server.statistics().tcp.memory.parked_bytes)


async def test_a_peer_that_leaves_takes_its_parked_pulls_along(tmp_path: Path) -> None:
    poll = RICH_PULL.encode_request(RichPull(1, FromIndex(0), 10, 60_000))
    async with served(tmp_path) as server:
        stays, leaves = await server.peer(), await server.peer()
        route = await stays.create("quiet")
        await stays.send(route, poll)
        await leaves.stream.send_all(leaves.frame(route, poll) * 100)
        await wait_until(lambda: server.statistics().tcp.memory.parked_bytes > 100 * 1_000)
        leaves.stream.socket.close()
        await wait_until(lambda: server.statistics().tcp.memory.parked_bytes < 10 * 1_000)
        assert server.statistics().node.dropped == {}
        other = await server.peer()
        await other.push(route, b"here")
        page = RICH_PULL.decode_response((await stays.receive()).payload)
        assert [message.data for message in page.messages] == [b"here"]
