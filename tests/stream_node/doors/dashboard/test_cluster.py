"""Goal: the page of the cluster shows who owns what, what waits, and why shards moved, and drains a member for those
who may.

Method: real nodes beside a real PostgreSQL server, and two workers with SQLite; pages over real HTTP, read by the
standard library's parser of HTML, and compared with what psql reads in the database.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from ockam.quotas.shared_use import shared_bytes
from stream_client import connect, set_position
from stream_node.care.trouble_service import ADDRESS, TROUBLES, TroublesRequest
from stream_node.doors.dashboard import troubles
from stream_node.doors.dashboard.access_page import owner_marks, shards_text
from stream_node.fleet.cluster import plan_machine
from stream_node.fleet.cluster.view import SHARDS, choose_owner, shard_of
from stream_node.fleet.worker_place import WorkerPlace
from stream_node.node.config import Config
from stream_node.node.process import NodeProcess
from stream_node.node.server import Server
from stream_service.names import stream_address
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage, get, send, wait_page
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.postgres import PostgresServer
from tests.support.served import PATIENCE_S, Served

STUCK = re.compile(r"(w0\d): The consumer reader is stuck: no progress for .*, 1 message waits in (s\d)")
CELL = re.compile(r"Shard (\w\w): (.+), epoch (\d+)(?:, (\d+) waiting)?")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A database of its own for each test."""
    return server.url_of(server.new_database())


def cells_of(page: HtmlPage) -> list[tuple[str, int]]:
    """Owner and epoch of each shard, as the titles in the picture say."""
    found = [
        CELL.fullmatch(given["title"]) for tag, given in page.tags if tag == "td" and "Shard" in given.get("title", "")
    ]
    assert [int(each[1], 16) for each in found if each] == list(range(SHARDS))
    return [("" if each[2] == "no owner" else each[2], int(each[3])) for each in found if each]


def test_shards_are_written_as_in_addresses() -> None:
    assert shards_text([]) == ""
    assert shards_text([0, 3, 4, 10, 11, 12, 254, 255]) == "00 03 04 0a..0c fe ff"
    assert shards_text(range(SHARDS)) == "00..ff"
    assert stream_address("orders", 0).value[5:7].decode() == shards_text([shard_of(stream_address("orders", 0))])


def test_every_owner_has_a_letter_of_its_own() -> None:
    """With more owners than letters and colours, the letters get a number."""
    marks = owner_marks(f"node-{number:03}" for number in range(100))
    assert len({each.letter for each in marks.values()}) == 100
    assert {each.colour for each in marks.values()} == set(range(8))
    assert owner_marks(["", "b", "a"]) == {"a": ("A", 0), "b": ("B", 1)}


async def test_a_node_alone_has_no_such_page(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, node.client() as client:
        page = await get(client, "/cluster", 404)
        assert "shares its streams with no other process" in page.text
        assert page.links("/dashboard/cluster") == []


@pytest.mark.slow
async def test_members_shards_and_hand_overs_are_shown(server: PostgresServer, url: str, tmp_path: Path) -> None:
    """Two members share the shards, one is drained by the form and takes shards again. Both pages show the owners and
    epochs that the database has, the links, and each hand-over with its reason."""
    async with (
        http_node(tmp_path / "a", database=url, cluster="a") as a,
        a.client() as client,
    ):
        page = await wait_page(client, "256 nobody a nobody owned them 00..ff", "/cluster")
        assert "Links 0 of 0 to others" in page.text
        async with http_node(tmp_path / "b", database=url, cluster="b") as b, b.client() as other:
            page = await wait_page(client, "a b b has joined, or takes shards again", "/cluster")
            # The other one has joined after the first hand-over.
            assert "nobody owned them" not in (await get(other, "/cluster")).text
            await wait_page(client, "connected", "/cluster")
            # The page shows a hand-over while others are still under way.
            shared = [choose_owner(shard, ("a", "b")) for shard in range(SHARDS)]
            for each in (client, other):
                with trio.fail_after(PATIENCE_S):
                    while [owner for owner, _ in cells_of(await get(each, "/cluster"))] != shared:
                        await trio.sleep(0.05)
            query = "SELECT '=' || convert_from(owner, 'UTF8') || ' ' || epoch FROM cluster_shards ORDER BY shard"
            rows = [line[1:].rsplit(" ", 1) for line in server.ask(query, url.rpartition("/")[2]).splitlines()]
            stored = [(owner, int(epoch)) for owner, epoch in rows]
            assert cells_of(await get(client, "/cluster")) == cells_of(await get(other, "/cluster")) == stored
            # A message for a stream of the other one is sent there.
            name = next(n for n in map(str, range(999)) if stored[shard_of(stream_address(n, 0))][0] == "b")
            async with connect(a.running.address) as streams:
                await (await streams.create(name)).push(b"x")
            part = await get(client, "/cluster")
            assert re.search(rf"B b {b.running.address} lives \d+ connected [1-9]\d* 0 ", part.text)
            assert re.search(rf"A a this node {a.running.address} lives \d+ - - 0 ", part.text)

            page = await get(client, "/cluster")
            wrong = await send(client, page, "/dashboard/cluster/drain", member="b", typed="a")
            assert (wrong.status_code, "nothing was changed" in wrong.text) == (400, True)
            forged = await send(client, page, "/dashboard/cluster/drain", csrf="0" * 64, member="b", typed="b")
            assert forged.status_code == 403
            unknown = await send(client, page, "/dashboard/cluster/drain", member="c", typed="c")
            assert "is no member of this cluster" in unknown.text
            assert cells_of(await get(client, "/cluster")) == stored
            done = await send(client, page, "/dashboard/cluster/drain", member="b", typed="b")
            assert done.status_code == 303
            assert "b gives its shards away." in HtmlPage((await client.get(done.headers["location"])).text).text
            page = await wait_page(client, "b a b stops, or is drained", "/cluster")
            assert {owner for owner, _ in cells_of(page)} == {"a"}
            # The other member sees what it has no hand in, too.
            await wait_page(other, "b a b stops, or is drained", "/cluster")
            assert (await send(client, page, "/dashboard/cluster/drain", act="undo", member="b")).status_code == 303
            with trio.fail_after(PATIENCE_S):
                while {owner for owner, _ in cells_of(await get(client, "/cluster"))} != {"a", "b"}:
                    await trio.sleep(0.05)
            metrics = (await client.get("/metrics")).text
            assert 'stream_node_cluster_shards_moved_total{reason="free"} 256' in metrics
            assert re.search(r'stream_node_cluster_shards_moved_total{reason="left"} [1-9]', metrics)
            owned = dict(re.findall(r'stream_node_cluster_owned_shards{member="(.+)"} (\d+)', metrics))
            assert sum(map(int, owned.values())) == SHARDS
            # A database server has the disk, and the node does not look at it.
            assert "What is wrong now Nothing." in (await get(client, "")).text
        assert "of 1 live" in (await wait_page(client, "Links 0 of 0", "/cluster")).text


@pytest.mark.slow
async def test_a_silent_member_is_named_until_it_is_back(url: str, tmp_path: Path) -> None:
    """A member is killed: the overview names it with what to do, and the page says that it was fenced. That is over
    when it has started again. Without shards it is only silent. When it was stopped in order, it is no member."""
    lost = NodeProcess(tmp_path / "lost" / "data", arguments=("--database", url, "--cluster", "lost"))
    lost.data_dir.parent.mkdir()
    async with http_node(tmp_path / "a", database=url, cluster="a") as node, node.client() as client:
        await wait_page(client, "256 nobody a nobody owned them", "/cluster")
        with ExitStack() as stack:
            stack.callback(lost.kill)
            await trio.to_thread.run_sync(lost.start)
            await wait_page(client, "a lost lost has joined", "/cluster")
            lost.kill()
            page = await wait_page(client, "lost a lost was silent and is fenced", "/cluster")
            assert {owner for owner, _ in cells_of(page)} == {"a"}
            assert f"lost {lost.address} silent, and fenced 0 not connected" in page.text
            overview = await wait_page(client, "The member lost was silent, and another member has taken its shards.")
            assert f"Look whether it runs at {lost.address}" in overview.text
            assert overview.links("/dashboard/cluster")
            assert 'stream_node_troubles{kind="member_silent"} 1' in (await client.get("/metrics")).text
            await trio.to_thread.run_sync(lost.start)
            await wait_page(client, "What is wrong now Nothing.")
            # Nobody fences a member without shards.
            page = await wait_page(client, "a lost lost has joined", "/cluster")
            await send(client, page, "/dashboard/cluster/drain", member="lost", typed="lost")
            await wait_page(client, "lost a lost stops, or is drained", "/cluster")
            lost.kill()
            await wait_page(client, "The member lost is silent: it has not written for")
            # It counts as silent only after some seconds.
            page = await get(client, "/cluster")
            assert re.search(rf"lost {lost.address} silent for [1-9]\d* s", page.text), page.text
            await trio.to_thread.run_sync(lost.start)
            await wait_page(client, "What is wrong now Nothing.")
            await trio.to_thread.run_sync(lost.stop)
            page = await wait_page(client, "Members 1 of 1 live", "/cluster")
            assert "lost a lost stops, or is drained" in page.text


@pytest.mark.slow
async def test_what_nobody_serves_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that waits for others takes no free shard: the shards have no owner, and messages for them wait. Both
    are named at once, and gone when the member takes the shards."""
    monkeypatch.setattr(troubles, "OWNER_WAIT_S", 0.2)
    monkeypatch.setattr(plan_machine, "SETTLE_S", 3_600.0)
    async with http_node(tmp_path / "a", database=url, cluster="a") as a, a.client() as client:
        page = await wait_page(client, "Without owner 256", "/cluster")
        assert cells_of(page) == [("", cell[1]) for cell in cells_of(page)]
        name = "orders"
        async with connect(a.running.address) as streams, trio.open_nursery() as nursery:

            async def push() -> None:
                await (await streams.create(name)).push(b"x")

            nursery.start_soon(push)
            overview = await wait_page(client, "1 message waits here for the owners of 1 shard")
            assert "256 shards have had no owner for" in overview.text
            shard = shards_text([shard_of(stream_address(name, 0))])
            page = await get(client, "/cluster")
            assert [
                given["title"]
                for _, given in page.tags
                if "waits" in given.get("class", "").split() and "title" in given
            ] == [f"Shard {shard}: no owner, epoch {cells_of(page)[int(shard, 16)][1]}, 1 waiting"]
            metrics = (await client.get("/metrics")).text
            for kind in ("shards_unowned", "shard_messages_waiting"):
                assert f'stream_node_troubles{{kind="{kind}"}} 1' in metrics
            monkeypatch.setattr(plan_machine, "SETTLE_S", 0.0)
            await wait_page(client, "What is wrong now Nothing.")
            await wait_page(client, "256 nobody a nobody owned them", "/cluster")


async def test_who_may_not_operate_sees_no_form(url: str, tmp_path: Path) -> None:
    """A stranger and an operator of something else see nothing, and are refused without the form; the operator of the
    cluster drains."""
    rules = tmp_path / "access.toml"
    write_rules(
        rules,
        [
            may(Right.OPERATE, "cluster", who="token:operator", name="operates"),
            may(Right.OPERATE | Right.CREATE, "orders", who="token:watcher", name="watches"),
        ],
    )
    tokens = tmp_path / "data" / "tokens.json"
    tokens.parent.mkdir()
    operator, watcher = (create_token(tokens, name, int(time.time()))[0] for name in ("operator", "watcher"))
    settings = {"database": url, "cluster": "a", "access_rules": str(rules)}
    async with (
        http_node(tmp_path, **settings) as node,
        node.client() as stranger,
        node.client(token=operator) as operating,
        node.client(token=watcher) as watching,
    ):
        for client in (stranger, watching):
            closed = await get(client, "/cluster", 403)
            assert (node.running.address in closed.text, closed.links("/dashboard/cluster")) == (False, [])
        # The form of another page has the secret of the session.
        secret = (await get(watching, "/streams")).form("/dashboard/streams")["csrf"]
        refused = await watching.post(
            "/dashboard/cluster/drain",
            data={"csrf": secret, "member": "a", "typed": "a"},
            headers={"origin": str(watching.base_url).rstrip("/")},
        )
        assert (refused.status_code, "access denied" in refused.text) == (403, True)
        page = await get(operating, "/cluster")
        assert (await send(operating, page, "/dashboard/cluster/drain", member="a", typed="a")).status_code == 303
        assert "leaves" in (await wait_page(operating, "leaves", "/cluster")).text


@asynccontextmanager
async def two_workers(folder: Path, **settings: Any) -> AsyncIterator[list[HttpNode]]:
    """Two workers of one node in this process, each with its database."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    ports = [each.getsockname()[1] for each in sockets]
    use = (folder / "use").open("w+b")
    use.truncate(shared_bytes(2))
    places = [
        WorkerPlace(
            use=use.fileno(),
            number=number,
            addresses=[f"127.0.0.1:{port}" for port in ports[2:]],
            public=[sockets[number].detach()],
            private=sockets[2 + number].detach(),
            supervisor=-1,
            report=-1,
            secret="secret",
        )
        for number in range(2)
    ]
    async with AsyncExitStack() as stack:
        stack.callback(use.close)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nodes = []
        for place in places:
            config = Config(data_dir=str(folder), http=("127.0.0.1:0",), workers=2, block_node=False, **settings)
            node = Server(config, place=place)
            await nursery.start(node.serve)
            nodes.append(node)
        yield [HttpNode(Served(node)) for node in nodes]
        for node in nodes:
            node.stop()


async def test_workers_share_the_shards_for_good(tmp_path: Path) -> None:
    """Each worker shows the same owners. There is no form, no hand-over, and a drain without the form is refused."""
    async with two_workers(tmp_path) as (first, second), first.client() as client, second.client() as other:
        page = await wait_page(client, "connected", "/cluster")
        assert cells_of(page) == cells_of(await get(other, "/cluster"))
        assert {owner for owner, _ in cells_of(page)} == {"w00", "w01"}
        assert "Each worker has its shards for good" in page.text
        assert "hand-overs" not in page.text
        assert page.forms == []
        stream = await get(client, "/streams")
        csrf = stream.form("/dashboard/streams")["csrf"]
        refused = await client.post(
            "/dashboard/cluster/drain",
            data={"csrf": csrf, "member": "w01", "typed": "w01"},
            headers={"origin": str(client.base_url).rstrip("/")},
        )
        assert "the shards of the workers of one machine do not move" in refused.text


async def test_what_is_wrong_is_told_of_all_workers_and_a_page_says_whose_it_is(tmp_path: Path) -> None:
    """A consumer of each stream is stuck, and each worker has some of the streams: one answer has all, with the names
    of the workers, whichever is asked. What all workers say is told once."""
    names = {f"s{number}" for number in range(8)}
    async with two_workers(tmp_path, consumer_stuck_after=("*=0s",)) as workers:
        create_token(tmp_path / "tokens.json", "ending", 1, round(time.time()) + 9_999)
        async with connect(workers[0].running.address) as first, connect(workers[1].running.address) as second:
            for name in names:
                await (await first.create(name)).push(b"x")
                await set_position(first, "reader", name, 0, 0)
            for client in (first, second):
                stuck, others = list[tuple[str, ...]](), list[str]()
                with trio.fail_after(PATIENCE_S):
                    while {name for _, name in stuck} != names or len(others) != 1:
                        told = await client.session.ask(ADDRESS, TROUBLES, TroublesRequest(0))
                        stuck = [each.groups() for trouble in told.troubles if (each := STUCK.match(trouble.title))]
                        others = [each.title for each in told.troubles if not STUCK.match(each.title)]
                        await trio.sleep(0.05)
                assert {worker for worker, _ in stuck} == {"w00", "w01"}
                assert others[0].startswith("The token ending ends in")
                assert (told.total, len(told.troubles)) == (9, 9)
        async with workers[1].client() as browser:
            assert "This page is about the worker w01." in (await get(browser, "")).text
