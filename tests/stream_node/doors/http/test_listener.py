"""Goal: the HTTP listener is there only when it is asked for, and a peer cannot make it use more than it may.

Method: real nodes, and bytes of HTTP over real sockets, sent by httpx or by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from stream_node.doors.http.places_machine import HEALTH_PLACES
from stream_node.node.config import Config, ConfigError
from stream_node.node.identity.access import check_exposure
from stream_node.node.process import NodeProcess
from stream_node.node.server import CannotListen
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.stream_node.doors.http.test_slow_followers import stalled
from tests.support.served import served, wait_until

POST = b"POST /v1/streams/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"


async def test_live_node_says_so(tmp_path: Path) -> None:
    """The answer has the state as JSON, and the security headers."""
    async with http_node(tmp_path) as node, node.client() as client:
        answer = await client.get("/livez")
        assert (answer.status_code, answer.json()) == (200, {"live": True, "reasons": []})
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
        statistics = node.statistics()
        assert (statistics.open, statistics.accepted, statistics.requests) == (1, 1, {"200": 1})


def test_the_first_line_says_where(tmp_path: Path) -> None:
    """A real process: its first line has both addresses, it answers, and it stops in order."""
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as node:
        (address,) = node.http
        assert address != node.address
        assert httpx.get(f"http://{address}/livez", trust_env=False).status_code == 200
        assert node.stop() == 0
        lines = map(json.loads, node.log_file.read_text().splitlines())
        (last,) = [line for line in lines if line["event"] == "stopped"]
        assert last["http_requests"] == 1


def test_a_node_without_http_does_not_load_it(tmp_path: Path) -> None:
    """h11 and starlette take time and memory that such a node does not spend."""
    program = (
        "import sys, trio\n"
        "from stream_node.node.server import Server\n"
        "from stream_node.node.config import Config\n"
        "async def run():\n"
        "    server = Server(Config(data_dir=sys.argv[1], listen='127.0.0.1:0'))\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(server.serve)\n"
        "        server.stop()\n"
        "    print(sorted({'starlette', 'h11', 'prometheus_client'} & set(sys.modules)))\n"
        "trio.run(run)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    """The error names the address, and the node does not start."""
    async with http_node(tmp_path) as node:
        with pytest.RaisesGroup(
            pytest.RaisesExc(CannotListen, match=f"HTTP at {node.address}"), flatten_subgroups=True
        ):
            async with served(tmp_path / "other", http=(node.address,)):
                raise AssertionError("started")


def test_other_machines_need_tls_and_rules() -> None:
    """HTTP beyond the machine is refused at start with the sentence of the node's own listener."""
    with pytest.raises(ConfigError, match=r"http: 0\.0\.0\.0:80 is reached from other machines, without TLS and"):
        check_exposure(Config(http=("127.0.0.1:0", "0.0.0.0:80")))
    check_exposure(Config(http=("0.0.0.0:80",), insecure=True))


async def test_errors_are_problem_details(tmp_path: Path) -> None:
    """What is not there, and what is no HTTP, is told as RFC 9457 wants it."""
    async with http_node(tmp_path, http_header_bytes_max=2048) as node, node.client() as client:
        missing = await client.get("/nothing")
        assert missing.headers["content-type"] == "application/problem+json"
        assert missing.json() == {
            "type": "urn:stream-node:problem:no-such-path",
            "title": "No such path",
            "status": 404,
            "detail": "there is nothing at /nothing; docs/http.md lists all paths",
            "retriable": False,
            "in_doubt": False,
        }
        wrong = await client.post("/livez", content=b"x" * 10_000)
        assert (wrong.status_code, wrong.json()["type"]) == (405, "urn:stream-node:problem:method-not-allowed")
        assert "GET" in wrong.headers["allow"]
        long = await client.get("/livez", headers={"x": "y" * 4000})
        assert (long.status_code, long.json()["type"]) == (431, "urn:stream-node:problem:headers-too-large")
        assert b"urn:stream-node:problem:not-http" in await node.exchange(b"hello\r\n\r\n")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:80", 200), ("[::1]", 200), ("node.test", 200), ("evil.test", 421), ("a/b", 400)],
)
async def test_only_names_of_the_node(tmp_path: Path, host: str, status: int) -> None:
    """A web page that moved its name to the loopback address is refused."""
    async with http_node(tmp_path, http_hosts=("node.test",)) as node:
        answer = await node.exchange(f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 405),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.test"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 405),
        ({"Origin": "https://shop.test"}, 405),
    ],
)
async def test_pages_of_other_sites_change_nothing(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    """Nothing may be changed at this path (405), and a foreign page does not even learn that."""
    async with http_node(tmp_path, http_origins=("https://shop.test",)) as node, node.client() as client:
        assert (await client.post("/livez", headers=headers)).status_code == status
        own = {"Origin": node.url}
        assert (await client.post("/livez", headers=own)).status_code == 405


async def test_large_and_slow_bodies_end(tmp_path: Path) -> None:
    """A body that is too large, and one that does not come, get an answer, and their connection ends."""
    async with http_node(tmp_path, http_body_bytes_max=100, http_body_timeout_s=0.05) as node:
        head = b"POST /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        assert b"body-too-large" in await node.exchange(head + b"Content-Length: 101\r\n\r\n" + b"x" * 101)
        assert (await node.exchange(head + b"Content-Length: 50\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        # Nobody reads the body of this request, and the peer sends on and on.
        assert (await node.exchange(head + b"Transfer-Encoding: chunked\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        await wait_until(lambda: node.statistics().open == 0)


async def test_idle_connections_end(tmp_path: Path) -> None:
    """A peer that says nothing, and one that never finishes its headers, are closed."""
    async with http_node(tmp_path, http_idle_timeout_s=0.05) as node:
        assert await node.exchange(b"") == b""
        assert await node.exchange(b"GET /livez HTTP/1.1\r\nHost: loc") == b""


HALVES = {
    "nothing": b"",
    "headers": b"GET /livez HTTP/1.1\r\nHost: loc",
    "body": POST + b"Content-Length: 9\r\n\r\nhalf",
    "answered": POST + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_half_requests_of_one_host_keep_nobody_out(tmp_path: Path, half: bytes) -> None:
    """Of eight connections, one host gets two. The oldest whose request has not come whole gives way to the next."""
    async with http_node(tmp_path, http_connections_max=8, http_idle_timeout_s=1e3) as node, AsyncExitStack() as stack:
        lines = stack.enter_context(capture_logs())
        for number in range(1, 13):
            stream = await stack.enter_async_context(await node.connect())
            await stream.send_all(half)
            await wait_until(partial(is_accepted, node, number))
        await wait_until(lambda: node.statistics().open <= 2)
        line = next(line for line in lines if line["event"].startswith("http_connections_"))
        assert (line["most"], line["most_of_one"]) == (8, 2)
        # While a request is being answered, its connection does not give way, and the next one is refused.
        is_answering = half == HALVES["answered"]
        assert line["event"] == "http_connections_give_way" or is_answering
        async with node.client() as client:
            # While the last two requests are being answered, there is no room for a third one.
            while (answer := await client.post("/v1/streams/s", json={})).status_code == 503:
                await trio.sleep(0.05)
        assert answer.status_code == 200
        may_be = {"too_many_connections"} if is_answering else set()
        assert {"gave_way"} <= set(node.statistics().closed) <= {"gave_way"} | may_be


def is_accepted(node: HttpNode, number: int) -> bool:
    return node.statistics().accepted >= number


def is_answered(node: HttpNode, number: int) -> bool:
    return node.statistics().requests.get("200") == number


async def test_busy_connections_of_one_host_leave_places_for_health(tmp_path: Path) -> None:
    """Followers have all places of a host. Its probes are answered, also beside half requests; all else is refused, and
    is told the number that holds."""
    async with http_node(tmp_path, http_connections_max=8) as node, AsyncExitStack() as stack:
        async with node.client() as client:
            await client.put("/v1/streams/s")
        await wait_until(lambda: node.statistics().open == 0)
        for number in range(1, 3):
            await stack.enter_async_context(stalled(node.address, "/v1/streams/s"))
            await wait_until(partial(is_answered, node, number))
        for _ in range(2 * HEALTH_PLACES):
            await stack.enter_async_context(await node.connect())
        for path, status in (("/livez", 200), ("/readyz", 200), ("/v1/streams", 503), ("/dashboard", 503)):
            answer = await node.exchange(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert (b"too-many-connections" in answer) == (status == 503)
            assert (b"or the 2 that one host or certificate can have" in answer) == (status == 503)


async def test_no_http2(tmp_path: Path) -> None:
    """A wish to go on with HTTP/2 is ignored, and HTTP/2 without a wish is no request."""
    async with http_node(tmp_path) as node:
        upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        answer = await node.exchange(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 4" in await node.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


async def test_a_draining_node_finishes_and_closes(tmp_path: Path) -> None:
    """An idle connection ends at once when the node stops; the node does not wait for its time limit."""
    with trio.fail_after(30):
        async with (
            http_node(tmp_path, drain_timeout_s=1000.0, http_idle_timeout_s=1000.0) as node,
            await node.connect() as stream,
        ):
            await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while b'"live"' not in received:
                received += bytes(await stream.receive_some())
            node.running.server.stop()
            assert await stream.receive_some() == b""


async def test_the_root_leads_a_browser_to_the_dashboard(tmp_path: Path) -> None:
    """A page of messages there names the last message, not the one after it."""
    async with http_node(tmp_path) as node, node.client() as client:
        for path in ("/", "/dashboard/"):
            answer = await client.get(path, headers={"Accept": "text/html"}, follow_redirects=True)
            assert (answer.status_code, answer.url.path) == (200, "/dashboard")
        await client.put("/v1/streams/s")
        assert "no messages" in (await client.get("/dashboard/messages?stream=s")).text
        for _ in range(3):
            await client.post("/v1/streams/s", json={})
        assert "messages 0 to 2." in (await client.get("/dashboard/messages?stream=s")).text
        assert "those from 0 to 2" in (await client.get("/dashboard/message?stream=s&index=3")).text
