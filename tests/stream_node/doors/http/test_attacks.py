"""Goal: bytes, names and floods of an attacker get an answer or an end, and nothing else: no right, no secret.

Method: real nodes, and bytes of HTTP by hand over real sockets, also from other addresses of this machine.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.identity.rules.tokens import create_token
from tests.ockam.identity.rules.guarded_node import may, read_audit, write_rules
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.certificates import Authority
from tests.support.served import wait_until
from tests.tokens.token_node import UNKNOWN, own_address

HOST = b"Host: localhost\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HOST
POST = b"POST /livez HTTP/1.1\r\n" + HOST
END = b"Connection: close\r\n\r\n"
UPGRADE = GET + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
STATUS: dict[str, tuple[bytes, int]] = {
    "a WebSocket without a key": (UPGRADE + b"\r\n", 200),
    "a WebSocket": (UPGRADE + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n", 200),
    "a WebSocket of odd extensions": (UPGRADE + b"Sec-WebSocket-Extensions: \xff;;;\r\n\r\n", 200),
    "a WebSocket of odd protocols": (UPGRADE + b"Sec-WebSocket-Protocol: a, \xff\r\n\r\n", 200),
    "a length and chunks": (POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + GET + END, 400),
    "chunks of HTTP/1.0": (POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n", 400),
    "a space before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "two codings": (POST + CHUNKED + CHUNKED + END, 501),
    "an odd coding": (POST + b"Transfer-Encoding: xchunked\r\n" + END, 501),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
    "a signed length": (POST + b"Content-Length: +5\r\n\r\nhello", 400),
    "a huge length": (POST + b"Content-Length: 99999999999999999999\r\n" + END, 413),
    "an odd chunk": (POST + CHUNKED + b"\r\nzz\r\n", 400),
    "a torn chunk": (POST + CHUNKED + b"\r\n5\r\nhelloXX", 400),
    "an absolute target": (b"GET http://evil.test/livez HTTP/1.1\r\n" + HOST + END, 421),
    "a tunnel": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + END, 404),
    "dots": (b"GET /../livez HTTP/1.1\r\n" + HOST + END, 404),
    "encoded dots": (b"GET /%2e%2e/%00/%ff HTTP/1.1\r\n" + HOST + END, 404),
    "two slashes": (b"GET //livez HTTP/1.1\r\n" + HOST + END, 404),
    "bytes in the target": (b"GET /livez?\xc3\xff HTTP/1.1\r\n" + HOST + END, 400),
    "two hosts": (GET + HOST + END, 400),
    "a torn host": (b"GET /livez HTTP/1.1\r\nHost: [::1\r\n" + END, 400),
    "a torn origin": (POST + b"Origin: http://[\r\nContent-Length: 0\r\n" + END, 403),
    "a null in a header": (GET + b"X: a\0b\r\n" + END, 400),
    "bytes in a token": (b"GET /metrics HTTP/1.1\r\n" + HOST + b"Authorization: Bearer \xff\r\n" + END, 401),
    "many headers": (GET + b"a:b\r\n" * 4000 + END, 431),
    "headers without an end": (GET + b"a:" + b"b" * 100_000, 431),
    "HTTP/0.9": (b"GET /livez\r\n\r\n", 400),
}
FAILURES = ("http_connection_failed", "http_request_failed")


async def test_odd_requests_are_answered_once_and_nothing_fails(tmp_path: Path) -> None:
    """Each gets one answer and the end of its connection. No line of the log is about a failure of the node."""
    with capture_logs() as logs:
        async with http_node(tmp_path, http_idle_timeout_s=5.0, http_body_timeout_s=5.0) as node:
            for what, (request, status) in STATUS.items():
                answer = await node.exchange(request)
                assert answer.startswith(b"HTTP/1.1 %d " % status), (what, answer)
                assert answer.count(b"HTTP/1.1 ") == 1, (what, answer)
            await wait_until(lambda: node.statistics().open == 0)
    assert [line for line in logs if line["event"] in FAILURES] == []


async def test_static_files_are_only_those_of_the_dashboard(tmp_path: Path) -> None:
    """Neither an absolute path nor dots lead to another file, whatever its type. Everybody may ask for static files."""
    secret = tmp_path / "secret.js"
    secret.write_text("secret")
    async with http_node(tmp_path) as node:
        up = "/".join([".."] * 30) + str(secret)
        for path in (str(secret), up, str(secret).replace("/", "%2f"), up.replace(".", "%2e"), "style.css%00.js"):
            request = f"GET /dashboard/static/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answer = await node.exchange(request.encode())
            assert answer.startswith(b"HTTP/1.1 404 "), path
            assert b"secret\r\n" not in answer
            assert not answer.endswith(b"secret")
        async with node.client() as client:
            assert (await client.get("/dashboard/static/style.css")).status_code == 200


async def test_the_text_of_a_path_with_parameters_is_a_path_like_others(tmp_path: Path) -> None:
    """Goal: a name in braces is the name of a stream, and not the parameter itself; a path is found by its method."""
    async with http_node(tmp_path) as node:
        for target, status in (("/v1/streams/{name}", 404), ("/dashboard/static/{name:path}", 404)):
            answer = await node.exchange(
                f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer


async def test_no_web_page_of_another_site_can_read_an_answer(tmp_path: Path) -> None:
    """There is no CORS: no answer allows another origin, also not to a preflight request."""
    async with http_node(tmp_path, http_origins=("https://shop.test",)) as node, node.client() as client:
        headers = {"Origin": "https://shop.test", "Access-Control-Request-Method": "POST"}
        for method in ("GET", "OPTIONS"):
            answer = await client.request(method, "/livez", headers=headers)
            assert [name for name in answer.headers if name.startswith("access-control")] == []
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def guarded(folder: Path) -> dict[str, Any]:
    write_rules(folder / "access.toml", [may(ALL_RIGHTS, who="token:spark")])
    return {"access_rules": str(folder / "access.toml")}


def first_token(folder: Path) -> str:
    return create_token(folder / "data" / "tokens.json", "spark", int(time.time()))[0]


def audit(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_audit(folder / "data" / "audit.jsonl") if line["event"] == event]


async def statuses(node: HttpNode, tokens: Sequence[str], path: str = "/metrics") -> list[tuple[int, str]]:
    found = []
    for token in tokens:
        async with node.client(token=token) as client:
            answer = await client.get(path)
            found.append((answer.status_code, answer.json()["detail"] if answer.status_code != 200 else ""))
    return found


async def test_another_machine_must_use_tls_for_a_token(tmp_path: Path) -> None:
    """A right and a wrong token get the same answer over an address of this machine that is not loopback."""
    host, token = own_address(), first_token(tmp_path)
    async with http_node(tmp_path, http=(f"{host}:0",), insecure=True, **guarded(tmp_path)) as node:
        right, wrong = await statuses(node, [token, UNKNOWN])
        assert right == wrong
        assert right[0] == 401
        assert "revoke it" in right[1]
    lines = audit(tmp_path, "token_refused")
    assert {line["peer"].rpartition(":")[0] for line in lines} == {host}
    assert all(line["reason"].startswith("unencrypted: ") for line in lines)


async def test_over_tls_a_token_of_another_machine_is_taken(tmp_path: Path) -> None:
    """The same address with TLS."""
    host, token = own_address(), first_token(tmp_path)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=(host,))
    files = {"tls_certificate": certificate, "tls_certificate_key": key}
    async with http_node(tmp_path, scheme="https", http=(f"{host}:0",), **files, **guarded(tmp_path)) as node:
        verify = ssl.create_default_context(cafile=authority.ca)
        async with node.client(verify=verify, token=token) as client:
            assert (await client.get("/metrics")).status_code == 200


async def test_refused_requests_are_in_the_audit_log_and_secrets_nowhere(tmp_path: Path) -> None:
    """A wrong token, a foreign page, a foreign name and a request of two lengths, each with its sender. The texts
    of the tokens are in neither log."""
    token = first_token(tmp_path)
    with capture_logs() as logs:
        async with http_node(tmp_path, **guarded(tmp_path)) as node:
            (wrong, right) = await statuses(node, [UNKNOWN, token])
            assert (wrong[0], right[0]) == (401, 200)
            async with node.client() as client:
                assert (await client.post("/livez", headers={"Origin": "http://evil.test"})).status_code == 403
                assert (await client.get("/livez", headers={"Host": "evil.test"})).status_code == 421
            await node.exchange(STATUS["a length and chunks"][0])
    (refused,) = audit(tmp_path, "token_refused")
    assert (refused["identity"], refused["peer"].rpartition(":")[0]) == ("anonymous", "127.0.0.1")
    found = [(line["reason"], line["request"], line["identity"]) for line in audit(tmp_path, "http_refused")]
    assert found == [
        ("foreign-origin", "POST /livez", "anonymous"),
        ("wrong-host", "GET /livez", "anonymous"),
        ("ambiguous-length", "POST /livez", "anonymous"),
    ]
    written = str(logs) + (tmp_path / "data" / "audit.jsonl").read_text()
    assert UNKNOWN not in written
    assert token not in written


async def test_many_wrong_tokens_of_one_host_wait_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While 16 refusals wait, the next one is answered at once (429), and a right token is judged."""
    monkeypatch.setattr("stream_node.node.identity.token_services.REFUSAL_DELAY_S_MAX", 1_000.0)
    token = first_token(tmp_path)
    request = b"GET /metrics HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + UNKNOWN.encode() + b"\r\n" + END
    async with http_node(tmp_path, error_delay_s=1_000.0, **guarded(tmp_path)) as node:
        waiting = [await node.connect() for _ in range(16)]
        for stream in waiting:
            await stream.send_all(request)

        def refusals() -> int:
            return sum(line.get("count", 1) for line in read_audit(tmp_path / "data" / "audit.jsonl")[1:])

        # Equal refusals of one second are one line, and their count comes in the next second.
        await wait_until(lambda: refusals() >= 17)
        assert (await node.exchange(request)).startswith(b"HTTP/1.1 429 ")
        assert (await statuses(node, [token]))[0][0] == 200
        for stream in waiting:
            await stream.aclose()


async def test_stalled_handshakes_of_one_host_leave_room(tmp_path: Path) -> None:
    """Of eight connections, one host gets two, also if they never finish their TLS handshake: the oldest give way."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=("127.0.0.1",))
    files = {"tls_certificate": certificate, "tls_certificate_key": key}
    async with http_node(tmp_path, scheme="https", http_connections_max=8, **files) as node:
        stalled = [await node.connect() for _ in range(12)]
        await wait_until(lambda: node.statistics().closed.get("gave_way") == 10)
        verify = ssl.create_default_context(cafile=authority.ca)
        transport = httpx.AsyncHTTPTransport(verify=verify, local_address="127.0.0.2", trust_env=False)
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
            assert (await client.get(f"{node.url}/livez")).status_code == 200
        for stream in stalled:
            await stream.aclose()


async def test_requests_count_for_the_limit_of_their_sender(tmp_path: Path) -> None:
    """Also those that need no right and touch no stream: a flood of them waits."""
    async with (
        http_node(tmp_path, identity_limits_loopback=True, identity_requests_per_second=4) as node,
        node.client() as client,
    ):
        with trio.fail_after(30):
            while not node.running.statistics().limits.slowed.get("requests_per_second"):
                assert (await client.get("/livez")).status_code == 200
