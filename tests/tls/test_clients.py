"""Goal: every client speaks mutual TLS, and each fault of TLS is one typed error that says what to do.

Method: a whole server inside the test, and the real clients: async (trio and asyncio), blocking, and that of blocks.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import block_node.client
import block_node.client.blocking
from ockam.identity.tls import Tls
from ockam.transport.connection_machine import BACKLOG_BYTES_SOFT
from stream_client import (
    InvalidArgument,
    NodeUnreachable,
    Reconnect,
    StreamClient,
    TlsFailed,
    TlsRequired,
    blocking,
    connect,
)
from tests.support.certificates import fingerprint
from tests.support.served import served
from tests.tls.keys import Keys, settings

MESSAGES = [b"%d" % number * 300 for number in range(500)]


async def use(client: StreamClient) -> None:
    """Pushes and pulls some megabytes, so that records and reads do not coincide."""
    stream = await client.create("orders")
    async with stream.publisher() as publisher:
        for data in MESSAGES:
            await publisher.push(data)
    large = b"x" * (2 * BACKLOG_BYTES_SOFT // 3)
    await stream.push(large)
    read = await stream.pull(0, len(MESSAGES))
    assert [message.data for message in read] == MESSAGES
    (last,) = await stream.pull(len(MESSAGES), 1)
    assert last.data == large


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
async def test_the_async_client_under_trio(keys: Keys, tmp_path: Path, framing: Any) -> None:
    async with (
        served(tmp_path / "data", **settings(keys)) as running,
        connect(running.address, tls=keys.tls(), framing=framing) as client,
    ):
        if framing == "legacy":
            assert await (await client.create("small")).push(b"x") == 0
        else:
            await use(client)


@asynccontextmanager
async def in_thread(running: Callable[[], None]) -> AsyncIterator[None]:
    """Runs a function in a thread of its own, and raises its error at the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, running)
        yield


async def test_the_async_client_under_asyncio(keys: Keys, tmp_path: Path) -> None:
    async with served(tmp_path / "data", **settings(keys)) as running:

        async def main() -> None:
            async with connect(running.address, tls=keys.tls()) as client:
                await use(client)

        async with in_thread(lambda: asyncio.run(main())):
            pass


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
async def test_the_blocking_client(keys: Keys, tmp_path: Path, framing: Any) -> None:
    async with served(tmp_path / "data", **settings(keys)) as running:

        def main() -> None:
            with blocking.connect(running.address, tls=keys.tls(), framing=framing) as client:
                stream = client.create("orders")
                with stream.publisher() as publisher:
                    for data in MESSAGES:
                        publisher.push(data)
                size = 50 if framing == "legacy" else len(MESSAGES)
                read = [message.data for at in range(0, len(MESSAGES), size) for message in stream.pull(at, size)]
                assert read == MESSAGES

        async with in_thread(main):
            pass


async def test_both_clients_of_blocks(keys: Keys, tmp_path: Path) -> None:
    async with served(tmp_path / "data", **settings(keys)) as running:
        async with block_node.client.connect(running.address, tls=keys.tls()) as client:
            assert (await client.status(detail=True)).detail is not None

        def main() -> None:
            with block_node.client.blocking.connect(running.address, tls=keys.tls()) as client:
                assert client.status().next_expected == 0

        async with in_thread(main):
            pass


FAULTS: dict[str, tuple[str, str]] = {
    "no certificate": ("tls_no_certificate", "give this client its certificate and key"),
    "stranger": ("tls_unknown_ca", "compare the authorities"),
    "expired": ("tls_expired", "renew the certificate"),
    "revoked": ("tls_revoked", "ask the operator of the node for a new certificate"),
    "strange node": ("tls_unknown_ca", "compare the authorities"),
    "wrong name": ("tls_wrong_name", "call the node by a name in its certificate"),
    "plain node": ("tls_not_tls", "connect without TLS, or give the node a certificate"),
}
"""For each fault: the kind of the error, and the beginning of what to do."""


def faulty(keys: Keys, fault: str) -> Tls:
    if fault == "no certificate":
        return Tls(ca=keys.ca)
    if fault == "stranger":
        return keys.tls(keys.strangers.issue("alice"))
    if fault == "expired":
        return keys.tls(keys.authority.issue("expired", ends_s=-10))
    if fault == "strange node":
        return keys.tls(ca=keys.strangers.ca)
    return keys.tls(server_name="elsewhere.example") if fault == "wrong name" else keys.tls()


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_one_typed_error_in_both_clients(own_keys: Keys, tmp_path: Path, fault: str) -> None:
    revoked = tmp_path / "revoked.txt"
    revoked.write_text(fingerprint(own_keys.alice[0]) if fault == "revoked" else "")
    given = {} if fault == "plain node" else settings(own_keys, tls_revoked=str(revoked))
    kind, advice = FAULTS[fault]
    tls = faulty(own_keys, fault)
    async with served(tmp_path / "data", **given) as running:
        with pytest.raises(TlsFailed, match=advice) as raised:
            async with connect(running.address, tls=tls):
                pass
        assert (raised.value.kind, raised.value.fault, raised.value.retriable) == (kind, "caller", True)

        def main() -> None:
            with pytest.raises(TlsFailed, match=advice) as raised, blocking.connect(running.address, tls=tls):
                pass
            assert raised.value.kind == kind

        async with in_thread(main):
            pass


async def test_a_client_without_tls_at_a_port_with_tls_says_what_to_give(keys: Keys, tmp_path: Path) -> None:
    async with served(tmp_path / "data", **settings(keys)) as running:
        with pytest.raises(TlsRequired, match=r"speaks TLS.*--tls-ca"):
            async with connect(running.address, reconnect=None) as client:
                await client.create("orders")

        def main() -> None:
            with (
                pytest.raises(TlsRequired, match=r"speaks TLS.*--tls-ca"),
                blocking.connect(running.address, reconnect=None) as client,
            ):
                client.create("orders")

        async with in_thread(main):
            pass


async def test_a_server_that_hangs_up_in_the_handshake_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            for _ in range(2):
                listening.accept()[0].close()

        threading.Thread(target=hang_up).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(NodeUnreachable, match="ended the connection during the TLS handshake"):
            async with connect(address, tls=Tls()):
                pass

        def main() -> None:
            with (
                pytest.raises(NodeUnreachable, match="ended the connection during the TLS handshake"),
                blocking.connect(address, tls=Tls()),
            ):
                pass

        async with in_thread(main):
            pass


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (Tls(ca="missing.pem"), "cannot read missing.pem"),
        (Tls(key="client.key"), "given without its certificate"),
    ],
)
async def test_files_that_cannot_be_used_are_an_argument_that_is_not_valid(tls: Tls, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        async with connect("127.0.0.1:1", tls=tls):
            pass
    with pytest.raises(InvalidArgument, match=said), blocking.connect("127.0.0.1:1", tls=tls):
        pass


async def test_a_client_goes_on_with_its_new_certificate_after_the_old_one_was_revoked(
    own_keys: Keys, tmp_path: Path
) -> None:
    """The node ends the connection; the client's file is replaced; the client connects again and loses nothing."""
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("")
    async with served(tmp_path / "data", **settings(own_keys, tls_revoked=str(revoked))) as running:
        reconnect = Reconnect(delay_s=0.01, delay_s_max=0.05)
        async with connect(running.address, tls=own_keys.tls(), reconnect=reconnect) as client:
            stream = await client.create("orders")
            await stream.push(b"before")
            old = fingerprint(own_keys.alice[0])
            own_keys.authority.issue("alice")
            revoked.write_text(old)
            await running.wait_closed_because("tls_revoked")
            await stream.push(b"after")
            assert [message.data for message in await stream.pull(0, 9)] == [b"before", b"after"]
        assert client.statistics().connections >= 2
