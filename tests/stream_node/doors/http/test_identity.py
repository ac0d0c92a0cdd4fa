"""Goal: an HTTP request has the identity that its connection or its token proves, and no right beyond the rules.

Method: real nodes with rules, tokens and certificates. Two endpoints are added: one tells who the caller is, and one
pushes the body of the request by the caller's client inside the node.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import httpx
import pytest
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import ALL_RIGHTS, Demand, Right
from ockam.identity.rules.rules import Rule
from ockam.identity.rules.tokens import create_token, revoke_token
from stream_node.doors.http import endpoints
from stream_node.doors.http.app import Endpoint, HttpCall, json_response
from tests.ockam.identity.rules.guarded_node import may, read_audit, write_rules
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.certificates import Authority, fingerprint
from tests.support.served import wait_until


async def who(call: HttpCall) -> Response:
    return json_response({"identity": str(call.caller.identity)})


async def push(call: HttpCall) -> Response:
    async with call.client() as client:
        stream = await client.create(call.request.path_params["name"])
        index = await stream.push(await call.request.body())
    return json_response({"index": index})


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    more = (
        Endpoint("GET", "/who", who),
        Endpoint("GET", "/operator", who, Demand(Right.OPERATE, None)),
        Endpoint("POST", "/push/{name}", push),
    )
    monkeypatch.setattr(endpoints, "ENDPOINTS", endpoints.ENDPOINTS + more)


def rules(folder: Path, *given: Rule) -> dict[str, str]:
    write_rules(folder / "access.toml", given)
    return {"access_rules": str(folder / "access.toml")}


def token(folder: Path, name: str) -> str:
    return create_token(folder / "data" / "tokens.json", name, int(time.time()))[0]


def audit(folder: Path, event: str) -> list[tuple[str, str, str]]:
    lines = read_audit(folder / "data" / "audit.jsonl")
    return [(line["identity"], line["right"], line["request"]) for line in lines if line["event"] == event]


async def test_an_endpoint_needs_its_right(tmp_path: Path) -> None:
    """Who has the right is answered; a refusal says what is missing, and is counted and audited."""
    text = token(tmp_path, "watcher")
    settings = rules(tmp_path, may(Right.OPERATE, who="token:watcher"), may(Right.READ, name="reads"))
    async with http_node(tmp_path, **settings) as node, node.client() as nobody, node.client(token=text) as watcher:
        assert (await watcher.get("/operator")).json() == {"identity": "token:watcher"}
        refused = await nobody.get("/operator")
        assert (refused.status_code, refused.json()["right"]) == (403, "operate")
        assert refused.json()["detail"].startswith("access denied: operate on anything")
        access = node.running.statistics().access
        assert access is not None
        assert access.refused == {"operate": 1}
        assert audit(tmp_path, "refused") == [("anonymous", "operate", "GET /operator")]
        assert audit(tmp_path, "admitted") == []
        assert (await nobody.get("/livez")).status_code == 200


async def test_a_push_over_http_is_stored_and_obeys_the_rules(tmp_path: Path) -> None:
    """The answer to a push comes after its sync: a reader of the database file finds the message. Without the right to
    write, the push is refused with the reason of the node."""
    text = token(tmp_path, "writer")
    writer = Rule("writer", ("token:writer",), may=Right.WRITE | Right.CREATE, on=("orders",))
    settings = rules(tmp_path, writer, may(Right.READ | Right.CREATE, name="reads"))
    async with http_node(tmp_path, **settings) as node, node.client(token=text) as allowed, node.client() as nobody:
        assert [(await allowed.post("/push/orders", content=b"%d" % at)).json() for at in (0, 1)] == [
            {"index": 0},
            {"index": 1},
        ]
        assert node.running.statistics().storage.rows == 2
        denied = await nobody.post("/push/orders", content=b"no")
        assert (denied.status_code, denied.json()["right"]) == (403, "write")
        assert denied.json()["type"] == "urn:stream-node:problem:access-denied"
        elsewhere = await allowed.post("/push/invoices", content=b"no")
        assert (elsewhere.status_code, elsewhere.json()["right"]) == (403, "create")
        assert node.running.statistics().storage.rows == 2
        # Both peers connect from one host, and each has its own client.
        assert node.statistics().clients == 2


async def test_a_confirmed_push_survives_a_kill(tmp_path: Path) -> None:
    """The message is in the database directly after the answer, before the node closes it."""
    from tests.support.data_dir import stored_messages

    async with http_node(tmp_path) as node, node.client() as client:
        assert (await client.post("/push/orders", content=b"kept")).status_code == 200
        copied = tmp_path / "copy"
        copied.mkdir()
        for file in (tmp_path / "data").glob("streams.sqlite*"):
            (copied / file.name).write_bytes(file.read_bytes())
        assert await trio.to_thread.run_sync(stored_messages, copied, "orders") == [b"kept"]


async def test_limits_of_an_identity_hold_over_http(tmp_path: Path) -> None:
    """An identity that has created its streams of the hour is refused with 429."""
    async with (
        http_node(tmp_path, identity_limits_loopback=True, identity_streams_per_hour=1) as node,
        node.client() as client,
    ):
        assert (await client.post("/push/first", content=b"x")).status_code == 200
        refused = await client.post("/push/second", content=b"x")
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:stream-node:problem:limit-exceeded")


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer wrong", "Bearer " + "x" * 600])
async def test_wrong_tokens_are_refused(tmp_path: Path, header: str) -> None:
    """The answer asks for a token; it does not go on as anonymous."""
    async with http_node(tmp_path) as node, node.client() as client:
        answer = await client.get("/who", headers={"Authorization": header})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="stream-node"')


async def test_a_revoked_token_ends(tmp_path: Path) -> None:
    """A token counts for each request, so it ends also on a connection that is open."""
    text = token(tmp_path, "spark")
    settings = rules(tmp_path, may(ALL_RIGHTS, who="token:spark"))
    async with http_node(tmp_path, **settings) as node, node.client(token=text) as client:
        assert (await client.post("/push/orders", content=b"x")).status_code == 200
        revoke_token(tmp_path / "data" / "tokens.json", "spark", int(time.time()))
        with trio.fail_after(30):
            while (answer := await client.get("/who")).status_code == 200:
                await trio.sleep(0.05)
        assert "is revoked" in answer.json()["detail"]
        await wait_until(lambda: node.statistics().clients == 0)
        assert {line["event"] for line in read_audit(tmp_path / "data" / "audit.jsonl")} >= {"token_refused"}


async def test_changed_rules_count_at_once(tmp_path: Path) -> None:
    """A client inside the node that was opened under the old rules does not keep their rights."""
    settings = rules(tmp_path, may(ALL_RIGHTS))
    async with http_node(tmp_path, **settings) as node, node.client() as client:
        assert (await client.post("/push/orders", content=b"x")).status_code == 200
        rules(tmp_path, may(Right.READ))
        node.running.server.reload()
        await wait_until(lambda: node.statistics().open == 0)
        assert (await client.post("/push/orders", content=b"x")).status_code == 403


def context(authority: Authority, certificate: tuple[str, str] | None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.ca)
    if certificate is not None:
        made.load_cert_chain(*certificate)
    return made


async def whose(node: HttpNode, verify: ssl.SSLContext) -> str:
    async with node.client(verify=verify) as client:
        return str((await client.get("/who")).json()["identity"])


async def test_certificates_prove_identities(tmp_path: Path) -> None:
    """The identity is that of the node's own listener. A peer without a certificate, or with one of another authority,
    is refused; a token beside a certificate is one identity too many."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue("node", hosts=("127.0.0.1",))
    files = {"tls_certificate": certificate, "tls_certificate_key": key, "tls_client_ca": authority.ca}
    alice = authority.issue("alice")
    async with http_node(tmp_path, scheme="https", **files) as node:
        assert await whose(node, context(authority, alice)) == "certificate:alice"
        for wrong in (None, other.issue("alice")):
            with pytest.raises(httpx.TransportError):
                await whose(node, context(authority, wrong))
        async with node.client(verify=context(authority, alice), token="sntok_x") as client:
            both = await client.get("/who")
            assert (both.status_code, both.json()["type"]) == (400, "urn:stream-node:problem:second-identity")
        assert (await node.exchange(b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"\x15\x03")
        closed = node.statistics().closed
        assert (closed["tls_no_certificate"], closed["tls_unknown_ca"], closed["tls_not_tls"]) == (1, 1, 1)


async def test_revoked_certificates_end(tmp_path: Path) -> None:
    """A revoked certificate ends its open connection, and opens no other one; the file is read again by itself."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=("127.0.0.1",))
    alice = authority.issue("alice")
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("")
    files = {"tls_certificate": certificate, "tls_certificate_key": key, "tls_client_ca": authority.ca}
    async with (
        http_node(tmp_path, scheme="https", tls_revoked=str(revoked), **files) as node,
        node.client(verify=context(authority, alice)) as client,
    ):
        assert (await client.get("/who")).status_code == 200
        revoked.write_text(fingerprint(alice[0]))
        node.running.server.reload()
        await wait_until(lambda: node.statistics().closed.get("tls_revoked") == 1)
        with pytest.raises(httpx.TransportError):
            await client.get("/who")
        await wait_until(lambda: node.statistics().closed.get("tls_revoked") == 2)
