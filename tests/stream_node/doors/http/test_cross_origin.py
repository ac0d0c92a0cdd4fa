"""Goal: pages of the web sites in `http_origins` can use streams, and pages of no other site can.

Method: real nodes and real requests, with the headers that browsers send; headless Chromium runs a page of another
site, which uses `fetch` and `EventSource`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from stream_client.blocking import connect
from stream_node.node.config import ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeProcess
from tests.stream_node.doors.http.http_node import http_node
from tools.dashboard_pictures import NoBrowser, open_browser

SHOP, EVIL = "https://shop.test", "https://evil.test"
SAFELISTED = {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified"}
"""The headers of an answer that the standard lets every page read (Fetch, CORS-safelisted response-header name)."""
UNREADABLE = {"date", "vary", "x-accel-buffering", "transfer-encoding", "connection"}
"""The headers of an answer that a page has no use for."""


def preflight(origin: str, method: str, *names: str) -> dict[str, str]:
    """The headers with which a browser asks whether a page may send a request."""
    headers = {"Origin": origin, "Access-Control-Request-Method": method}
    return headers | ({"Access-Control-Request-Headers": ",".join(names)} if names else {})


def cors(answer: httpx.Response) -> dict[str, str]:
    return {name: text for name, text in answer.headers.items() if name.startswith("access-control-")}


async def test_a_preflight_request_names_the_methods_of_its_path(tmp_path: Path) -> None:
    """It needs no token and touches no stream; the headers that the page wants to send are allowed."""
    async with http_node(tmp_path, http_origins=(SHOP, "https://b.test")) as node, node.client() as client:
        headers = preflight(SHOP, "POST", "authorization", "content-type", "stream-header-a")
        answer = await client.options("/v1/streams/orders", headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == SHOP
        allowed = set(answer.headers["access-control-allow-methods"].split(", "))
        assert allowed == {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
        assert allowed == set(answer.headers["allow"].split(", "))
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,stream-header-a"
        assert "access-control-allow-credentials" not in answer.headers
        assert "Origin" in answer.headers["vary"].split(", ")
        local = {"Access-Control-Request-Private-Network": "true"}
        answer = await client.options("/v1/streams", headers=preflight(SHOP, "GET") | local)
        assert answer.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert (await client.get("/v1/streams")).json()["partitions"] == []


async def test_answers_and_problems_may_be_read_by_listed_pages_only(tmp_path: Path) -> None:
    """Each answer names the one origin that asks. The answers to others, and to the same site, say nothing."""
    async with http_node(tmp_path, http_origins=(SHOP,)) as node, node.client() as client:
        headers = {"Origin": SHOP, "Content-Type": "text/plain"}
        stored = await client.post("/v1/streams/orders", content=b"1", headers=headers)
        assert (stored.status_code, stored.headers["access-control-allow-origin"]) == (200, SHOP)
        for path, status in (("orders", 200), ("orders/messages/0", 200), ("none", 404), ("orders?from=x", 400)):
            answer = await client.get(f"/v1/streams/{path}", headers={"Origin": SHOP})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, SHOP), path
            assert "Origin" in answer.headers["vary"].split(", ")
            for origin in (EVIL, "null", SHOP + ":444", "http://shop.test", node.url):
                assert cors(await client.get(f"/v1/streams/{path}", headers={"Origin": origin})) == {}, origin
            assert cors(await client.get(f"/v1/streams/{path}")) == {}
        for origin, name in ((EVIL, "foreign-origin"), ("null", "foreign-origin")):
            for refused in (
                await client.options("/v1/streams/orders", headers=preflight(origin, "POST")),
                await client.post("/v1/streams/orders", content=b"2", headers={"Origin": origin}),
            ):
                assert (refused.status_code, cors(refused)) == (403, {})
                assert refused.json()["type"] == f"urn:stream-node:problem:{name}"
        assert (await client.get("/v1/streams/orders")).json()["next_index"] == 1


async def test_every_header_that_a_page_needs_may_be_read(tmp_path: Path) -> None:
    """The headers of one answer of each kind are those that every page may read, those that are exposed, and those
    of protection."""
    sent: set[str] = set()
    async with http_node(tmp_path, http_origins=(SHOP,)) as node, node.client() as client:
        origin = {"Origin": SHOP}
        requests: tuple[tuple[str, str, dict[str, str]], ...] = (
            ("POST", "orders", {"Content-Type": "text/plain"}),
            ("POST", "orders", {"Content-Type": "image/png"}),
            ("GET", "orders", {}),
            ("GET", "orders", {"Accept": "application/x-ndjson"}),
            ("GET", "orders/messages/0", {}),
            ("GET", "orders/messages/9", {}),
            ("GET", "orders", {"Authorization": "Basic x"}),
            ("QUERY", "orders", {}),
        )
        for method, path, headers in requests:
            content = b"1" if method == "POST" else None
            answer = await client.request(method, f"/v1/streams/{path}", headers=origin | headers, content=content)
            sent |= set(answer.headers) - set(cors(answer))
            exposed = {each.lower() for each in answer.headers["access-control-expose-headers"].split(", ")}
        async with client.stream(
            "GET", "/v1/streams/orders", headers=origin | {"Accept": "text/event-stream"}
        ) as follow:
            assert follow.headers["access-control-allow-origin"] == SHOP
            sent |= set(follow.headers) - set(cors(follow))
        protection = set((await client.get("/livez")).headers) - SAFELISTED
    assert {"accept-post", "allow", "link", "stream-time", "www-authenticate"} <= sent
    assert sent - SAFELISTED - UNREADABLE - protection <= exposed


async def test_other_paths_stay_closed(tmp_path: Path) -> None:
    """The dashboard, the metrics and the health of the node may not be read, also by pages of listed sites."""
    async with http_node(tmp_path, http_origins=(SHOP,)) as node, node.client() as client:
        for path in ("/dashboard", "/metrics", "/livez", "/nothing", "/v1"):
            for headers in ({"Origin": SHOP}, preflight(SHOP, "GET")):
                for method in ("GET", "OPTIONS"):
                    assert cors(await client.request(method, path, headers=headers)) == {}, path


async def test_options_says_what_a_path_takes(tmp_path: Path) -> None:
    """Without an origin, too, and without a token; other paths are answered with 404."""
    async with http_node(tmp_path) as node, node.client(token="wrong") as client:
        for path, methods in (
            ("/livez", "GET, HEAD, OPTIONS"),
            ("/metrics", "GET, HEAD, OPTIONS"),
            ("/v1/streams/a%2Fb/consumers/c", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ):
            answer = await client.options(path)
            assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", methods)
            assert "content-type" not in answer.headers
            wrong = await client.request("PURGE", path)
            assert (wrong.status_code, wrong.headers["allow"]) == (405, methods)
        assert (await client.options("/nothing")).status_code == 404


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ("*", "is not an origin"),
        ("null", "is not an origin"),
        ("shop.test", "is not an origin"),
        ("https://ü.test", "is not an origin"),
        ("https://shop.test/", "write https://shop.test"),
        ("HTTPS://Shop.Test:443/page?x", "write https://shop.test"),
        ("http://user@[::1]:8080", r"write http://\[::1\]:8080"),
    ],
)
def test_an_origin_that_no_browser_sends_is_a_mistake(origin: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"http_origins.*{says}"):
        load_config({"http_origins": (origin,)}, environment={})


def test_origins_as_browsers_send_them_are_taken() -> None:
    origins = ("https://shop.test", "http://localhost:5173", "http://[::1]:8080", "chrome-extension://abcdefgh")
    assert load_config({"http_origins": origins}, environment={}).http_origins == origins


class _Page(BaseHTTPRequestHandler):
    """The web server of another site. Each of its pages is empty."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Writes nothing."""


@contextmanager
def other_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with open_browser() as opened:
            yield opened
    except NoBrowser as error:
        pytest.skip(str(error))


USE = """async (url) => {
    const headers = {"Content-Type": "application/json"};
    const pushed = await fetch(url, {method: "POST", headers, body: '{"a": 1}'});
    const page = await fetch(url);
    const source = new EventSource(url);
    const event = await new Promise((done, failed) => { source.onmessage = done; source.onerror = failed; });
    source.close();
    const changed = await fetch(url, {method: "DELETE"});
    return [(await pushed.json()).indexes, page.headers.get("Stream-Next-Index"), JSON.parse(event.data).data,
            (await changed.json()).messages];
}"""


@pytest.mark.slow
def test_a_browser_lets_a_listed_page_use_streams(browser: Any, tmp_path: Path) -> None:
    """A page of another site pushes JSON, reads, follows and deletes. A page that is not listed can do none of it, and
    changes nothing."""
    with other_site() as listed, other_site() as other:
        settings = tmp_path / "node.toml"
        settings.write_text(f'http = ["127.0.0.1:0"]\nhttp_origins = ["{listed}"]\n')
        with NodeProcess(tmp_path / "data", arguments=["--config", str(settings)]) as node:
            url = f"http://{node.http[0]}/v1/streams/orders"
            page = browser.new_page()
            page.goto(listed)
            assert page.evaluate(USE, url) == [[0], "1", {"a": 1}, 1]
            page.goto(other)
            for method in ("GET", "POST", "PUT", "DELETE"):
                asked = f"fetch('{url}', {{method: '{method}'}}).then(() => 'read', (error) => error.name)"
                assert page.evaluate(asked) == "TypeError", method
            page.close()
            with connect(node.address) as client:
                assert list(client.list_streams()) == []
