"""A node with a channel listener and an echo worker, and initiators that reach it, for tests of the workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ockam.actors.address import Address, Route, local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.channel.channel_machine import ChannelMachine, Trust
from ockam.identity.channel.messages import PAYLOAD_HEAD, PLAINTEXT, PlaintextReader
from ockam.identity.channel.proof import OwnIdentity
from ockam.identity.channel.trust_list import TrustList
from ockam.identity.channel.workers.channels import SecureChannels
from tests.ockam.identity.channel.samples import NOW_S, ephemeral, identity, trust_all

LISTENER = local("secure_channel")


class Echo(Worker):
    """Answers with what it gets, and keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def handle(self, message: Message) -> None:
        self.messages.append(message)
        self.reply(message, message.payload)


class Crashing(Worker):
    def receive(self, run: Sequence[Message]) -> None:
        raise RuntimeError("told to fail")


class Line(Worker):
    """Stands for the connection of a peer: keeps what is sent to it, without the first hop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.sent: list[Message] = []

    def receive(self, run: Sequence[Message]) -> None:
        self.sent += [Message(each.onward_route[1:], each.return_route, each.payload) for each in run]


class Initiator:
    """The other end of a channel, at the other end of a line of the node."""

    def __init__(self, world: ChannelNode, line: Line, name: str = "initiator", trust: Trust = trust_all) -> None:
        self.world = world
        self.line = line
        self.origin = Origin("tcp", f"host-{line.address}:1")
        self.own = identity(name)
        self.machine = ChannelMachine(self.own, trust)
        self.inner = local(f"inner-{world.next_number()}")
        self.way: Route = ()
        self.reader = PlaintextReader(self.origin, None)

    def arrive(self, onward: Route, returning: Route, payload: bytes, line: Line | None = None) -> None:
        """Lets a message arrive over the line, as its connection would."""
        line = line or self.line
        self.world.node.send(Message(onward, (line.address, *returning), payload, self.origin))

    def begin(self) -> None:
        self.arrive((LISTENER,), (self.inner,), self.machine.begin(ephemeral(self.world.next_number())))

    def finish(self) -> None:
        (answer,) = self.taken()
        self.way = answer.return_route
        self.arrive(self.way, (self.inner,), self.machine.receive_2(answer.payload, NOW_S))

    def open(self) -> Initiator:
        self.begin()
        self.finish()
        return self

    def send(self, onward: Route, returning: Route, payload: bytes, line: Line | None = None) -> None:
        plaintext = PLAINTEXT.encode_routes(onward, returning) + PLAINTEXT.encode_payload(payload)
        self.arrive(self.way, (), self.machine.seal(plaintext), line)

    def taken(self) -> list[Message]:
        """What was sent to this end since the last call."""
        mine = [each for each in self.line.sent if each.onward_route[:1] == (self.inner,)]
        self.line.sent = [each for each in self.line.sent if each not in mine]
        return mine

    def plaintexts(self) -> list[bytes]:
        return [self.machine.open(each.payload) for each in self.taken()]

    def received(self) -> list[Message]:
        """The messages that came through the channel since the last call."""
        plaintexts = self.plaintexts()
        assert all(each.startswith(PAYLOAD_HEAD) for each in plaintexts)
        messages, bad, _ = self.reader.read(plaintexts)
        assert not bad
        return messages


class ChannelNode:
    """A node with secure channels, without sockets."""

    def __init__(self, node: Node, nursery: trio.Nursery, trust: TrustList, own: OwnIdentity, **options: Any) -> None:
        self.node = node
        self.echo = Echo()
        self.now_s = NOW_S
        self._number = 0
        self.channels = SecureChannels(
            node,
            nursery,
            lambda now_s: own,
            trust,
            now_s=lambda: self.now_s,
            new_id=lambda: f"{self.next_number():016x}",
            ephemeral=lambda: ephemeral(f"node {self.next_number()}"),
            **options,
        )
        self.channels.start()
        node.register([local("echo")], lambda: self.echo)
        node.register([local("crashing")], Crashing)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def line(self) -> Line:
        line = Line(local(f"TCP_{self.next_number()}"))
        self.node.register([line.address], lambda: line)
        return line

    def initiator(self, name: str = "initiator", line: Line | None = None, trust: Trust = trust_all) -> Initiator:
        return Initiator(self, line or self.line(), name, trust)

    @property
    def workers(self) -> int:
        return self.node.statistics().workers


@asynccontextmanager
async def channel_node(trust: TrustList | None = None, **options: Any) -> AsyncIterator[ChannelNode]:
    """Runs such a node, which trusts the identity `initiator` unless another list is given."""
    trusted = trust or TrustList(None, [str(identity("initiator"))])
    async with trio.open_nursery() as nursery:
        world = ChannelNode(Node(nursery), nursery, trusted, identity("node"), **options)
        yield world
        world.channels.check()
        nursery.cancel_scope.cancel()
