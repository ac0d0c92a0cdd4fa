"""Goal: a run of messages through a channel has the effect of the same messages one by one, whatever is among them.

Method: a node with a worker in the place of a connection; messages that arrive or leave together, with forged, cut and
repeated ones, other kinds of messages, and other ways among them.
"""

from __future__ import annotations

import pytest

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.identity.channel.messages import CLOSE, PLAINTEXT
from ockam.identity.channel.transport import NONCE_END, REKEY_INTERVAL
from ockam.identity.channel.trust_list import TrustList
from ockam.identity.channel.workers.channel import ChannelWorker
from tests.ockam.identity.channel.channel_node import ChannelNode, Initiator, channel_node
from tests.ockam.identity.channel.rotations import KEYS, rotated
from tests.ockam.identity.channel.test_rotation import opened, refresh

ECHO, ME = local("echo"), local("me")


def plaintext(payload: bytes) -> bytes:
    return PLAINTEXT.encode_routes((ECHO,), (ME,)) + PLAINTEXT.encode_payload(payload)


def sealed(peer: Initiator, count: int) -> list[bytes]:
    return [peer.machine.seal(plaintext(b"%d" % number)) for number in range(count)]


def arrive(world: ChannelNode, peer: Initiator, run: list[bytes]) -> None:
    """Lets all messages arrive in one run."""
    with world.node.batch():
        for data in run:
            peer.arrive(peer.way, (), data)


def worker_of(world: ChannelNode, peer: Initiator) -> ChannelWorker:
    worker = world.node.find_worker(peer.way[0])
    assert isinstance(worker, ChannelWorker)
    return worker


def arrived(world: ChannelNode) -> list[bytes]:
    return [message.payload for message in world.echo.messages]


@pytest.mark.parametrize("wrong", [0, 10, 31, 32, 99])
async def test_a_forged_a_cut_and_a_repeated_message_in_a_run_cost_only_themselves(wrong: int) -> None:
    """The run is longer than three intervals of one key. All other messages arrive, in order, and are answered."""
    async with channel_node() as world:
        peer = world.initiator().open()
        run = sealed(peer, 100)
        forged = run[wrong][:-1] + bytes((run[wrong][-1] ^ 1,))
        arrive(world, peer, [*run[:wrong], forged, run[wrong][:20], *run[wrong:], run[99]])
        assert arrived(world) == [b"%d" % number for number in range(100)]
        assert world.channels.statistics().dropped == {"unauthentic": 1, "short": 1, "replayed": 1}
        assert [each.payload for each in peer.received()] == arrived(world)


async def test_a_close_in_a_run_is_the_last_message() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        run = sealed(peer, 40)
        run += [peer.machine.seal(CLOSE), *sealed(peer, 5)]
        arrive(world, peer, run)
        assert arrived(world) == [b"%d" % number for number in range(40)]
        assert world.channels.statistics().ended == {"closed_by_peer": 1}


async def test_a_refresh_in_a_run_takes_effect_and_the_messages_around_it_arrive() -> None:
    async with channel_node(TrustList(None, anyone=True)) as world:
        peer = opened(world, rotated(*KEYS[:1]))
        run = sealed(peer, 3)
        run += [peer.machine.seal(refresh(rotated(*KEYS[:2]))), peer.machine.seal(b"\x82\x82\x03\x80\x40")]
        run += sealed(peer, 3)
        arrive(world, peer, run)
        assert arrived(world) == [b"0", b"1", b"2"] * 2
        assert world.channels.statistics().dropped == {"undecodable": 1}
        identity = worker_of(world, peer).identity
        assert identity is not None
        assert len(identity.changes) == 2


async def test_a_plaintext_that_cannot_be_decoded_costs_only_itself() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        run = sealed(peer, 3)
        run += [peer.machine.seal(plaintext(b"x") + b"\x00"), *sealed(peer, 3)]
        arrive(world, peer, run)
        assert arrived(world) == [b"0", b"1", b"2"] * 2
        assert world.channels.statistics().dropped == {"undecodable": 1}


async def test_the_way_back_moves_in_the_middle_of_a_run() -> None:
    """What arrives before the move is delivered with the old origin, and all that is later with the new one. A message
    that is not authentic moves nothing."""
    async with channel_node() as world:
        peer, second = world.initiator().open(), world.line()
        run = sealed(peer, 6)
        with world.node.batch():
            for data in run[:2]:
                peer.arrive(peer.way, (), data)
            peer.arrive(peer.way, (), bytes(60), second)
            peer.arrive(peer.way, (), run[2])
            for data in run[3:]:
                peer.arrive(peer.way, (), data, second)
        assert arrived(world) == [b"%d" % number for number in range(6)]
        # The answers were encrypted after the whole run.
        assert peer.taken() == []
        opened_answers = [peer.machine.open(each.payload) for each in second.sent]
        assert [each.endswith(b"%d\x40" % number) for number, each in enumerate(opened_answers)] == [True] * 6


async def test_answers_leave_in_order_without_those_that_are_too_large() -> None:
    """The run replaces the key twice, and a message that is too large wastes no nonce."""
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (ME,), b"x")
        peer.received()
        outer = world.echo.messages[0].return_route[0]
        payloads = [b"%d" % number for number in range(70)]
        run = [Message((outer, ME), (), payload) for payload in payloads]
        run.insert(40, Message((outer, ME), (), bytes(17 * 1024 * 1024)))
        world.node.send_run(run)
        taken = peer.taken()
        assert [int.from_bytes(each.payload[:8], "big") for each in taken] == list(range(1, 71))
        plaintexts = [peer.machine.open(each.payload) for each in taken]
        assert [each.payload for each in peer.reader.read(plaintexts)[0]] == payloads
        assert world.channels.statistics().dropped == {"frame_too_large": 1}


async def test_a_channel_without_nonces_ends() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        sealer = worker_of(world, peer).machine._sealer
        assert sealer is not None
        sealer.nonce = NONCE_END - REKEY_INTERVAL
        arrive(world, peer, sealed(peer, 2))
        assert len(world.echo.messages) == 2
        assert peer.taken() == []
        assert world.channels.statistics().ended == {"nonces": 1}


async def test_a_run_in_both_directions() -> None:
    """Messages that arrive and messages that leave can be in one run of the channel."""
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (ME,), b"x")
        peer.received()
        outer = world.echo.messages[0].return_route[0]
        with world.node.batch():
            for number, data in enumerate(sealed(peer, 5)):
                peer.arrive(peer.way, (), data)
                world.node.send(Message((outer, ME), (), b"to the peer %d" % number))
        assert arrived(world) == [b"x", *(b"%d" % number for number in range(5))]
        received = [each.payload for each in peer.received()]
        assert received == [*(b"to the peer %d" % number for number in range(5)), *arrived(world)[1:]]
