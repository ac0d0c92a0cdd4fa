"""Goal: a client does through a secure channel what it does without, from end to end, also through another node.

Method: real nodes in child processes, every shell of the client; a listener on the way that keeps the bytes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.actors.address import local, tcp
from ockam.actors.message import HERE, Message
from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.identity_file import create_identity, load_identity
from ockam.identity.channel.proof import OwnIdentity
from ockam.identity.channel.trust_list import save_trusted
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD
from stream_client import (
    ChannelRefused,
    ChannelSilent,
    Header,
    InvalidArgument,
    PeerNotTrusted,
    Reconnect,
    SecureChannel,
)
from stream_node.node.process import NodeProcess
from tests.client.conftest import shell
from tests.client.shells import ShellName, Tools, run_in
from tests.support.strangers import answering

__all__ = ["shell"]

FAST = Reconnect(delay_s=0.05, delay_s_max=0.1)


class Nodes(NamedTuple):
    """far: a node that trusts `client`. near: a node that forwards to it, and trusts nobody."""

    far: NodeProcess
    near: NodeProcess
    client: OwnIdentity
    client_file: Path
    far_identifier: str

    def channel(self, identity: OwnIdentity | Path | None = None, peer: str | None = None) -> SecureChannel:
        return SecureChannel(identity=identity or self.client, peer=peer or self.far_identifier)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    now_s = int(time.time())
    client_file = folder / "client.json"
    client = create_identity(client_file, now_s)
    far_identity = create_identity(folder / "far" / "identity.json", now_s)
    save_trusted(folder / "far" / "trusted_identities", {client.identifier: "client"})
    with (
        NodeProcess(folder / "far") as far,
        NodeProcess(folder / "near", arguments=("--allow-forward", far.address)) as near,
    ):
        yield Nodes(far, near, client, client_file, str(far_identity))
        assert near.stop() == 0
        assert far.stop() == 0


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through a node"])
def test_what_a_client_does(nodes: Nodes, shell: ShellName, through: bool) -> None:
    """Pushes, keys and headers, an idempotent publisher, pages and a consumer: all through the channel."""

    async def scenario(tools: Tools) -> None:
        via = (tcp(nodes.far.address),) if through else ()
        async with tools.connect(via=via, channel=nodes.channel()) as client:
            stream = await client.create(f"{shell}-{through}")
            assert [await stream.push(b"%d" % number) for number in range(3)] == [0, 1, 2]
            async with stream.publisher(100, idempotent=True) as publisher:
                for number in range(3, 500):
                    await publisher.push(b"%d" % number, key=b"k", headers=[Header("a", b"b")])
            messages = await stream.pull(0, 500)
            assert [each.data for each in messages] == [b"%d" % number for number in range(500)]
            assert (await stream.pull_page(400)).messages[0].key == b"k"
            big = b"x" * 1_000_000
            assert (await stream.pull(await stream.push(big)))[0].data == big

    run_in(shell, scenario, nodes.near.address if through else nodes.far.address)


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through a node"])
def test_batches_of_pushes_keep_their_order(nodes: Nodes, shell: ShellName, through: bool) -> None:
    """Goal: a publisher's batches are encrypted as a whole, and what does not fit into a batch stays in its place."""
    expected = [b"%d" % number + bytes(5_000 if number % 400 == 399 else number % 90) for number in range(3_000)]

    async def scenario(tools: Tools) -> None:
        via = (tcp(nodes.far.address),) if through else ()
        async with tools.connect(via=via, channel=nodes.channel()) as client:
            stream = await client.create("batches")
            first = await stream.push(b"first")
            async with stream.publisher(window=900) as publisher:
                given = [await publisher.push(data) for data in expected]
            assert [push.index - first for push in given] == list(range(1, 3_001))
            stored: list[bytes] = []
            while len(stored) < len(expected):
                stored += [message.data for message in await stream.pull(first + 1 + len(stored), 1_000)]
            assert stored == expected

    run_in(shell, scenario, nodes.near.address if through else nodes.far.address)


def test_an_identity_from_its_file(nodes: Nodes, shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(channel=nodes.channel(nodes.client_file)) as client:
            assert await (await client.create(f"file-{shell}")).push(b"x") == 0

    run_in(shell, scenario, nodes.far.address)


def test_a_node_with_another_identity_gets_nothing(nodes: Nodes, shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(channel=nodes.channel(peer="I" + "0" * 64)) as client:
            with pytest.raises(PeerNotTrusted, match=f"the other end is {nodes.far_identifier}") as refused:
                await client.create("x")
            assert not refused.value.retriable

    run_in(shell, scenario, nodes.far.address)


def test_an_identity_that_the_node_does_not_trust(nodes: Nodes, shell: ShellName, tmp_path: Path) -> None:
    stranger = create_identity(tmp_path / "stranger.json", int(time.time()))

    async def scenario(tools: Tools) -> None:
        async with tools.connect(channel=nodes.channel(stranger)) as client:
            with pytest.raises(ChannelRefused, match=f"`stream-node trust add {stranger}`"):
                await client.create("x")

    run_in(shell, scenario, nodes.far.address)


def test_a_node_that_trusts_nobody_is_silent_and_the_error_says_so(nodes: Nodes, shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(channel=nodes.channel(), contact_timeout_s=0.5) as client:
            with pytest.raises(ChannelSilent, match="nobody answers there"):
                await client.create("x")

    run_in(shell, scenario, nodes.near.address)


def test_a_real_listener_that_refuses_an_identity_without_a_word_is_named_as_such(
    tmp_path: Path, shell: ShellName
) -> None:
    """An Ockam listener answers message 1, and is silent after message 3 if it does not accept the identity in it.

    Method: a listener that answers each message 1 by our responder, on a socket of its own, and nothing else.
    """
    now_s = int(time.time())
    client, far = create_identity(tmp_path / "a.json", now_s), create_identity(tmp_path / "b.json", now_s)

    def answer(connection: socket.socket) -> None:
        reader, hello = FrameReader(HEAD, HERE), HEAD.hello
        connection.sendall(hello)
        while data := connection.recv(65_536):
            taken, hello = (data.removeprefix(hello), b"") if hello else (data, b"")
            for message in reader.feed(taken):
                if message.onward_route[0] == local("secure_channel"):
                    second = ChannelMachine(far, lambda peer: None).receive_1(
                        message.payload, X25519PrivateKey.generate()
                    )
                    reply = Message((local("-"), *message.return_route), (local("far"),), second)
                    connection.sendall(FrameWriter(HEAD).encode([reply], lambda error: pytest.fail(str(error)))[1])

    async def scenario(tools: Tools) -> None:
        channel = SecureChannel(identity=client, peer=str(far))
        async with tools.connect(channel=channel, contact_timeout_s=1.0) as connected:
            with pytest.raises(ChannelRefused, match=f"the peer did not accept our identity {client}"):
                await connected.create("x")

    with answering(answer) as address:
        run_in(shell, scenario, address)


def test_wrong_settings_are_refused_before_anything_is_sent(nodes: Nodes, shell: ShellName, tmp_path: Path) -> None:
    async def scenario(tools: Tools) -> None:
        for channel, options, says in (
            (nodes.channel(peer="alice"), {}, "no identifier"),
            (nodes.channel(tmp_path / "nowhere.json"), {}, "`identity create` makes one"),
            (nodes.channel(), {"framing": "legacy"}, "needs the framing head"),
        ):
            with pytest.raises(InvalidArgument, match=says):
                async with tools.connect(channel=channel, **options):
                    pass

    run_in(shell, scenario, nodes.far.address)


def test_a_restart_of_the_far_node_is_survived_through_the_near_one(tmp_path: Path) -> None:
    """The connection to the near node stays, so only the channel tells the client that the far node has stopped."""
    now_s = int(time.time())
    client = create_identity(tmp_path / "client.json", now_s)
    far_identity = create_identity(tmp_path / "far" / "identity.json", now_s)
    save_trusted(tmp_path / "far" / "trusted_identities", {client.identifier: ""})
    with (
        NodeProcess(tmp_path / "far") as far,
        NodeProcess(tmp_path / "near", arguments=("--allow-forward", far.address)) as near,
    ):

        async def scenario(tools: Tools) -> None:
            channel = SecureChannel(identity=client, peer=str(far_identity))
            async with tools.connect(via=(tcp(far.address),), channel=channel, reconnect=FAST) as connected:
                stream = await connected.create("s")
                assert await stream.push(b"before") == 0
                assert far.stop() == 0
                far.start()
                assert await stream.push(b"after") == 1
                assert [each.data for each in await stream.pull()] == [b"before", b"after"]

        run_in("trio", scenario, near.address)
    assert str(load_identity(tmp_path / "far" / "identity.json", int(time.time()))) == str(far_identity)
