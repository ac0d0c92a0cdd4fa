"""Real Ockam peers with own workers: an echo, an echo behind hops, and an echo behind the forwarding service.

Goal: whoever talked to a real Ockam node gets the same answers here. Method: the frames that real
Elixir clients of two eras sent to a real Elixir node (`tests/vectors/ockam/*_conversation.json`) are sent to a node
with an echo, a hop and the forwarding service, connection by connection. Its answers must be those of the real
node, but for the addresses that a node makes up, and the forwarder in return routes (`ockam.actors.forwarders`)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from ockam.actors.address import Route, local, split_host_port
from ockam.actors.forwarders import Forwarders
from ockam.actors.message import HERE, Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.messages import PLAINTEXT, PlaintextReader
from ockam.identity.channel.trust_list import TrustList
from ockam.identity.channel.workers.channels import SecureChannels
from ockam.transport.frames import FrameReader
from ockam.transport.tcp import TcpTransport
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from tests.ockam.identity.channel.channel_node import Echo
from tests.ockam.identity.channel.samples import NOW_S, ephemeral, identity, trust_all
from tests.support.peer import Peer

VECTORS = Path(__file__).parents[2] / "vectors" / "ockam"
MADE_UP = re.compile(rb"((FWD|TCP|TCP_H)_)?[0-9a-f]{16}")


class Hop(Worker):
    """As Ockam's `Ockam.Examples.Hop`."""

    def handle(self, message: Message) -> None:
        self.context.send(
            Message(message.onward_route[1:], (message.onward_route[0], *message.return_route), message.payload)
        )


@asynccontextmanager
async def own_node(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a node of the package `ockam` alone, without streams."""
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.register([local("echoer")], Echo)
        node.register([local("hop")], Hop)
        trust = TrustList(None, [], anyone=True)
        channels = SecureChannels(node, nursery, lambda now_s: identity("node"), trust, now_s=lambda: NOW_S)
        transport = TcpTransport(node, nursery)
        channels.start()
        Forwarders(node).start()
        [address] = await transport.listen("127.0.0.1", 0)
        yield address
        nursery.cancel_scope.cancel()


class Frame(NamedTuple):
    connection: int
    is_sent: bool
    raw: bytes
    message: Message


def frames(era: str, wire: Wire) -> list[Frame]:
    found = []
    for each in json.loads((VECTORS / f"{era}_conversation.json").read_text())["frames"]:
        raw = bytes.fromhex(each["length_prefix"] + each["frame"])
        [message] = FrameReader(wire, HERE).feed(raw)
        found.append(Frame(each["connection"], each["direction"] == "client_to_server", raw, message))
    return found


class Names:
    """The addresses that the real node has made up, and what this node has made up in their place."""

    def __init__(self) -> None:
        self._ours: dict[bytes, Route] = {}

    def learn(self, real: Message, ours: Message) -> None:
        """The first made-up hop of an answer stands for all hops that this node has before the next known one."""
        theirs, mine = list(real.return_route), list(ours.return_route)
        if theirs and MADE_UP.fullmatch(theirs[0].value):
            self._ours[theirs[0].value] = tuple(mine[: len(mine) - len(theirs) + 1])
            assert all(MADE_UP.fullmatch(hop.value) for hop in self._ours[theirs[0].value])

    def in_ours(self, route: Route) -> Route:
        return tuple(each for hop in route for each in self._ours.get(hop.value, (hop,)))


Send = Callable[[int, Message], Awaitable[None]]
Receive = Callable[[int], Awaitable[Message]]


async def replay(conversation: list[Frame], send: Send, receive: Receive) -> int:
    """Returns the number of answers, each of which was what it should be."""
    names, answers = Names(), 0
    for frame in conversation:
        real = frame.message
        if frame.is_sent:
            await send(frame.connection, Message(names.in_ours(real.onward_route), real.return_route, real.payload))
            continue
        ours = await receive(frame.connection)
        names.learn(real, ours)
        assert (ours.onward_route, ours.payload) == (real.onward_route, real.payload)
        assert ours.return_route == names.in_ours(real.return_route)
        answers += 1
    return answers


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=["head", "legacy"])
async def test_the_frames_of_a_real_client_get_the_answers_of_a_real_node(tmp_path: Path, wire: Wire) -> None:
    """Where neither node makes an address up, the answer is the same byte by byte."""
    conversation = frames(wire.name, wire)
    async with own_node(tmp_path) as address, trio.open_nursery():
        peers: dict[int, Peer] = {}

        async def send(connection: int, message: Message) -> None:
            if connection not in peers:
                stream = await trio.open_tcp_stream(*split_host_port(address))
                await stream.send_all(wire.hello)
                peers[connection] = Peer(stream, wire)
            frame = peers[connection].frame(message.onward_route, message.payload, message.return_route)
            await peers[connection].stream.send_all(frame)

        assert await replay(conversation, send, lambda connection: peers[connection].receive()) == 6
        # The first three conversations have no made-up address, so the raw bytes must be equal, too.
        for connection in (1, 2, 3):
            question, answer = [each.raw for each in conversation if each.connection == connection]
            stream = await trio.open_tcp_stream(*split_host_port(address))
            await stream.send_all(wire.hello + question)
            expected, got = wire.hello + answer, b""
            with trio.fail_after(20):
                while len(got) < len(expected):
                    got += bytes(await stream.receive_some())
            assert got == expected
            await stream.aclose()
        for peer in peers.values():
            await peer.stream.aclose()


class ChannelEnd:
    """The other end of a secure channel, on a connection of its own."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self._machine = ChannelMachine(identity(name), trust_all)
        self._reader = PlaintextReader(HERE, None)

    async def open(self) -> None:
        await self.peer.send((local("secure_channel"),), self._machine.begin(ephemeral(id(self))))
        answer = await self.peer.receive()
        self._way = answer.return_route
        await self.peer.send(self._way, self._machine.receive_2(answer.payload, NOW_S))

    async def send(self, message: Message) -> None:
        plaintext = PLAINTEXT.encode_routes(message.onward_route, message.return_route)
        sealed = self._machine.seal(plaintext + PLAINTEXT.encode_payload(message.payload))
        await self.peer.stream.send_all(self.peer.frame(self._way, sealed, ()))

    async def receive(self) -> Message:
        messages, _, _ = self._reader.read([self._machine.open((await self.peer.receive()).payload)])
        return messages[0]


async def test_the_same_conversation_through_secure_channels(tmp_path: Path) -> None:
    """Each connection of the real clients becomes a channel of its own. Nothing else changes, but the addresses."""
    async with own_node(tmp_path) as address:
        ends: dict[int, ChannelEnd] = {}

        async def send(connection: int, message: Message) -> None:
            if connection not in ends:
                stream = await trio.open_tcp_stream(*split_host_port(address))
                await stream.send_all(HEAD.hello)
                ends[connection] = ChannelEnd(Peer(stream, HEAD), f"client {connection}")
                await ends[connection].open()
            await ends[connection].send(message)

        assert await replay(frames("head", HEAD), send, lambda connection: ends[connection].receive()) == 6
        for end in ends.values():
            await end.peer.stream.aclose()
