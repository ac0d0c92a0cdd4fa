"""Goal: when an identity has replaced its key, the old key opens no channel any more, and its open channels end.

Method: identities with one, two and three keys at a node with a worker in the place of a connection; a restart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing
from structlog.testing import capture_logs

from ockam.actors.address import local
from ockam.actors.message import HERE, Message
from ockam.identity.channel.cbor import write_array
from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.errors import IdentityFileError
from ockam.identity.channel.messages import CLOSE
from ockam.identity.channel.proof import OwnIdentity
from ockam.identity.channel.trust_list import KnownHistories, TrustList
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD
from stream_client.core.channel_connection import ChannelConnection, ChannelSettings
from stream_client.errors import ClientError
from tests.ockam.identity.channel.channel_node import ChannelNode, Initiator, channel_node
from tests.ockam.identity.channel.rotations import KEYS, rotated
from tests.ockam.identity.channel.samples import NOW_S, ephemeral, identity, trust_all

ECHO, ME = local("echo"), local("me")
FIRST, SECOND, THIRD = rotated(*KEYS[:1]), rotated(*KEYS[:2]), rotated(*KEYS[:3])
FORKED = rotated(KEYS[0], KEYS[5])


def opened(world: ChannelNode, own: OwnIdentity) -> Initiator:
    """The channel of an identity, as far as it comes."""
    peer = world.initiator()
    peer.machine = ChannelMachine(own, trust_all)
    return peer.open()


def is_answered(peer: Initiator) -> bool:
    peer.send((ECHO,), (ME,), b"x")
    return [each.payload for each in peer.received()] == [b"x"]


def refresh(own: OwnIdentity) -> bytes:
    return b"\x82\x82\x01\x81\x82" + own.secrets.history + write_array() + b"\x40"


async def test_the_key_from_before_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "known"
    trust = TrustList(None, [str(FIRST)])
    async with channel_node(trust, known=KnownHistories(file)) as world:
        old = opened(world, FIRST)
        assert is_answered(old)
        assert not file.exists()
        new = opened(world, SECOND)
        # The channel with the old key ends at once.
        assert old.plaintexts() == [CLOSE]
        assert is_answered(new)
        assert opened(world, FIRST).plaintexts() == [CLOSE]
        assert world.channels.statistics().ended == {"key_replaced": 1, "not_trusted": 1}
    async with channel_node(trust, known=KnownHistories(file)) as world:
        for own in (FIRST, FORKED):
            assert opened(world, own).plaintexts() == [CLOSE]
        for own in (SECOND, THIRD):
            assert is_answered(opened(world, own))
        assert opened(world, SECOND).plaintexts() == [CLOSE]


async def test_a_refresh_replaces_the_key_and_an_older_one_is_refused() -> None:
    async with channel_node(TrustList(None, anyone=True)) as world:
        peer, other = opened(world, FIRST), opened(world, FIRST)
        for own in (SECOND, FIRST, FORKED):
            peer.arrive(peer.way, (), peer.machine.seal(refresh(own)))
        assert world.channels.statistics().dropped == {"changes": 2}
        assert other.plaintexts() == [CLOSE]
        assert is_answered(peer)
        assert opened(world, FIRST).plaintexts() == [CLOSE]


async def test_a_channel_ends_with_the_proof_of_its_peer(autojump_clock: trio.testing.MockClock) -> None:
    """The node's clock decides, within ten seconds. A channel whose proof holds longer stays."""
    async with channel_node(TrustList(None, anyone=True)) as world:
        short, long = opened(world, rotated(KEYS[0], expires_s=world.now_s + 60)), opened(world, rotated(KEYS[1]))
        world.now_s += 60
        await trio.sleep(20)
        assert is_answered(short)
        world.now_s += 1
        await trio.sleep(11)
        assert short.plaintexts() == [CLOSE]
        assert is_answered(long)
        assert world.channels.statistics().ended == {"expired": 1}


def test_a_client_makes_a_new_channel_when_the_proof_of_its_node_has_ended() -> None:
    now_s = NOW_S
    node = rotated(KEYS[0], expires_s=NOW_S + 60)
    listener, told = local("secure_channel"), list[ClientError | None]()
    settings = ChannelSettings(identity("client"), frozenset([node.identifier]), (listener,), now_s=lambda: now_s)
    client = ChannelConnection(settings)
    client.on_channel = told.append
    client.connected(HEAD)
    sent, written = FrameReader(HEAD, HERE), FrameWriter(HEAD)
    (first,) = sent.feed(client.data_to_send()[1:])
    machine = ChannelMachine(node, trust_all)
    answer = machine.receive_1(first.payload, ephemeral("node"))
    frame = Message((local("-"), *first.return_route), (local("inner"),), answer)
    assert client.messages(HEAD.hello + written.encode([frame], lambda error: None)[1]) == []
    (third,) = sent.feed(client.data_to_send())
    machine.receive_3(third.payload, NOW_S)
    now_s = NOW_S + 60
    client.settle()
    assert (told, client.handshakes, client.data_to_send()) == ([None], 1, b"")
    now_s = NOW_S + 61
    client.settle()
    client.check()
    assert str(told[-1]) == "the proof of the other end has ended"
    (again,) = sent.feed(client.data_to_send())
    assert (again.onward_route, client.handshakes) == ((listener,), 2)


def test_a_damaged_file_is_told_and_one_that_cannot_be_written_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "known"
    for text in ("I1 00", f"{FIRST} 00", f"{FIRST}", f"{FIRST} zz"):
        file.write_text(f"# a comment\n\n{text}\n")
        with pytest.raises(IdentityFileError, match=r"line 3: .*restore the file"):
            KnownHistories(file)
    with pytest.raises(IdentityFileError, match="cannot read"):
        KnownHistories(tmp_path)
    known = KnownHistories(tmp_path / "folder" / "known")
    (tmp_path / "folder").write_text("no folder")
    with capture_logs() as logs:
        assert known.learn(SECOND.peer)
    assert [each["event"] for each in logs] == ["known_identities_not_written"]
    assert known.refusal(FIRST.peer) is not None
