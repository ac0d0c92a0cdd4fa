"""The forwarding service on a real node: a client that nobody can call gets an address, and what is sent there.

Goal: the behaviour of Ockam's `forwarding_service` and `static_forwarding_service` (their tests are
services/forwarding_test.exs upstream), and the bounds that this node adds. Method: sockets that send what clients
send, in both framings, against a served node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import bare
from ockam.actors import forwarders
from ockam.actors.address import Route, local, tcp
from ockam.actors.forwarders import PARTY_FORWARDERS_MAX, Forwarders
from ockam.actors.forwarding_protocol import REGISTER, RegisterRequest
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.protocol import ERROR, error_payload
from ockam.quotas.memory import Holdings, PeerMemory
from ockam.transport.connection import Connection
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_node.forwarding import storing
from stream_node.forwarding.services import ForwardingStatistics
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.server import Server
from tests.ockam.identity.rules.ways import Channel, ChannelPeer
from tests.stream_node.forwarding.forwarding_peers import (
    SERVICE,
    STATIC_SERVICE,
    ForwardedPeer,
    connect,
    forwarding_node,
    parts_of,
    workers_of,
)
from tests.support.peer import Peer
from tests.support.served import Served, neighbour, served, wait_until

ME = (local("me"),)
framings = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=["head", "legacy"])


@framings
async def test_messages_and_answers_pass_in_both_directions(tmp_path: Path, wire: Wire) -> None:
    """Claim: upstream's two tests (`forwarding`, `forwarding with onward route`), and a conversation over the routes
    that the messages bring. Method: a sender in the other framing."""
    async with forwarding_node(tmp_path) as running:
        client = await connect(running, wire)
        sender = await connect(running, LEGACY if wire is HEAD else HEAD)
        registered = await client.register(payload=b"any payload")
        assert registered.payload == b"any payload"
        assert registered.onward_route == ME
        (address,) = client.address
        assert str(address).startswith("FWD_")
        await sender.send((address, local("foo")), b"HI")
        first = await client.receive()
        assert (first.onward_route, first.payload) == ((*ME, local("foo")), b"HI")
        assert first.return_route[-1:] == ME
        await client.send(first.return_route, b"answer")
        answer = await sender.receive()
        assert (answer.onward_route, answer.payload) == (ME, b"answer")
        await sender.send(answer.return_route, b"on")
        second = await client.receive()
        assert (second.onward_route, second.payload) == (ME, b"on")


async def test_an_answer_shows_its_own_route_and_to_its_own_sender(tmp_path: Path) -> None:
    """Claim: a message over a route that no answer has shown to its sender goes the registered route, so the other
    workers of the client stay out of reach; a route that begins with a shown one leads there. Method: a sender who puts
    another worker's name behind the client's connection, and one who has the shown route from somebody else."""
    async with forwarding_node(tmp_path) as running:
        client, sender, other = await connect(running), await connect(running), await connect(running)
        await client.register()
        await sender.send(client.address, b"a question")
        question = await client.receive()
        await client.send(question.return_route, b"an answer")
        address, connection, me = (await sender.receive()).return_route
        assert me == ME[0]
        await sender.send((address, connection, local("admin")), b"to another worker")
        assert (await client.receive()).onward_route == (*ME, connection, local("admin"))
        await sender.send((address, connection, me, local("further")), b"on")
        assert (await client.receive()).onward_route == (*ME, local("further"))
        await other.send((address, connection, me), b"it was not answered")
        assert (await client.receive()).onward_route == (*ME, connection, me)


async def test_the_shown_route_that_was_unused_longest_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: the routes that a forwarder remembers are bounded, and a route that is used stays. Method: room for two;
    the answers of three workers, and a message over the first route before the third."""
    monkeypatch.setattr(forwarders, "SHOWN_MAX", 2)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register()
        await sender.send(client.address, b"a question")
        question = await client.receive()
        shown: list[Route] = []
        for name in ("one", "two", "three"):
            answer = client.frame(question.return_route, b"an answer", (local(name),))
            await client.stream.send_all(answer)
            shown.append((await sender.receive()).return_route)
            await sender.send(shown[0], b"still")
            assert (await client.receive()).onward_route == (local("one"),)
        for route, onward in zip(shown[1:], ((*ME, *shown[1][1:]), (local("three"),)), strict=True):
            await sender.send(route, b"on")
            assert (await client.receive()).onward_route == onward


async def test_an_address_ends_with_the_connection_of_its_client(tmp_path: Path) -> None:
    """Claim: while nobody is connected at it, a sender is refused with a reason, an `error` is never answered, and
    an answer to a sender that is gone is refused, too."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register()
        await sender.send(client.address, b"a question")
        question = await client.receive()
        gone = await connect(running)
        await gone.send(client.address, b"goodbye")
        goodbye = await client.receive()
        gone.stream.socket.close()
        await wait_until(lambda: running.statistics().tcp.closed)
        assert "not connected any more" in await client.refused(goodbye.return_route, b"come back")
        client.stream.socket.close()
        await wait_until(lambda: sum(running.statistics().tcp.closed.values()) == 2)
        assert "nobody is connected at FWD_" in await sender.refused(client.address, b"too late")
        assert "nobody is connected at FWD_" in await sender.refused(question.return_route, b"too late")
        await sender.send(client.address, error_payload("an answer"))
        assert "nobody is connected at forward_to_" in await sender.refused((local("forward_to_x"),), b"no such name")


class RelayedPeer(ChannelPeer, ForwardedPeer):
    """A client all of whose messages go through one secure channel to a node behind another one."""


async def lose(far: Served, near: Served, link: Connection) -> None:
    """Ends the connection between the two nodes."""
    for end in (link, *(each for each in workers_of(near, Connection) if each.peer == far.address)):
        end.close("lost")
    for node in (far, near):
        await node.wait_closed_because("lost")


@pytest.mark.parametrize("stores", [False, True])
async def test_an_address_follows_a_secure_channel_to_another_connection(tmp_path: Path, stores: bool) -> None:
    """Claim: when the connection between two nodes is lost, an address that was registered over a channel through them
    is there again after the client's next message; what was sent meanwhile is refused, or stored and delivered. The
    address ends with the channel: then another identity may have its name."""
    channel = Channel(tmp_path)
    async with (
        forwarding_node(tmp_path / "far", **channel.settings) as far,
        served(tmp_path / "near", allow_forward=(far.address,)) as near,
    ):
        there = tcp(far.address)
        client = RelayedPeer((await near.peer(HEAD)).stream, HEAD)
        await client.shake_hands(channel.machine(channel.own), (there, *Channel.LISTENER))
        await client.register_own("alice", stores=stores)
        (link,) = workers_of(far, Connection)
        sender = await connect(far)
        to = (local("forward_to_alice"), *ME)
        await sender.send(to, b"1")
        assert (await client.receive()).payload == b"1"
        await lose(far, near, link)
        if stores:
            assert await sender.forward(to, b"2")
        else:
            assert "nobody is connected" in await sender.refused(to, b"2")
        # The route that the near node knew for the far one is gone, so the client begins anew with its address.
        client.way = (there, *client.way[-1:])
        await client.send((local("nobody"),), b"I am here")
        await wait_until(lambda: len(workers_of(far, Connection)) == 2)
        if stores:
            assert (await client.receive()).payload == b"2"
        await sender.forward(to, b"3")
        assert (await client.receive()).payload == b"3"
        if not stores:
            own = REGISTER.encode_request(RegisterRequest(7, "alice", stores=False, confirms=False))
            assert "belongs to another identity" in await sender.refused(SERVICE, own)
            await client.stream.send_all(Peer.frame(client, client.way, client.machine.close(), ()))
            channels = parts_of(far).channels
            assert channels is not None
            await wait_until(lambda: not channels.statistics().open)
            await sender.register_own("alice", stores=False)


async def test_a_message_after_a_channel_has_moved_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: an address that stores sends again only what was under way when the connection was lost."""
    monkeypatch.setattr(storing, "RETRY_S", 0.5)
    channel = Channel(tmp_path)
    async with (
        forwarding_node(tmp_path / "far", **channel.settings) as far,
        served(tmp_path / "near", allow_forward=(far.address,)) as near,
    ):
        there = tcp(far.address)
        client = RelayedPeer((await near.peer(HEAD)).stream, HEAD)
        await client.shake_hands(channel.machine(channel.own), (there, *Channel.LISTENER))
        await client.register_own("alice", stores=True)
        (link,) = workers_of(far, Connection)
        await lose(far, near, link)
        client.way = (there, *client.way[-1:])
        await client.send((local("nobody"),), b"I am here")
        await wait_until(lambda: bool(workers_of(far, Connection)))
        sender = await connect(far)
        await sender.forward((local("forward_to_alice"), *ME), b"1")
        assert (await client.receive()).payload == b"1"
        await trio.sleep(1.0)
        await sender.forward((local("forward_to_alice"), *ME), b"2")
        assert (await client.receive()).payload == b"2"


async def test_a_name_of_a_static_address(tmp_path: Path) -> None:
    """Claim: the payload is a BARE string, which comes back from `forward_to_` and the name; the same identity takes it
    over to a new connection, and what is no name is refused."""
    async with forwarding_node(tmp_path) as running:
        client, again, sender = await connect(running), await connect(running), await connect(running)
        name = bare.encode("alice", str)
        assert (await client.register(STATIC_SERVICE, name)).payload == name
        assert client.address == (local("forward_to_alice"),)
        await again.register(STATIC_SERVICE, name)
        await sender.send(client.address, b"to whom")
        assert (await again.receive()).payload == b"to whom"
        # The first connection is not the client's any more, and its end ends nothing.
        client.stream.socket.close()
        await wait_until(lambda: running.statistics().tcp.closed)
        await sender.send(client.address, b"still")
        assert (await again.receive()).payload == b"still"
        for wrong in (b"register", bare.encode("a/b", str), bare.encode("", str), bare.encode("a" * 65, str)):
            assert "name" in await sender.refused(STATIC_SERVICE, wrong)


async def test_one_client_has_a_bounded_number_of_addresses(tmp_path: Path) -> None:
    """Claim: the address above the bound is refused, and a connection that ends gives its addresses back."""
    async with forwarding_node(tmp_path) as running:
        greedy, other = await connect(running), await connect(running)
        for _ in range(PARTY_FORWARDERS_MAX):
            await greedy.register()
        assert "too many" in ERROR.decode_response((await other.register()).payload).reason
        greedy.stream.socket.close()
        await wait_until(lambda: not forwarding(running).addresses)
        assert (await other.register()).payload == b"register"


async def check_refused(
    running: Served, talking: ForwardedPeer, deaf: ForwardedPeer, route: Route, reason: str
) -> None:
    """Sends numbered messages of 64 KiB over this route until one is refused. Then the peer reads that did not: it gets
    all that were not refused, in order, and a further one."""
    refused: list[bytes] = []
    sent = 0
    while not refused:
        await talking.send(route, sent.to_bytes(4, "big") * 16_384)
        sent += 1
        assert sent < 2_000
        # Who sends reads the refusals meanwhile.
        with trio.move_on_after(0.005):
            refused.append((await talking.receive()).payload)
    assert reason in ERROR.decode_response(refused[0]).reason
    assert running.statistics().tcp.memory.unread_bytes < 32 * 1024 * 1024
    numbers = []
    with trio.move_on_after(2):
        while True:
            numbers.append(int.from_bytes((await deaf.receive()).payload[:4], "big"))
    assert numbers == list(range(len(numbers)))
    assert sent - len(numbers) <= 200
    await talking.send(route, b"again")
    assert (await deaf.receive()).payload == b"again"


async def test_a_client_that_never_reads_costs_its_senders_only_a_refusal(tmp_path: Path) -> None:
    """Claim: what waits for it is bounded, its connection stays, it gets all that was not refused in order, and others
    notice nothing. Method: numbered messages of 64 KiB until one is refused; then the client reads."""
    async with forwarding_node(tmp_path) as running, neighbour(running):
        client, sender = await connect(running), await connect(running)
        await client.register()
        await check_refused(running, sender, client, client.address, "too much waits")


async def test_a_sender_that_never_reads_costs_the_client_only_a_refusal(tmp_path: Path) -> None:
    """Claim: what waits for a sender is bounded, its connection stays, it gets all answers that were not refused in
    order, and others notice nothing. Method: numbered answers of 64 KiB until one is refused; then the sender reads."""
    async with forwarding_node(tmp_path) as running, neighbour(running):
        client, sender = await connect(running), await connect(running)
        await client.register()
        await sender.send(client.address, b"a question")
        back = (await client.receive()).return_route
        await check_refused(running, client, sender, back, "too much waits for the sender")


async def test_an_answer_that_the_sender_cannot_take_is_refused(tmp_path: Path) -> None:
    """Claim: an answer above the frames of the sender is refused to the client, and not dropped in silence. Method: a
    sender of the legacy framing, whose frames are the smaller ones."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running, LEGACY)
        await client.register()
        await sender.send(client.address, b"a question")
        back = (await client.receive()).return_route
        assert "the sender takes frames of at most" in await client.refused(back, bytes(70_000))
        await client.send(back, bytes(64_000))
        assert len((await sender.receive()).payload) == 64_000


async def test_what_would_end_the_connection_of_the_client_is_refused(tmp_path: Path) -> None:
    """Claim: a message above the client's frames, and a route above its hops, are refused to their sender; the client
    stays. Method: a client of the legacy framing, whose frames are the smaller ones."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running, LEGACY), await connect(running)
        await client.register()
        assert "frames of at most" in await sender.refused(client.address, bytes(65_000))
        assert "too long" in await sender.refused((*client.address, *[local("hop")] * 63), b"far")
        await sender.send(client.address, bytes(64_000))
        assert len((await client.receive()).payload) == 64_000


@pytest.mark.parametrize("other", [{"workers": 2}, {"cluster": "west", "database": "postgresql://x/y"}])
def test_a_node_of_several_processes_does_not_start_with_the_service_and_says_what_to_do(other: dict[str, Any]) -> None:
    """Both from the settings, and in a program that makes its own."""
    says = r"needs a node of one process, .* set workers = 1 and leave out cluster, or run the service on a node of its"
    with pytest.raises(ConfigError, match=says):
        load_config({"forwarding": True, **other}, environment={})
    with pytest.raises(ConfigError, match=says):
        trio.run(Server(Config(forwarding=True, **other)).serve)


def forwarding(running: Served) -> ForwardingStatistics:
    found = running.statistics().services.forwarding
    assert found is not None
    return found


async def test_clients_that_are_gone_leave_no_count() -> None:
    """Claim: what is counted for a client ends with its last address. Method: clients of two addresses come and go."""
    async with trio.open_nursery() as nursery:
        forwarders = Forwarders(Node(nursery))
        for number in range(10):
            holdings = Holdings(PeerMemory(), lambda: None, lambda: None)
            message = Message((), ME, b"", Origin("tcp", f"10.0.0.{number}:1", holdings=holdings))
            for _ in range(2):
                forwarders.register(message, RegisterRequest(0, None, stores=False, confirms=False))
            assert list(forwarders._parties.values()) == [2]
            holdings.end()
            assert not forwarders._parties
