"""The ways in which a peer proves to a node who it is: each as settings of the node, and as a peer that comes so."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.actors.address import Route, local
from ockam.actors.message import HERE, Message
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest
from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.messages import CLOSE, PLAINTEXT, PlaintextReader
from ockam.identity.channel.proof import OwnIdentity, make_identity
from ockam.identity.rules.tokens import create_token
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_node.node.identity.token_services import token_file
from tests.ockam.identity.rules.guarded_node import Guarded
from tests.support.stream_peer import StreamPeer
from tests.tls.keys import Keys, settings

INNER = local("inner of the test")


class Way(ABC):
    """name, documented: the way and its identity in the documents. identity: the name that the node gives to the peer.
    settings: those of the node. forwards: whether messages can go to other nodes; out of a channel none goes."""

    name: str
    documented: str
    identity: str
    settings: dict[str, Any]
    forwards = True

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """folder: where the way keeps its files; the data directory of the node is in it."""

    @abstractmethod
    async def peer(self, node: Guarded, wire: Wire) -> StreamPeer:
        """A peer that has proved its identity."""


class Plain(Way):
    name = "plain"
    documented = "anonymous"

    def __init__(self, folder: Path) -> None:
        self.identity = "anonymous"
        self.settings = {}

    async def peer(self, node: Guarded, wire: Wire) -> StreamPeer:
        return await node.running.peer(wire)


class Certificate(Way):
    name = "mutual TLS"
    documented = "certificate:NAME"

    def __init__(self, folder: Path) -> None:
        self.keys = Keys(folder)
        self.identity = "certificate:alice"
        self.settings = settings(self.keys)
        self._context = self.keys.context(self.keys.alice)

    async def peer(self, node: Guarded, wire: Wire) -> StreamPeer:
        """With the standard library's TLS."""
        stream = trio.SSLStream(await node.running.connect(), self._context, server_hostname="localhost")
        await stream.send_all(wire.hello)
        # trio sends nothing for an empty hello, and the handshake is due before the first frame.
        await stream.do_handshake()
        return StreamPeer(stream, wire)  # type: ignore[arg-type]


class Token(Way):
    name = "token"
    documented = "token:NAME"

    def __init__(self, folder: Path, who: str = "spark") -> None:
        self.identity = f"token:{who}"
        self.settings = {}
        self.token = create_token(token_file(str(folder / "data")), who, int(time.time()))[0]

    async def peer(self, node: Guarded, wire: Wire) -> StreamPeer:
        peer = await node.running.peer(wire)
        answer = await peer.ask((NODE_AUTHENTICATE,), AUTHENTICATE.encode_request(AuthenticateRequest(1, self.token)))
        assert AUTHENTICATE.decode_response(answer.payload).identity == self.identity
        return peer


class Channel(Way):
    LISTENER = (local("secure_channel"),)
    forwards = False
    name = "secure channel"
    documented = "channel:IDENTIFIER"

    def __init__(self, folder: Path) -> None:
        self.own = make_identity(secrets.token_bytes(32), secrets.token_bytes(32), int(time.time()))
        self.identity = f"channel:{self.own}"
        self.settings = {
            "secure_channel_trusted": [str(self.own)],
            "secure_channel_handshakes_per_second": 10_000,
        }

    async def peer(self, node: Guarded, wire: Wire) -> StreamPeer:
        stream = (await node.running.peer(wire)).stream
        peer = ChannelPeer(stream, wire)
        await peer.shake_hands(self.machine(self.own))
        return peer

    def machine(self, own: OwnIdentity) -> ChannelMachine:
        """The other end of a new channel, which accepts every node."""
        return ChannelMachine(own, lambda peer: None)


class ChannelPeer(StreamPeer):
    """A peer whose messages all go through one channel."""

    machine: ChannelMachine
    way: Route

    async def shake_hands(self, machine: ChannelMachine, listener: Route = Channel.LISTENER) -> None:
        self.machine = machine
        self.plaintexts = PlaintextReader(HERE, None)
        first = machine.begin(X25519PrivateKey.generate())
        await self.stream.send_all(super().frame(listener, first, (INNER,)))
        answer = await super().receive()
        self.way = answer.return_route
        third = machine.receive_2(answer.payload, int(time.time()))
        await self.stream.send_all(super().frame(self.way, third, (INNER,)))

    def frame(self, onward_route: Route, payload: bytes, return_route: Route = (local("me"),)) -> bytes:
        plaintext = PLAINTEXT.encode_routes(onward_route, return_route) + PLAINTEXT.encode_payload(payload)
        return super().frame(self.way, self.machine.seal(plaintext), ())

    async def receive(self, patience_s: float = 10.0) -> Message:
        plaintext = self.machine.open((await super().receive(patience_s)).payload)
        assert plaintext != CLOSE, "the node closed the channel"
        ((message,), _, _) = self.plaintexts.read([plaintext])
        return message


WAYS: tuple[type[Way], ...] = (Plain, Certificate, Token, Channel)
WIRES: tuple[Wire, ...] = (HEAD, LEGACY)
