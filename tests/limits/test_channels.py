"""Goal: secure channels count for the identity at their other end and for that of their connection.

Method: a real node with the listener for channels; initiators stand at the other end of lines of this node.
"""

from __future__ import annotations

import msgspec
import trio
import trio.testing

from ockam.actors.address import local
from ockam.identity.channel.messages import CLOSE
from ockam.identity.channel.trust_list import TrustList
from ockam.quotas.limits import IdentityLimits
from ockam.quotas.usage import Usage
from tests.ockam.identity.channel.channel_node import ChannelNode, Initiator, channel_node
from tests.ockam.identity.channel.samples import identity

ECHO, ME = local("echo"), local("me")


def initiator_of(world: ChannelNode, usage: Usage, name: str = "initiator") -> Initiator:
    """An initiator whose connection has this usage."""
    initiator = world.initiator(name)
    initiator.origin = msgspec.structs.replace(initiator.origin, usage=usage)
    return initiator


async def test_an_identity_has_a_number_of_channels() -> None:
    """Two channels of one identity over two connections are all; the third is told, and another identity has room."""
    async with channel_node(TrustList(None, anyone=True)) as world:
        world.node.usages.replace_tables({f"channel:{identity('initiator')}": {"channels_max": 2}}, 0.0)
        peers = [world.initiator().open() for _ in range(3)]
        assert [peer.plaintexts() for peer in peers] == [[], [], [CLOSE]]
        assert world.channels.statistics().ended == {"identity_channels_max": 1}
        assert world.initiator("other").open().plaintexts() == []
        peers[0].arrive(peers[0].way, (), peers[0].machine.close())
        assert world.initiator().open().plaintexts() == []
        assert world.node.usages.statistics().open == {"channels_max": 3}
        world.channels.stop()
        assert world.node.usages.statistics().identities == 0


async def test_new_identities_bring_no_new_channels() -> None:
    """Where anybody is trusted, each channel may have an identity of its own: the connection's identity counts."""
    async with channel_node(TrustList(None, anyone=True)) as world:
        usage, other = (Usage(f"anonymous:192.0.2.{number}", IdentityLimits(channels_max=2)) for number in (1, 2))
        peers = [initiator_of(world, usage, f"name {number}").open() for number in range(4)]
        assert [peer.plaintexts() for peer in peers] == [[], [], [CLOSE], [CLOSE]]
        assert initiator_of(world, other).open().plaintexts() == []
        assert usage.count("channels_max") == 2
        world.channels.stop()
        assert usage.is_unused(0.0)


async def test_what_comes_out_counts_for_a_named_identity_alone() -> None:
    """Messages of a named identity have its usage; those of somebody who is merely accepted have the connection's."""
    named = TrustList(None, [str(identity("initiator"))], anyone=True)
    async with channel_node(named) as world:
        usage = Usage("anonymous:192.0.2.1", IdentityLimits())
        for name, key in (("initiator", f"channel:{identity('initiator')}"), ("other", usage.key)):
            peer = initiator_of(world, usage, name).open()
            peer.send((ECHO,), (ME,), b"x")
            assert world.echo.messages[-1].origin.usage.key == key


async def test_a_rate_of_an_identity_slows_its_channel(autojump_clock: trio.testing.MockClock) -> None:
    """Beyond the rate the channel's mailbox counts as full, so its connection waits; all messages arrive."""
    named = TrustList(None, [str(identity("initiator"))])
    async with channel_node(named) as world:
        world.node.usages.replace_tables({"channel:*": {"requests_per_second": 10}}, trio.current_time())
        peer = world.initiator().open()
        mailbox = world.node.find_mailbox(peer.way[0])
        assert mailbox is not None
        for _ in range(10):
            peer.send((ECHO,), (ME,), b"x")
        assert not mailbox.full
        for _ in range(5):
            peer.send((ECHO,), (ME,), b"x")
        assert mailbox.full
        began_s = trio.current_time()
        await mailbox.wait_room()
        # Virtual time: half a second for the five messages beyond the burst.
        assert 0.4 < trio.current_time() - began_s < 0.7
        assert len(world.echo.messages) == 15
        assert world.node.usages.statistics().slowed["requests_per_second"] >= 1


async def test_refresh_messages_have_a_rate(autojump_clock: trio.testing.MockClock) -> None:
    """Each Refresh costs signatures: after ten at once, further ones are dropped unread."""
    async with channel_node() as world:
        peer = world.initiator().open()
        for _ in range(12):
            peer.arrive(peer.way, (), peer.machine.seal(b"\x82\x81\x01"))
        dropped = world.channels.statistics().dropped
        assert dropped.pop("refresh_rate") == 2
        assert sum(dropped.values()) == 10
        await trio.sleep(3)
        peer.arrive(peer.way, (), peer.machine.seal(b"\x82\x81\x01"))
        assert world.channels.statistics().dropped["refresh_rate"] == 2
