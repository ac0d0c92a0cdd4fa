"""Goal: what peers send as bodies of requests does not fill the memory of the node. Method: real connections that send
a part of a body and stop, with and without a right to send it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import trio

from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from stream_client import connect
from stream_node.doors.http.memory import LARGEST_BODIES_PARTY_MAX
from tests.ockam.identity.rules.guarded_node import may
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.stream_node.doors.http.test_data_push import RAW, post
from tests.stream_node.doors.http.test_identity import audit, rules, token
from tests.support.served import wait_until

BODY_BYTES_MAX = 100_000


async def begin(node: HttpNode, stack: AsyncExitStack, path: str, sent: int, method: str = "POST") -> trio.SocketStream:
    """Sends the head of a request, and a part of its body."""
    stream = await stack.enter_async_context(await node.connect())
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {RAW}",
        f"Content-Length: {BODY_BYTES_MAX}",
    )
    await stream.send_all("\r\n".join((*lines, "", "")).encode() + bytes(sent))
    return stream


async def status_of(stream: trio.SocketStream) -> int:
    with trio.fail_after(30):
        return int((await stream.receive_some(65_536)).split(b" ")[1])


async def test_a_peer_without_the_right_is_refused_before_its_body(tmp_path: Path) -> None:
    """Pushes, new streams and changed ones: the answer comes while most of the body is missing, and is audited."""
    settings = rules(tmp_path, may(Right.READ, name="reads"))
    async with http_node(tmp_path, http_body_bytes_max=BODY_BYTES_MAX, **settings) as node, AsyncExitStack() as stack:
        for method, path in (("POST", "/v1/streams/s"), ("PUT", "/v1/streams/s"), ("PATCH", "/v1/streams/s")):
            assert await status_of(await begin(node, stack, path, 10, method)) == 403
    assert [request.split()[0] for _, _, request in audit(tmp_path, "refused")] == ["POST", "PUT", "PATCH"]


async def test_one_host_cannot_hold_the_room_of_all_bodies(tmp_path: Path) -> None:
    """Bodies that do not end: those above the share of one host are refused. When they are gone, pushes go on."""
    async with http_node(tmp_path, http_body_bytes_max=BODY_BYTES_MAX) as node:
        async with AsyncExitStack() as stack:
            for _ in range(LARGEST_BODIES_PARTY_MAX):
                await begin(node, stack, "/v1/streams/s", BODY_BYTES_MAX - 1)
            await wait_until(lambda: held(node) == LARGEST_BODIES_PARTY_MAX * (BODY_BYTES_MAX - 1))
            status, answer = await post(node, "/v1/streams/s", bytes(1_000))
            assert (status, answer["type"]) == (503, "urn:stream-node:problem:too-many-bodies")
        await wait_until(lambda: held(node) == 0)
        assert (await post(node, "/v1/streams/s", bytes(1_000)))[0] == 200


def held(node: HttpNode) -> int:
    return node.statistics().body_bytes


async def test_a_body_that_drips_ends_in_time(tmp_path: Path) -> None:
    """A byte at a time, each within the time for a part: the whole body has a time of its own."""
    async with http_node(tmp_path, http_body_timeout_s=0.2) as node, AsyncExitStack() as stack:
        stream = await begin(node, stack, "/v1/streams/s", 1)
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                while True:
                    await trio.sleep(0.02)
                    await stream.send_all(b"x")

            nursery.start_soon(drip)
            assert await status_of(stream) == 408
            nursery.cancel_scope.cancel()


async def test_all_bodies_are_part_of_the_memory_for_peers(tmp_path: Path) -> None:
    """Bodies that do not end, of less than one host's share, and more than the memory of the node: the connections that
    hold most are closed, and a push goes on."""
    most = 1024 * 1024
    async with (
        http_node(tmp_path, http_body_bytes_max=4 * BODY_BYTES_MAX, peer_memory_bytes_max=most) as node,
        AsyncExitStack() as stack,
    ):
        for _ in range(14):
            await begin(node, stack, "/v1/streams/s", BODY_BYTES_MAX - 1)
        await wait_until(lambda: node.running.statistics().tcp.memory.closed >= 3)
        await wait_until(lambda: held(node) <= most)
        assert node.running.statistics().tcp.memory.size_bytes <= most
        # The memory of a closed connection is free at once, so the others stay.
        assert node.running.statistics().tcp.memory.closed < 8
        assert (await post(node, "/v1/streams/s", bytes(1_000)))[0] == 200


async def test_a_retention_without_the_right_makes_no_stream(tmp_path: Path) -> None:
    text = token(tmp_path, "maker")
    rule = Rule("maker", ("token:maker",), may=Right.CREATE | Right.READ)
    async with http_node(tmp_path, **rules(tmp_path, rule)) as node, node.client(token=text) as client:
        answer = await client.put("/v1/streams/s", json={"retention": {"messages": 5}})
        assert (answer.status_code, answer.json()["right"]) == (403, "admin")
        assert (await client.get("/v1/streams")).json()["partitions"] == []
        assert (await client.put("/v1/streams/s", json={})).status_code == 201


async def test_a_retention_is_that_of_every_partition(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, node.client() as client:
        await client.put("/v1/streams/s", json={"partitions": 3})
        answer = await client.put("/v1/streams/s", json={"retention": {"messages": 5}})
        found = (await client.get("/v1/streams/s/info")).json()["partitions"]
        assert [each["retention"]["messages"] for each in found] == [5, 5, 5]
        assert answer.json()["partitions"] == found


async def test_an_index_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    """A reader that waits there would miss the messages before it. The end itself is no error."""
    async with http_node(tmp_path) as node, node.client() as client:
        await post(node, "/v1/streams/s", b"0")
        assert (await client.get("/v1/streams/s?from=1")).status_code == 200
        for headers in ({}, {"Accept": "text/event-stream"}):
            answer = await client.get("/v1/streams/s?from=2", headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:stream-node:problem:position-beyond-end")


async def test_a_follower_of_a_stream_that_was_made_again_is_told(tmp_path: Path) -> None:
    """The new stream is longer than the old one was, so that the index alone would look right."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        stream = await native.create("s")
        for _ in range(2):
            await stream.push(b"old")
        (created,) = (await client.get("/v1/streams/s/info")).json()["partitions"]
        assert created["next_index"] == 2
        created_us = (await stream.info()).created_us
        await stream.delete()
        stream = await native.create("s")
        for _ in range(5):
            await stream.push(b"new")
        headers = {"Accept": "text/event-stream", "Last-Event-ID": f"2-{created_us}"}
        answer = await client.get("/v1/streams/s", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:stream-node:problem:stream-not-found")
