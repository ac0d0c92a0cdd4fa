"""Goal: a large message, which is sent in parts, has exactly its bytes in every form.

Method: a real node; the answers are read as JSON by the library, beside those of small messages.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import split_host_port
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.doors.http.test_data_pull import EVENTS, LINES, exact, push


def followed(address: str, count: int) -> list[Any]:
    connection = http.client.HTTPConnection(*split_host_port(address), timeout=30)
    connection.request("GET", "/v1/streams/large", headers=EVENTS)
    answer, found = connection.getresponse(), list[Any]()
    while len(found) < count:
        line = answer.readline()
        found += [json.loads(line[6:])] if line.startswith(b"data: ") else []
    answer.close()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("json", json.dumps({"a": ["\u20ac" * 50_000, 1.0], "b": "\\u0000\n"}, indent=3).encode()),
        ("text", ('\u20ac\U0001f600\n\0"\\' * 20_000).encode()),
        ("base64", bytes(range(256)) * 800 + b"\xff"),
    ],
)
async def test_a_large_message_is_what_a_small_one_would_be(tmp_path: Path, encoding: str, data: bytes) -> None:
    """It is made in parts; every form has its bytes, beside small messages, in pages, lines and events."""
    async with http_node(tmp_path) as node, node.client() as client:
        await push(node, "large", b"1", data, b"2")
        page = (await client.get("/v1/streams/large")).json()["messages"]
        lines = await client.get("/v1/streams/large", headers=LINES)
        assert [json.loads(line) for line in lines.text.split("\n")[:-1]] == page
        events = await trio.to_thread.run_sync(followed, node.address, len(page))
        assert events == page
        assert [(each["index"], each["encoding"]) for each in page] == [(0, "json"), (1, encoding), (2, "json")]
        assert (json.loads(data) == page[1]["data"]) if encoding == "json" else (exact(page[1]) == data)
        plain = (await client.get("/v1/streams/large?data=base64")).json()["messages"]
        assert [exact(each) for each in plain] == [b"1", data, b"2"]
        assert (await client.get("/v1/streams/large/messages/1")).content == data
