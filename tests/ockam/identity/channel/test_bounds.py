"""Goal: handshakes and channels are bounded by number, rate and time, and what gives way is counted.

Method: a real node with a worker in the place of a connection, in virtual time.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ockam.actors import mailbox
from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.worker import Worker
from ockam.identity.channel.admission_machine import ChannelLimits
from ockam.identity.channel.messages import CLOSE, PlaintextWriter
from ockam.quotas.memory import Holdings, PeerMemory
from tests.ockam.identity.channel.channel_node import LISTENER, channel_node

ECHO, ME = local("echo"), local("me")


async def test_handshakes_of_one_connection_are_bounded_and_the_oldest_gives_way() -> None:
    async with channel_node(limits=ChannelLimits(peer_handshakes_max=3)) as world:
        line = world.line()
        peers = [world.initiator(line=line) for _ in range(5)]
        before = world.workers
        for peer in peers:
            peer.begin()
        assert world.workers == before + 2 * 3
        assert world.channels.statistics().ended == {"gave_way": 2}
        for peer in peers:
            peer.finish()
        assert world.channels.statistics().open == 3


async def test_handshakes_are_bounded_in_all() -> None:
    async with channel_node(limits=ChannelLimits(handshakes_max=10, handshakes_per_s=1e9)) as world:
        before = world.workers
        for _ in range(50):
            world.initiator().begin()
        # Each line is a worker too.
        assert world.workers == before + 50 + 2 * 10
        assert world.channels.statistics().handshakes == 10


async def test_the_rate_of_handshakes_of_a_host_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with channel_node(limits=ChannelLimits(handshakes_per_s=5, peer_handshakes_max=1000)) as world:
        line, other = world.line(), world.line()
        for _ in range(20):
            world.initiator(line=line).begin()
        assert world.channels.statistics().refused == {"rate": 15}
        # Another host is not slowed down, and the room comes back.
        world.initiator(line=other).begin()
        await trio.sleep(1)
        world.initiator(line=line).begin()
        assert world.channels.statistics().refused == {"rate": 15}


async def test_a_handshake_that_stalls_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with channel_node() as world:
        peer = world.initiator()
        before = world.workers
        peer.begin()
        await trio.sleep(9)
        assert world.channels.statistics().handshakes == 1
        await trio.sleep(2)
        assert (world.channels.statistics().handshakes, world.workers) == (0, before)
        assert world.channels.statistics().ended == {"handshake_timeout": 1}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ChannelLimits(channels_max=2), "channels_max"),
        (ChannelLimits(peer_channels_max=2), "peer_channels_max"),
    ],
)
async def test_channels_are_bounded(limits: ChannelLimits, reason: str) -> None:
    async with channel_node(limits=limits) as world:
        line = world.line()
        peers = [world.initiator(line=line).open() for _ in range(3)]
        # The last one is told, since its handshake was right.
        assert [peer.plaintexts() for peer in peers] == [[], [], [CLOSE]]
        assert world.channels.statistics().ended == {reason: 1}
        peers[0].arrive(peers[0].way, (), peers[0].machine.close())
        assert world.initiator(line=line).open().plaintexts() == []


async def test_idle_channels_and_those_without_a_connection_end(autojump_clock: trio.testing.MockClock) -> None:
    async with channel_node(limits=ChannelLimits(idle_s_max=600, gone_s_max=60)) as world:
        idle, gone, busy = (world.initiator().open() for _ in range(3))
        world.node.unregister(gone.line.address)
        for _ in range(8):
            await trio.sleep(100)
            busy.send((ECHO,), (ME,), b"x")
        assert world.channels.statistics().ended == {"idle": 1, "connection_gone": 1}
        assert idle.plaintexts() == [CLOSE]
        assert len(busy.received()) == 8


async def test_messages_that_do_not_decrypt_keep_no_channel(autojump_clock: trio.testing.MockClock) -> None:
    """Everybody who knows the address can send them, also to the outer one."""
    async with channel_node(limits=ChannelLimits(idle_s_max=600)) as world:
        peer, attacker = world.initiator().open(), world.initiator()
        peer.send((ECHO,), (ME,), b"x")
        outer = world.echo.messages[0].return_route[0]
        for _ in range(8):
            await trio.sleep(100)
            attacker.arrive(peer.way, (), bytes(60))
            attacker.arrive((outer, ME), (), b"x")
        assert world.channels.statistics().ended == {"idle": 1}


async def test_a_handshake_ends_at_the_third_wrong_message_3() -> None:
    async with channel_node() as world:
        peers = [world.initiator(), world.initiator()]
        for peer, wrong in zip(peers, (2, 3), strict=True):
            peer.begin()
            (answer,) = peer.taken()
            third = peer.machine.receive_2(answer.payload, world.now_s)
            for _ in range(wrong):
                peer.arrive(answer.return_route, (peer.inner,), third[:-1] + bytes([third[-1] ^ 1]))
            peer.arrive(answer.return_route, (peer.inner,), third)
        statistics = world.channels.statistics()
        assert (statistics.open, statistics.handshakes) == (1, 0)
        assert statistics.ended == {"handshake_failed": 1}
        assert statistics.dropped == {"unauthentic": 5}


async def test_what_channels_remember_counts_in_the_memory_of_all_peers() -> None:
    """Both directions remember routes. Above the limit they are forgotten, and no channel ends."""
    memory = PeerMemory(100_000)
    async with channel_node() as world:
        peers = [world.initiator() for _ in range(3)]
        for peer in peers:
            peer.origin = Origin("tcp", "host:1", holdings=Holdings(memory, lambda: None, lambda: None))
            peer.open()
        remembered = 0
        for number in range(400):
            for peer in peers:
                peer.send((ECHO,), (local(f"one of many {number}"),), b"x")
                remembered = max(remembered, memory.header_bytes)
                assert memory.size_bytes <= memory.bytes_max
                assert len(peer.received()) == 1
        assert remembered > 80_000
        assert memory.statistics().forgotten > 0
        assert world.channels.statistics().open == 3
        for peer in peers:
            peer.arrive(peer.way, (), peer.machine.close())
        assert memory.size_bytes == 0


def test_a_long_route_is_not_remembered() -> None:
    writer = PlaintextWriter()
    for number in range(100):
        message = Message((local("outer"), local(b"%d" % number + bytes(1_000))), (), b"x")
        assert len(writer.write([message])[0]) == 1
    assert writer.frames.known_bytes == 0


async def test_the_end_of_a_channel_is_told_at_once() -> None:
    """Not only when the node handles the next message: a change of the rules comes from a timer."""
    async with channel_node() as world:
        peer = world.initiator().open()
        assert world.channels.end_identities(lambda identity: identity.source == "channel", "access_changed") == 1
        assert peer.plaintexts() == [CLOSE]


async def test_a_message_1_that_is_none_makes_no_state() -> None:
    async with channel_node() as world:
        before = world.workers
        peer = world.initiator()
        for payload in (b"", bytes(31), bytes(32), bytes(32 + 1025), b"node/authenticate/1"):
            peer.arrive((LISTENER,), (peer.inner,), payload)
        world.node.send(Message((LISTENER,), (), bytes(32), Origin("tcp", "host:1")))
        assert world.workers == before + 1
        refused = world.channels.statistics().refused
        assert refused == {"short": 3, "low_order_point": 1, "long": 1, "no_return_route": 1}


async def test_a_channel_that_ends_while_its_senders_wait_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: the task that waits for room ends with its channel. Method: the mailbox of a paused worker stays full; ten
    channels deliver to it, and end."""
    monkeypatch.setattr(mailbox, "MESSAGES_MAX", 1)

    class Paused(Worker):
        def started(self) -> None:
            self.context.pause()

    async with channel_node() as world:
        world.node.register([local("paused")], Paused)
        peers = [world.initiator().open() for _ in range(10)]
        tasks = trio.lowlevel.current_statistics().tasks_living
        for peer in peers:
            peer.send((local("paused"),), (ME,), b"x")
        assert trio.lowlevel.current_statistics().tasks_living == tasks + len(peers)
        for peer in peers:
            peer.arrive(peer.way, (), peer.machine.close())
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks
