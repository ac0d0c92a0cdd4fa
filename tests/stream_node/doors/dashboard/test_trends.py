"""Goal: the charts of a stream and of a consumer have its rate and its lag over time, for who may see both, in bounded
memory.

Method: a real node with short looks; a stream grows and a consumer reads. What the charts get is compared with what was
pushed and read.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.tokens import create_token
from stream_client import connect, set_position
from stream_node.doors.dashboard import overview
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node


async def columns(client: httpx.AsyncClient, path: str) -> list[list[float | None]]:
    answer = await client.get(f"/dashboard{path}")
    assert answer.status_code == 200, answer.text
    found: list[list[float | None]] = answer.json()["columns"]
    return found


async def test_charts_have_rates_and_lags_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "INTERVAL_S", 0.05)
    monkeypatch.setattr(overview, "READING_PAUSES", 0.0)
    monkeypatch.setattr(overview, "NAMES_MAX", 2)
    write_rules(
        tmp_path / "access.toml", [may(ALL_RIGHTS, who="token:all"), may(Right.READ, "s", "token:some", "some")]
    )
    (tmp_path / "data").mkdir()
    tokens = {who: create_token(tmp_path / "data" / "tokens.json", who, 0)[0] for who in ("all", "some")}
    async with (
        http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node,
        node.client(token=tokens["all"]) as client,
        node.client(token=tokens["some"]) as other,
        connect(node.running.address, token=tokens["all"]) as streams,
    ):
        stream = await streams.create("s")
        for _ in range(5):
            await stream.push(b"x")
        await set_position(streams, "slow", "s", 0, 5)
        for _ in range(4):
            await (await streams.create("more")).push(b"x")
            await (await streams.create("most")).push(b"x")

        async def wait_lag(lag: int) -> float:
            """Returns the time of the first point seen with this lag."""
            with trio.fail_after(30):
                while True:
                    times, lags, *_ = await columns(client, address)
                    if lags[-1:] == [lag] and times[-1] is not None:
                        return times[-1]
                    await trio.sleep(0.05)

        address = "/consumer/rates?client=slow&stream=s"
        began_s = await wait_lag(0)
        for _ in range(9):
            await stream.push(b"x")
        await wait_lag(9)
        await set_position(streams, "slow", "s", 0, 10)
        await wait_lag(4)
        times, lags, written, read = await columns(client, address)
        assert lags[-1] == 4
        # The area below the rates is what was pushed and read since then.
        steps = [
            (number, after - before)
            for number, (before, after) in enumerate(pairwise([each or 0.0 for each in times]), 1)
        ]
        for rates, wanted in ((written, 9), (read, 5)):
            area = sum((rates[number] or 0) * step for number, step in steps if (times[number] or 0.0) > began_s)
            assert area == pytest.approx(wanted)
        assert (await columns(client, "/stream/rates?name=s"))[2][-1] == 4
        # Who may not see the consumer sees no lag. Of three streams, two are kept.
        assert set((await columns(other, "/stream/rates?name=s"))[2]) == {None}
        assert (await other.get(f"/dashboard{address}")).status_code == 403
        assert (await columns(client, "/stream/rates?name=most"))[1][-1] is None
        last = times[-1]
        assert (await client.get(f"/dashboard{address}&after={last}")).status_code == 200
        page = await get(client, "/consumer", client="slow", stream="s")
        assert [given["data-source"] for _, given in page.tags if "data-source" in given] == [f"/dashboard{address}"]
