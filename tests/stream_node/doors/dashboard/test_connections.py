"""Goal: the page of connections shows to operators who sends most, and closes connections for administrators.

Method: a node with rules over real HTTP, and a client that sends a known number of bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import structlog
import trio

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from ockam.identity.token import Token
from stream_client import StreamClient, connect
from stream_node.node.node_connections import ADDRESS, CONNECTIONS, ConnectionsRequest, OpenConnection
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get, send
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.served import wait_until

DATA = {"content-type": "application/octet-stream"}


async def test_the_busiest_is_on_the_page_and_is_closed_by_its_form(tmp_path: Path) -> None:
    tokens = tmp_path / "data" / "tokens.json"
    texts = {name: create_token(tokens, name, int(time.time()))[0] for name in ("busy", "watcher", "admin")}
    rules = [
        may(Right.WRITE | Right.CREATE, who="token:busy", name="busy writes"),
        may(Right.OPERATE, who="token:watcher", name="watchers see"),
        may(Right.OPERATE | Right.ADMIN, who="token:admin", name="admins close"),
    ]
    write_rules(tmp_path / "access.toml", rules)
    async with (
        http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node,
        node.client(token=texts["watcher"]) as watcher,
        node.client(token=texts["admin"]) as admin,
        connect(node.running.address, token=Token(texts["busy"])) as busy,
    ):
        await (await busy.create("orders")).push(bytes(300 * 1024))
        page = await get(watcher, "/connections")
        table = page.text[page.text.index("Who sends most") :]
        assert table.index("token:busy") < table.index("token:watcher")
        assert "300 KiB" in table[table.index("token:busy") : table.index("token:watcher")]
        assert "Close connections" not in page.text
        # The part that is read again is the same page.
        part = await watcher.get("/dashboard/connections", headers={"hx-request": "true"})
        assert ("token:busy" in part.text, "<nav" in part.text) == (True, False)
        form = await get(admin, "/connections")
        assert "Close connections" in form.text
        assert (await send(admin, form, "/dashboard/connections/close", who="token:busy")).status_code == 303

        def closed() -> int:
            return node.running.server.statistics().tcp.closed.get("closed_by_operator", 0)

        await wait_until(lambda: closed() == 1)
        nobody = await send(admin, form, "/dashboard/connections/close", who="nobody")
        assert (nobody.status_code, "no other connection" in nobody.text) == (404, True)
        assert (await busy.create("orders")) is not None
    log = (tmp_path / "data" / "audit.jsonl").read_text()
    assert '"event":"connections_closed","identity":"token:admin"' in log


async def test_clients_of_http_are_seen_and_closed_like_the_others(tmp_path: Path) -> None:
    """One client sends over HTTP with a token. Its connection has the requests and bytes that it has sent, once: not
    those that the node moves for it inside. The connections of two others stay, also that of the one who closes."""
    tokens = tmp_path / "data" / "tokens.json"
    texts = {name: create_token(tokens, name, int(time.time()))[0] for name in ("web", "other", "admin")}
    with structlog.testing.capture_logs() as logs:
        async with (
            http_node(tmp_path) as node,
            node.client(token=texts["web"]) as web,
            node.client(token=texts["other"]) as other,
            node.client(token=texts["admin"]) as admin,
            connect(node.running.address) as asking,
        ):
            await _see_and_close(node, web, other, admin, asking)
    # What has ended counts on, for the one who has sent it.
    (busiest,) = [each for each in logs if each["event"] == "busiest_clients"]
    text = next(each for each in busiest["clients"] if each.startswith("token:web"))
    assert text.startswith("token:web sent 30")
    assert " bytes in 5 messages and received " in text


async def _see_and_close(
    node: HttpNode, web: httpx.AsyncClient, other: httpx.AsyncClient, admin: httpx.AsyncClient, asking: StreamClient
) -> None:
    async def tell() -> dict[str, OpenConnection]:
        """The connections by identity; each has one. A look is a second old at most."""
        found = await asking.session.ask(ADDRESS, CONNECTIONS, ConnectionsRequest(0, 99))
        assert found.total == len(found.connections)
        return {each.identity: each for each in found.connections if each.framing == "http"}

    for client in (web, other):
        assert (await client.post("/v1/streams/orders", content=b"x", headers=DATA)).is_success
    for _ in range(3):
        assert (await web.post("/v1/streams/orders", content=bytes(100_000), headers=DATA)).is_success
    form = await get(admin, "/connections")
    with trio.fail_after(30):
        while (await tell()).keys() != {"token:web", "token:other", "token:admin"}:
            await trio.sleep(0.05)
    seen = await tell()
    each = seen["token:web"]
    assert (each.received, each.sent, seen["token:other"].received) == (4, 4, 1)
    assert 300_000 < each.received_bytes < 303_000
    assert 0 < each.sent_bytes < 3_000
    assert (await send(admin, form, "/dashboard/connections/close", who="token:web")).status_code == 303
    # The one who closes keeps the connection by which the answer comes.
    assert (await send(admin, form, "/dashboard/connections/close", who="token:admin")).status_code == 404
    assert node.statistics().closed == {"closed_by_operator": 1}
    with trio.fail_after(30):
        while (await tell()).keys() != {"token:other", "token:admin"}:
            await trio.sleep(0.05)
    # A client connects again.
    assert (await web.post("/v1/streams/orders", content=b"x", headers=DATA)).is_success
    assert (await other.post("/v1/streams/orders", content=b"x", headers=DATA)).is_success
