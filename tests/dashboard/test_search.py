"""Goal: messages are found by key, header and content within a number of messages, by the page and by the command, and
saved as they are.

Method: a real node with messages that differ in one thing each. What is found is compared with a list made here, and
what is saved with what is stored.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream_client import StreamClient, connect
from stream_node.cli.messages import parse_ndjson
from stream_node.dashboard import messages
from tests.dashboard.dashboard_page import get
from tests.dashboard.test_numbers import told
from tests.http.http_node import http_node


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
        monkeypatch.setattr(messages, "FILE_BYTES_MAX", 20)
        refused = await client.get(link)
        assert (refused.status_code, "--index 40 --ndjson" in refused.text) == (413, True)
        search = ("--grep", "needle", "--grep-key", "k-", "--scan", "40", "--index", "3", "--limit", "2")
        rows = await told("pull", "orders", *search, "--node", node.running.address)
        assert [each["index"] for each in rows] == [15, 30]
