"""Goal: who has a right on one prefix sees only what is about it: rules, refusals, mirrors and figures, at every door.

Method: a whole node with rules, two mirrors, and refusals of two tenants. The pages and requests of one tenant, and of
operators of everything.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.tokens import create_token
from stream_client import AccessDenied, connect
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest, MirrorState
from stream_node.node.node_status import ADDRESS as STATUS_ADDRESS
from stream_node.node.node_status import NODE_STATUS
from stream_node.node.node_status import NodeStatusRequest as NodeStatusRequest
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.served import served

TENANTS = ("red", "blue")


class Shared(NamedTuple):
    node: HttpNode
    tokens: dict[str, str]

    @property
    def address(self) -> str:
        return self.node.running.address

    def client(self, who: str) -> httpx.AsyncClient:
        return self.node.client(token=self.tokens[who])

    async def mirrors(self, who: str) -> list[MirrorState]:
        async with connect(self.address, token=self.tokens[who]) as client:
            request = MirrorRequest(0, MirrorAction.STATUS, "", "", "", False)
            return (await client.session.ask(ADDRESS, MIRRORS, request)).mirrors


@asynccontextmanager
async def shared(folder: Path) -> AsyncIterator[Shared]:
    """Each tenant has `admin` on his prefix and a mirror there, and was refused a push to the stream of the other."""
    file, tokens = folder / "access.toml", folder / "data" / "tokens.json"
    tokens.parent.mkdir()
    tenants = [may(Right.ADMIN | Right.OPERATE, f"{who}-", f"token:{who}", f"{who} has his streams") for who in TENANTS]
    every = may(ALL_RIGHTS, "", "token:operator", "operators do everything")
    write_rules(file, [*tenants, every, may(Right.OPERATE, "", "token:watcher", "watchers see")])
    names = (*TENANTS, "operator", "watcher")
    texts = {who: create_token(tokens, who, int(time.time()))[0] for who in names}
    async with served(folder / "far") as source, http_node(folder, access_rules=str(file)) as node:
        found = Shared(node, texts)
        async with connect(source.address) as far, connect(found.address, token=texts["operator"]) as operator:
            for who in TENANTS:
                await far.create(f"{who}-orders")
                request = MirrorRequest(0, MirrorAction.ADD, f"{who}-orders", source.address, "", False)
                await operator.session.ask(ADDRESS, MIRRORS, request)
        for who, other in zip(TENANTS, reversed(TENANTS), strict=True):
            async with connect(found.address, token=texts[who]) as client:
                with pytest.raises(AccessDenied):
                    await client.create(f"{other}-new")
        yield found


async def test_a_tenant_sees_his_mirrors_rules_and_refusals_and_no_other(tmp_path: Path) -> None:
    async with shared(tmp_path) as both:
        for who, seen in (("red", ["red"]), ("operator", ["blue", "red"]), ("watcher", ["blue", "red"])):
            assert [each.stream_name for each in await both.mirrors(who)] == [f"{name}-orders" for name in seen]
            async with both.client(who) as client:
                page = await get(client, "/mirrors")
                assert [name for name in ("blue", "red") if f"{name}-orders" in page.text] == seen
                page = await get(client, "/access")
                assert [name for name in ("blue", "red") if f"{name} has his streams" in page.text] == seen
                assert [name for name in ("blue", "red") if f"create on '{name}-new'" in page.text] == seen
                # A rule about all names is one about his.
                assert "operators do everything" in page.text
                assert ("Who is there" in page.text) == (who != "red")


async def test_the_figures_of_the_whole_node_need_a_right_on_every_name(tmp_path: Path) -> None:
    async with shared(tmp_path) as both:
        for who, status in (("red", 403), ("operator", 200), ("watcher", 200)):
            async with both.client(who) as client:
                assert (await client.get("/metrics")).status_code == status
                assert (await client.get("/dashboard/rates")).status_code == status
                assert ("Free disk" in (await get(client, "")).text) == (status == 200)
            async with connect(both.address, token=both.tokens[who]) as client:
                if status == 200:
                    assert (await client.session.ask(STATUS_ADDRESS, NODE_STATUS, NodeStatusRequest(0))).partitions == 2
                else:
                    with pytest.raises(AccessDenied, match="admin or operate on every name"):
                        await client.session.ask(STATUS_ADDRESS, NODE_STATUS, NodeStatusRequest(0))
