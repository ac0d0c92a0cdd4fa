"""Goal: a token proves a name as docs/wire.md says, over both framings, and every refusal is a typed answer.

Method: a node with rules that allow everything to tokens and nothing else, and a plain socket with its own codec
(`plain_peer`), so that no code of the project decodes what the project encodes.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.identity.authentication import NODE_AUTHENTICATE, TokenStatus, TokenVerdict
from ockam.identity.authenticator import Authenticator
from ockam.identity.identity import ANONYMOUS
from tests.support.certificates import Authority
from tests.support.served import wait_until
from tests.tls.keys import HOSTS
from tests.tokens.plain_peer import WAIT_S, PlainPeer, authentication, create, protocol_of
from tests.tokens.token_node import FRAMINGS, UNKNOWN, first_token, own_address, token_node

OK, NOT_KNOWN, EXPIRED, REVOKED, UNENCRYPTED, SECOND, LATE = range(7)


async def in_thread(function: Callable[[], None]) -> None:
    with trio.fail_after(60):
        await trio.to_thread.run_sync(function)


@pytest.fixture(params=FRAMINGS)
def framing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_token_proves_its_name(tmp_path: Path, framing: str) -> None:
    """The authentication and a request come in one piece: the request already has the identity. A connection without a
    token has no right."""
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:

        def talk() -> None:
            peer = PlainPeer(node.address, framing)
            request = peer.frame([b"stream_service"], create(b"orders"))
            peer.send(peer.frame([b"node_authenticate"], authentication(token)), request, request)
            assert peer.authenticated() == (7, OK, "token:spark", "")
            assert [protocol_of(peer.receive()) for _ in range(2)] == [b"stream_create"] * 2
            peer.send(request)
            assert protocol_of(peer.receive()) == b"stream_create"
            peer.close()
            stranger = PlainPeer(node.address, framing)
            stranger.send(request)
            assert protocol_of(stranger.receive()) == b"error"
            stranger.close()

        await in_thread(talk)
        (refusal,) = [line for line in node.audit() if line["event"] == "refused"]
        assert refusal["identity"] == "anonymous"


async def test_a_refused_token_is_answered_and_nothing_behind_it_is_done(tmp_path: Path, framing: str) -> None:
    """Requests that came with the refused token get no answer, and the connection is closed."""
    first_token(tmp_path)
    async with token_node(tmp_path) as node:

        def talk() -> None:
            peer = PlainPeer(node.address, framing)
            request = peer.frame([b"stream_service"], create(b"orders"))
            peer.send(peer.frame([b"node_authenticate"], authentication(UNKNOWN)), request)
            answer = peer.authenticated()
            assert answer[:3] == (7, NOT_KNOWN, "")
            assert "does not know the token" in answer.reason
            assert peer.is_closed()
            peer.close()

        await in_thread(talk)
        await node.running.wait_closed_because("token_refused")
        assert node.running.statistics().services.streams == 0
        (refusal,) = [line for line in node.audit() if line["event"] == "token_refused"]
        assert refusal["reason"].startswith("unknown: ")


GARBAGE = {
    "empty": b"",
    "cut": b"\x13node/authenticate/1",
    "not UTF-8": b"\x13node/authenticate/1\x03\x01\x01\xff",
    "longer": authentication(UNKNOWN) + b"x",
    "another protocol": b"\x0bstream_push\x05\x01\x03abc",
}


async def test_garbage_is_refused(tmp_path: Path) -> None:
    first_token(tmp_path)
    async with token_node(tmp_path) as node:

        def talk() -> None:
            peers = {what: PlainPeer(node.address, "head") for what in GARBAGE}
            for what, peer in peers.items():
                peer.send(peer.frame([b"node_authenticate"], GARBAGE[what]))
                assert peer.authenticated()[:3] == (0, NOT_KNOWN, ""), what
            for peer in peers.values():
                assert peer.is_closed()
                peer.close()

        await in_thread(talk)


async def test_a_late_token_proves_nothing(tmp_path: Path, framing: str) -> None:
    """A token is the first message of its connection. Later, the answer says so, and the connection stays anonymous; a
    second token changes nothing either."""
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:

        def talk() -> None:
            peer = PlainPeer(node.address, framing)
            request = peer.frame([b"stream_service"], create(b"orders"))
            peer.send(request)
            assert protocol_of(peer.receive()) == b"error"
            assert peer.authenticate(token)[:3] == (7, LATE, "")
            peer.send(request)
            assert protocol_of(peer.receive()) == b"error"
            peer.close()
            other = PlainPeer(node.address, framing)
            assert other.authenticate(token).status == OK
            assert other.authenticate(UNKNOWN).status == LATE
            other.send(request)
            assert protocol_of(other.receive()) == b"stream_create"
            other.close()

        await in_thread(talk)


async def test_another_machine_must_use_tls(tmp_path: Path, framing: str) -> None:
    """A right and a wrong token get the same answer over a real address without TLS: others may have read it."""
    host, token = own_address(), first_token(tmp_path)
    async with token_node(tmp_path, f"{host}:0", insecure=True) as node:
        answers = []

        def talk() -> None:
            for each in (token, UNKNOWN):
                peer = PlainPeer(node.address, framing)
                answers.append(peer.authenticate(each))
                assert peer.is_closed()
                peer.close()

        await in_thread(talk)
        assert answers[0] == answers[1]
        assert answers[0].status == UNENCRYPTED
        assert "revoke it" in answers[0].reason


async def test_over_tls_another_machine_is_welcome(tmp_path: Path, framing: str) -> None:
    """The same real address with TLS; the handshake is that of Python's `ssl`."""
    host, token = own_address(), first_token(tmp_path)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=(*HOSTS, host))
    settings = {"tls_certificate": certificate, "tls_certificate_key": key}
    async with token_node(tmp_path, f"{host}:0", **settings) as node:

        def talk() -> None:
            peer = PlainPeer(node.address, framing, _wrapping(authority, host))
            assert peer.authenticate(token) == (7, OK, "token:spark", "")
            peer.close()

        await in_thread(talk)


async def test_a_connection_has_one_identity(tmp_path: Path, framing: str) -> None:
    """A client with a certificate that also sends a token is refused, whichever of the two has more rights."""
    token = first_token(tmp_path)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=HOSTS)
    alice = authority.issue("alice")
    settings = {"tls_certificate": certificate, "tls_certificate_key": key, "tls_client_ca": authority.ca}
    async with token_node(tmp_path, **settings, tls_client_required=False) as node:

        def talk() -> None:
            peer = PlainPeer(node.address, framing, _wrapping(authority, "127.0.0.1", alice))
            answer = peer.authenticate(token)
            assert answer[:3] == (7, SECOND, "")
            assert "certificate:alice" in answer.reason
            assert peer.is_closed()
            peer.close()
            without = PlainPeer(node.address, framing, _wrapping(authority, "127.0.0.1"))
            assert without.authenticate(token).status == OK
            without.close()

        await in_thread(talk)


async def test_a_flood_of_wrong_tokens_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While 16 refusals to one host wait for their answer, further ones are closed without an answer and without a line
    in the audit log. A right token from the same host is accepted meanwhile."""
    token = first_token(tmp_path)
    monkeypatch.setattr("stream_node.node.identity.token_services.REFUSAL_DELAY_S_MAX", 1_000.0)
    async with token_node(tmp_path, error_delay_s=1_000.0) as node:

        def flood() -> None:
            peers = [PlainPeer(node.address, "head") for _ in range(40)]
            for peer in peers:
                peer.send(peer.frame([b"node_authenticate"], authentication(UNKNOWN)))
            # Which of them wait for an answer depends on the order in which the node reads them.
            waiting = {peer.socket for peer in peers}
            while len(waiting) > 16:
                closed = select.select(list(waiting), [], [], WAIT_S)[0]
                assert closed
                assert not any(each.recv(1) for each in closed)
                waiting -= set(closed)
            good = PlainPeer(node.address, "head")
            assert good.authenticate(token).status == OK
            for peer in (*peers, good):
                peer.close()

        await in_thread(flood)
        await wait_until(lambda: node.running.statistics().tcp.closed.get("token_flood") == 24)
        written = [line for line in node.audit() if line["event"] in ("token_refused", "refused_again")]
        assert sum(line.get("count", 1) for line in written) <= 16


def _wrapping(authority: Authority, host: str, who: tuple[str, str] | None = None) -> Any:
    context = ssl.create_default_context(cafile=authority.ca)
    # Python 3.13 demands extensions here that our certificates for tests do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if who is not None:
        context.load_cert_chain(*who)

    def wrap(connection: socket.socket) -> ssl.SSLSocket:
        return context.wrap_socket(connection, server_hostname=host)

    return wrap


async def test_the_addresses_of_one_network_share_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    """A host can have every address of its IPv6 network of 64 bits, so the bound is for the network."""
    authenticator = Authenticator(
        lambda text: TokenVerdict(TokenStatus.UNKNOWN, reason="no"), refusal_delay_s=1.0, waiting_max=2
    )
    message = Message((NODE_AUTHENTICATE,), (local("conn"), local("me")), authentication(UNKNOWN))
    unanswered = []

    async def judge(host: str) -> None:
        peer = f"[{host}]:4000"
        proof = authenticator.judge(message, peer, ANONYMOUS, True)
        if not await authenticator.refuse(peer, ANONYMOUS, proof.verdict):
            unanswered.append(host)

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
                nursery.start_soon(judge, host)
    # Each time one of the three; the bound is free again when the answers are sent.
    assert len(unanswered) == 2
    assert all(host.startswith("2001:db8::") for host in unanswered)
