"""Goal: the node's side keeps what docs/security.md says: who may open channels, what comes out of them and goes in.

Method: a real node with a worker in the place of a connection, in virtual time; attacks from other connections.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from ockam.actors.address import TCP, Address, local
from ockam.actors.message import Message
from ockam.identity.channel.errors import CiphertextRefused
from ockam.identity.channel.messages import CLOSE, PLAINTEXT
from ockam.identity.channel.trust_list import TrustList, load_trusted, save_trusted
from ockam.identity.channel.workers.channel import ChannelWorker
from ockam.identity.identity import ANONYMOUS, Identity
from tests.ockam.identity.channel.channel_node import LISTENER, channel_node
from tests.ockam.identity.channel.samples import ephemeral, identity

ECHO, ME = local("echo"), local("me")


async def test_a_message_there_and_its_answer_back() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        for number in range(100):
            peer.send((ECHO,), (ME,), b"%d" % number)
        answers = peer.received()
        assert [each.payload for each in answers] == [b"%d" % number for number in range(100)]
        assert {(each.onward_route, each.return_route) for each in answers} == {((ME,), (ECHO,))}


async def test_the_origin_is_the_proved_identity_and_no_route_changes_it() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (local("local"), local("node"), LISTENER), b"x")
        (message,) = world.echo.messages
        origin = message.origin
        assert (origin.kind, origin.identity) == ("channel", Identity("channel", str(peer.own)))
        assert origin.peer == peer.origin.peer
        # What an answer may be is what the connection carries, less what encryption adds.
        assert peer.origin.frame_bytes_max - 300 < origin.frame_bytes_max < peer.origin.frame_bytes_max - 24
        assert origin.holdings is peer.origin.holdings
        assert origin.backlog_bytes is peer.origin.backlog_bytes


async def test_a_listener_without_trusted_identities_answers_nothing(tmp_path: Path) -> None:
    async with channel_node(TrustList(tmp_path / "trusted")) as world:
        peer = world.initiator()
        peer.begin()
        assert peer.line.sent == []
        assert world.channels.statistics().refused == {"closed": 1}


async def test_an_untrusted_identity_is_told_by_an_encrypted_close() -> None:
    async with channel_node() as world:
        peer = world.initiator("stranger")
        peer.begin()
        peer.finish()
        assert peer.plaintexts() == [CLOSE]
        assert world.channels.statistics().ended == {"not_trusted": 1}
        assert world.channels.statistics().refused == {"not_trusted": 1}
        # Nothing of the channel is left.
        assert not world.node.is_registered(peer.way[0])


async def test_anyone_only_by_an_explicit_setting() -> None:
    async with channel_node(TrustList(None, anyone=True)) as world:
        peer = world.initiator("stranger").open()
        peer.send((ECHO,), (ME,), b"x")
        assert [each.payload for each in peer.received()] == [b"x"]


async def test_an_identity_that_is_removed_loses_its_channels_within_a_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "trusted"
    alice, bob = identity("alice"), identity("bob")
    save_trusted(file, {alice.identifier: "alice", bob.identifier: "bob at the desk"})
    assert load_trusted(file) == {alice.identifier: "alice", bob.identifier: "bob at the desk"}
    async with channel_node(TrustList(file)) as world:
        peers = [world.initiator("alice").open(), world.initiator("bob").open()]
        save_trusted(file, {bob.identifier: "bob"})
        await trio.sleep(1)
        assert peers[0].plaintexts() == [CLOSE]
        peers[1].send((ECHO,), (ME,), b"x")
        assert [each.payload for each in peers[1].received()] == [b"x"]
        again = world.initiator("alice").open()
        assert again.plaintexts() == [CLOSE]
        # An identity that is added is accepted without a restart.
        save_trusted(file, {alice.identifier: "alice"})
        await trio.sleep(1)
        assert world.initiator("alice").open().plaintexts() == []
        # A file that cannot be read trusts nobody.
        file.write_text("alice is welcome\n")
        await trio.sleep(1)
        world.initiator("alice").begin()
        assert world.channels.statistics().refused == {"not_trusted": 1, "closed": 1}


async def test_what_a_worker_does_for_an_identity_ends_with_its_trust(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Claim: the connections inside the node that act for a removed identity are closed with its channels, also those
    that a worker opens later for a message that has waited, and those of others stay. So do those of an identity that
    this node has never trusted: in a cluster, another member has."""
    file = tmp_path / "trusted"
    alice, bob = identity("alice"), identity("bob")
    others = [Identity("channel", str(each)) for each in (bob, identity("carol"))]
    others += [Identity("token", str(alice)), ANONYMOUS]
    closed: list[Identity] = []

    def close(is_meant: Callable[[Identity], bool], reason: str) -> int:
        closed.extend(each for each in (Identity("channel", str(alice)), *others) if is_meant(each))
        return len(closed)

    save_trusted(file, {alice.identifier: "alice", bob.identifier: "bob"})
    async with channel_node(TrustList(file), close_identities=close):
        await trio.sleep(1)
        assert not closed
        save_trusted(file, {bob.identifier: "bob"})
        await trio.sleep(1)
        times = len(closed)
        await trio.sleep(1)
        assert len(closed) > times
        assert set(closed) == {Identity("channel", str(alice))}
        save_trusted(file, {alice.identifier: "alice", bob.identifier: "bob"})
        await trio.sleep(1)
        closed.clear()
        await trio.sleep(1)
        assert not closed


async def test_a_crash_ends_the_channel_for_good(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (ME,), b"x")
        assert peer.received()
        worker = world.node.find_worker(peer.way[0])
        assert isinstance(worker, ChannelWorker)
        monkeypatch.setattr(worker, "_hand_on", lambda plaintexts: 1 / 0)
        with capture_logs() as logs:
            peer.send((ECHO,), (ME,), b"y")
        assert [each["event"] for each in logs if each["log_level"] == "error"] == ["worker_crashed"]
        # Neither now nor later is there a worker with the old keys, and the object that is left has none.
        assert not world.node.is_registered(worker.inner)
        assert not world.node.is_registered(worker.outer)
        worker.machine.check()
        assert not worker.is_open
        await trio.sleep(120)
        peer.send((ECHO,), (ME,), b"z")
        assert peer.taken() == []
        assert world.channels.statistics().ended == {"crashed": 1}
        # A new handshake makes a new channel.
        again = world.initiator().open()
        again.send((ECHO,), (ME,), b"new")
        assert [each.payload for each in again.received()] == [b"new"]


async def test_a_crash_of_a_worker_behind_the_channel_leaves_the_channel() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((local("crashing"),), (ME,), b"x")
        peer.send((ECHO,), (ME,), b"y")
        assert [each.payload for each in peer.received()] == [b"y"]


async def test_the_outer_address_takes_messages_of_this_node_only() -> None:
    """Whoever learns the outer address cannot make the node encrypt: not from TCP, and not from another channel."""
    async with channel_node(TrustList(None, anyone=True)) as world:
        victim, attacker = world.initiator("victim").open(), world.initiator("attacker").open()
        victim.send((ECHO,), (ME,), b"x")
        victim.received()
        outer = world.echo.messages[0].return_route[0]
        attacker.send((outer, ME), (), b"through a channel")
        attacker.arrive((outer, ME), (), b"through TCP")
        assert victim.taken() == []
        assert world.channels.statistics().dropped == {"channel_forward": 2}


async def test_what_comes_out_goes_to_local_workers_only() -> None:
    """Not to other connections, not to other nodes, also if the operator allows forwarding to them."""
    async with channel_node() as world:
        peer, other = world.initiator().open(), world.line()
        forwarded: list[Message] = []

        def forward(message: Message) -> None:
            forwarded.append(message)

        world.node.register_forward(TCP, forward)
        peer.send((other.address, ME), (ME,), b"to a connection")
        peer.send((Address(TCP, b"127.0.0.1:4000"), ECHO), (ME,), b"to a node")
        peer.send((Address(7, b"x"),), (ME,), b"to nowhere")
        peer.send((ECHO,), (ME,), b"to a worker")
        assert [each.payload for each in peer.received()] == [b"to a worker"]
        assert other.sent == []
        assert forwarded == []
        assert world.channels.statistics().dropped == {"channel_forward": 3}


async def test_a_return_route_that_names_internal_workers_gains_nothing() -> None:
    """The answer to a plaintext goes back through the channel, whatever its return route says."""
    async with channel_node() as world:
        peer = world.initiator().open()
        for target in (ECHO, LISTENER, local("crashing"), Address(TCP, b"127.0.0.1:1")):
            peer.send((ECHO,), (target,), b"x")
        answers = peer.received()
        assert [each.onward_route for each in answers] == [
            (target,) for target in (ECHO, LISTENER, local("crashing"), Address(TCP, b"127.0.0.1:1"))
        ]
        assert len(world.echo.messages) == 4


async def test_the_handshake_goes_on_over_its_own_connection_only() -> None:
    async with channel_node() as world:
        peer, attacker = world.initiator(), world.initiator("attacker")
        peer.begin()
        (answer,) = peer.taken()
        third = peer.machine.receive_2(answer.payload, 1_795_317_700)
        attacker.arrive(answer.return_route, (attacker.inner,), third)
        assert world.channels.statistics().open == 0
        assert world.channels.statistics().dropped == {"other_connection": 1}
        peer.arrive(answer.return_route, (peer.inner,), third)
        assert world.channels.statistics().open == 1


async def test_replayed_forged_and_cut_messages_are_dropped_and_the_channel_stays() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (ME,), b"once")
        plain = b"\x82\x82\x03\x80\x40"
        sealed = peer.machine.seal(plain)
        for _ in range(3):
            peer.arrive(peer.way, (), sealed)
        peer.arrive(peer.way, (), bytes(23))
        peer.arrive(peer.way, (), (1 << 63).to_bytes(8, "big") + bytes(40))
        peer.arrive(peer.way, (), (9).to_bytes(8, "big") + bytes(40))
        peer.send((ECHO,), (ME,), b"twice")
        assert [each.payload for each in peer.received()] == [b"once", b"twice"]
        dropped = world.channels.statistics().dropped
        assert dropped == {"undecodable": 1, "replayed": 2, "short": 1, "outside_window": 1, "unauthentic": 1}


async def test_a_close_of_the_peer_ends_the_channel_and_is_not_answered() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        before = world.workers
        peer.send((ECHO,), (ME,), b"last words")
        peer.arrive(peer.way, (), peer.machine.seal(CLOSE))
        assert world.workers == before - 2
        assert len(peer.received()) == 1
        assert world.channels.statistics().ended == {"closed_by_peer": 1}


async def test_answers_follow_the_peer_to_another_connection_after_an_authentic_message() -> None:
    """As Rust does. A message that does not decrypt, or is older, moves nothing."""
    async with channel_node() as world:
        peer, second = world.initiator().open(), world.line()
        peer.send((ECHO,), (ME,), b"over the first")
        assert len(peer.received()) == 1
        peer.arrive(peer.way, (), bytes(60), second)
        peer.send((ECHO,), (ME,), b"still over the first")
        assert len(peer.received()) == 1
        peer.send((ECHO,), (ME,), b"over the second", second)
        assert peer.taken() == []
        (answer,) = second.sent
        assert answer.onward_route == (peer.inner,)
        assert b"over the second" in peer.machine.open(answer.payload)


async def test_a_channel_through_more_hops() -> None:
    """Nodes in between add themselves to the return route of an encrypted message, which has none of its own."""
    async with channel_node() as world:
        peer = world.initiator()
        hop = local("TCP_at_the_node_between")
        world.node.send(
            Message(
                (LISTENER,),
                (peer.line.address, hop, peer.inner),
                peer.machine.begin(ephemeral("one more")),
                peer.origin,
            )
        )
        (answer,) = peer.line.sent
        peer.line.sent.clear()
        assert answer.onward_route == (hop, peer.inner)
        third = peer.machine.receive_2(answer.payload, world.now_s)
        way = answer.return_route
        world.node.send(Message(way, (peer.line.address, hop, peer.inner), third, peer.origin))
        plaintext = PLAINTEXT.encode_routes((ECHO,), (ME,)) + PLAINTEXT.encode_payload(b"x")
        sealed = peer.machine.seal(plaintext)
        world.node.send(Message(way, (peer.line.address, hop), sealed, peer.origin))
        (answer,) = peer.line.sent
        assert answer.onward_route == (hop, peer.inner)
        peer.machine.open(answer.payload)


async def test_a_channel_inside_a_channel_counts_in_the_same_bounds() -> None:
    async with channel_node(TrustList(None, anyone=True)) as world:
        outer, inner = world.initiator("outer").open(), world.initiator("inner")
        outer.send((LISTENER,), (inner.inner,), inner.machine.begin(ephemeral("one more")))
        (answer,) = outer.received()
        outer.send(answer.return_route, (inner.inner,), inner.machine.receive_2(answer.payload, world.now_s))
        plaintext = PLAINTEXT.encode_routes((ECHO,), (ME,)) + PLAINTEXT.encode_payload(b"deep")
        outer.send(answer.return_route, (), inner.machine.seal(plaintext))
        (sealed,) = outer.received()
        assert b"deep" in inner.machine.open(sealed.payload)
        # The identity is that of the innermost channel.
        assert world.echo.messages[0].origin.identity == Identity("channel", str(inner.own))
        assert world.channels.statistics().open == 2


async def test_a_full_mailbox_behind_the_channel_makes_the_connection_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        mailbox = world.node.find_mailbox(ECHO)
        own = world.node.find_mailbox(peer.way[0])
        assert mailbox is not None
        assert own is not None
        mailbox.hold()
        peer.send((ECHO,), (ME,), b"x")
        await trio.sleep(1)
        assert own.full
        mailbox.admit()
        await trio.sleep(1)
        assert not own.full


async def test_a_node_that_stops_tells_the_other_ends() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        with world.node.batch():
            world.channels.stop()
        assert peer.plaintexts() == [CLOSE]
        assert world.channels.statistics().ended == {"node_stops": 1}


async def test_a_message_that_is_too_large_costs_only_itself() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        peer.send((ECHO,), (ME,), b"x")
        outer = world.echo.messages[0].return_route[0]
        world.node.send(Message((outer, ME), (), bytes(17 * 1024 * 1024)))
        world.node.send(Message((outer, ME), (), b"small"))
        assert [each.payload for each in peer.received()] == [b"x", b"small"]
        assert world.channels.statistics().dropped == {"frame_too_large": 1}


async def test_an_ended_channel_opens_nothing_more() -> None:
    async with channel_node() as world:
        peer = world.initiator().open()
        first = world.initiator().open()
        peer.send((ECHO,), (ME,), b"x")
        recorded = peer.taken()
        with pytest.raises(CiphertextRefused):
            first.machine.open(recorded[0].payload)
