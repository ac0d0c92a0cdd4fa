"""Goal: with more troubles than a list shows, each number is that of all, and a look at them costs little.

Method: real nodes; pages, metrics, the answer to the command, the log, and the rows that the database has given out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
import trio

from ockam.identity.rules.tokens import create_token
from stream_client import connect, set_position
from stream_node.care import trouble
from stream_node.care.trouble_service import ADDRESS, TROUBLES, TroublesRequest
from stream_node.doors.dashboard import dashboard, history, listing, overview, troubles
from stream_node.node.logs import RepeatedEvents
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.rows import connection_of
from tests.block_node.backfill.served_blocks import QUICK, chain, source
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node
from tests.support.served import PATIENCE_S, wait_until


async def test_troubles_are_counted_whole_and_lists_say_what_they_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More consumers are stuck, positions are beyond the end, and publishers are silent, than a page lists and the
    metrics name. Each number is that of all; the alert's own metric has one series for those without a name."""
    monkeypatch.setattr(dashboard, "INTERVAL_S", 0.01)
    monkeypatch.setattr(dashboard, "READING_PAUSES", 2)
    monkeypatch.setattr(history, "SILENT_S_MIN", 0.5)
    written: list[dict[str, Any]] = []
    repeated = RepeatedEvents(lambda: 0.0)

    def note(logger: object, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        written.append(dict(repeated(logger, level, event)))
        raise structlog.DropEvent

    monkeypatch.setattr(dashboard, "logger", structlog.wrap_logger(None, processors=[note]))
    async with (
        http_node(tmp_path, metrics_names_max=4, consumer_stuck_after=("*=0s",)) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        wide = await streams.create_partitioned("wide", 4)
        for partition in wide.partitions:
            await partition.push(b"x")
            await set_position(streams, "dead", "wide", partition.partition, 0)
        for number in range(24):
            await set_position(streams, f"c{number:02}", "wide", 0, 0)
            await set_position(streams, f"beyond{number:02}", "wide", 1, 9)
            create_token(tmp_path / "data" / "tokens.json", f"t{number:02}", 1, int(time.time()) + 9_999)
        steady = [await streams.create(f"s{number:02}") for number in range(24)]
        for _ in range(history.LOOKS_MIN + 2):
            for each in steady:
                await each.push(b"x")
            await trio.sleep(0.02)
        more = ["5 more consumers are stuck", "4 more consumers have positions beyond", "4 more publishers are silent"]
        more.append("4 more tokens end soon")
        text = ""
        while not all(each in text for each in more):
            text = (await get(client, "")).text
        # Who pushed once has no rhythm.
        assert "The publisher of wide" not in text
        # What waits in several partitions is told as that.
        assert "4 messages wait in 4 partitions of wide, longest in partition 0." in text
        assert [text.count(f" is {what}") for what in ("stuck:", "silent:")] == [20, 20]
        lines = (await client.get("/metrics")).text.splitlines()
        counts = {"consumer_stuck": 25, "consumer_beyond_end": 24, "publisher_silent": 24, "token_ends": 24}
        for kind, count in counts.items():
            assert f'stream_node_troubles{{kind="{kind}"}} {count}.0' in lines
        for metric, labels in (
            ("consumer_stuck", 'client="_others",stream="_others"'),
            ("publisher_silent", 'stream="_others"'),
        ):
            series = [line for line in lines if line.startswith(f"stream_node_{metric}_seconds{{")]
            assert len(series) == 5
            assert f"{metric}_seconds{{{labels}}}" in series[-1]
            assert all(float(line.rpartition(" ")[2]) > 0 for line in series)
        # The command's answer is as long as the page, and counts all.
        told = await streams.session.ask(ADDRESS, TROUBLES, TroublesRequest(0))
        assert (told.total, Counter(each.kind for each in told.troubles)) == (
            sum(counts.values()),
            dict.fromkeys(counts, 20),
        )
        # The log names as many as the page, although their names differ in digits only, and nothing that is not there.
        stuck = {f"c{number:02}@wide" for number in range(24)} | {"dead@wide"}
        await wait_until(lambda: len(stuck & {each["subject"] for each in written}) >= 20)
        assert {each["kind"] for each in written} == counts.keys()


async def test_each_block_source_with_another_chain_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: the log names each block source that has another chain, and the page counts those beyond its list as such.
    Method: a node with blocks, and one node with other blocks, which is its source under three addresses, one
    more than are listed here."""
    monkeypatch.setattr(trouble, "LISTED_MAX", 2)
    monkeypatch.setattr(dashboard, "INTERVAL_S", 0.05)
    monkeypatch.setattr(overview, "READ_EVERY_S", 0.05)
    async with source(tmp_path / "data", chain(4)):
        pass
    async with source(tmp_path / "liar", chain(4, seed=1), listen="0.0.0.0:0", insecure=True) as liar:
        port = liar.address.rpartition(":")[2]
        names = tuple(f"127.0.0.{number}:{port}" for number in range(1, 4))
        settings: dict[str, Any] = QUICK | {"backfill_block_node_sources": names}
        with structlog.testing.capture_logs() as logs:
            async with http_node(tmp_path, **settings) as node, node.client() as client:
                with trio.fail_after(PATIENCE_S):
                    while "1 more block sources have another chain" not in (await get(client, "")).text:
                        await trio.sleep(0.02)

                def named() -> set[str]:
                    return {line["subject"] for line in logs if line.get("kind") == "block_sources_disagree"}

                # Those that begin at once are listed and counted as on the page.
                await wait_until(lambda: len(named() & set(names)) >= 2)


async def test_one_look_serves_all_and_only_what_is_listed_gets_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many consumers are stuck. Browsers, scrapes and commands that come together have the store read once, and texts
    are written for the twenty that are listed, in each list; a page of streams reads one lag for each stream."""
    monkeypatch.setattr(dashboard, "INTERVAL_S", 1e9)
    monkeypatch.setattr(overview, "READ_EVERY_S", 1e9)
    counts = Counter[str]()

    def count(place: Any, name: str) -> None:
        original = getattr(place, name)

        def counted(*values: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(*values, **named)

        monkeypatch.setattr(place, name, counted)

    count(overview, "read_positions")
    # The text of each stuck consumer says for how long.
    count(troubles, "duration")
    async with (
        http_node(tmp_path, consumer_stuck_after=("*=0s",)) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        await (await streams.create("orders")).push(b"x")
        for number in range(30):
            await set_position(streams, f"c{number:02}", "orders", 0, 0)
        for _ in range(3):
            assert "10 more consumers are stuck" in (await get(client, "")).text
            assert 'stream_node_troubles{kind="consumer_stuck"} 30.0' in (await client.get("/metrics")).text
        told = await streams.session.ask(ADDRESS, TROUBLES, TroublesRequest(0))
        assert (told.total, len(told.troubles)) == (30, 20)
        # Three pages and one command list twenty each, and the metrics list none.
        assert counts == {"read_positions": 1, "duration": 4 * 20}
    # A page of streams reads one lag for each stream, and not those of all consumers.
    session = Database.open(tmp_path / "data", read_only=True).read_session()
    rows = list[Any]()

    def note(cursor: object, row: tuple[Any, ...]) -> tuple[Any, ...]:
        rows.append(row)
        return row

    connection_of(session).row_factory = note
    for clients, lag in (([""], 1), (["c1", "c2"], 1), (["d"], None), ([], None)):
        rows.clear()
        page = listing.find_streams(session, listing.Asked("", "lag", 0, [""], clients))
        assert [row.lag for row in page.rows] == [lag]
        assert len(rows) < 10


async def test_a_search_for_troubles_for_which_there_is_no_thread_ends_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a system without room for one more thread ends no node. Method: a look raises what trio raises then."""
    monkeypatch.setattr(dashboard, "INTERVAL_S", 0.01)

    def fail(config: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async with http_node(tmp_path) as node:
        with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
            patch.setattr(overview, "ENDINGS_EVERY_S", 0.0)
            patch.setattr(overview, "READ_EVERY_S", 0.0)
            patch.setattr(overview, "read_endings", fail)
            await wait_until(lambda: any(line["event"] == "troubles_not_found" for line in logs))
        async with connect(node.running.address) as client:
            assert await (await client.create("orders")).push(b"x") == 0


def test_a_trouble_keeps_its_level_when_its_texts_are_written() -> None:
    for is_early, level in ((True, "warning"), (False, "bad")):
        made = trouble.Trouble("token_ends", about="t", write=lambda about, _: (about, "", "", ""), is_early=is_early)
        assert (made.level, made.written().level, made.written().title) == (level, level, "t")
