"""Goal: the dashboard shows the tree of the operator's own workers to those who may see the node, and to nobody else.

Method: real nodes over HTTP with workers that have children and that fail; the cells are compared with the answer of
the node, and with what the test has done to the workers."""

from __future__ import annotations

from pathlib import Path

from ockam import local
from ockam.identity.rules.rights import Right
from stream_client import connect
from stream_node.hosting.status import ADDRESS, OWN_WORKERS, OwnWorkersRequest
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node

SAMPLES = "tests.stream_node.hosting.sample_workers"
WORKERS = (f"{SAMPLES}:Parent@parent", f"{SAMPLES}:Echo@echo")


async def test_the_tree_has_what_the_status_has(tmp_path: Path) -> None:
    """A worker that has failed and its child are there again, with the count and the reason of the restart."""
    async with http_node(tmp_path, worker=WORKERS) as node, node.client() as client:
        peer = await node.running.peer()
        await peer.ask((local("parent"),), b"fail")
        assert (await peer.ask((local("parent"),), b"x")).payload == b"x"
        page = await get(client, "/own-workers")
        async with connect(node.running.address) as asking:
            told = (await asking.session.ask(ADDRESS, OWN_WORKERS, OwnWorkersRequest(0))).workers
        assert [row[0].strip() for row in page.rows] == ["parent", "└ child", "echo"]
        assert [row[1:] for row in page.rows] == [
            [each.kind, each.state, str(each.waiting), str(each.restarts), each.reason or "-"] for each in told
        ]
        assert page.rows[0][1:] == ["Parent", "running", "0", "1", "RuntimeError('as it was told')"]
        assert "Own workers" in page.text
        part = await client.get("/dashboard/own-workers", headers={"hx-request": "true"})
        assert ("child" in part.text, "<nav" in part.text) == (True, False)


async def test_a_node_without_workers_has_no_entry_and_says_how_to_get_one(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, node.client() as client:
        assert "Own workers" not in (await get(client, "")).text
        assert "stream-node serve --worker" in (await get(client, "/own-workers")).text


async def test_the_tree_needs_the_right_to_see_the_node(tmp_path: Path) -> None:
    """The entry of the navigation is not there either."""
    file = tmp_path / "access.toml"
    write_rules(file, [may(Right.OPERATE, "orders")])
    async with http_node(tmp_path, worker=WORKERS, access_rules=str(file)) as node, node.client() as client:
        answer = await client.get("/dashboard/own-workers")
        assert (answer.status_code, "echo" in answer.text) == (403, False)
        assert "Own workers" not in (await get(client, "")).text
        write_rules(file, [may(Right.OPERATE)])
        node.running.server.reload()
        assert "echo" in (await get(client, "/own-workers")).text
