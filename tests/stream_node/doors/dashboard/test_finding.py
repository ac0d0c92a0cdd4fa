"""Goal: searches and orders are over all streams and consumers that the user may see, whatever their number.

Method: a real node on each database, with more streams than a page has. All pages together are compared with a list
that is sorted here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trio

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.tokens import create_token
from stream_client import StreamClient, connect, set_position
from stream_node.doors.dashboard import dashboard
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node


class Filled(NamedTuple):
    """A node with 120 streams. client: a browser that may see everything. other: one that may see some streams and some
    consumers. messages, sizes, lags: by stream; the consumer c1 has read nothing, and c2 one message of each."""

    streams: StreamClient
    client: httpx.AsyncClient
    other: httpx.AsyncClient
    messages: dict[str, int]
    sizes: dict[str, int]
    lags: dict[str, int]


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Filled]:
    every = may(ALL_RIGHTS, who="token:all")
    some = [may(Right.READ, "s1", "token:some", "streams"), may(Right.INDEX, "c2", "token:some", "consumers")]
    write_rules(folder / "access.toml", [every, *some])
    (folder / "data").mkdir()
    texts = {who: create_token(folder / "data" / "tokens.json", who, 0)[0] for who in ("all", "some")}
    async with (
        http_node(folder, access_rules=str(folder / "access.toml")) as node,
        node.client(token=texts["all"]) as client,
        node.client(token=texts["some"]) as other,
        connect(node.running.address, token=texts["all"]) as streams,
    ):
        found = Filled(streams, client, other, {}, {}, {})
        for number in range(120):
            name = f"s{number:03}"
            made = await streams.create_partitioned(name, 1 + number % 2)
            count, size = (0 if number % 7 else 1 + number % 3), 1 + number * 37 % 100
            for _ in range(count):
                await made.partitions[-1].push(b"x" * size)
            if count:
                for client_id, index in (("c1", 0), ("c2", 1)):
                    await set_position(streams, client_id, name, made.count - 1, index)
            found.messages[name], found.sizes[name], found.lags[name] = count, count * size, count
        await set_position(streams, "c1", "gone", 0, 5)
        yield found


async def names(client: httpx.AsyncClient, **query: Any) -> list[str]:
    """The streams of all pages."""
    found: list[str] = []
    for first in range(0, 150, 50):
        page = await get(client, "/streams", first=first, **query)
        if "No streams" in page.text:
            return []
        assert len(page.source) < 50_000
        found += [each["name"] for each in page.links("/dashboard/stream")]
        if f"of {len(found)} streams" in page.text:
            return found
    raise AssertionError(found)


@pytest.mark.usefixtures("each_database")
async def test_each_order_and_search_is_over_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each order; also the rate of a stream that is the last by name is known. Signs of patterns are letters."""
    monkeypatch.setattr(dashboard, "INTERVAL_S", 0.2)
    async with filled(tmp_path) as node:
        for order, of in (("size", node.sizes), ("messages", node.messages), ("lag", node.lags)):
            wanted = sorted(of, key=lambda name: (-of[name], name))
            assert await names(node.client, order=order) == wanted
        assert await names(node.client) == sorted(node.sizes)
        last, ordered = (await node.streams.get_stream("s119")).get_partition(0), [""]
        with trio.fail_after(30):
            # The rates move between the pages, until only this stream has one.
            while ordered != ["s119", *(name for name in sorted(node.sizes) if name != "s119")]:
                await last.push(b"x")
                ordered = await names(node.client, order="rate")
        assert await names(node.client, search="S01") == [f"s01{n}" for n in range(10)]
        assert await names(node.client, search="_01") == await names(node.client, search="%") == []
        rows = [row[:4] for row in (await get(node.client, "/consumers")).rows]
        # The stream of one consumer is gone, so nobody knows its lag.
        rows.remove(["c1", "gone", "1", "-"])
        lags = [(c, name, lag - read) for name, lag in node.lags.items() if lag for c, read in (("c1", 0), ("c2", 1))]
        lags.sort(key=lambda row: (-row[2], row[:2]))
        assert rows == [[client_id, name, "1", str(lag)] for client_id, name, lag in lags]
        # The other user sees some streams, with the lags of his own consumers, and of others no lag.
        seen = [name for name in node.sizes if name.startswith("s1")]
        assert sorted(await names(node.other, order="lag")) == seen
        row = next(row for row in (await get(node.other, "/streams", order="lag")).rows if row[0] == "s105")
        assert row[5] == str(node.lags["s105"] - 1)
        theirs = {
            (row[0], row[1].startswith("s1"), row[3] == "-") for row in (await get(node.other, "/consumers")).rows
        }
        assert theirs == {("c2", True, False), ("c2", False, True)}
