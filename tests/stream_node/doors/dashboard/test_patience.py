"""Goal: a consumer is called stuck when it is late by its own habit, or by a setting, and by no fixed number.

Method: real consumers of a node that stop at one time; and three days of looks at consumers of three kinds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from stream_client import SavedIndexes, connect
from stream_node.care import patience
from stream_node.doors.dashboard import dashboard, overview
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node
from tests.support.served import PATIENCE_S, wait_until


async def test_a_consumer_is_measured_against_its_own_habit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five consumers stop at one time, each with a message that waits. Red are the one that was always quick, and the
    one with a short limit; not the export of this project, a batch whose habit is not known, and a muted one. The log
    has when the first stopped, and when it went on."""
    monkeypatch.setattr(dashboard, "INTERVAL_S", 0.05)
    monkeypatch.setattr(dashboard, "READING_PAUSES", 0)
    monkeypatch.setattr(overview, "READ_EVERY_S", 0.0)
    monkeypatch.setattr(patience, "STUCK_S_MIN", 0.5)
    settings = ("export-*=1d", "old=never", "short@ord*=0s")
    async with (
        http_node(tmp_path, consumer_stuck_after=settings) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        stream, quick = await streams.create("orders"), SavedIndexes(streams, "quick")
        for name in ("export-lake-1", "nightly", "old", "short"):
            await SavedIndexes(streams, name).save("orders", {0: 0})
        for index in range(1, 8):
            await stream.push(b"x")
            await quick.save("orders", {0: index})
            # Each page looks at all consumers.
            await get(client, "")
        await stream.push(b"x")

        def is_named(text: str) -> list[str]:
            names = ("quick", "short", "export-lake-1", "nightly", "old")
            return [name for name in names if f"The consumer {name} is stuck" in text]

        with capture_logs() as logs:
            text = ""
            with trio.fail_after(PATIENCE_S):
                while "quick" not in is_named(text):
                    text = (await get(client, "")).text
            assert is_named(text) == ["quick", "short"]
            await wait_until(lambda: any("quick is stuck" in each.get("reason", "") for each in logs))
            await quick.save("orders", {0: 8})
            await wait_until(lambda: any("quick is stuck" in each.get("was", "") for each in logs))
        metrics = (await client.get("/metrics")).text
        assert 'stream_node_consumer_stuck_seconds{client="short",stream="orders"}' in metrics
        assert 'client="export-lake-1",stream="orders"} ' not in metrics.partition("stuck_seconds")[2].partition("#")[0]


def test_a_habit_is_learned_and_an_outage_is_not() -> None:
    """A batch each hour, a quick consumer, and one of whose two partitions one stands still, over three days."""
    habits, hour_us = patience.Patience(), 3_600_000_000
    stands_still_us = 0

    def limit_s(name: str) -> float:
        return habits.limit_s(name, "s", ())

    saved = {"batch": 0, "quick": 0, "half": 0}
    for minute in range(3 * 24 * 60):
        now_us = minute * hour_us // 60
        # For the batch, messages wait since its last run; for the quick one, never.
        waiting = {("batch", "s"): saved["batch"], ("half", "s"): stands_still_us}
        habits.look([(name, "s", at_us) for name, at_us in saved.items()], waiting)
        if minute > 4 * 60:
            assert limit_s("batch") > 3_600
        saved["batch"] = now_us if minute % 60 == 0 else saved["batch"]
        saved["quick"] = saved["half"] = now_us
    assert limit_s("quick") == limit_s("half") == patience.STUCK_S_MIN
    # A day's outage of the batch is learned as no more than it takes to call it stuck.
    before_s = limit_s("batch")
    habits.look([("batch", "s", saved["batch"])], {("batch", "s"): saved["batch"]})
    habits.look([("batch", "s", saved["batch"] + 24 * hour_us)], {})
    assert limit_s("batch") <= patience.WAITS * before_s
    assert limit_s("unknown") == patience.UNKNOWN_S
