"""Goal: a token that ends, by revocation, replacement or its time, ends its connections and its clients, and no others.

Method: a whole server inside the test, whose rules allow everything to tokens and nothing else, and the real clients.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from stream_client import AuthenticationFailed, Reconnect, connect
from tests.support.served import wait_until
from tests.tokens.token_node import first_token, token_node

SOON = Reconnect(delay_s_max=0.05)


async def test_a_revoked_token_closes_the_connection_and_ends_the_client(tmp_path: Path) -> None:
    """A waiting pull ends, too. The client connects again by itself, is refused once, and does not try any more."""
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:
        async with connect(node.address, token=token, reconnect=SOON) as client:
            stream = await client.create("orders")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fails, lambda: stream.pull_page(0, wait_s=60))
                node.revoke()
            with pytest.raises(AuthenticationFailed, match="revoked"):
                await stream.push(b"x")
        await node.running.wait_closed_because("token_refused")
        statistics = node.running.statistics().tcp
        assert (statistics.closed, statistics.accepted) == ({"token_ended": 1, "token_refused": 1}, 2)


async def test_a_token_is_revoked_during_a_long_read(tmp_path: Path) -> None:
    """Two clients read megabytes without a pause, one of them message by message, while their token is revoked: each
    has read the stream without a gap so far, and ends with the typed error. A third one, with another token, reads to
    the end."""
    token, other = first_token(tmp_path), first_token(tmp_path, "other")
    data = [b"%06d" % number * 1_000 for number in range(3_000)]
    read: dict[str, list[bytes]] = {"page": [], "one": [], "other": []}
    async with token_node(tmp_path) as node:
        async with (
            connect(node.address, token=other) as client,
            (await client.create("orders")).publisher() as publisher,
        ):
            for each in data:
                await publisher.push(each)

        async def read_all(name: str, given: str, limit: int) -> None:
            async with connect(node.address, token=given, reconnect=SOON) as client:
                stream = await client.create("orders")
                while len(read[name]) < len(data) or name != "other":
                    page = await stream.pull(len(read[name]) % len(data), limit)
                    read[name] += [message.data for message in page]

        async def ends(name: str, limit: int) -> None:
            with pytest.raises(AuthenticationFailed, match="revoked"):
                await read_all(name, token, limit)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ends, "page", 1_000)
                nursery.start_soon(ends, "one", 1)
                nursery.start_soon(read_all, "other", other, 1_000)
                await wait_until(lambda: all(read.values()))
                node.revoke()
    for name in ("page", "one"):
        assert all(each == data[at % len(data)] for at, each in enumerate(read[name]))
    assert read["other"] == data


async def test_a_replaced_token_ends_the_connections_of_the_old_one(tmp_path: Path) -> None:
    old = first_token(tmp_path)
    async with token_node(tmp_path) as node, connect(node.address, token=old, reconnect=SOON) as client:
        stream = await client.create("orders")
        new = node.create(replace=True)
        await _fails(lambda: stream.pull_page(0, wait_s=60))
        async with connect(node.address, token=new) as other:
            assert await (await other.create("orders")).push(b"x") == 0


async def test_other_tokens_stay_connected(tmp_path: Path) -> None:
    """Making and revoking tokens closes no connection of others, of tokens or without."""
    token, other = first_token(tmp_path), first_token(tmp_path, "other")
    async with token_node(tmp_path) as node, connect(node.address, token=other, reconnect=None) as client:
        stream = await client.create("orders")
        node.create("third")
        node.revoke()
        with trio.fail_after(30):
            while True:
                try:
                    async with connect(node.address, token=token):
                        await stream.push(b"x")
                except AuthenticationFailed:
                    break
        assert await stream.push(b"x") > 0


async def test_a_token_expires_when_the_clock_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the node jumps by two hours, beyond the end of the token; a jump back makes it valid again."""
    now_s = [1_000_000.0]
    monkeypatch.setattr("stream_node.node.identity.token_services.time.time", lambda: now_s[0])
    token = first_token(tmp_path, expires_s=1_003_600)
    async with token_node(tmp_path) as node:
        async with connect(node.address, token=token, reconnect=SOON) as client:
            stream = await client.create("orders")
            await stream.push(b"x")
            now_s[0] += 7_200
            await _fails(lambda: stream.pull_page(1, wait_s=60))
        with pytest.raises(AuthenticationFailed, match="has expired"):
            async with connect(node.address, token=token):
                raise AssertionError("connected")
        now_s[0] -= 7_200
        async with connect(node.address, token=token):
            pass


async def _fails(act: Callable[[], Any]) -> None:
    """Repeats an act until the client ends. The node may answer a few before it sees the change."""
    with trio.fail_after(30):
        while True:
            try:
                await act()
            except AuthenticationFailed:
                return
            await trio.sleep(0.05)
