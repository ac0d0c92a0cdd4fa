"""Goal: handshakes and channels are bounded by number, rate and time, and what gives way is counted.

Method: a real node with a worker in the place of a connection, in virtual time.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ockam.address import local
from ockam.message import Message, Origin
from secure_channel.limits import ChannelLimits
from secure_channel.messages import CLOSE
from tests.secure_channel.channel_node import LISTENER, channel_node

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
        (ChannelLimits(identity_channels_max=2), "identity_channels_max"),
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
