"""Goal: messages that are read over HTTP are those that every other client reads, and no message breaks a page.

Method: real nodes; the native client pushes, and `http.client`, httpx and curl read. Followers are read line by line.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from ockam.actors.address import split_host_port
from ockam.identity.rules.rights import Right
from stream_client import connect
from tests.ockam.identity.rules.guarded_node import may
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.stream_node.doors.http.test_identity import rules, token
from tests.support.served import wait_until

LINES = {"Accept": "application/x-ndjson"}
EVENTS = {"Accept": "text/event-stream"}
ODD = (
    b'{"a": 1.000,\n "a": 12345678901234567890123}',
    b"text \x00 \xe2\x82\xac\n",
    b"\xff\xfe",
    b"",
    b"[" * 5000,
    b'"\xff"',
)


async def push(node: HttpNode, name: str, *messages: bytes) -> None:
    async with connect(node.running.address) as client:
        stream = await client.create(name)
        for data in messages:
            await stream.push(data)


def exact(message: dict[str, object]) -> bytes:
    """The bytes of a message that was asked for as base64."""
    return base64.b64decode(str(message["data"])) if message["encoding"] == "base64" else str(message["data"]).encode()


async def test_a_page_shows_every_message(tmp_path: Path) -> None:
    """JSON is a value with its numbers as they were sent, text is text, and other bytes are base64."""
    async with http_node(tmp_path) as node, node.client() as client:
        async with connect(node.running.address) as native:
            stream = await native.create("odd")
            for data in ODD:
                await stream.push(data, key=b"\xff" if data == b"" else "k", headers=[("a", "ü"), ("b", b"\xfe")])
        answer = await client.get("/v1/streams/odd")
        page = answer.json()
        assert [each["encoding"] for each in page["messages"]] == ["json", "text", "base64", "text", "text", "base64"]
        assert '"data":{"a":1.000,"a":12345678901234567890123}' in answer.text
        assert [each.get("key_base64") for each in page["messages"]] == [None, None, None, "/w==", None, None]
        assert page["messages"][0]["headers"] == [{"name": "a", "value": "ü"}, {"name": "b", "value_base64": "/g=="}]
        assert (page["first_index"], page["next_index"], page["resume_index"]) == (0, 6, 6)
        assert answer.headers["link"] == '</v1/streams/odd?partition=0&from=6>; rel="next"'
        plain = (await client.get("/v1/streams/odd?data=base64")).json()
        assert [base64.b64decode(each["data"]) for each in plain["messages"]] == list(ODD)
        lines = await client.get("/v1/streams/odd?from=1", headers=LINES)
        assert [json.loads(line) for line in lines.text.split("\n")[:-1]] == page["messages"][1:]
        assert lines.headers["stream-resume-index"] == "6"


async def test_one_message_has_exactly_its_bytes(tmp_path: Path) -> None:
    """`http.client`, which shares no code with the node, gets what was pushed."""
    async with http_node(tmp_path) as node:
        await push(node, "a/b", *ODD)

        def get(index: int) -> tuple[int, bytes, str | None]:
            connection = http.client.HTTPConnection(*split_host_port(node.address), timeout=30)
            connection.request("GET", f"/v1/streams/a%2Fb/messages/{index}")
            answer = connection.getresponse()
            try:
                return answer.status, answer.read(), answer.headers["content-type"]
            finally:
                connection.close()

        for index, data in enumerate(ODD):
            assert await trio.to_thread.run_sync(get, index) == (200, data, "application/octet-stream")
        status, body, kind = await trio.to_thread.run_sync(get, 6)
        assert (status, kind) == (404, "application/problem+json")
        assert "it has those from 0 to 5" in json.loads(body)["detail"]


async def test_reading_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    """An index, the ends and a time; pages follow each other without a gap; retention moves the beginning."""
    async with http_node(tmp_path) as node, node.client() as client:
        await push(node, "numbers", *(b"%d" % number for number in range(25)))

        async def found(query: str) -> list[int]:
            answer = await client.get(f"/v1/streams/numbers?{query}")
            assert answer.status_code == 200, answer.text
            return [each["data"] for each in answer.json()["messages"]]

        assert await found("from=20") == [20, 21, 22, 23, 24]
        assert await found("from=earliest&limit=2") == [0, 1]
        assert await found("from=latest") == await found("from=25") == []
        assert await found("limit=1&from=last") == [24]
        time = (await client.get("/v1/streams/numbers?from=10&limit=1")).json()["messages"][0]["time"]
        assert (await found(f"from={time}"))[0] <= 10
        assert await found("from=1999-01-01T00:00:00+01:00&limit=1") == [0]
        assert await found("from=2999-01-01T00:00:00Z") == []
        at, seen = "earliest", list[int]()
        while page := (await client.get("/v1/streams/numbers", params={"from": at, "limit": 7})).json():
            if not page["messages"]:
                break
            seen += [each["data"] for each in page["messages"]]
            at = str(page["resume_index"])
        assert seen == list(range(25))
        async with connect(node.running.address) as native:
            await (await native.create("numbers")).truncate(20)
        assert await found("from=3") == [20, 21, 22, 23, 24]


async def test_wrong_questions_say_what_to_ask(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, node.client() as client:
        await push(node, "numbers", b"1")
        async with connect(node.running.address) as native:
            await native.create_partitioned("parted", 2)
        for query in (
            "from=x",
            "from=-1",
            "from=2026-01-01",
            "limit=0",
            "limit=1001",
            "wait=61",
            "wait=nan",
            "data=hex",
            "form=1",
        ):
            answer = await client.get(f"/v1/streams/numbers?{query}")
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:stream-node:problem:invalid-request"), (
                query
            )
        for query, reason in (
            ("limit=many", "the parameter limit is wrong: Expected `int`, got `str`"),
            ("partition=some", "the parameter partition is wrong: Expected `int`, got `str`"),
            ("partition=null", "the parameter partition is wrong: it must not be null"),
            ("data=a - at `$.b`", "the parameter data is wrong: Invalid enum value 'a - at `$.b`'"),
        ):
            assert (await client.get(f"/v1/streams/numbers?{query}")).json()["detail"] == reason
        path = "/v1/streams/numbers/consumers/c"
        assert (await client.put(path)).json()["detail"] == "the parameter index is missing"
        answer = await client.get("/v1/streams/number")
        assert (answer.status_code, "'numbers'" in answer.json()["detail"]) == (404, True)
        answer = await client.get("/v1/streams/parted")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:stream-node:problem:partition-needed")
        assert (await client.get("/v1/streams/parted?partition=2")).status_code == 404
        assert (await client.get("/v1/streams/parted?key=a")).status_code == 200
        assert (await client.get("/v1/streams/numbers", headers={"Accept": "text/html"})).status_code == 406
        assert (await client.get("/v1/streams/numbers", headers={"Accept": "text/html, */*;q=0.1"})).status_code == 200
        head = await client.head("/v1/streams/numbers")
        assert (head.status_code, head.content, head.headers["stream-next-index"]) == (200, b"", "1")


async def test_a_request_waits_for_a_message(tmp_path: Path) -> None:
    """The answer comes with the message; a request whose peer has gone waits no more."""
    async with http_node(tmp_path) as node, node.client() as client:
        await push(node, "later", b"0")
        async with trio.open_nursery() as nursery:
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await client.get("/v1/streams/later?from=1&wait=60"))

            nursery.start_soon(ask)
            await wait_until(lambda: waiting(node) == 1)
            await push(node, "later", b"1")
        assert [each["data"] for each in answers[0].json()["messages"]] == [1]
        stream = await node.connect()
        await stream.send_all(b"GET /v1/streams/later?from=2&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wait_until(lambda: waiting(node) == 1)
        await stream.aclose()
        await wait_until(lambda: waiting(node) == 0)


async def test_a_read_that_a_stop_ends_is_never_in_doubt(tmp_path: Path) -> None:
    """A request that waits for messages is answered when the node stops, and changed nothing."""
    with trio.fail_after(60):
        async with http_node(tmp_path, drain_timeout_s=0.2) as node:
            await push(node, "later", b"0")
            stream = await node.connect()
            await stream.send_all(b"GET /v1/streams/later?from=1&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await wait_until(lambda: waiting(node) == 1)
            node.running.server.stop()
            answer = b""
            while received := await stream.receive_some():
                answer += received
            await stream.aclose()
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b'"in_doubt":false' in answer, answer


def waiting(node: HttpNode) -> int:
    """The number of requests that a client inside the node is used for at present."""
    http_listener = node.running.server._http
    assert http_listener is not None
    return sum(held.users for held in http_listener.clients._held.values())


class Follower:
    """A peer that follows a stream over a socket of its own. last: the id of the latest event."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self.last = ""

    async def events(self, count: int) -> list[dict[str, str]]:
        """The next events that have data; fewer, if the node ends the answer."""
        found: list[dict[str, str]] = []
        with trio.fail_after(30):
            while len(found) < count:
                event, ends, self._rest = self._rest.partition(b"\n\n")
                if not ends:
                    self._rest = event
                    received = bytes(await self._stream.receive_some())
                    if not received:
                        break
                    self._rest += received
                    continue
                # The lines of a chunk's size, and of the headers, are no fields of an event.
                lines = [line.partition(": ") for line in event.decode().splitlines()]
                fields = {name: value for name, _, value in lines if name in ("id", "data", "event", "retry")}
                self.last = fields.get("id", self.last)
                if "data" in fields:
                    found.append(fields)
        return found

    async def wait_end(self) -> None:
        """Waits until the answer ends, as the last chunk says. Fails if another event comes before it."""
        with trio.fail_after(30):
            while not self._rest.endswith(b"0\r\n\r\n"):
                received = bytes(await self._stream.receive_some())
                assert received, "the connection ended without the end of the answer"
                self._rest += received
        assert b"data:" not in self._rest


@asynccontextmanager
async def following(node: HttpNode, path: str, *headers: str) -> AsyncIterator[Follower]:
    async with await node.connect() as stream:
        lines = (f"GET /v1/streams/{path} HTTP/1.1", "Host: localhost", "Accept: text/event-stream", *headers, "", "")
        await stream.send_all("\r\n".join(lines).encode())
        yield Follower(stream)


async def test_a_follower_gets_every_message_once_across_connections(tmp_path: Path) -> None:
    """A follower that connects again with the last id misses no message and gets none twice."""
    async with http_node(tmp_path) as node:
        await push(node, "live", *(b"%d" % number for number in range(250)))
        seen: list[int] = []
        last: tuple[str, ...] = ()
        for until in (3, 260, 270):
            async with following(node, "live", *last) as follower:
                if until > 250:
                    await push(node, "live", *(b"%d" % number for number in range(until - 10, until)))
                for event in await follower.events(until - len(seen)):
                    message = json.loads(event["data"])
                    assert event["id"].split("-")[0] == str(message["index"] + 1)
                    seen.append(message["data"])
                last = (f"Last-Event-ID: {event['id']}",)
        assert seen == list(range(270))


async def test_a_follower_goes_on_where_it_began(tmp_path: Path) -> None:
    """A follower of new messages that is cut off before the first one knows the index at which it began."""
    async with http_node(tmp_path) as node:
        await push(node, "live", b"0")
        async with following(node, "live?from=latest") as follower:
            with trio.move_on_after(0.5):
                await follower.events(1)
            assert follower.last.split("-")[0] == "1"
        await push(node, "live", b"1")
        async with following(node, "live?from=latest", "Last-Event-ID: 1") as follower:
            assert [json.loads(event["data"])["data"] for event in await follower.events(1)] == [1]


async def test_the_end_of_a_follower_frees_everything(tmp_path: Path) -> None:
    """Many followers of one host share one client, and end with their connections; a stopping node ends them."""
    async with http_node(tmp_path, http_connections_max=400) as node, AsyncExitStack() as stack:
        await push(node, "live", b"0")
        others = await stack.enter_async_context(AsyncExitStack())
        followers = [await others.enter_async_context(following(node, "live")) for _ in range(49)]
        last = await stack.enter_async_context(following(node, "live"))
        for follower in (*followers, last):
            await follower.events(1)
        assert (node.statistics().open, node.statistics().clients) == (50, 1)
        await push(node, "live", b"1")
        for follower in (*followers, last):
            assert [json.loads(event["data"])["data"] for event in await follower.events(1)] == [1]
        await others.aclose()
        await wait_until(lambda: node.statistics().open == 1)
        await wait_until(lambda: waiting(node) <= 1)
        node.running.server.stop()
        assert await last.events(1) == []


async def test_a_deleted_stream_ends_its_followers_with_the_reason(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, connect(node.running.address) as native:
        stream = await native.create("short")
        await stream.push("1")
        async with following(node, "short") as follower:
            await follower.events(1)
            await stream.delete()
            (ended,) = await follower.events(1)
            await follower.wait_end()
        assert ended["event"] == "problem"
        assert json.loads(ended["data"])["type"] == "urn:stream-node:problem:stream-not-found"


async def test_a_damaged_message_does_not_break_its_page(tmp_path: Path) -> None:
    """The bytes of one message are changed in the database: the others are shown, and it is shown with the reason."""
    async with http_node(tmp_path) as node:
        await push(node, "hurt", *(b"message %d" % number for number in range(5)))
    with sqlite3.connect(tmp_path / "data" / "streams.sqlite") as database:
        database.execute("UPDATE messages SET data = X'00' WHERE idx = 2")
    async with http_node(tmp_path) as node, node.client() as client:
        page = (await client.get("/v1/streams/hurt")).json()
        assert [each["encoding"] for each in page["messages"]] == ["text", "text", "error", "text", "text"]
        assert "the database is damaged" in page["messages"][2]["error"]
        assert page["resume_index"] == 5
        lines = await client.get("/v1/streams/hurt?from=1&limit=2", headers=LINES)
        assert [json.loads(line)["encoding"] for line in lines.text.splitlines()] == ["text", "error"]
        alone = await client.get("/v1/streams/hurt/messages/2")
        assert (alone.status_code, alone.json()["type"]) == (500, "urn:stream-node:problem:damaged-message")


async def test_rules_hold_for_readers(tmp_path: Path) -> None:
    """A refusal names the right, whether the stream exists or not."""
    text = token(tmp_path, "reader")
    settings = rules(
        tmp_path, may(Right.READ, on="open", who="token:reader"), may(Right.WRITE | Right.CREATE, name="writes")
    )
    async with http_node(tmp_path, **settings) as node, node.client(token=text) as reader, node.client() as nobody:
        await push(node, "open", b"1")
        await push(node, "shut", b"1")
        assert (await reader.get("/v1/streams/open")).status_code == 200
        for client, name in ((reader, "shut"), (reader, "missing"), (nobody, "open"), (nobody, "missing")):
            for path, headers in ((name, {}), (name, EVENTS), (f"{name}/messages/0", {})):
                answer = await client.get(f"/v1/streams/{path}", headers=headers)
                assert (answer.status_code, answer.json().get("right")) == (403, "read"), (name, answer.text)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_follows(tmp_path: Path) -> None:
    """curl gets the events as they come, without a buffer in between."""
    async with http_node(tmp_path) as node:
        await push(node, "live", b"0", b"1")
        command = ["curl", "-sSN", "--noproxy", "*", "-H", "Accept: text/event-stream", "--max-time", "2"]
        done = await trio.run_process(
            [*command, f"{node.url}/v1/streams/live"], capture_stdout=True, capture_stderr=True, check=False
        )
        assert done.returncode == 28
        assert [json.loads(line[6:])["data"] for line in done.stdout.decode().splitlines() if line[:5] == "data:"] == [
            0,
            1,
        ]


async def test_a_missing_stream_is_missing_at_this_node(tmp_path: Path) -> None:
    """The text of the error names no address of a peer."""
    async with http_node(tmp_path) as node, node.client() as client:
        answer = await client.get("/v1/streams/nowhere")
        assert (answer.status_code, answer.json()["detail"]) == (404, "this node has no stream 'nowhere'")
