"""Goal: a mirror works between nodes with different databases.

Method: a node on SQLite and one on PostgreSQL take turns as source and mirror; what pulls get from both is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_node.fleet.mirror.protocol import MirrorAction
from stream_service.extensions import TRUNCATE, BeforeIndex, Header, TruncateRequest
from tests.stream_node.fleet.mirror.mirrors import add, contents, follows_to, request, wait_for
from tests.support.postgres import PostgresServer
from tests.support.rich import ask, push
from tests.support.served import served
from tests.support.stream_peer import stream_peer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def test_nodes_on_sqlite_and_postgresql_mirror_each_other(server: PostgresServer, tmp_path: Path) -> None:
    server.ask("CREATE DATABASE mirrored")
    url = server.url_of("mirrored")
    async with served(tmp_path / "a", error_delay_s=0.0) as a, served(tmp_path / "b", database=url) as b:
        async with stream_peer(a.address) as peer:
            route = await peer.create("s")
            for number in range(20):
                await push(peer, route, b"%d" % number, key=b"k", headers=[Header("n", b"v")], sequence=(b"p", number))
            await peer.push_all(route, [b"plain"] * 2_000)
            await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(7)))
        primary, mirror = a.address, b.address
        await add(mirror, "s", primary)
        await wait_for(mirror, follows_to(2_020))
        assert await contents(mirror, "s") == await contents(primary, "s")
        for round_ in range(1, 3):
            await request(mirror, MirrorAction.PROMOTE, "s")
            primary, mirror = mirror, primary
            async with stream_peer(primary) as peer:
                await peer.push_all(await peer.create("s"), [b"after"] * 100)
            await wait_for(mirror, follows_to(2_020 + 100 * round_))
            assert await contents(mirror, "s") == await contents(primary, "s")
        # What the other node has and this one lacks goes aside, in either database.
        await request(mirror, MirrorAction.REMOVE, "s")
        async with stream_peer(mirror) as peer:
            await peer.push_all(await peer.create("s"), [b"own"] * 1_500)
        await add(mirror, "s", primary, force=True)
        (found,) = await wait_for(mirror, follows_to(2_220))
        assert found.aside_messages == 1_500
        assert await contents(mirror, "s") == await contents(primary, "s")
