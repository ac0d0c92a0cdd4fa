"""Goal: over HTTP, consumers keep their positions and streams are administered as by every other client.

Method: real nodes; what httpx changes, the native client sees, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ockam.identity.rules.rights import Right
from stream_client import SavedIndexes, connect
from stream_node.doors.http.data import places, pull
from stream_service.mirroring import ROLE, BeMirror, RoleRequest
from stream_service.names import stream_address
from tests.ockam.identity.rules.guarded_node import may
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.doors.http.test_identity import rules, token
from tests.support.rich import ask
from tests.support.stream_peer import stream_peer

INVALID = "urn:stream-node:problem:invalid-request"


async def test_positions_are_those_of_every_client(tmp_path: Path) -> None:
    """A saved position does not go back, unless it is asked to; a name may have a slash; a position is forgotten."""
    path = "/v1/streams/a%2Fb/consumers/mail%2Fer"
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        await native.create_partitioned("a/b", 2)
        native_positions = SavedIndexes(native, "mail/er")
        assert (await client.get(path)).json() == {"stream": "a/b", "client_id": "mail/er", "positions": []}
        assert (await client.put(f"{path}?index=7")).json()["index"] == 7
        assert (await client.put(f"{path}?index=5&partition=0")).json()["index"] == 7
        await native_positions.save("a/b", {1: 3})
        found = (await client.get(path)).json()["positions"]
        assert [(each["partition"], each["index"]) for each in found] == [(0, 7), (1, 3)]
        assert (await client.put(f"{path}?index=2&partition=1&back=true")).json()["index"] == 2
        assert list(await native_positions.load("a/b", (0, 1))) == [7, 2]
        assert (await client.delete(f"{path}?partition=1")).json()["index"] is None
        assert [each["partition"] for each in (await client.get(path)).json()["positions"]] == [0]
        for query in ("", "?index=-1", "?index=x", "?index=1&partition=-1", "?indexes=1"):
            answer = await client.put(path + query)
            assert (answer.status_code, answer.json()["type"]) == (400, INVALID)


async def test_streams_are_made_changed_and_deleted(tmp_path: Path) -> None:
    """What is made over HTTP is there for the native client, with its partitions and its retention."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        body = {"partitions": 3, "retention": {"messages": 10}}
        for status in (201, 200):
            made = await client.put("/v1/streams/parted", json=body)
            assert (made.status_code, len(made.json()["partitions"])) == (status, 3)
        infos = await (await native.get_stream("parted")).info()
        assert [info.retention.messages if info.retention else None for info in infos] == [10, 10, 10]
        assert (await client.put("/v1/streams/plain")).status_code == 201
        described = (await client.get("/v1/streams/parted/info")).json()
        assert described == made.json()
        assert (described["partitions"][2]["next_index"], described["partitions"][2]["first_time"]) == (0, None)
        changed = await client.patch("/v1/streams/parted", json={"retention": None})
        assert [each["retention"] for each in changed.json()["partitions"]] == [None, None, None]
        await (await native.get_stream("parted")).get_partition(1).push("x")
        assert (await client.delete("/v1/streams/parted")).json() == {"stream": "parted", "messages": 1}
        assert await native.find_stream("parted") is None
        for path in ("parted/info", "parted"):
            assert (await client.get(f"/v1/streams/{path}")).status_code == 404
        assert (await client.delete("/v1/streams/parted")).status_code == 404
        for wrong in (
            b"[]",
            b"{",
            b'{"partitions":0}',
            b'{"partitions":1001}',
            b'{"partition":1}',
            b'{"retention":{"age":1}}',
        ):
            answer = await client.put("/v1/streams/wrong", content=wrong)
            assert (answer.status_code, answer.json()["type"]) == (400, INVALID), wrong
        assert await native.find_stream("wrong") is None


async def test_streams_are_listed_by_pages(tmp_path: Path) -> None:
    """Pages of two have every partition once, in order; the prefix chooses."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        for name in ("a", "b/1", "b/2", "c"):
            await native.create_partitioned(name, 3 if name == "b/2" else 1)
        seen: list[tuple[str, int]] = []
        query: dict[str, str | int] = {"limit": 2}
        while True:
            page = (await client.get("/v1/streams", params=query)).json()
            seen += [(each["stream"], each["partition"]) for each in page["partitions"]]
            if not page["more"]:
                break
            query |= {"after": seen[-1][0], "after_partition": seen[-1][1]}
        assert seen == [("a", 0), ("b/1", 0), ("b/2", 0), ("b/2", 1), ("b/2", 2), ("c", 0)]
        page = (await client.get("/v1/streams?prefix=b/")).json()
        assert [each["stream"] for each in page["partitions"]] == ["b/1", "b/2", "b/2", "b/2"]
        page = (await client.get("/v1/streams?after=b/2")).json()
        assert [each["stream"] for each in page["partitions"]] == ["c"]


async def test_rules_hold_for_administration(tmp_path: Path) -> None:
    """Each act needs its right; a refusal changes nothing."""
    text = token(tmp_path, "writer")
    settings = rules(tmp_path, may(Right.WRITE | Right.READ, who="token:writer"))
    async with http_node(tmp_path) as node, connect(node.running.address) as native:
        await (await native.create("orders")).push("x")
    async with http_node(tmp_path, **settings) as node, node.client(token=text) as client:
        for method, path, body, right in (
            ("DELETE", "orders", None, "delete"),
            ("PATCH", "orders", {"retention": None}, "admin"),
            ("PUT", "new", None, "create"),
            ("DELETE", "none", None, "delete"),
        ):
            answer = await client.request(method, f"/v1/streams/{path}", json=body)
            assert (answer.status_code, answer.json().get("right")) == (403, right), answer.text
        assert (await client.get("/v1/streams/orders")).json()["messages"][0]["data"] == "x"


async def test_a_follower_asks_once_for_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: the node is asked once for the partition of a follower, whether it remembers the stream or not. Method:
    both questions are counted; the answer to HEAD ends where the events would begin."""
    asked: list[str] = []

    def counted(question: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: object) -> Any:
            asked.append(question.__name__)
            return question(*arguments)

        return ask

    monkeypatch.setattr(places, "find_partitions", counted(places.find_partitions))
    monkeypatch.setattr(pull, "find_partition", counted(places.find_partition))
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        await native.create("s")
        for _ in range(2):
            await client.head("/v1/streams/s", headers={"Accept": "text/event-stream"})
    assert asked == ["find_partitions", "find_partition"]


async def test_a_description_is_that_of_now(tmp_path: Path) -> None:
    """Claim: what is told of a stream is its present state, although the node remembers which partitions it has.

    Method: pushes, a retention and a truncation after a first description, and a question for a missing message.
    """
    path = "/v1/streams/s"
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as native:
        (before,) = (await client.put(path)).json()["partitions"]
        assert (await client.get(f"{path}/info")).json()["partitions"] == [before]
        stream = await native.get_stream("s")
        for data in (b"a", b"b"):
            await stream.push(data)
        assert (await client.patch(path, json={"retention": {"messages": 10}})).status_code == 200
        await stream.get_partition(0).truncate(1)
        (now,) = (await client.get(f"{path}/info")).json()["partitions"]
        assert (now["first_index"], now["next_index"], now["size_bytes"]) == (1, 2, 1)
        assert now["retention"]["messages"] == 10
        assert (await client.get(f"{path}/messages/7")).json()["detail"].endswith("it has those from 1 to 1")


async def test_a_change_of_some_partitions_is_in_doubt(tmp_path: Path) -> None:
    """Goal: an error says so when a part of the change is made. Method: the second of two partitions is a mirror, which
    refuses every change; then it is the only one."""
    changes = [("PUT", {"retention": {"messages": 1}}), ("PATCH", {"retention": {"messages": 2}}), ("DELETE", None)]
    async with http_node(tmp_path) as node, node.client() as client, stream_peer(node.running.address) as peer:
        await peer.create_partitions("s", 2)
        become = RoleRequest(1, BeMirror("127.0.0.1:9", "there"), False)
        await ask(peer, (stream_address("s", 1),), ROLE, become)
        for method, body in changes:
            problem = (await client.request(method, "/v1/streams/s", json=body)).json()
            assert "'s' is a mirror" in problem["detail"]
            assert problem["in_doubt"], method
        assert [each["partition"] for each in (await client.get("/v1/streams/s/info")).json()["partitions"]] == [1]
        for method, body in changes[1:]:
            problem = (await client.request(method, "/v1/streams/s", json=body)).json()
            assert not problem["in_doubt"], method
