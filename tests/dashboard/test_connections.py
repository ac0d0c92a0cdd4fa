"""Goal: the page of connections shows to operators who sends most, and closes connections for administrators.

Method: a node with rules over real HTTP, and a client that sends a known number of bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

from access import create_token
from access.rights import Right
from ockam.token import Token
from stream_client import connect
from tests.access.guarded_node import may, write_rules
from tests.dashboard.dashboard_page import get, send
from tests.http.http_node import http_node
from tests.support.served import wait_until


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
