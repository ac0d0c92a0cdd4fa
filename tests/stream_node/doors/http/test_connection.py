"""Goal: a connection of HTTP/1.1 behaves at each of its edges: the requests on it, their bodies, and its end.

Method: real nodes; bytes by hand over real sockets, and clients that share no code with the node: http.client and curl.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import split_host_port
from stream_client import connect
from stream_node.doors.http.app import Endpoint, HttpCall, json_response
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.served import wait_until

HOST = b"Host: localhost\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
LAST = b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
PUSH = b"POST /v1/streams/s HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\n"
FOLLOW = b"GET /v1/streams/s HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"


class Peer:
    """Sends bytes, and reads answers with a parser of their own: `http.client` knows no pipelining."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.rest = b""

    async def until(self, end: bytes) -> bytes:
        """Returns everything up to these bytes, with them."""
        with trio.fail_after(30):
            while end not in self.rest:
                received = bytes(await self.stream.receive_some())
                assert received, f"the connection ended after {self.rest!r}"
                self.rest += received
        found, _, self.rest = self.rest.partition(end)
        return found + end

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body of the next answer that announces its length."""
        first, *lines = (await self.until(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
        size_bytes = int(headers.get("content-length", 0))
        with trio.fail_after(30):
            while len(self.rest) < size_bytes:
                self.rest += bytes(await self.stream.receive_some())
        body, self.rest = self.rest[:size_bytes], self.rest[size_bytes:]
        return int(first.split(" ")[1]), headers, body

    async def end(self) -> bytes:
        """Returns everything until the node ends the connection."""
        with trio.fail_after(30):
            while received := bytes(await self.stream.receive_some()):
                self.rest += received
        return self.rest


async def peer_of(node: HttpNode, *sent: bytes) -> Peer:
    """Connects, and sends bytes part by part. The connection is closed with the node."""
    peer = Peer(await node.connect())
    node.running._streams.append(peer.stream)
    for part in sent:
        await peer.stream.send_all(part)
    return peer


async def in_thread(node: HttpNode, ask: Callable[[http.client.HTTPConnection], Any]) -> Any:
    """Calls a function with a connection of `http.client`, whose calls block."""

    def run() -> Any:
        connection = http.client.HTTPConnection(*split_host_port(node.address), timeout=30)
        try:
            return ask(connection)
        finally:
            connection.close()

    return await trio.to_thread.run_sync(run)


async def test_requests_of_one_connection_follow_each_other(tmp_path: Path) -> None:
    """http.client sends many requests over one connection, with and without bodies, and one is answered with 404."""

    def ask(connection: http.client.HTTPConnection) -> list[int]:
        found = []
        for number in range(20):
            method, path, body = (("GET", "/livez", None), ("POST", "/v1/streams/s", b"x"), ("GET", "/no", None))[
                number % 3
            ]
            connection.request(method, path, body, {"Content-Type": "text/plain"} if body else {})
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
        return found

    async with http_node(tmp_path) as node:
        assert await in_thread(node, ask) == [(200, 200, 404)[number % 3] for number in range(20)]
        assert node.statistics().accepted == 1


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    """Several requests come at once, byte by byte too, and the last one ends the connection. Bytes after it are
    nothing."""
    requests = PUSH + b"Content-Length: 1\r\n\r\n0" + GET + PUSH + b"Content-Length: 1\r\n\r\n1" + LAST
    async with http_node(tmp_path) as node:
        for parts in ([requests + b"\r\nGET / HTTP/1.1\r\n"], [bytes([each]) for each in requests]):
            peer = await peer_of(node, *parts)
            answers = [await peer.answer() for _ in range(4)]
            assert [status for status, _, _ in answers] == [200] * 4
            assert [json.loads(answers[each][2])["indexes"] for each in (0, 2)] in ([[0], [1]], [[2], [3]])
            assert [headers.get("connection") for _, headers, _ in answers] == [None, None, None, "close"]
            assert await peer.end() == b""


async def test_a_slow_pipelined_request_is_not_cut_by_the_idle_time(tmp_path: Path) -> None:
    """The idle time counts only while no request is there: a long poll that came together with another one lasts until
    a silent connection has ended."""
    async with http_node(tmp_path, http_idle_timeout_s=1.0) as node, connect(node.running.address) as client:
        stream = await client.create("s")
        wait = b"GET /v1/streams/s?wait=30 HTTP/1.1\r\n" + HOST + b"\r\n"
        peer = await peer_of(node, GET + wait)
        assert (await peer.answer())[0] == 200
        assert await (await peer_of(node)).end() == b""
        await stream.push(b"now")
        status, _, body = await peer.answer()
        assert status == 200
        assert len(json.loads(body)["messages"]) == 1


async def test_head_has_the_headers_of_get_and_no_body(tmp_path: Path) -> None:
    """The next answer on the connection follows directly. An error has no body either."""
    async with http_node(tmp_path) as node:
        peer = await peer_of(node, GET.replace(b"GET", b"HEAD") + GET.replace(b"GET /livez", b"HEAD /no") + LAST)
        heads = [await peer.until(b"\r\n\r\n") for _ in range(2)]
        assert [head.split(b" ")[1] for head in heads] == [b"200", b"404"]
        status, headers, body = await peer.answer()
        assert status == 200
        assert b"content-length: %d\r\n" % len(body) in heads[0]
        assert {"date", "content-type"} <= set(headers)
        assert await peer.end() == b""


async def test_after_head_other_answers_have_their_bodies(tmp_path: Path) -> None:
    """A request that is not HTTP gets its whole refusal. HEAD for a follower ends with its headers."""
    with capture_logs() as logs:
        async with http_node(tmp_path) as node, connect(node.running.address) as client:
            await client.create("s")
            peer = await peer_of(
                node, GET.replace(b"GET", b"HEAD") + FOLLOW.replace(b"GET", b"HEAD") + b"no HTTP\r\n\r\n"
            )
            heads = [await peer.until(b"\r\n\r\n") for _ in range(2)]
            assert [head.split(b" ")[1] for head in heads] == [b"200", b"200"]
            assert b"text/event-stream" in heads[1]
            status, _, body = await peer.answer()
            assert (status, json.loads(body)["status"]) == (400, 400)
            assert await peer.end() == b""
    assert [line["event"] for line in logs if "failed" in line["event"]] == []


async def test_small_chunks_leave_others_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While any four parts of a body are taken, another task runs, however many parts came by one read."""
    turns: list[int] = []

    async def count(call: HttpCall) -> Any:
        ran = 0

        async def run() -> None:
            nonlocal ran
            while True:
                ran += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            async for _ in call.request.stream():
                turns.append(ran)
            nursery.cancel_scope.cancel()
        return json_response({})

    monkeypatch.setattr("stream_node.doors.http.endpoints.ENDPOINTS", (Endpoint("POST", "/counts", count),))
    async with http_node(tmp_path) as node:
        head = b"POST /counts HTTP/1.1\r\n" + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        received = await node.exchange(head + b"1\r\na\r\n" * 1000 + b"0\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert len(turns) >= 1000
    # A batch of trio runs each task once, in any order.
    assert all(before < after for before, after in zip(turns, turns[3:], strict=False))


async def test_a_target_with_a_host_means_that_host(tmp_path: Path) -> None:
    """Goal: a target that names the node, as clients of proxies send it, is served, and its host counts.

    Method: RFC 9112, section 3.2.2, by hand; the header Host says another name each time.
    """
    async with http_node(tmp_path) as node:
        for target, host, status in (
            (b"http://localhost/livez", b"evil.example", 200),
            (b"HTTP://127.0.0.1:80/livez?verbose=1", b"evil.example", 200),
            (b"http://localhost?verbose=1", b"evil.example", 303),
            (b"http://evil.example/livez", b"localhost", 421),
            (b"http://@/livez", b"localhost", 400),
        ):
            peer = await peer_of(node, b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            answer = await peer.answer()
            assert answer[0] == status, (target, answer)


async def test_http_1_0_ends_after_its_answer(tmp_path: Path) -> None:
    """An answer of unknown length has no chunks, and ends with the connection."""
    async with http_node(tmp_path) as node, connect(node.running.address) as client:
        assert (await node.exchange(LAST.replace(b"1.1", b"1.0"))).startswith(b"HTTP/1.1 200 ")
        assert (await node.exchange(GET.replace(b"1.1", b"1.0"))).startswith(b"HTTP/1.1 200 ")
        stream = await client.create("s")
        await stream.push(b"first")
        peer = await peer_of(node, FOLLOW.replace(b"1.1", b"1.0"))
        head = await peer.until(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"onnection: close" in head
        await stream.delete()
        assert b"event: problem" in await peer.end()


async def test_chunks_of_any_size_are_one_body(tmp_path: Path) -> None:
    """Chunks with an extension and a trailer, torn at every place, and those that http.client makes of an iterator."""

    def ask(connection: http.client.HTTPConnection) -> bytes:
        parts = iter([b"a" * 70_000, b"b", b"c" * 200_000])
        connection.request("POST", "/v1/streams/s", parts, {"Content-Type": "text/plain"}, encode_chunked=True)
        return connection.getresponse().read()

    chunks = b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nX: y\r\n\r\n"
    async with http_node(tmp_path) as node, node.client() as client:
        peer = await peer_of(node, *(bytes([each]) for each in PUSH + chunks), GET)
        assert [(await peer.answer())[0] for _ in range(2)] == [200, 200]
        assert json.loads(await in_thread(node, ask))["indexes"] == [1]
        messages = [(await client.get(f"/v1/streams/s/messages/{each}")).content for each in range(2)]
        assert messages == [b"abcd", b"a" * 70_000 + b"b" + b"c" * 200_000]


async def test_a_body_is_asked_for_when_it_is_wanted(tmp_path: Path) -> None:
    """With `Expect: 100-continue`, an accepted body is asked for once, and the connection goes on. A body that nobody
    wants is not asked for: the answer comes instead, and ends the connection."""
    expect = b"Expect: 100-continue\r\n"
    async with http_node(tmp_path, http_body_bytes_max=100) as node:
        peer = await peer_of(node, PUSH + expect + b"Content-Length: 2\r\n\r\n")
        assert (await peer.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await peer.stream.send_all(b"ab")
        assert (await peer.answer())[0] == 200
        for request, expected in (
            (PUSH + expect + b"Content-Length: 101\r\n\r\n", 413),
            (b"POST /livez HTTP/1.1\r\n" + HOST + expect + b"Content-Length: 5\r\n\r\n", 405),
        ):
            await peer.stream.send_all(request)
            status, headers, _ = await peer.answer()
            assert (status, headers["connection"]) == (expected, "close")
            assert await peer.end() == b""
            peer = await peer_of(node)
        # A peer that does not wait gets no interim answer.
        await peer.stream.send_all(PUSH + expect + b"Content-Length: 2\r\n\r\nab")
        assert (await peer.answer())[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_sends_and_reads(tmp_path: Path) -> None:
    """curl waits for leave to send a large body, sends chunks, asks for the headers alone, and offers HTTP/2."""
    large = tmp_path / "large"
    large.write_bytes(b"z" * 2_000_000)
    async with http_node(tmp_path) as node:
        post = ("-H", "Content-Type: text/plain", f"{node.url}/v1/streams/s")
        for arguments, expected in (
            (("-H", "Expect: 100-continue", "--data-binary", f"@{large}", *post), '"indexes":[0]'),
            (("-H", "Transfer-Encoding: chunked", "--data-binary", f"@{large}", *post), '"indexes":[1]'),
            (("-I", f"{node.url}/livez"), "200"),
            (("--http1.0", f"{node.url}/livez"), '"live":true'),
            (("-H", "Connection: Upgrade", "-H", "Upgrade: h2c", f"{node.url}/livez"), '"live":true'),
            ((f"{node.url}/livez", f"{node.url}/readyz"), '"live":true'),
        ):
            run = partial(
                subprocess.run, ["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, text=True
            )
            done = await trio.to_thread.run_sync(run)
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout


async def test_a_large_body_that_nobody_reads_does_not_take_the_answer_away(tmp_path: Path) -> None:
    """The peer sends a body of 3 MB to a path that takes none, reads only then, and gets the whole answer."""
    async with http_node(tmp_path) as node:
        head = b"POST /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 3000000\r\n\r\n"
        peer = await peer_of(node, head)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                # The node may end the connection before it has taken all.
                with contextlib.suppress(trio.BrokenResourceError):
                    await peer.stream.send_all(bytes(1_500_000))

            nursery.start_soon(send)
            status, headers, body = await peer.answer()
        assert (status, headers["connection"]) == (405, "close")
        assert json.loads(body)["status"] == 405


async def test_an_answer_that_breaks_off_does_not_look_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint fails before its answer (500, and the connection goes on), and in the middle of it: the peer misses
    the end. The log has both reasons, and the node goes on."""
    is_begun = False

    class Broken:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if is_begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise RuntimeError("broken")

    async def fail(call: HttpCall) -> Any:
        return Broken()

    monkeypatch.setattr("stream_node.doors.http.endpoints.ENDPOINTS", (Endpoint("GET", "/fails", fail),))
    with capture_logs() as logs:
        async with http_node(tmp_path) as node:
            fails = GET.replace(b"/livez", b"/fails")
            peer = await peer_of(node, fails + fails)
            assert [(await peer.answer())[0] for _ in range(2)] == [500, 500]
            is_begun = True
            received = await node.exchange(fails)
            assert b"half" in received
            assert not received.endswith(b"0\r\n\r\n")

            def ask(connection: http.client.HTTPConnection) -> None:
                connection.request("GET", "/fails")
                with pytest.raises(http.client.IncompleteRead):
                    connection.getresponse().read()

            await in_thread(node, ask)
            # Without chunks, only an error says that the answer is not whole.
            with pytest.raises(trio.BrokenResourceError):
                await node.exchange(fails.replace(b"1.1", b"1.0"))
    assert {line["event"] for line in logs if "failed" in line["event"]} == {"http_request_failed"}


async def test_a_peer_that_goes_is_not_worked_for(tmp_path: Path) -> None:
    """A long poll and a follower end when their peer closes its connection, its sending side, or resets it; also in the
    middle of a body, and after a request with an upgrade that the node ignores."""
    wait = b"GET /v1/streams/s?wait=60 HTTP/1.1\r\n" + HOST + b"\r\n"
    upgrade = FOLLOW[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with capture_logs() as logs:
        async with http_node(tmp_path) as node, connect(node.running.address) as client:
            await client.create("s")
            for request in (wait, FOLLOW, upgrade, PUSH + b"Content-Length: 9\r\n\r\nhalf"):
                for way in ("closes", "half", "resets"):
                    peer = await peer_of(node, request)
                    await wait_until(lambda: node.statistics().open == 1)
                    if way == "half":
                        await peer.stream.send_eof()
                        await peer.end()
                    elif way == "resets":
                        linger = (1).to_bytes(4, "little") + bytes(4)
                        peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    peer.stream.socket.close()
                    await wait_until(lambda: node.statistics().open == 0)
    assert [line["event"] for line in logs if "failed" in line["event"]] == []


async def test_a_stop_answers_the_request_under_way_and_says_the_end(tmp_path: Path) -> None:
    """A push whose body is still coming is answered, with `Connection: close`. A peer that has begun its headers, and
    one that has said nothing, are closed at once."""
    with trio.fail_after(60):
        async with http_node(tmp_path, drain_timeout_s=1000.0, http_idle_timeout_s=1000.0) as node:
            silent, begun = await peer_of(node), await peer_of(node, b"GET /livez HT")
            pushing = await peer_of(node, PUSH + b"Content-Length: 4\r\n\r\nha")
            await wait_until(lambda: node.statistics().body_bytes == 2)
            node.running.server.stop()
            assert await silent.end() == await begun.end() == b""
            await pushing.stream.send_all(b"lf")
            status, headers, _ = await pushing.answer()
            # A stopping node stores no new push, and says so.
            assert (status, headers["connection"]) == (503, "close")
            assert await pushing.end() == b""


async def test_traffic_is_counted_by_connection(tmp_path: Path) -> None:
    """Each request and each answer counts once, and each byte of them."""
    async with http_node(tmp_path) as node:
        peer = await peer_of(node, GET)
        answers = [await peer.answer()]
        await peer.stream.send_all(GET)
        answers.append(await peer.answer())
        parts = node.running.server._parts
        assert parts is not None
        (found,) = [each.statistics() for each in parts.tcp.roster.open]
        assert (found.received, found.received_bytes, found.sent) == (2, 2 * len(GET), 2)
        assert found.sent_bytes > sum(len(body) for _, _, body in answers)


async def test_answers_are_valid_for_another_state_machine(tmp_path: Path) -> None:
    """h11 in the role of a client reads every answer, one after the other on one connection."""
    async with http_node(tmp_path) as node:
        stream = (await peer_of(node)).stream
        client = h11.Connection(h11.CLIENT)
        for method, target, status in (("GET", "/livez", 200), ("HEAD", "/readyz", 200), ("DELETE", "/livez", 405)):
            request = h11.Request(method=method, target=target, headers=[("host", "localhost")])
            await stream.send_all(client.send(request) + client.send(h11.EndOfMessage()))
            events: list[Any] = []
            while not events or not isinstance(events[-1], h11.EndOfMessage):
                if (event := client.next_event()) is h11.NEED_DATA:
                    client.receive_data(await stream.receive_some())
                else:
                    events.append(event)
            assert events[0].status_code == status
            client.start_next_cycle()
