"""Goal: a client that talks to something else than a node is told what is there, and a slow node is not taken for it.

Method: servers of other protocols that wait for their own requests, one that stands still, and one that is slow.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import split_host_port
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import NodeUnreachable, NotAStreamNode, RequestTimeout
from stream_client.core.client_connection import describe, opens_as_node
from stream_client.shell import async_shell as async_client
from stream_client.shell import blocking_shell, contact
from stream_client.shell.contact import identify
from stream_node.node.process import NodeProcess
from tests.client.shells import ShellName, Tools, run_in
from tests.support import strangers
from tests.support.served import served


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_client, blocking_shell):
        monkeypatch.setattr(module, "PROBE_AFTER_S", 0.05)
    monkeypatch.setattr(blocking_shell, "SLICE_S", 0.02)


def stranger(kind: str) -> AbstractContextManager[str]:
    if kind == "http":
        return strangers.http_server()
    return strangers.answering({"redis": strangers.redis, "ssh": strangers.ssh, "tls": strangers.tls}[kind])


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("http", "it answered HTTP"),
        ("redis", "it answered as Redis does"),
        ("tls", "it speaks TLS"),
        ("ssh", "it is an SSH server"),
    ],
)
def test_what_is_there_instead_is_told(
    shell: ShellName, framing: str, kind: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each server answers or ends the connection, on a busy machine not within half a second.
    monkeypatch.setattr(contact, "PROBE_S", 20.0)

    async def scenario(tools: Tools) -> None:
        async with tools.connect(framing=framing) as client:
            for _ in range(2):
                with pytest.raises(NotAStreamNode, match=f"{tools.address} is no stream node: {says}") as caught:
                    await client.create("x")
            assert (caught.value.retriable, caught.value.fault) == (False, "node")

    with stranger(kind) as address:
        run_in(shell, scenario, address)


@pytest.mark.parametrize(
    ("kind", "says"), [(strangers.silent, "sends nothing"), (strangers.ends_at_once, "ends them without a word")]
)
def test_a_port_that_says_nothing_is_given_up_where_that_is_asked_for(
    shell: ShellName, kind: object, says: str
) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(contact_timeout_s=0.3) as client:
            with pytest.raises(NodeUnreachable, match=says):
                await client.create("x")
        # Without that time, silence is what a busy node is like.
        async with tools.connect(answer_timeout_s=0.3) as client:
            with pytest.raises(RequestTimeout):
                await client.create("x")

    assert callable(kind)
    with strangers.answering(kind) as address:
        run_in(shell, scenario, address)


def test_a_node_without_that_service_is_told_apart(shell: ShellName, node: NodeProcess) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="nosuch", contact_timeout_s=0.5) as client:
            with pytest.raises(NodeUnreachable, match="greets as a node does, and no 'nosuch' answers"):
                await client.create("x")

    run_in(shell, scenario, node.address)


def test_a_slow_node_is_no_stranger(shell: ShellName, node: NodeProcess) -> None:
    """A server that stands still until it has been looked into, and is a node then."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect(contact_timeout_s=20.0) as client:
            await client.reached()
            stream = await client.create("slow")
            assert await stream.push(b"x") >= 0

    with strangers.answering(strangers.Lazy(node.address)) as address:
        run_in(shell, scenario, address)


@pytest.mark.parametrize("shell", ["trio", "asyncio"])
def test_a_client_for_which_there_is_no_thread_goes_on(
    shell: ShellName, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a system without room for one more thread does not end a program. Method: the look into the server, and
    the look for its name, raise what Python raises then; the second look for the name succeeds."""
    real, looks = socket.getaddrinfo, []

    def look(host: Any, *arguments: Any, **named: Any) -> Any:
        looks.append(host)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        return real(host, *arguments, **named)

    def fail(address: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(async_client, "PROBE_AFTER_S", 0.0)
    monkeypatch.setattr(async_client, "identify", fail)
    monkeypatch.setattr(socket, "getaddrinfo", look)

    async def scenario(tools: Tools) -> None:
        async with tools.connect(waits=False) as client:
            assert await (await client.create(f"threads {shell}")).push(b"x") == 0

    run_in(shell, scenario, f"localhost:{split_host_port(node.address)[1]}")
    assert len(looks) > 1


async def test_a_node_that_was_looked_into_warns_of_nothing(tmp_path: Path) -> None:
    """Another client of TLS, which did not ask but meant it, is told in the log."""
    with capture_logs() as logs:
        async with served(tmp_path) as server:
            assert await trio.to_thread.run_sync(identify, server.address) is None
            assert not [line for line in logs if line["log_level"] not in ("debug", "info")]
            context = ssl.create_default_context()
            with socket.create_connection(split_host_port(server.address)) as other, pytest.raises(ssl.SSLError):
                await trio.to_thread.run_sync(partial(context.wrap_socket, other, server_hostname="n"))
    assert [line["kind"] for line in logs if line["log_level"] == "warning"] == ["tls_unexpected"]


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"HTTP/1.1 400", "it answered HTTP"),
        (b"-NOAUTH Authentication required.", "it answered as Redis does"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", "it speaks HTTP/2, as gRPC servers do"),
        (b"J\x00\x00\x00\x0a8.0.35\x00", "it is a MySQL server"),
        (b'INFO {"server_id"', "it is a NATS server"),
        (b"220 mail ready", "it is a mail or FTP server"),
        (b"hello", "what it sends, b'hello', is not what a node sends"),
    ],
)
def test_first_bytes_tell_who_speaks(first: bytes, says: str) -> None:
    assert describe(first) == says
    assert not opens_as_node(first, HEAD)


@pytest.mark.parametrize("first", [b"\x00", b"\x00\x39", b"\x00\x39\x01\x01", b"\xff\xff\x02", b"\x00\x00\x00\x39\x01"])
def test_what_legacy_nodes_send_is_no_stranger(first: bytes) -> None:
    assert opens_as_node(first, LEGACY)
    assert not opens_as_node(b"HTTP/1.1", LEGACY)
