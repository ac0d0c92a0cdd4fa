"""Goal: a node's listener speaks TLS 1.3, knows its peers by their certificates, and tells each fault to both sides.

Method: a node on a socket, and peers that use `trio.SSLStream` or a blocking socket of the standard library. They share
no code with the node's TLS.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any

import pytest
import structlog.testing
import trio

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls import ServerTls
from ockam.identity.tls_stream import TlsListener
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from tests.ockam.tcp_server import Server, serve
from tests.support.certificates import fingerprint
from tests.support.peer import Peer
from tests.tls.keys import Keys


class Witness(Worker):
    """Answers with the identity that the node knows the sender by."""

    def handle(self, message: Message) -> None:
        self.reply(message, str(message.origin.identity).encode())


async def tls_peer(server: Server, context: ssl.SSLContext, wire: Any = HEAD, name: str = "localhost") -> Peer:
    stream = trio.SSLStream(await server.connect(), context, server_hostname=name)
    await stream.send_all(wire.hello)
    return Peer(stream, wire)  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", [pytest.param(HEAD, id="head"), pytest.param(LEGACY, id="legacy")])
async def test_both_framings_over_mutual_tls_and_the_identity(keys: Keys, wire: Any) -> None:
    """Large messages take several records in both directions, and arrive whole."""
    async with serve(tls=keys.listener()) as server:
        server.node.register([local("witness")], Witness)
        peer = await tls_peer(server, keys.context(keys.alice), wire)
        await peer.send((local("witness"),), b"?")
        assert (await peer.receive()).payload == b"certificate:alice"
        payload = bytes(range(256)) * 200
        await peer.send((local("echo"),), payload)
        assert (await peer.receive()).payload == payload


async def test_a_name_from_the_dns_names_and_none_without_a_certificate(keys: Keys) -> None:
    nameless = keys.authority.issue(None, hosts=("spark.example", "other.example"))
    async with serve(tls=keys.listener(keys.files(client_required=False))) as server:
        server.node.register([local("witness")], Witness)
        for who, identity in ((None, ANONYMOUS), (nameless, Identity("certificate", "spark.example"))):
            peer = await tls_peer(server, keys.context(who))
            await peer.send((local("witness"),), b"?")
            assert (await peer.receive()).payload == str(identity).encode()


def test_a_blocking_socket_of_the_standard_library_speaks_our_wire(keys: Keys) -> None:
    """It sends the hello, one frame, and reads the answer. It also shows the version of TLS."""
    answers = bytearray()

    def talk(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            keys.context(keys.alice).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.version() == "TLSv1.3"
            peer = Peer(None, HEAD)  # type: ignore[arg-type]
            secure.sendall(b"\x01" + peer.frame((local("echo"),), b"by hand"))
            while b"by hand" not in answers:
                answers.extend(secure.recv(100))

    async def main() -> None:
        async with serve(tls=keys.listener()) as server:
            await trio.to_thread.run_sync(talk, int(server.address.rpartition(":")[2]))

    trio.run(main)
    assert answers.startswith(b"\x01\x00\x00\x00")


async def refused(server: Server, context: ssl.SSLContext) -> str:
    """Connects and waits until the node ends the connection. Returns the reason that the client gets."""
    stream = trio.SSLStream(await server.connect(), context, server_hostname="localhost")
    with trio.fail_after(10):
        try:
            await stream.send_all(HEAD.hello)
            return (await stream.receive_some()).decode()
        except trio.BrokenResourceError as error:
            return getattr(error.__cause__, "reason", "") or ""


@pytest.mark.parametrize(
    ("who", "counted", "told"),
    [
        ("nobody", "tls_no_certificate", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        ("stranger", "tls_unknown_ca", "TLSV1_ALERT_UNKNOWN_CA"),
        ("expired", "tls_expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        ("early", "tls_expired", "SSLV3_ALERT_BAD_CERTIFICATE"),
        ("revoked", "tls_revoked", "refused: this node's operator has revoked the certificate\n"),
        ("unnameable", "tls_other", ""),
    ],
)
async def test_a_wrong_client_certificate_is_refused_and_both_sides_hear_why(
    own_keys: Keys, who: str, counted: str, told: str
) -> None:
    certificates = {
        "nobody": None,
        "stranger": own_keys.strangers.issue("alice"),
        "expired": own_keys.authority.issue("expired", ends_s=-60),
        "early": own_keys.authority.issue("early", begins_s=60),
        "revoked": own_keys.alice,
        "unnameable": own_keys.authority.issue("two\nlines", file="unnameable"),
    }
    revoked = own_keys.folder / "revoked.txt"
    digits = fingerprint(own_keys.alice[0]).upper()
    revoked.write_text(f"# lost with a laptop\n{':'.join(digits[at : at + 2] for at in range(0, 64, 2))}  # alice\n")
    async with serve(tls=own_keys.listener(own_keys.files(revoked=str(revoked)))) as server:
        with structlog.testing.capture_logs() as logs:
            assert await refused(server, own_keys.context(certificates[who])) == told
            await server.wait_closed_because(counted)
        (line,) = [line for line in logs if line["event"] == "connection_closed"]
        assert (line["kind"], line["peer"].rpartition(":")[0]) == (counted, "127.0.0.1")
        assert server.transport.statistics().handshakes == 0


@pytest.mark.parametrize(
    ("fault", "counted"),
    [("strange authority", "tls_unknown_ca"), ("wrong name", "tls_refused"), ("TLS 1.2", "tls_version")],
)
async def test_a_client_that_refuses_the_node_is_counted_with_its_reason(keys: Keys, fault: str, counted: str) -> None:
    client = keys.context(keys.alice, keys.strangers.ca if fault == "strange authority" else None)
    if fault == "TLS 1.2":
        client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serve(tls=keys.listener()) as server:
        name = "elsewhere.example" if fault == "wrong name" else "localhost"

        # A stream of trio would close the socket without the alert that tells the reason.
        def call() -> None:
            with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), 10) as plain:
                client.wrap_socket(plain, server_hostname=name).close()

        with pytest.raises(ssl.SSLError):
            await trio.to_thread.run_sync(call)
        await server.wait_closed_because(counted)


async def test_a_client_without_tls_gets_a_tls_alert_and_is_counted(keys: Keys) -> None:
    """One byte, the hello of a client, is enough; the node does not wait for more."""
    async with serve(tls=keys.listener()) as server:
        stream = await server.connect()
        await stream.send_all(HEAD.hello)
        with trio.fail_after(10):
            # The record of an alert, version 3.3, two bytes: fatal, protocol_version (RFC 8446, section 6.2).
            assert await stream.receive_some() == b"\x15\x03\x03\x00\x02\x02\x46"
        await server.wait_closed_because("tls_not_tls")


async def test_a_tls_client_at_a_port_without_tls_is_recognized(keys: Keys) -> None:
    async with serve() as server:
        secure = trio.SSLStream(await server.connect(), keys.context(), server_hostname="localhost")
        with pytest.raises(trio.BrokenResourceError):
            await secure.do_handshake()
        await server.wait_closed_because("tls_unexpected")


async def test_a_thousand_stalled_handshakes_leave_others_served(keys: Keys) -> None:
    """Half of them send nothing, the other half the beginning of a handshake. The oldest give way; each of the clients
    that connect meanwhile is served, and the number under way never exceeds its limit."""
    async with serve(tls=keys.listener(handshakes_max=50)) as server:
        for number in range(1_000):
            stream = await server.connect()
            if number % 2:
                await stream.send_all(bytes.fromhex("160301"))
            if number % 200 == 100:
                peer = await tls_peer(server, keys.context(keys.alice))
                await peer.send((local("echo"),), b"%d" % number)
                assert (await peer.receive()).payload == b"%d" % number
            assert server.transport.statistics().handshakes <= 50
        peer = await tls_peer(server, keys.context(keys.alice))
        await peer.send((local("echo"),), b"last")
        assert (await peer.receive()).payload == b"last"
        with trio.fail_after(10):
            while server.transport.statistics().closed["gave_way"] < 950:
                await trio.sleep(0.005)
        assert 45 <= server.transport.statistics().handshakes <= 50


async def test_a_handshake_that_takes_too_long_is_ended(keys: Keys) -> None:
    async with serve(tls=keys.listener(handshake_s=0.05)) as server:
        stream = await server.connect()
        await stream.send_all(bytes.fromhex("160301"))
        await server.wait_closed_because("tls_timeout")


async def test_half_closing_over_tls_still_gets_the_answers(keys: Keys) -> None:
    """A peer that announces its end (close_notify) gets the answers to everything before it, and then the node's own
    announcement. OpenSSL is driven by hand here, because the streams of trio cannot do this."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = keys.context(keys.alice).wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with serve(tls=keys.listener()) as server:
        stream = await server.connect()
        for _ in range(2):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            await stream.send_all(outgoing.read())
            if client.version() is None or not client.cipher():
                incoming.write(await stream.receive_some())
        peer = Peer(stream, HEAD)
        rest = memoryview(HEAD.hello + peer.frame((local("echo"),), b"x" * 50_000))
        while rest:
            rest = rest[client.write(rest) :]
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        # The whole frame and the announcement in one piece.
        await stream.send_all(outgoing.read())
        received = b""
        with trio.fail_after(10):
            while True:
                try:
                    received += client.read(1 << 20)
                except ssl.SSLWantReadError:
                    data = bytes(await stream.receive_some())
                    assert data, "the node did not announce its end"
                    incoming.write(data)
                except ssl.SSLZeroReturnError:
                    break
                else:
                    if client.pending() == 0 and len(received) > 50_000:
                        break
        (answer,) = peer.reader.feed(received[1:])
        assert answer.payload == b"x" * 50_000
        await server.wait_closed_because("closed_by_peer")


async def test_open_connections_of_revoked_and_expired_certificates_end(own_keys: Keys) -> None:
    """Others stay open, and the reasons are counted. The clock is a parameter here."""
    revoked = own_keys.folder / "revoked.txt"
    revoked.write_text("")
    short = own_keys.authority.issue("short", ends_s=1_000)
    bob = own_keys.authority.issue("bob", ends_s=100_000)
    server_tls = ServerTls(own_keys.files(revoked=str(revoked)))
    now_s = time.time()
    async with serve(tls=TlsListener(server_tls, now_s=lambda: now_s)) as server:
        peers = {}
        for who in (own_keys.alice, short, bob):
            peers[who] = await tls_peer(server, own_keys.context(who))
            await peers[who].send((local("echo"),), b"x")
            await peers[who].receive()
        server.transport.end_refused()
        assert len(server.transport.statistics().connections) == 3
        revoked.write_text(fingerprint(own_keys.alice[0]))
        assert server_tls.reload(changed_only=True)
        assert not server_tls.reload(changed_only=True)
        server.transport.end_refused()
        await server.wait_closed_because("tls_revoked")
        now_s += 2_000
        server.transport.end_refused()
        await server.wait_closed_because("tls_expired")
        await peers[bob].send((local("echo"),), b"still here")
        assert (await peers[bob].receive()).payload == b"still here"
        assert len(server.transport.statistics().connections) == 1
