"""Goal: the audit log has every peer that was refused before its first request, and every change of who is trusted.

Method: a whole node with mutual TLS, secure channels and rules; real peers; its audit log.
"""

from __future__ import annotations

import os
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from structlog.testing import capture_logs

from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest
from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.proof import OwnIdentity, make_identity
from ockam.identity.channel.trust_list import save_trusted
from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.transport.wire_head import HEAD
from stream_node.node.identity.channel_services import node_identity_file, trust_file
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.ockam.identity.rules.ways import Certificate, Channel, ChannelPeer
from tests.support.certificates import fingerprint
from tests.support.served import served, wait_until


def find(node: Guarded, event: str) -> list[dict[str, Any]]:
    return [line for line in node.audit() if line["event"] == event]


async def wait_line(node: Guarded, event: str, count: int = 1) -> dict[str, Any]:
    await wait_until(lambda: len(find(node, event)) >= count)
    return find(node, event)[-1]


async def greet(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """Says hello, and reads to the end of the connection."""
    await stream.send_all(HEAD.hello)
    while await stream.receive_some():
        pass


async def test_certificates_that_are_refused_and_changes_of_the_files(tmp_path: Path) -> None:
    """Without a certificate, of a strange authority, and a revoked one whose connection is open."""
    way = Certificate(tmp_path)
    keys, revoked = way.keys, tmp_path / "revoked.txt"
    revoked.write_text("# none\n")
    async with guarded(tmp_path, may(ALL_RIGHTS, who="*"), **way.settings, tls_revoked=str(revoked)) as node:
        for count, (who, kind) in enumerate(
            ((None, "tls_no_certificate"), (keys.strangers.issue("eve"), "tls_unknown_ca")), 1
        ):
            stream = trio.SSLStream(await node.running.connect(), keys.context(who), server_hostname="localhost")
            with pytest.raises(trio.BrokenResourceError):
                await greet(stream)
            line = await wait_line(node, "tls_refused", count)
            assert line["reason"].startswith(kind)
            assert line["identity"] == "anonymous"
            assert line["peer"].startswith("127.0.0.1:")
        peer = await way.peer(node, HEAD)
        await peer.create("orders")
        revoked.write_text(f"{fingerprint(keys.alice[0])}\n")
        line = await wait_line(node, "tls_refused", 3)
        assert (line["identity"], line["reason"].partition(":")[0]) == ("certificate:alice", "tls_revoked")
        assert find(node, "tls_files_read")
        await trio.Path(keys.server[1]).write_text("no key")
        assert "key" in (await wait_line(node, "tls_files_refused"))["reason"]


def stranger() -> OwnIdentity:
    return make_identity(secrets.token_bytes(32), secrets.token_bytes(32), int(time.time()))


async def test_channels_that_are_refused_and_changes_of_the_trust_list(tmp_path: Path) -> None:
    """An identity that is not trusted is named. Then it is trusted, and removed again."""
    own, eve = Channel(tmp_path), stranger()
    file = trust_file(str(tmp_path / "data"))
    async with guarded(tmp_path, may(ALL_RIGHTS, who="channel:*"), **own.settings) as node:
        peer = ChannelPeer((await node.running.peer()).stream, HEAD)
        await peer.shake_hands(own.machine(eve))
        with pytest.raises(AssertionError, match="the node closed the channel"):
            await peer.receive()
        line = await wait_line(node, "channel_refused")
        assert (line["identity"], line["reason"]) == (f"channel:{eve}", "not_trusted")
        save_trusted(file, {eve.identifier: "eve"})
        assert (await wait_line(node, "trust_changed"))["reason"] == "2 trusted; 0 channels ended"
        peer = ChannelPeer((await node.running.peer()).stream, HEAD)
        await peer.shake_hands(own.machine(eve))
        await peer.create("orders")
        os.unlink(file)
        line = await wait_line(node, "trust_changed", 2)
        assert line["reason"] == "1 trusted; 1 channels ended"


async def test_the_log_names_the_command_that_trusts_and_the_identity_that_was_refused(
    tmp_path: Path,
) -> None:
    own, eve = Channel(tmp_path), stranger()
    with capture_logs() as logs:
        async with served(tmp_path / "none") as running:
            peer = await running.peer()
            await peer.send(Channel.LISTENER, own.machine(stranger()).begin(X25519PrivateKey.generate()))
            await wait_until(lambda: any(line["event"] == "channel_refused" for line in logs))
        async with guarded(tmp_path, may(ALL_RIGHTS, who="channel:*"), **own.settings) as node:
            peer = ChannelPeer((await node.running.peer()).stream, HEAD)
            await peer.shake_hands(own.machine(eve))
            await wait_until(lambda: any(line["event"] == "channel_ended" for line in logs))
    refused = next(line for line in logs if line["event"] == "channel_refused")
    assert "`stream-node trust add IDENTIFIER`" in refused["text"]
    ended = next(line for line in logs if line["event"] == "channel_ended")
    assert (ended["identity"], ended["reason"]) == (str(eve), "not_trusted")


async def test_handshakes_that_fail_are_there(tmp_path: Path) -> None:
    """Message 1 that is none, a changed message 3, and a message 3 over another connection: each with its reason, and
    with the identity and the address of the connection."""
    own, certificate = Channel(tmp_path), Certificate(tmp_path)
    async with guarded(tmp_path, **own.settings, **certificate.settings) as node:
        peer = await certificate.peer(node, HEAD)
        await peer.send(Channel.LISTENER, bytes(5))
        await wait_line(node, "channel_refused")
        machine = own.machine(stranger())
        await peer.send(Channel.LISTENER, machine.begin(X25519PrivateKey.generate()))
        answer = await peer.receive()
        third = machine.receive_2(answer.payload, int(time.time()))
        await peer.send(answer.return_route, third[:-1] + bytes([third[-1] ^ 1]))
        await wait_line(node, "channel_refused", 2)
        other = await certificate.peer(node, HEAD)
        await other.send(answer.return_route, third)
        await wait_line(node, "channel_refused", 3)
        found = find(node, "channel_refused")
        channels = node.running.statistics().channels
    assert [line["reason"] for line in found] == ["short", "unauthentic", "other_connection"]
    assert {line["identity"] for line in found} == {"certificate:alice"}
    assert found[0]["peer"] == found[1]["peer"] != found[2]["peer"]
    assert channels is not None
    assert (channels.refused, channels.dropped) == ({"short": 1}, {"unauthentic": 1, "other_connection": 1})


async def test_a_node_without_a_usable_identity_tells_it(tmp_path: Path) -> None:
    """The node first needs its identity when somebody is trusted. Its file is damaged: nobody gets a channel."""
    eve = stranger()
    async with guarded(tmp_path) as node:
        node_identity_file(str(tmp_path / "data")).write_text("{")
        save_trusted(trust_file(str(tmp_path / "data")), {eve.identifier: "eve"})
        await wait_line(node, "trust_changed")
        peer = await node.running.peer()
        first = ChannelMachine(eve, lambda peer: None).begin(X25519PrivateKey.generate())
        await peer.send(Channel.LISTENER, first)
        assert (await wait_line(node, "channel_refused"))["reason"] == "no_identity"


async def test_the_audit_log_says_whose_token_was_refused(tmp_path: Path) -> None:
    """The identity that the connection has without the token, and its address."""
    async with guarded(tmp_path) as node:
        peer = await node.running.peer()
        host, port = peer.stream.socket.getsockname()
        await peer.send((NODE_AUTHENTICATE,), AUTHENTICATE.encode_request(AuthenticateRequest(1, "sntok_" + "0" * 64)))
        line = await wait_line(node, "token_refused")
    assert (line["identity"], line["peer"]) == ("anonymous", f"{host}:{port}")
    assert line["reason"].startswith("unknown: ")


async def test_a_flood_of_refused_channels_writes_few_lines(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node:
        peer = await node.running.peer()
        for _ in range(300):
            await peer.send(Channel.LISTENER, bytes(32))
        await wait_until(partial(is_refused, node, 300))
        lines = find(node, "channel_refused")
        assert len(lines) <= 3
        assert {line["reason"] for line in lines} == {"closed"}


def is_refused(node: Guarded, count: int) -> bool:
    channels = node.running.statistics().channels
    assert channels is not None
    return sum(channels.refused.values()) == count
