"""Goal: every client proves its name with a token on each connection, and a refusal is one typed error that ends it.

Method: a whole server inside the test, whose rules allow everything to tokens and nothing else, and the real clients.
"""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import block_node.client
import block_node.client.blocking
from ockam.identity.token import TokenError
from stream_client import (
    AccessDenied,
    AuthenticationFailed,
    InvalidArgument,
    NodeUnreachable,
    NotAStreamNode,
    Reconnect,
    Token,
    blocking,
    connect,
)
from stream_node.node.process import NodeProcess
from tests.support.served import wait_until
from tests.support.strangers import answering, http_server, silent
from tests.tokens.token_node import UNKNOWN, first_token, node_has, own_address, token_node

FRAMING = pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
SOON = Reconnect(delay_s_max=0.05)


async def in_thread(function: Callable[[], None]) -> None:
    with trio.fail_after(60):
        await trio.to_thread.run_sync(function)


@FRAMING
async def test_the_async_client_under_trio(tmp_path: Path, framing: Any) -> None:
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:
        async with connect(node.address, token=token, framing=framing) as client:
            assert await (await client.create("orders")).push(b"x") == 0
        async with connect(node.address, framing=framing) as client:
            with pytest.raises(AccessDenied, match="for anonymous"):
                await client.create("orders")


async def test_the_async_client_under_asyncio(tmp_path: Path) -> None:
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:

        async def main() -> None:
            async with connect(node.address, token=token) as client:
                assert await (await client.create("orders")).push(b"x") == 0

        await in_thread(lambda: asyncio.run(main()))


@FRAMING
async def test_the_blocking_client(tmp_path: Path, framing: Any) -> None:
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:

        def main() -> None:
            with blocking.connect(node.address, token=token, framing=framing) as client:
                assert client.create("orders").push(b"x") == 0

        await in_thread(main)


async def test_both_clients_of_blocks(tmp_path: Path) -> None:
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:
        async with block_node.client.connect(node.address, token=token) as client:
            assert (await client.status()).next_expected == 0

        def main() -> None:
            with block_node.client.blocking.connect(node.address, token=token) as client:
                assert client.status().next_expected == 0

        await in_thread(main)


@pytest.mark.parametrize(
    ("kind", "framing"),
    [("unknown", "head"), ("unknown", "legacy"), ("unknown", "auto"), ("expired", "head"), ("revoked", "legacy")],
)
async def test_a_refused_token_is_a_typed_error(tmp_path: Path, framing: Any, kind: str) -> None:
    """`connect` itself raises, in both clients, and the text says what to do without showing the token."""
    token = first_token(tmp_path, expires_s=1 if kind == "expired" else None)
    async with token_node(tmp_path) as node:
        if kind == "revoked":
            node.revoke()
            await node_has(node, 0)
        given = UNKNOWN if kind == "unknown" else token
        told = []
        with pytest.raises(AuthenticationFailed) as caught:
            async with connect(node.address, token=given, framing=framing):
                raise AssertionError("connected")
        told.append(caught.value)

        def main() -> None:
            with (
                pytest.raises(AuthenticationFailed) as caught,
                blocking.connect(node.address, token=given, framing=framing),
            ):
                raise AssertionError("connected")
            told.append(caught.value)

        await in_thread(main)
        for error in told:
            assert isinstance(error, AccessDenied)
            assert (error.kind, error.retriable, error.fault) == (kind, False, "caller")
            assert "ask the operator" in str(error)
            assert given[6:] not in repr(error) + str(error)


async def test_the_client_authenticates_again_after_a_restart(tmp_path: Path) -> None:
    """The node of a process is killed and started anew; an idempotent publisher goes on, and each message is there
    once."""
    token = first_token(tmp_path)
    (tmp_path / "access.toml").write_text('[[rule]]\nname = "t"\nwho = ["token:spark"]\nmay = ["all"]\non = [""]\n')
    variables = {"STREAM_NODE_ACCESS_RULES": str(tmp_path / "access.toml")}
    with NodeProcess(tmp_path / "data", environment=variables, arguments=("--log-level", "error")) as process:
        async with connect(process.address, token=token, reconnect=SOON) as client:
            stream = await client.create("orders")
            with blocking.connect(process.address, token=token, reconnect=SOON) as waiting:
                same = waiting.create("orders")
                async with stream.publisher(idempotent=True) as publisher:
                    await publisher.push(b"0")
                    await publisher.flush()
                    process.kill()
                    await publisher.push(b"1")
                    await trio.to_thread.run_sync(process.start)
                    await publisher.push(b"2")
                expected = [b"0", b"1", b"2"]
                assert [each.data for each in await stream.pull(0, 10)] == expected
                assert [each.data for each in same.pull(0, 10)] == expected


async def test_a_token_never_leaves_the_machine_without_tls(tmp_path: Path) -> None:
    """The clients refuse before they send it: a server at the real address of this machine sees the hello at most."""
    host, token = own_address(), first_token(tmp_path)
    async with token_node(tmp_path, f"{host}:0", insecure=True) as node:
        with pytest.raises(AuthenticationFailed, match="nothing was sent") as caught:
            async with connect(node.address, token=token):
                raise AssertionError("connected")
        assert caught.value.kind == "unencrypted"

        def main() -> None:
            with pytest.raises(AuthenticationFailed, match="--tls-ca"), blocking.connect(node.address, token=token):
                raise AssertionError("connected")

        await in_thread(main)
        await wait_until(lambda: sum(node.running.statistics().tcp.closed.values()) == 2)
        assert "token_refused" not in node.running.statistics().tcp.closed


async def test_a_server_that_is_no_node_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is sent only after the hello of a node: a web server and a silent server see one byte."""
    seen = []

    def watching(connection: Any) -> None:
        while data := connection.recv(1_000):
            seen.append(data)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with answering(watching) as address:
        async with connect(address, token=UNKNOWN, reconnect=None) as client:
            with pytest.raises(NotAStreamNode, match="HTTP"):
                await client.create("orders")
    assert b"sntok" not in b"".join(seen)
    # Each of the four attempts below waits for a hello as long as an attempt to connect may take.
    monkeypatch.setattr("stream_client.shell.base_shell.CONNECT_TIMEOUT_S", 1.0)
    with http_server() as address, answering(silent) as mute:
        for each in (address, mute):
            with pytest.raises(NodeUnreachable, match="sends nothing"):
                async with connect(each, token=UNKNOWN):
                    raise AssertionError("connected")

            def main(each: str = each) -> None:
                with (
                    pytest.raises(NodeUnreachable, match="sends nothing"),
                    blocking.connect(each, token=UNKNOWN),
                ):
                    raise AssertionError("connected")

            await in_thread(main)


async def test_a_token_in_a_file_may_change(tmp_path: Path) -> None:
    """The file is read for each connection, so a new token in it is used after the old one was revoked."""
    file = tmp_path / "me.token"
    file.write_text(first_token(tmp_path) + "\n")
    async with (
        token_node(tmp_path) as node,
        connect(node.address, token=Token(file=file), reconnect=SOON) as client,
    ):
        stream = await client.create("orders")
        file.write_text(node.create("next"))
        await node_has(node, 2)
        node.revoke()
        await node.running.wait_closed_because("token_ended")
        assert await stream.push(b"x") == 0


def test_a_pipe_is_read_once() -> None:
    """As that of `--token-file <(…)` in a shell, also for the second connection."""
    reading, writing = os.pipe()
    os.write(writing, UNKNOWN.encode() + b"\n")
    os.close(writing)
    token = Token(file=f"/dev/fd/{reading}")
    assert [token.read(), token.read()] == [UNKNOWN] * 2
    os.close(reading)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Token("secret"), "the text that was given is no token"),
        (lambda: Token(), "give one of these"),
        (lambda: Token(UNKNOWN, file="x"), "give one of these"),
        (lambda: Token(file="/none/x").read(), "cannot read the token file /none/x"),
        (lambda: Token(variable="NO_SUCH_VARIABLE").read(), "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_what_is_no_token_is_said(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(TokenError, match=said) as caught:
        made()
    assert "secret" not in str(caught.value)


async def test_connect_refuses_what_is_no_token() -> None:
    with pytest.raises(InvalidArgument, match="is no token"):
        async with connect("127.0.0.1:1", token="hunter2"):
            raise AssertionError("connected")


def test_a_token_is_not_shown_and_not_pickled(tmp_path: Path) -> None:
    token = Token(UNKNOWN)
    assert UNKNOWN[6:] not in f"{token} {token!r} {[token]} {copy.deepcopy(token)}"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(token)
    for place in (Token(file=tmp_path / "t"), Token(variable="T")):
        assert pickle.loads(pickle.dumps(place)) == place
        assert copy.copy(place) is place
