"""Goal: a follower of server-sent events that does not read costs little memory, disturbs nobody, and is ended in time.

Method: a running node and raw sockets with small buffers that do not read; the memory of its process is the system's
own figure.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from bench.processes import memory_bytes
from ockam.actors.address import split_host_port
from ockam.identity.rules.tokens import create_token, revoke_token
from stream_client import Stream, connect
from stream_node.node.process import NodeProcess
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.doors.http.test_data_pull import Follower
from tests.support.served import wait_until

DATA = b"x" * 20_000
SIZE_BYTES = 24 * 1024 * 1024
COUNT = SIZE_BYTES // len(DATA)
FOLLOWERS = 20
MEMORY_BYTES_MAX = 160 * 1024 * 1024
"""The followers together would need 480 MiB if the node kept for each what it has not taken."""


@asynccontextmanager
async def stalled(
    address: str, path: str = "/v1/streams/much", accept: str = "text/event-stream", *headers: str
) -> AsyncIterator[trio.SocketStream]:
    """A peer that asks for something, such as to follow a stream from its beginning, and does not read."""
    raw = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await raw.connect(split_host_port(address))
    async with trio.SocketStream(raw) as stream:
        lines = (f"GET {path} HTTP/1.1", "Host: localhost", f"Accept: {accept}", *headers, "", "")
        await stream.send_all("\r\n".join(lines).encode())
        yield stream


async def fill(stream: Stream, count: int = COUNT) -> None:
    async with stream.publisher() as publisher:
        for _ in range(count):
            await publisher.push(DATA)


@pytest.mark.slow
async def test_followers_that_do_not_read_keep_little_in_memory_and_disturb_nobody(tmp_path: Path) -> None:
    """Twenty followers do not read 24 MiB each. Another follower gets every message meanwhile, pushes are answered, and
    a stalled follower that begins to read gets every message once."""
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as node:
        async with connect(node.address) as client, AsyncExitStack() as stack:
            stream = await client.create("much")
            await fill(stream)
            before_bytes = memory_bytes(node.pid)
            slow = [await stack.enter_async_context(stalled(node.http[0])) for _ in range(FOLLOWERS)]
            quick = Follower(await trio.open_tcp_stream(*split_host_port(node.http[0])))
            await quick._stream.send_all(
                b"GET /v1/streams/much HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            )
            assert await indexes(quick, COUNT) == list(range(COUNT))
            assert await stream.push(b"one more") == COUNT
            assert await indexes(quick, 1) == [COUNT]
            assert memory_bytes(node.pid) - before_bytes < MEMORY_BYTES_MAX
            await quick._stream.aclose()
            assert await indexes(Follower(slow[0]), COUNT + 1) == list(range(COUNT + 1))


async def indexes(follower: Follower, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        events = await follower.events(min(100, count - len(found)))
        assert events, "the node has ended the answer"
        found += [json.loads(event["data"])["index"] for event in events]
    return found


async def test_a_follower_that_takes_nothing_in_time_is_closed(tmp_path: Path) -> None:
    """Its connection is free again for others; the stream and the other connections stay."""
    async with http_node(tmp_path, send_timeout_s=0.3) as node, connect(node.running.address) as client:
        stream = await client.create("much")
        await fill(stream, 1_000)
        async with stalled(node.address), stalled(node.address), node.client() as other:
            assert (await other.get("/livez")).status_code == 200
            await wait_until(lambda: node.statistics().open == 1)
            assert (await other.get("/v1/streams/much?from=latest")).json()["next_index"] == 1_000


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_follower_that_was_behind_is_told_of_the_deletion(tmp_path: Path, is_made_again: bool) -> None:
    """The stream is deleted while its follower does not read, and perhaps there is a new one with the same name. The
    follower gets what was already sent, then the problem, and then the end; no message of the new stream."""
    async with http_node(tmp_path) as node, connect(node.running.address) as client:
        stream = await client.create("much")
        await fill(stream, 1_000)
        async with stalled(node.address) as slow:
            await wait_until(lambda: node.statistics().requests == {"200": 1})
            await stream.delete()
            if is_made_again:
                again = await client.create("much")
                await again.push(b"new")
            follower, seen = Follower(slow), list[int]()
            while "event" not in (event := (await follower.events(1))[0]):
                message = json.loads(event["data"])
                assert message["data"] == DATA.decode()
                seen.append(message["index"])
            problem = json.loads(event["data"])
            assert event["event"] == "problem"
            assert problem["type"] == "urn:stream-node:problem:stream-not-found"
            assert ("created again" in problem["detail"]) == is_made_again
            assert seen == list(range(len(seen)))
            assert 0 < len(seen) < 1_000
            await follower.wait_end()


@pytest.mark.parametrize("replaces", [False, True])
async def test_a_follower_that_was_behind_is_told_that_its_token_has_ended(tmp_path: Path, replaces: bool) -> None:
    """Claim: an ended token gives no further message. Method: it is revoked, or replaced, while its follower does not
    read; the follower gets what was already sent, then the problem, and then the end."""
    file = tmp_path / "data" / "tokens.json"
    text, _ = create_token(file, "reader", int(time.time()))
    async with http_node(tmp_path) as node, connect(node.running.address) as client, node.client(token=text) as other:
        await fill(await client.create("much"), 1_000)
        header = f"Authorization: Bearer {text}"
        async with stalled(node.address, "/v1/streams/much", "text/event-stream", header) as slow:
            await wait_until(lambda: node.statistics().requests == {"200": 1})
            if replaces:
                create_token(file, "reader", int(time.time()), replace=True)
            else:
                revoke_token(file, "reader", int(time.time()))
            with trio.fail_after(30):
                while (await other.get("/v1/streams")).status_code == 200:
                    await trio.sleep(0.05)
            follower, seen = Follower(slow), 0
            while "event" not in (event := (await follower.events(1))[0]):
                seen += 1
            assert json.loads(event["data"])["type"] == "urn:stream-node:problem:unauthorized"
            assert seen < 1_000
            await follower.wait_end()
