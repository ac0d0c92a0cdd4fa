"""Goal: messages are found by key, header and content within a number of messages, by the page and by the command, and
saved as they are.

Method: a real node with messages that differ in one thing each. What is found is compared with a list made here, and
what is saved with what is stored.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
import trio

from stream_client import StreamClient, connect
from stream_node.cli.streams.messages import parse_ndjson
from stream_node.doors.dashboard import messages
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.dashboard.test_numbers import told
from tests.stream_node.doors.http.http_node import http_node
from tests.support.command import ROOT
from tests.support.served import served


async def fill(streams: StreamClient) -> None:
    """60 messages: every third one has a key with its number, every fourth one a header, every fifth one a word."""
    stream = await streams.create("orders")
    for number in range(60):
        data = f"number {number}" + (" needle <b>" if not number % 5 else "")
        headers = {"kind": f"paid {number}"} if not number % 4 else {}
        await stream.push(
            data.encode() + b"\xff" * (number == 55), key=None if number % 3 else f"k-{number}", headers=headers
        )


async def test_messages_are_found_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LOOKED_AT_ONCE", 7)
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        await fill(streams)

        async def found(start: str = "first", **query: str) -> tuple[list[int], str]:
            page = await get(client, "/messages", stream="orders", start=start, **query)
            # A search is not repeated by itself.
            assert not [given for _, given in page.tags if "hx-get" in given]
            return [int(row[0]) for row in page.rows], page.text

        assert (await found(key="k-1"))[0] == [12, 15, 18]
        assert (await found(header="kind"))[0] == list(range(0, 60, 4))
        assert (await found(header="kind=paid 2"))[0] == [20, 24, 28]
        assert (await found(header="kinds"))[0] == []
        # Without its name, the text may be in each header.
        assert (await found(header="=paid 2"))[0] == [20, 24, 28]
        indexes, text = await found(content="needle <b>", key="k-")
        assert indexes == [0, 15, 30, 45]
        assert "4 of 60 messages from 0 on match. The search came to the end." in text
        # The search ends at its bound and goes on there, and a full page goes on behind its last row.
        indexes, text = await found(content="needle", most="12")
        assert indexes == [0, 5, 10]
        assert "3 of 12 messages from 0 on match. The search ended before message 12." in text
        assert (await found("12", content="needle", most="12"))[0] == [15, 20]
        indexes, text = await found(content="number")
        assert indexes == list(range(25))
        assert "25 of 25 messages from 0 on match. The search ended before message 25." in text
        query = {"stream": "orders", "start": "40", "content": "needle"}
        page = await get(client, "/messages", **query)
        (link,) = (given["href"] for _, given in page.tags if "/messages/file" in given.get("href", ""))
        saved = await client.get(link)
        assert saved.headers["content-disposition"] == 'attachment; filename="orders-0-40.ndjson"'
        assert [json.loads(line)["index"] for line in saved.text.splitlines()] == [40, 45, 50, 55]
        # The reader of `push --ndjson` gets exactly what is stored.
        stored = {
            each.index: each
            for each in (await (await streams.get_stream("orders")).get_partition(0).pull_page(0, 60)).messages
        }
        read = [parse_ndjson(line) for line in saved.content.splitlines()]
        wanted = [stored[index] for index in (40, 45, 50, 55)]
        assert [(m.data, m.key, m.headers) for m in read] == [(m.data, m.key, list(m.headers)) for m in wanted]
        # A file never has another message than those that were shown.
        stream = (await streams.get_stream("orders")).get_partition(0)
        await stream.truncate(46)
        gone = await client.get(link)
        assert (gone.status_code, "since the page was shown: 40, 45;" in gone.text) == (404, True)
        page = await get(client, "/messages", **query)
        assert page.links("/dashboard/messages")
        (link,) = (given["href"] for _, given in page.tags if "/messages/file" in given.get("href", ""))
        monkeypatch.setattr(messages, "FILE_BYTES_MAX", 20)
        refused = await client.get(link)
        assert (refused.status_code, "--index 50 --ndjson" in refused.text) == (413, True)
        # What is out of range is told as it was given, and what cannot be kept is not offered.
        page = await get(client, "/messages", 400, stream="orders", partition=99999999999999999999)
        assert "partition is 99999999999999999999, and at most" in page.text
        assert "Follow all new messages, without this search" in (await get(client, "/messages", **query)).text


async def test_a_search_goes_on_behind_damaged_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages of a read are damaged. One search finds everything else, before them and behind them."""
    monkeypatch.setattr(messages, "LOOKED_AT_ONCE", 32)
    async with served(tmp_path / "data") as running, connect(running.address) as streams:
        await fill(streams)
    with sqlite3.connect(tmp_path / "data" / "streams.sqlite") as database:
        database.execute("UPDATE messages SET checksum = checksum + 1 WHERE idx IN (11, 12)")
    async with http_node(tmp_path) as node, node.client() as client:
        page = await get(client, "/messages", stream="orders", content="needle")
        assert [int(row[0]) for row in page.rows] == [0, 5, 10, 11, 12, *range(15, 60, 5)]
        assert "12 of 60 messages from 0 on match, and 2 cannot be read. The search came to the end." in page.text
        (link,) = (given["href"] for _, given in page.tags if "/messages/file" in given.get("href", ""))
        saved = await client.get(link)
        assert [json.loads(line)["index"] for line in saved.text.splitlines()] == list(range(0, 60, 5))


async def test_a_command_searches_within_its_bounds(tmp_path: Path) -> None:
    async with http_node(tmp_path) as node, connect(node.running.address) as streams:
        await fill(streams)
        search = (
            "--grep",
            "needle",
            "--grep-key",
            "k-",
            "--scan",
            "40",
            "--index",
            "3",
            "--node",
            node.running.address,
        )
        assert [each["index"] for each in await told("pull", "orders", *search, "--limit", "2")] == [15, 30]
        for limit, said in (
            ("2", "2 of 28 messages in orders/0 match; go on with --index 31"),
            ("0", "0 of 0 messages"),
        ):
            words = ["pull", "orders", *search, "--limit", limit]
            done = await trio.run_process([sys.executable, "-m", "stream_node", *words], capture_stderr=True, cwd=ROOT)
            assert said in done.stderr.decode()
            assert ("go on" in done.stderr.decode()) == (limit == "2")
