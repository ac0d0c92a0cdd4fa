"""Goal: the pages of streams, messages and consumers show what the node has, change it as asked, and obey its rules.

Method: real nodes, filled by the ordinary client; pages over real HTTP, read by the standard library's parser of HTML;
what a form has changed is read back by the ordinary client.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ockam.identity.rules.rights import Right
from stream_client import Retention, StreamClient, connect, list_positions, set_position
from stream_node.doors.dashboard.decoding import VIEWS, decode, hex_text
from stream_service.names import partition_of
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage, get, send
from tests.stream_node.doors.http.http_node import http_node

EVIL = "<script>alert(1)</script>\"' onload=x"


@asynccontextmanager
async def dashboard(folder: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, StreamClient]]:
    """A browser without scripts, and an ordinary client of the same node."""
    async with (
        http_node(folder, **settings) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        yield client, streams


async def done(client: httpx.AsyncClient, answer: httpx.Response) -> HtmlPage:
    """The page to which a form leads."""
    assert answer.status_code == 303, answer.text
    loaded = await client.get(answer.headers["location"])
    assert loaded.status_code == 200
    return HtmlPage(loaded.text)


async def test_a_stream_is_made_changed_and_deleted(tmp_path: Path) -> None:
    """Each form does what it says, once; nothing is deleted unless the name was typed again."""
    async with dashboard(tmp_path) as (client, streams):
        page = await done(
            client,
            await send(client, await get(client, "/streams"), "/dashboard/streams", name="orders", partitions="3"),
        )
        assert "The stream orders is there." in page.text
        stream = await streams.get_stream("orders")
        assert stream.count == 3
        pushed = await send(client, page, "/dashboard/push", data='{"a": 1}', key="k", partition="1")
        assert "Message 0 is stored in partition 1." in (await done(client, pushed)).text
        form = await get(client, "/stream", name="orders")
        assert ("option", {"value": ""}) in form.tags
        for key in ("a", "b", "c", "d"):
            pushed = await send(client, page, "/dashboard/push", data="x", key=key, partition="")
            number = partition_of(key.encode(), 3)
            assert f"is stored in partition {number}." in (await done(client, pushed)).text
        pushed = await send(client, page, "/dashboard/push", data="x", key="", partition="")
        assert "is stored in partition" in (await done(client, pushed)).text
        for _ in range(4):
            await stream.get_partition(1).push(b"more")
        kept = await send(client, page, "/dashboard/stream/retention", age="7d", messages="", size="1GiB")
        assert "7 d, 1 GiB" in (await done(client, kept)).text
        assert {each.retention for each in await stream.info()} == {Retention(7 * 86_400, None, 2**30)}
        wrong = await send(client, page, "/dashboard/stream/truncate", partition="1", before="2", typed="order")
        assert (wrong.status_code, "nothing was changed" in wrong.text) == (400, True)
        cut = await send(client, page, "/dashboard/stream/truncate", partition="1", before="2", typed="orders")
        assert "2 messages are deleted." in (await done(client, cut)).text
        assert (await stream.get_partition(1).info()).first_index == 2
        for typed in ("", "ORDERS"):
            assert (await send(client, page, "/dashboard/stream/delete", typed=typed)).status_code == 400
        stale = await send(client, page, "/dashboard/stream/delete", typed="orders", csrf="f" * 64)
        assert (stale.status_code, "load its page again" in stale.text) == (403, True)
        assert (await streams.find_stream("orders")) is not None
        gone = await send(client, page, "/dashboard/stream/delete", typed="orders")
        assert "with 8 messages." in (await done(client, gone)).text
        assert (await streams.find_stream("orders")) is None
        missing = await get(client, "/stream", 404, name="orders")
        assert "no stream 'orders'" in missing.text


async def test_messages_page_both_ways(tmp_path: Path) -> None:
    """From the first page on to the last and back, every message is shown exactly once; a page begins at an index or at
    a time, and an impossible beginning is told."""
    async with dashboard(tmp_path) as (client, streams):
        stream = await streams.create("orders")
        for number in range(60):
            await stream.push(f"message {number}")

        async def walk(start: str, direction: str) -> list[int]:
            seen: list[int] = []
            following: str | None = start
            while following is not None:
                page = await get(client, "/messages", stream="orders", start=following)
                indexes = [int(each["index"]) for each in page.links("/dashboard/message")]
                seen = indexes + seen if direction == "prev" else seen + indexes
                links = [given["href"] for tag, given in page.tags if tag == "a" and given.get("rel") == direction]
                following = links[0].split("start=")[1].split("&")[0] if links else None
            return seen

        assert await walk("first", "next") == list(range(60))
        assert await walk("50", "prev") == list(range(60))
        late = (await stream.pull_page(40, 1)).messages[0].time_us
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(late // 10**6)) + f".{late % 10**6:06}Z"
        page = await get(client, "/messages", stream="orders", start=moment)
        assert "message 40" in page.text
        assert "message 39" not in page.text
        beyond = await get(client, "/messages", stream="orders", start="1,000")
        assert "There is no message at 60 or later." in beyond.text
        for start in ("soon", "-1", "9" * 30, "2026-99-01"):
            assert "400" in (await get(client, "/messages", 400, stream="orders", start=start)).text


async def test_following_gives_each_new_message_once(tmp_path: Path) -> None:
    """The rows of a following page lead to the next ones without a gap, and an answer without messages asks again."""
    async with dashboard(tmp_path) as (client, streams):
        stream = await streams.create("orders")
        await stream.push(b"old")
        page = await get(client, "/messages", stream="orders", start="new", follow=1)
        address = next(given["hx-get"] for tag, given in page.tags if "hx-get" in given)
        seen: list[int] = []
        for number in range(3):
            for part in range(30):
                await stream.push(f"new {number} {part}")
            while len(seen) < 30 * (number + 1):
                rows = HtmlPage((await client.get(address, headers={"hx-request": "true"})).text)
                address = next(given["hx-get"] for tag, given in rows.tags if "hx-get" in given)
                seen += sorted(int(each["index"]) for each in rows.links("/dashboard/message"))
        assert seen == list(range(1, 91))


async def test_hostile_names_and_messages_stay_text(tmp_path: Path) -> None:
    """Names, keys, headers and messages that are HTML are shown as they are, on every page."""
    async with dashboard(tmp_path) as (client, streams):
        stream = await streams.create(EVIL)
        await stream.push(EVIL, key=EVIL, headers={EVIL: EVIL})
        await stream.push(b'{"a": "</pre><script>alert(2)</script>"}')
        await set_position(streams, EVIL, EVIL, 0, 1)
        pages = [
            await get(client, "/streams"),
            await get(client, "/stream", name=EVIL),
            await get(client, "/messages", stream=EVIL),
            await get(client, "/message", stream=EVIL, index=0),
            await get(client, "/consumers"),
            await get(client, "/consumer", client=EVIL, stream=EVIL),
            await get(client, "/streams", search=EVIL, done=EVIL),
        ]
        for page in pages:
            assert EVIL in page.text
            assert "<script>alert" not in page.source
        raw = await client.get("/dashboard/message/raw", params={"stream": EVIL, "index": 0})
        assert raw.content == EVIL.encode()
        assert raw.headers["content-type"] == "application/octet-stream"
        assert raw.headers["content-disposition"].startswith('attachment; filename="_script_alert_1__')


async def test_a_damaged_message_does_not_blank_the_page(tmp_path: Path) -> None:
    """A message that fails its checksum has a row with the reason; its neighbours are there."""
    async with http_node(tmp_path) as node, connect(node.running.address) as streams:
        stream = await streams.create("orders")
        for number in range(5):
            await stream.push(f"message {number}")
    with sqlite3.connect(tmp_path / "data" / "streams.sqlite") as database:
        database.execute("UPDATE messages SET data = X'00' WHERE idx = 2")
    async with http_node(tmp_path) as node, node.client() as client:
        page = await get(client, "/messages", stream="orders")
        assert all(f"message {number}" in page.text for number in (0, 1, 3, 4))
        assert "unreadable" in page.text
        alone = await get(client, "/message", stream="orders", index=2)
        assert "cannot read this message" in alone.text


async def test_positions_are_edited(tmp_path: Path) -> None:
    """A position goes to an index or a time, in one partition or in all; beyond the end is refused; and forgetting it
    needs the name."""
    async with dashboard(tmp_path) as (client, streams):
        stream = await streams.create_partitioned("orders", 2)
        for partition in stream.partitions:
            for _ in range(10):
                await partition.push(b"x")
            await set_position(streams, "billing", "orders", partition.partition, 3)

        async def positions() -> list[int]:
            return [each.index async for each in list_positions(streams, client_id="billing")]

        page = await get(client, "/consumer", client="billing", stream="orders")
        assert "Lag 14" in page.text
        moved = await send(client, page, "/dashboard/consumer/position", partition="1", to="8")
        assert "partition 1 from 3 to 8" in (await done(client, moved)).text
        assert await positions() == [3, 8]

        async def preview(to: str) -> HtmlPage:
            given = page.form("/dashboard/consumer/position") | {"partition": "all", "to": to}
            address, origin = "/dashboard/consumer/preview", str(client.base_url).rstrip("/")
            return HtmlPage((await client.post(address, data=given, headers={"origin": origin})).text)

        # A preview says what is read again and what is skipped, and changes nothing.
        shown = await preview("5")
        assert [row[:6] for row in shown.rows] == [["0", "3", "5", "0", "2", "5"], ["1", "8", "5", "3", "0", "5"]]
        assert [shown.tiles[each] for each in ("Read again", "Skipped", "Lag then")] == ["3", "2", "10"]
        assert "ends at 10" in (await preview("11")).text
        # Of a position beyond the end, only what is stored is read again.
        await set_position(streams, "billing", "orders", 0, 90)
        assert [row[:6] for row in (await preview("0")).rows] == [
            ["0", "90", "0", "10", "0", "10"],
            ["1", "8", "0", "8", "0", "10"],
        ]
        await set_position(streams, "billing", "orders", 0, 3)
        # Its form sets what it has shown, although new means another index meanwhile.
        shown = await preview("new")
        assert await positions() == [3, 8]
        await stream.partitions[0].push(b"x")
        await send(client, shown, "/dashboard/consumer/position")
        assert await positions() == [10, 10]
        await send(client, page, "/dashboard/consumer/position", partition="all", to="1h")
        assert await positions() == [0, 0]
        beyond = await send(client, page, "/dashboard/consumer/position", partition="0", to="12")
        assert (beyond.status_code, "ends at 11" in beyond.text) == (400, True)
        assert (await send(client, page, "/dashboard/consumer/forget", typed="bill")).status_code == 400
        assert await positions() == [0, 0]
        gone = await send(client, page, "/dashboard/consumer/forget", typed="billing")
        assert "are forgotten" in (await done(client, gone)).text
        assert await positions() == []
        await get(client, "/consumer", 404, client="billing", stream="orders")


async def test_positions_are_set_in_all_partitions_or_in_none(tmp_path: Path) -> None:
    """One partition is too short for the index: the position in the other one, which comes first, stays as it was."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        parted = await streams.create_partitioned("two", 2)
        for number in (0, 0, 0, 1):
            await parted.partitions[number].push(b"x")
        for number in (0, 1):
            await set_position(streams, "reader", "two", number, 1)
        page = await get(client, "/consumer", client="reader", stream="two")
        answer = await send(client, page, "/dashboard/consumer/position", partition="all", to="3")
        assert (answer.status_code, "nothing is set" in answer.text) == (400, True)
        assert [each.index async for each in list_positions(streams, client_id="reader")] == [1, 1]


async def test_only_the_node_says_what_was_done(tmp_path: Path) -> None:
    """A link with a text of somebody else, or with a text of another session, shows nothing."""
    async with http_node(tmp_path) as node, node.client() as client, node.client() as other:
        page = await get(client, "/streams")
        answer = await send(client, page, "/dashboard/streams", name="made", partitions="1")
        said = answer.headers["location"]
        assert "The stream made is there." in (await client.get(said)).text
        assert "The stream made is there." not in (await other.get(said)).text
        assert "evil" not in (await get(client, "/streams", done="Sign in at evil.test", seal="0" * 32)).text


async def test_pages_obey_the_rules(tmp_path: Path) -> None:
    """Somebody who may only read one stream sees this one, is offered no form that he may not use, and a form that he
    sends all the same changes nothing."""
    rules = [may(Right.READ, name="reads", who="anonymous", on="orders")]
    write_rules(tmp_path / "access.toml", rules)
    async with http_node(tmp_path) as node, connect(node.running.address) as streams:
        for name in ("orders", "secret"):
            await (await streams.create(name)).push(b"private " + name.encode())
    async with http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node, node.client() as client:
        listed = await get(client, "/streams")
        assert ("orders" in listed.text, "secret" in listed.text, "Create" in listed.text) == (True, False, False)
        page = await get(client, "/stream", name="orders")
        assert page.forms == []
        assert "private orders" in (await get(client, "/messages", stream="orders")).text
        closed = ("/messages", "/messages/next", "/message", "/message/raw", "/forks")
        for path, query in (*((path, {"stream": "secret"}) for path in closed), ("/stream", {"name": "secret"})):
            refused = await client.get(f"/dashboard{path}", params=query)
            assert (refused.status_code, "private" in refused.text) == (403, False), path
        lines = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
        audited = {line["request"] for line in lines if line["event"] == "refused" and line.get("name") == "secret"}
        assert audited == {f"GET /dashboard{path}" for path in (*closed, "/stream")}
        sign_in = await get(client, "/sign-in")
        csrf = sign_in.form("/dashboard/sign-in")["csrf"]
        origin = {"origin": node.url}
        for action, fields in (
            ("/push", {"name": "orders", "partition": "0", "data": "x"}),
            ("/stream/delete", {"name": "orders", "typed": "orders"}),
            ("/stream/truncate", {"name": "orders", "typed": "orders", "partition": "0", "before": "1"}),
            ("/stream/retention", {"name": "orders", "messages": "1"}),
            ("/streams", {"name": "new", "partitions": "1"}),
        ):
            answer = await client.post(f"/dashboard{action}", data={"csrf": csrf} | fields, headers=origin)
            assert (answer.status_code, "access denied" in answer.text) == (403, True), action
        assert "private orders" in (await get(client, "/messages", stream="orders")).text


@pytest.mark.parametrize(
    ("data", "view", "text"),
    [
        (b'{"b":1,"b":12345678901234567890123}', "json", '{\n  "b": 1,\n  "b": 12345678901234567890123\n}'),
        ("naïve".encode(), "text", "naïve"),
        (b"{not json", "text", "{not json"),
        (b"", "text", ""),
        (b"\x00\xff" * 9, "hex", hex_text(b"\x00\xff" * 9)),
        ("\u202eabc".encode(), "hex", hex_text("\u202eabc".encode())),
        (b"[" * 100_000, "text", "[" * 100_000),
    ],
)
def test_auto_finds_the_form(data: bytes, view: str, text: str) -> None:
    """The first form that fits is shown, and data in no form is shown as bytes."""
    assert decode(data, "auto", 1_000_000)[:2] == (view, text)


def test_every_form_shows_everything() -> None:
    """No data makes a form fail: what does not fit is shown as bytes, with the reason. Long data is cut."""
    for data in (b"", b"\xff", b"Obj\x01broken", b"\xa1", b"{}", bytes(range(256)), b"\xc1" * 500, "é".encode() * 100):
        for view in VIEWS:
            for bytes_max in (10, 1_000):
                shown = decode(data, view, bytes_max)
                assert shown.view == view or view == "auto" or shown.note
    assert (
        hex_text(bytes.fromhex(hex_text(b"hello").split("  ")[1])) == "00000000  68 65 6c 6c 6f" + " " * 33 + "  hello"
    )


def test_avro_files_are_decoded() -> None:
    """What the author's library writes is shown with its values."""
    fastavro = pytest.importorskip("fastavro")
    import io

    target = io.BytesIO()
    schema = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "double"}]}
    fastavro.writer(target, schema, [{"total": 12.5}, {"total": 3.0}])
    shown = decode(target.getvalue(), "auto", 10_000)
    assert (shown.view, "12.5" in shown.text, "3.0" in shown.text) == ("avro", True, True)
