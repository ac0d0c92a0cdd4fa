"""Goal: every number of every page is that of the command line and that of the metrics.

Each page reads itself again. A wrong path is answered by a page.

Method: one node with streams, consumers, refusals of each kind, blocks with a hole, and a mirror; one with an export;
and two workers. The pages are read as a browser gets them. The commands run as processes, and `/metrics` is read by the
parser of Prometheus.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from block_node.client import connect as connect_blocks
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.tokens import create_token
from stream_client import AccessDenied, connect, set_position
from stream_node.doors.dashboard.rendering import size
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest
from tests.block_node.client.chains import chain, outgoing
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage, get, wait_page
from tests.stream_node.doors.dashboard.test_cluster import two_workers
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.fleet.mirror.mirrors import follows_to
from tests.support.command import ROOT
from tests.support.served import PATIENCE_S, served


class Metrics:
    """The samples of `/metrics`."""

    def __init__(self, text: str) -> None:
        self._samples = [each for family in text_string_to_metric_families(text) for each in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric that have these labels."""
        found = [s for s in self._samples if s.name == f"stream_node_{name}" and labels.items() <= s.labels.items()]
        # A metric by limit has no series until a limit has refused something.
        assert found or name.startswith("limits"), name
        return float(sum(each.value for each in found))


async def told(*arguments: str) -> list[dict[str, Any]]:
    """The JSON lines that a command prints."""
    done = await trio.run_process(
        [sys.executable, "-m", "stream_node", *arguments, "--json"], capture_stdout=True, cwd=ROOT
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.slow
async def test_every_number_is_that_of_the_commands_and_the_metrics(tmp_path: Path) -> None:
    every = may(ALL_RIGHTS, who="token:all")
    write_rules(tmp_path / "access.toml", [every, may(Right.READ, "orders", "anonymous", "reads")])
    (tmp_path / "data").mkdir()
    token, refused = (create_token(tmp_path / "data" / "tokens.json", name, 0)[0] for name in ("all", "refused"))
    (tmp_path / "token").write_text(token)
    async with (
        served(tmp_path / "far") as far,
        http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node,
        node.client(token=token) as client,
        connect(node.running.address, token=token) as streams,
    ):
        asks = ("--node", node.running.address, "--token-file", str(tmp_path / "token"))
        async with connect(far.address) as other:
            for _ in range(3):
                await (await other.create("copied")).push(b"x")
        orders = await streams.create_partitioned("orders", 4)
        for partition in orders.partitions:
            for _ in range(2 + partition.partition):
                await partition.push(b"12345")
            for client_id, index in (("slow", 0), ("quick", 2)):
                await set_position(streams, client_id, "orders", partition.partition, index)
        await orders.get_partition(3).truncate(1)
        async with connect(node.running.address, token=refused) as stranger:
            for _ in range(10):
                with pytest.raises(AccessDenied):
                    await stranger.create("forbidden")
        async with connect_blocks(node.running.address, token=token) as blocks, blocks.publisher() as publisher:
            for block in chain(3):
                await publisher.send(outgoing(block))
        request = MirrorRequest(0, MirrorAction.ADD, "copied", far.address, "", False)
        with trio.fail_after(60):
            await streams.session.ask(ADDRESS, MIRRORS, request)
            request = msgspec.structs.replace(request, action=MirrorAction.STATUS, source="")
            while not follows_to(3)((await streams.session.ask(ADDRESS, MIRRORS, request)).mirrors):
                await trio.sleep(0.05)
        (view,) = await told("top", "--once", "--interval", "0.1", *asks)
        mirrors = await told("mirror", "status", *asks)
        metrics = Metrics((await client.get("/metrics")).text)
        await check_overview(client, view, metrics)
        await check_streams(client, view, metrics)
        await check_messages(client)
        await check_mirrors(client, mirrors, metrics)
        page = await get(client, "/blocks")
        tiles, shown = page.tiles, view["blocks"]
        assert (number(tiles["First block"]), number(tiles["Last block"])) == (shown["first"], shown["last"]) == (0, 2)
        assert number(tiles["Missing"]) == shown["missing"] == 0
        assert number(tiles["Blocks"]) == metrics.sum("blocks") == 3
        assert number(tiles["Refused"]) == metrics.sum("blocks_refused_total") == 0
        await check_connections(client, asks)
        await check_refreshing(client)
        page = await get(client, "/access")
        assert number(page.tiles["Refused, create"]) == metrics.sum("access_refused_total", right="create") == 10


async def check_overview(client: httpx.AsyncClient, view: dict[str, Any], metrics: Metrics) -> None:
    tiles = (await get(client, "")).tiles
    refused = sum(metrics.sum(f"{name}_refused_total") for name in ("access", "limits", "requests", "positions"))
    assert number(tiles["Refused"]) == view["refused"] == refused
    assert refused >= 10
    partitions = sum(each["partitions"] for each in view["streams"])
    assert number(tiles["Partitions"]) == partitions == metrics.sum("partitions")
    assert number(tiles["Behind"]) == sum(each["lag"] > 0 for each in view["consumers"]) == 2


async def check_streams(client: httpx.AsyncClient, view: dict[str, Any], metrics: Metrics) -> None:
    rows = {row[0]: row for row in (await get(client, "/streams")).rows}
    assert set(rows) == {each["stream"] for each in view["streams"]} >= {"orders", "copied"}
    for each in view["streams"]:
        name = each["stream"]
        _, partitions, messages, stored, _, lag, *_ = rows[name]
        assert number(partitions) == each["partitions"] == metrics.sum("stream_partitions", stream=name)
        assert number(messages) == each["messages"] == metrics.sum("stream_messages", stream=name)
        assert stored == size(each["bytes"]) == size(metrics.sum("stream_bytes", stream=name))
        assert lag == ("-" if each["lag"] is None else str(each["lag"]))
        page = await get(client, "/stream", name=name)
        assert (page.tiles["Messages"], page.tiles["Size"], page.tiles["Largest lag"]) == (messages, stored, lag)
    lags = {(row[0], row[1]): number(row[3]) for row in (await get(client, "/consumers")).rows}
    assert lags == {(each["client"], each["stream"]): each["lag"] for each in view["consumers"]}
    for (client_id, stream), behind in lags.items():
        page = await get(client, "/consumer", client=client_id, stream=stream)
        # The sum of the partitions is the whole, and each partition has its own.
        assert number(page.tiles["Lag"]) == behind == sum(number(row[3]) for row in page.rows)
        assert behind == metrics.sum("consumer_lag_messages", client=client_id, stream=stream)
    # 2, 3, 4 and 5 messages were pushed, and the first one of the last partition was deleted.
    assert lags == {("slow", "orders"): 13, ("quick", "orders"): 6}


async def check_messages(client: httpx.AsyncClient) -> None:
    """What a page of messages says about the whole partition, and what it says if there is no such message."""
    partitions = (await get(client, "/stream", name="orders")).rows[:4]
    for row in partitions:
        number_of, first, after = map(number, row[:3])
        page = await get(client, "/messages", stream="orders", partition=number_of)
        assert f"The partition has the messages {first} to {after - 1}." in page.text
        assert [number(each[0]) for each in page.rows] == list(range(first, after))
        page = await get(client, "/message", 404, stream="orders", partition=number_of, index=after)
        assert f"it has those from {first} to {after - 1}" in page.text
    assert "this page has no parameter 'page'" in (await get(client, "/streams", 400, page=99_999)).text


async def check_mirrors(client: httpx.AsyncClient, mirrors: list[dict[str, Any]], metrics: Metrics) -> None:
    page = await get(client, "/mirrors")
    (each,), (row,) = mirrors, page.rows
    assert [number(cell) for cell in row[4:7]] == [each["next_index"], each["source_next_index"], each["lag"]]
    assert number(page.tiles["Lag"]) == each["lag"] == metrics.sum("mirror_lag_messages", stream="copied") == 0
    assert number(page.tiles["Following"]) == metrics.sum("mirrors", condition="following") == 1


async def check_connections(client: httpx.AsyncClient, asks: tuple[str, ...]) -> None:
    """The client that was refused has gone, so its numbers stand still."""
    with trio.fail_after(4 * PATIENCE_S):
        while True:
            (found,) = await told("connections", *asks)
            page = await get(client, "/connections")
            opened = sum(number(row[1]) for row in page.rows if len(row) == 8)
            assert f"{opened} of {opened}, the busiest first." in page.text
            (party,) = [each for each in found["parties"] if each["party"] == "token:refused"]
            # The command has counted its own connection. The end of an earlier one is noticed a moment later.
            if opened == found["total"] - 1 and not party["connections"]:
                break
    (row,) = [row for row in page.rows if row[0] == "token:refused"]
    moved = [size(party["received_bytes"]), size(party["sent_bytes"])]
    assert [row[1], *row[4:6]] == [str(party["connections"]), *moved] == ["0", *moved]
    assert [number(cell) for cell in row[6:]] == [party["received"], party["sent"]]
    assert party["received"] >= 10


async def test_every_number_of_an_export_is_that_of_the_command_and_the_metrics(tmp_path: Path) -> None:
    """Two runs of a real exporter, and messages after them. The consumer of the export is behind by what waits."""
    dataset = pytest.importorskip("pyarrow.dataset", reason="the extra `export` is not installed")
    pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")
    from spark_export.exporter.daemon import ExporterStatistics, write_metrics
    from spark_export.exporter.job import ExportSettings
    from spark_export.exporter.node_side import Selection
    from spark_export.exporter.run import Exporter

    lake, statistics = tmp_path / "lake", ExporterStatistics()

    def export(address: str) -> None:
        settings = ExportSettings(lake, address, selection=Selection(("orders",)), accept_lost=True)
        with Exporter(settings) as exporter:
            exporter.run(on_step=statistics.count_step)

    async with http_node(tmp_path, export_folders=(str(lake),)) as node, node.client() as client:
        async with connect(node.running.address) as streams:
            orders = await streams.create_partitioned("orders", 2)
            for messages in (2, 4, 3):
                for partition in orders.partitions:
                    for _ in range(messages + partition.partition):
                        await partition.push(b"12345")
                if messages == 4:
                    await orders.get_partition(1).truncate(5)
                if messages != 3:
                    await trio.to_thread.run_sync(export, node.running.address)
        runs = {each["run"]: each for each in await told("export", "history", str(lake))}
        write_metrics(tmp_path / "m.prom", statistics)
        metrics = Metrics((await client.get("/metrics")).text + (tmp_path / "m.prom").read_text())
        page, (listed,) = await get(client, "/export", folder=str(lake)), (await get(client, "/exports")).rows
        rows, size_bytes = (
            sum(each["rows"] for each in runs.values()),
            sum(each["file_bytes"] for each in runs.values()),
        )
        lost = sum(each["lost"] for each in runs.values())
        assert rows == metrics.sum("export_rows_total") == dataset.dataset(lake / "messages").count_rows()
        assert (size_bytes, lost) == (metrics.sum("export_file_bytes_total"), metrics.sum("export_lost_messages_total"))
        assert [page.tiles[each] for each in ("Rows", "Messages", "Files as written", "Runs", "Lost")] == [
            str(rows),
            size(metrics.sum("export_data_bytes_total")),
            size(size_bytes),
            str(len(runs)),
            str(lost),
        ]
        assert [listed[2], *listed[4:]] == [str(len(runs)), str(rows), size(size_bytes), str(lost)]
        # Two messages of one partition were deleted between the exports.
        assert (len(runs), rows, lost) == (2, 12, 2)
        partitions, shown = page.rows[:2], page.rows[2:]
        assert [row[1:] for row in partitions] == [
            ["0", "0", "5", "6", "0", "2", "3"],
            ["1", "0", "7", "6", "2", "2", "4"],
        ]
        assert metrics.sum("consumer_lag_messages", stream="orders") == 7
        assert {number(row[0]) for row in shown} == runs.keys()
        for row in shown:
            run = runs[number(row[0])]
            figures = [str(run["rows"]), size(run["data_bytes"]), str(run["files"]), size(run["file_bytes"])]
            assert row[4:] == [*figures, str(run["lost"])]
            own = await get(client, "/export/run", folder=str(lake), run=run["run"])
            assert (
                f"Rows {figures[0]}, {figures[1]} of messages Files {figures[2]}, {figures[3]} Lost {row[-1]}"
                in own.text
            )
            assert [sum(number(cells[at]) for cells in own.rows) for at in (4, 5)] == [run["rows"], run["lost"]]


async def test_every_number_of_a_cluster_is_that_of_the_command_and_the_metrics(tmp_path: Path) -> None:
    """Two workers of one node. One of them sends the messages of its clients on to the other one."""
    async with two_workers(tmp_path) as (node, _), node.client() as client:
        await wait_page(client, "connected", "/cluster")
        async with connect(node.running.address) as streams:
            for number_of in range(8):
                await (await streams.create(f"s{number_of}")).push(b"x")
        (found,) = await told("cluster", "status", "--node", node.running.address)
        page, metrics = await get(client, "/cluster"), Metrics((await client.get("/metrics")).text)
        tiles = {
            name: number(page.tiles[name]) for name in ("Members", "Shards here", "Without owner", "Waiting", "Links")
        }
        shards = {each["name"]: each["shards"] for each in found["members"]}
        assert tiles == {
            "Members": len(shards),
            "Shards here": shards[found["asked"]],
            "Without owner": found["unowned"],
            "Waiting": 0,
            "Links": 1,
        }
        names = (
            "cluster_members",
            "cluster_shards",
            "cluster_unowned_shards",
            "cluster_messages_waiting",
            "cluster_links",
        )
        assert list(tiles.values()) == [metrics.sum(name) for name in names]
        members = {row[0].split()[1]: row for row in page.rows if len(row) == 7}
        assert {name: number(row[3]) for name, row in members.items()} == shards
        for name, row in members.items():
            assert number(row[3]) == metrics.sum("cluster_owned_shards", member=name)
            if name != found["asked"]:
                assert number(row[5]) == metrics.sum("cluster_messages_sent_total", member=name) > 0
        owned = [(row[0], number(row[1]), number(row[2])) for row in page.rows if len(row) == 4]
        counted = Counter((each["owner"], each["epoch"]) for each in found["shards"])
        assert {(owner, epoch): shards for owner, epoch, shards in owned} == counted
        assert sum(epoch * shards for _, epoch, shards in owned) == metrics.sum("cluster_epochs")


async def check_refreshing(client: httpx.AsyncClient) -> None:
    """Each page asks for itself again and again, and gets the part that changes: without a form, which it would empty.
    A wrong path is answered by a page, and in an open page by a sentence."""
    place = {"stream": "orders"}
    pages: dict[str, dict[str, str]] = {
        "": {},
        "/streams": {"order": "size"},
        "/stream": {"name": "orders"},
        "/consumers": {},
        "/consumer": {"client": "slow", "stream": "orders"},
        "/messages": place,
        "/message": {**place, "index": "0"},
        "/forks": place,
        "/blocks": {},
        "/mirrors": {},
        "/access": {},
    }
    for path, query in pages.items():
        page = await get(client, path, **query)
        (own,) = (given["hx-get"] for _, given in page.tags if "hx-get" in given)
        part = await client.get(own, headers={"hx-request": "true"})
        assert (part.status_code, part.headers["vary"]) == (200, "hx-request")
        shown = HtmlPage(part.text)
        assert not {"html", "nav", "form"} & {tag for tag, _ in shown.tags}
        assert [row[0] for row in shown.rows] == [row[0] for row in page.rows]
        assert shown.tiles.keys() == page.tiles.keys()
    for path in ("/nothing", "/streams/orders", "/push"):
        page = await get(client, path, 404)
        assert f"the dashboard has no page /dashboard{path}" in page.text
        assert page.links("/dashboard/streams") == [{}]
    part = await client.get("/dashboard/nothing", headers={"hx-request": "true"})
    assert (part.status_code, "<html" in part.text) == (404, False)
