"""Goal: a message that is posted over HTTP is stored like any other one, once, and byte for byte.

Method: real nodes; `http.client` and curl push, and the native client reads. A killed process shows what is kept.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import split_host_port
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from stream_client import ClientError, PushNotStored, PushUnknown, connect
from stream_client.blocking import connect as connect_blocking
from stream_node.doors.http.data.push import _answer
from stream_node.doors.http.problems import Problem
from stream_node.node.inside_clients import Stored
from stream_node.node.process import NodeProcess
from tests.ockam.identity.rules.guarded_node import may
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.stream_node.doors.http.test_identity import rules, token

LINES = "application/x-ndjson"
RAW = "application/octet-stream"
JSON = "application/json"


async def post(node: HttpNode, path: str, body: bytes, kind: str = RAW, **headers: str) -> tuple[int, Any]:
    """Posts by `http.client`. Returns the status and the JSON of the answer."""
    return await trio.to_thread.run_sync(request, node.address, "POST", path, body, {"Content-Type": kind, **headers})


def request(address: str, method: str, path: str, body: bytes = b"", headers: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*split_host_port(address), timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


async def stored(node: HttpNode, name: str, partition: int = 0) -> list[tuple[bytes, bytes | None]]:
    async with connect(node.running.address) as client:
        stream = (await client.get_stream(name)).get_partition(partition)
        return [(each.data, each.key) for each in (await stream.pull_page()).messages]


async def test_each_type_of_body_is_stored_byte_for_byte(tmp_path: Path) -> None:
    """The native client reads the bytes that were posted: spaces of JSON, large numbers and bytes that are no text."""
    odd = bytes(range(256)) * 300
    async with http_node(tmp_path) as node:
        for body, kind in ((odd, RAW), (b' {"a": 1.000, "a": 12345678901234567890123}', JSON), (b"", RAW)):
            status, answer = await post(node, "/v1/streams/mixed", body, kind)
            assert (status, answer["partition"], answer["duplicates"]) == (200, 0, 0), answer
        status, answer = await post(node, "/v1/streams/mixed", b'{"a":1}\r\n\n"zw\xc3\xb6lf"\n[]', LINES)
        assert (status, answer["indexes"]) == (200, [3, 4, 5])
        assert [data for data, _ in await stored(node, "mixed")] == [
            odd,
            b' {"a": 1.000, "a": 12345678901234567890123}',
            b"",
            b'{"a":1}',
            b'"zw\xc3\xb6lf"',
            b"[]",
        ]


async def test_wrong_bodies_store_nothing_and_say_what_to_do(tmp_path: Path) -> None:
    """Neither a message nor a stream is made by a request that is refused."""
    wrong = (
        (b"{", JSON, 400, "not-json"),
        (b'{"a":1}\n{"a":', LINES, 400, "not-json"),
        (b"[" * 100_000, JSON, 400, "not-json"),
        (b"\n \n", LINES, 400, "no-message"),
        (b"0\n" * 10_001, LINES, 413, "too-many-messages"),
        (b'"\xff"', JSON, 400, "not-json"),
        (b"x" * 16_770_000, RAW, 413, "message-too-large"),
        (b"a=1", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        (b"a", "", 415, "unsupported-media-type"),
    )
    async with http_node(tmp_path, http_body_bytes_max=16_775_000) as node:
        for body, kind, status, name in wrong:
            found, answer = await post(node, "/v1/streams/new", body, kind)
            assert (found, answer["type"]) == (status, f"urn:stream-node:problem:{name}"), (answer, len(body))
        for path in (
            "new?partition=x",
            "new?partition=-1",
            "new?other=1",
            "new?key=a&key=b",
            "new?key=%FF",
            "new?sequence=1",
            "new?partition=null",
            "%FF",
            "a%00b",
            "x" * 1025,
            "new?key_base64=_",
            "new?create=maybe",
        ):
            found, answer = await post(node, f"/v1/streams/{path}", b"x")
            assert (found, answer["type"]) == (400, "urn:stream-node:problem:invalid-request"), (path, answer)
        assert (await post(node, "/v1/streams/new?create=false", b"x"))[0] == 404
        assert (await post(node, "/v1/streams/new?partition=1", b"x"))[0] == 404
        async with connect(node.running.address) as client:
            assert [each async for each in client.list_streams()] == []


async def test_names_can_have_every_character(tmp_path: Path) -> None:
    """Slashes, percent signs, spaces and letters of other scripts are written with percent signs."""
    async with http_node(tmp_path) as node:
        for path, name in (("a%2Fb", "a/b"), ("50%25", "50%"), ("%C3%BC%20%E2%82%AC", "ü €"), ("..", "..")):
            status, answer = await post(node, f"/v1/streams/{path}", b"x")
            assert (status, answer["stream"]) == (200, name)
            assert await stored(node, name) == [(b"x", None)]


async def test_keys_choose_the_partition_as_for_everybody_else(tmp_path: Path) -> None:
    """The partition of a key is that of the native client; messages without a key reach every partition."""
    async with http_node(tmp_path) as node, connect(node.running.address) as client:
        made = await client.create_partitioned("parted", 3)
        for key in (b"a", b"b", b"\xff\xfe", b""):
            text = base64.urlsafe_b64encode(key).decode()
            status, answer = await post(node, f"/v1/streams/parted?key_base64={text}", b"x")
            assert (status, answer["partition"]) == (200, made.partition_for(key).partition)
            assert (b"x", key) in await stored(node, "parted", answer["partition"])
        status, answer = await post(node, "/v1/streams/parted?key=null", b"no word")
        assert (b"no word", b"null") in await stored(node, "parted", answer["partition"])
        status, answer = await post(node, "/v1/streams/parted?key=z%C3%BC&partition=1", b"by number")
        assert (b"by number", "zü".encode()) in await stored(node, "parted", 1)
        hit = {(await post(node, "/v1/streams/parted", b"any"))[1]["partition"] for _ in range(40)}
        assert hit == {0, 1, 2}
        status, answer = await post(node, "/v1/streams/parted?partition=3", b"x")
        assert (status, answer["type"]) == (404, "urn:stream-node:problem:stream-not-found")
        status, answer = await post(node, "/v1/streams/parted?publisher_id=d&sequence=0", b"x")
        assert (status, answer["type"]) == (409, "urn:stream-node:problem:partition-needed")


async def test_a_message_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    """A device repeats a request; a number that does not follow is told with the expected one. The native client goes
    on with the same numbers."""
    async with http_node(tmp_path) as node:
        for _ in range(3):
            status, answer = await post(
                node, "/v1/streams/readings?publisher_id=device-7&sequence=5", b"1\n2\n3", LINES
            )
            assert (status, answer["indexes"][1:]) == (200, [1, 2])
        assert answer["duplicates"] == 3
        status, answer = await post(node, "/v1/streams/readings?publisher_id=device-7&sequence=9", b"5")
        assert (status, answer["type"]) == (409, "urn:stream-node:problem:out-of-order")
        assert (answer["expected"], answer["retriable"], answer["in_doubt"]) == (8, False, False)
        # The two requests overlap: what is stored is counted as such, and the rest is stored.
        status, answer = await post(node, "/v1/streams/readings?publisher_id=device-7&sequence=7", b"3\n4", LINES)
        assert (status, answer["indexes"], answer["duplicates"]) == (200, [2, 3], 1)
        async with connect(node.running.address) as client:
            stream = await client.create("readings")
            async with stream.publisher(publisher_id="device-7", first_number=8) as publisher:
                assert await publisher.wait(await publisher.push("4")) == 3
                assert await publisher.wait(await publisher.push("5")) == 4
        assert [data for data, _ in await stored(node, "readings")] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("stored", "errors", "in_doubt"),
    [
        (0, [PushNotStored("no room"), PushNotStored("no room")], False),
        (1, [PushNotStored("no room")], True),
        (0, [PushNotStored("no room"), PushUnknown("the disk failed")], True),
    ],
)
def test_a_body_of_which_something_may_be_stored_is_in_doubt(
    stored: int, errors: list[ClientError], in_doubt: bool
) -> None:
    """Claim: a client that repeats what is retriable and not in doubt stores nothing twice. The disk became full
    between two commits."""
    with pytest.raises(Problem) as raised:
        _answer("s", 0, [Stored(1, 0)] * stored + [Stored(1, -1, each) for each in errors], 0)
    members = raised.value.members
    assert (members["stored"], members["retriable"], members["in_doubt"]) == (stored, True, in_doubt)


async def test_headers_of_the_request_are_headers_of_its_messages(tmp_path: Path) -> None:
    """Bytes of HTTP by hand: names in small letters, values byte for byte, repeated ones in their order. Each message
    of the body has all of them. The native client and a page of HTTP show the same. Other headers are not stored."""
    lines = (
        b"POST /v1/streams/orders?key=k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Other: no\r\n"
        b"Stream-Header-Trace-Id: 4bf9\r\nSTREAM-HEADER-tag: a\r\nstream-header-tag:  z\xc3\xbc, b \r\n"
        b"Stream-Header-Raw: \xff\r\nStream-Header-Empty:\r\n"
        b"Content-Type: application/x-ndjson\r\nContent-Length: 3\r\n\r\n1\n2"
    )
    expected = [("trace-id", b"4bf9"), ("tag", b"a"), ("tag", "zü, b".encode()), ("raw", b"\xff"), ("empty", b"")]
    async with http_node(tmp_path) as node:
        assert (await node.exchange(lines)).startswith(b"HTTP/1.1 200 ")
        async with connect(node.running.address) as client:
            messages = (await (await client.get_stream("orders")).get_partition(0).pull_page()).messages
        assert [(each.data, each.key) for each in messages] == [(b"1", b"k"), (b"2", b"k")]
        for message in messages:
            assert [(each.name, each.value) for each in message.headers] == expected
        async with node.client() as reader:
            page = (await reader.get("/v1/streams/orders?from=1")).json()
        assert page["messages"][0]["headers"] == [
            {"name": "trace-id", "value": "4bf9"},
            {"name": "tag", "value": "a"},
            {"name": "tag", "value": "zü, b"},
            {"name": "raw", "value_base64": "/w=="},
            {"name": "empty", "value": ""},
        ]


async def test_headers_that_are_wrong_store_nothing(tmp_path: Path) -> None:
    """One without a name, and more than a request or a message may have. No stream is made either."""
    async with http_node(tmp_path, http_header_bytes_max=100_000) as node:
        status, answer = await post(node, "/v1/streams/orders", b"1", **{"Stream-Header-": "x"})
        assert (status, answer["type"]) == (400, "urn:stream-node:problem:invalid-request")
        assert "Stream-Header-NAME" in answer["detail"]
        status, answer = await post(node, "/v1/streams/orders", b"1", **{"Stream-Header-A": "x" * 20_000})
        assert (status, answer["type"]) == (413, "urn:stream-node:problem:message-too-large")
        status, answer = await post(node, "/v1/streams/orders", b"1", **{"Stream-Header-A": "x" * 100_000})
        assert (status, answer["type"]) == (431, "urn:stream-node:problem:headers-too-large")
        status, answer = await post(node, "/v1/streams/orders?key=" + "k" * 20_000, b"1")
        assert (status, answer["type"]) == (413, "urn:stream-node:problem:message-too-large")
        async with connect(node.running.address) as client:
            assert [each async for each in client.list_streams()] == []


async def test_a_numbered_message_keeps_its_headers(tmp_path: Path) -> None:
    """A repeated request stores neither the message nor its headers again."""
    async with http_node(tmp_path) as node:
        for _ in range(2):
            path = "/v1/streams/orders?publisher_id=d&sequence=0"
            status, _ = await post(node, path, b"1", **{"Stream-Header-A": "x"})
            assert status == 200
        async with connect(node.running.address) as client:
            (message,) = (await (await client.get_stream("orders")).get_partition(0).pull_page()).messages
        assert [(each.name, each.value) for each in message.headers] == [("a", b"x")]


async def test_rules_hold(tmp_path: Path) -> None:
    """A refusal names the missing right and the rule; a stream that may not be made is not made."""
    text = token(tmp_path, "writer")
    settings = rules(
        tmp_path,
        Rule("writer", ("token:writer",), may=Right.WRITE | Right.CREATE, on=("orders", "closed")),
        Rule("shut", ("token:writer",), may_not=Right.WRITE, on=("closed",)),
        may(Right.READ, name="reads"),
    )
    async with http_node(tmp_path, **settings) as node:
        bearer = {"Authorization": f"Bearer {text}"}
        assert (await post(node, "/v1/streams/orders", b"x", **bearer))[0] == 200
        for path, headers, right, rule in (
            ("orders", {}, "write", None),
            ("closed", bearer, "write", "shut"),
            ("other", bearer, "write", None),
            ("other?create=false", bearer, "write", None),
        ):
            status, answer = await post(node, f"/v1/streams/{path}", b"no", **headers)
            assert (status, answer["right"], answer["rule"]) == (403, right, rule), answer
            assert (answer["retriable"], answer["in_doubt"]) == (False, False)
        assert (await post(node, "/v1/streams/orders", b"x", Authorization="Bearer wrong"))[0] == 401
        assert node.running.statistics().storage.rows == 1


async def test_a_deleted_stream_is_made_again(tmp_path: Path) -> None:
    """The client inside the node, which knows the deleted stream, does not stand in the way."""
    async with http_node(tmp_path) as node, connect(node.running.address) as client:
        for _ in range(3):
            status, answer = await post(node, "/v1/streams/again", b"x")
            assert (status, answer["indexes"]) == (200, [0])
            await (await client.get_stream("again")).delete()


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """A process is killed directly after an answer; the next one has every message that was answered."""
    answered: list[int] = []
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as node:
        for number in range(5):
            body = b"\n".join(b"%d" % (number * 10 + at) for at in range(10))
            status, answer = request(node.http[0], "POST", "/v1/streams/kept", body, {"Content-Type": LINES})
            assert status == 200
            answered += answer["indexes"]
        node.kill()
    assert answered == list(range(50))
    with NodeProcess(tmp_path / "data") as node, connect_blocking(node.address) as client:
        messages = client.create("kept").pull()
        assert [each.data for each in messages] == [b"%d" % number for number in range(50)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_pushes_a_file(tmp_path: Path) -> None:
    """A program that shares no code with the node sends the lines of a file."""
    file = tmp_path / "lines"
    file.write_text('{"t":21.5}\n{"t":21.7}\n')
    async with http_node(tmp_path) as node:
        curl = ["curl", "-sS", "--noproxy", "*", "-H", f"Content-Type: {LINES}", "--data-binary", f"@{file}"]
        done = await trio.run_process([*curl, f"{node.url}/v1/streams/sensor?key=room-1"], capture_stdout=True)
        assert json.loads(done.stdout) == {"stream": "sensor", "partition": 0, "indexes": [0, 1], "duplicates": 0}
        assert await stored(node, "sensor") == [(b'{"t":21.5}', b"room-1"), (b'{"t":21.7}', b"room-1")]


async def test_gzip_is_decoded_within_the_limits(tmp_path: Path) -> None:
    """What is stored are the decoded bytes, of one or several members. A bomb, a torn body and other codings are
    refused, and nothing of them is stored or held."""
    lines = b"".join(b'{"n": %d}\n' % number for number in range(5_000))
    coded = gzip.compress(lines[:30_000]) + gzip.compress(lines[30_000:])
    bomb = gzip.compress(bytes(50 * 1024 * 1024))
    async with http_node(tmp_path, http_body_bytes_max=1024 * 1024) as node:

        async def send(body: bytes, coding: str, kind: str = RAW) -> tuple[int, Any]:
            async with node.client() as client:
                headers = {"Content-Type": kind, "Content-Encoding": coding}
                answer = await client.post("/v1/streams/s", content=body, headers=headers)
                return answer.status_code, answer

        for coding in ("gzip", "X-Gzip"):
            status, answer = await send(coded, coding, "application/x-ndjson")
            assert (status, len(answer.json()["indexes"])) == (200, 5_000)
        assert (await send(gzip.compress(b""), "gzip"))[0] == 200
        assert (await send(lines[:10], "identity"))[0] == 200
        assert (await send(bomb, "gzip"))[0] == 413
        # Of members without a byte, 15 MiB took 13 s of the node's time.
        for wrong in (coded[:-1], coded[:100], lines[:10], coded + b"x", gzip.compress(b"") * 1_001):
            assert (await send(wrong, "gzip"))[0] == 400
        for coding in ("br", "zstd", "deflate", "gzip, gzip"):
            status, answer = await send(coded, coding)
            assert (status, answer.headers["accept-encoding"]) == (415, "gzip")
            assert answer.json()["type"] == "urn:stream-node:problem:unsupported-coding"
        async with connect(node.running.address) as client:
            stream = (await client.get_stream("s")).get_partition(0)
            assert (await stream.info()).count == 10_002
            assert [each.data for each in await stream.pull(4_999, 2)] == [b'{"n": 4999}', b'{"n": 0}']
            assert [each.data for each in await stream.pull(10_000)] == [b"", lines[:10]]
        assert node.statistics().body_bytes == 0
        assert node.running.statistics().tcp.memory.parked_bytes == 0
