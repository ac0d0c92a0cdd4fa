"""Goal: the overview shows what the node does and what is wrong with it, to those who may see it, and to nobody else.

Method: real nodes, and pages over real HTTP, read by the standard library's parser of HTML.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token, revoke_token
from stream_client import connect, set_position
from stream_node.doors.dashboard import overview
from stream_node.doors.dashboard.history import History, Sample, Silence, quantile_ms
from stream_node.doors.dashboard.page import SESSIONS_OF_ONE_MAX
from stream_node.doors.dashboard.rendering import STATIC
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get, send
from tests.stream_node.doors.http.http_node import http_node
from tests.support.served import wait_until

HASHES = {
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files of htmx 4.0.1 and uPlot 1.6.32, as their packages have them."""
PAGE_BYTES_MAX = 150_000


def token(folder: Path, name: str) -> str:
    return create_token(folder / "data" / "tokens.json", name, int(time.time()))[0]


def test_files_of_others_are_unchanged() -> None:
    """What is vendored is byte by byte what its authors gave out, and each has its licence."""
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (STATIC / "vendor").iterdir()}
    assert found == HASHES


async def test_the_overview_is_whole_and_small(tmp_path: Path) -> None:
    """The page with all its files is below the bound, every file is there, and files keep for good."""
    async with http_node(tmp_path) as node, node.client() as client:
        await wait_until(lambda: node.running.server.condition.free_disk_bytes is not None)
        page = await get(client, "")
        assert "What is wrong now Nothing." in page.text
        files = [given[name] for _, given in page.tags for name in ("src", "href") if "/static/" in given.get(name, "")]
        assert len(files) == 7
        total = len(page.source)
        for file in files:
            answer = await client.get(file)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            total += len(answer.content)
        assert total < PAGE_BYTES_MAX
        assert (await client.get("/dashboard/static/../style.css")).status_code == 404
        assert (await client.get("/dashboard/static/%2e%2e/page.py")).status_code == 404
        assert (await client.get("/dashboard/static/vendor/htmx.LICENSE")).status_code == 404


async def test_pushes_move_the_rates(tmp_path: Path) -> None:
    """The points of the charts add up to what was pushed and pulled between two samples."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        stream = await streams.create("orders")
        for _ in range(3):
            await stream.push(b"x" * 100)
        assert len(await stream.pull(0)) == 3
        columns: list[list[float]] = []
        while not columns or not sum(columns[1]):
            answer = await client.get("/dashboard/rates")
            columns = answer.json()["columns"]
        # A page asks for the points after its last one, and gets each point once.
        for time_s in columns[0]:
            answer = await client.get("/dashboard/rates", params={"after": time_s})
            assert time_s not in answer.json()["columns"][0]
        times = [0.0, *columns[0]]
        assert times == sorted(times)
        assert len(columns) == 8
        later = (await client.get("/dashboard/rates", params={"after": columns[0][-1] + 1})).json()["columns"]
        assert later == [[]] * 8


def test_points_are_differences() -> None:
    """Rates are divided by the time between samples; latency is a quantile of the new events only."""
    history = History()
    none, some = (0,) * 15, (0, 0, 100, *[0] * 12)
    history.add(Sample(100.0, 10, 0, 1000, 0, some, none))
    assert history.latest() is None
    history.add(Sample(102.0, 30, 4, 5000, 400, tuple(2 * each for each in some), none))
    point = history.latest()
    assert point is not None
    assert (point.pushes_s, point.pulled_s, point.push_bytes_s, point.pulled_bytes_s) == (10, 2, 2000, 200)
    assert point.confirm_p50_ms == pytest.approx(1.75)
    assert point.commit_p99_ms is None
    assert quantile_ms((0, 0, 5), 0.5, (1.0, 2.0)) == 2000


def test_only_a_steady_publisher_can_be_silent() -> None:
    """A stream with a rhythm is silent after some of its longest pauses; one with a few bursts never is."""
    silence = Silence()
    for second in range(0, 60, 2):
        silence.look(["steady", "burst"] if second in (10, 12) else ["steady"], (), second)
        assert silence.find(second) == []
    assert silence.find(58 + 6) == []
    (found,) = silence.find(58 + 8)
    assert (found.stream, found.silent_s, found.pause_s) == ("steady", 8, 2)
    silence.look(["steady"], (), 70)
    # The node has now seen a longer pause.
    assert silence.find(90) == []
    assert [each.stream for each in silence.find(110)] == ["steady"]
    silence.look((), ["steady"], 111)
    assert silence.find(200) == []


async def test_a_stuck_consumer_is_named_first(tmp_path: Path) -> None:
    """A consumer with unread messages and no progress is named, with what to do; one that has read everything is not.
    A name that is HTML stays text."""
    async with (
        http_node(tmp_path, consumer_stuck_after=("*=0s",)) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        stream = await streams.create("orders")
        for _ in range(5):
            await stream.push(b"x")
        await set_position(streams, "<b>billing</b>", "orders", 0, 2)
        await set_position(streams, "finished", "orders", 0, 5)
        texts: list[str] = []

        async def look() -> str:
            texts.append((await get(client, "")).text)
            return texts[-1]

        # Without troubles the page says that "no consumer is stuck".
        while "The consumer <b>billing</b> is stuck" not in await look():
            pass
        assert "3 messages wait in orders." in texts[-1]
        assert "finished" not in texts[-1]
        assert texts[-1].index("What is wrong now") < texts[-1].index("The node")


async def test_no_consumer_is_stuck_because_the_clock_has_jumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions have the time of the streams, which does not believe the jump. Method: the overview alone sees the
    wall clock of a year later; the other consumer shows that it has looked."""
    monkeypatch.setattr(overview, "time", SimpleNamespace(time=lambda: time.time() + 365 * 86_400))
    async with (
        http_node(tmp_path, consumer_stuck_after=("late=0s", "*=1h")) as node,
        node.client() as client,
        connect(node.running.address) as streams,
    ):
        await (await streams.create("orders")).push(b"x")
        for name in ("busy", "late"):
            await set_position(streams, name, "orders", 0, 0)
        text = ""
        while "The consumer late is stuck" not in text:
            text = (await get(client, "")).text
        assert "The consumer busy is stuck" not in text


async def test_a_position_beyond_the_end_is_named(tmp_path: Path) -> None:
    """A consumer was set beyond the end. At the end itself, nothing is wrong; nor with a position of a former stream of
    the same name, since its consumer reads the new one from its beginning."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        stream = await streams.create("orders")
        for _ in range(3):
            await stream.push(b"x")
        await set_position(streams, "former", "orders", 0, 3)
        assert "cannot read" not in (await get(client, "")).text
        await stream.delete(keep_positions=True)
        await (await streams.create("orders")).push(b"new")
        for name, index in (("ahead", 3), ("fine", 1)):
            await set_position(streams, name, "orders", 0, index)
        await streams.create_partitioned("wide", 3)
        for partition in (1, 2):
            await set_position(streams, "ahead", "wide", partition, 7)
        text = ""
        while (
            "The consumer ahead cannot read orders, partition 0: its position is 3, and the stream ends at 1"
            not in text
        ):
            text = (await get(client, "")).text
        # What is counted and named is the consumer, however many partitions it cannot read.
        assert "The consumer ahead cannot read wide, partition 1 and 1 more: its position is 7" in text
        assert "The consumer fine cannot" not in text
        assert "The consumer former cannot" not in text
        assert 'stream_node_troubles{kind="consumer_beyond_end"} 2.0' in (await client.get("/metrics")).text


async def test_one_identity_ends_only_its_own_sessions(tmp_path: Path) -> None:
    """Somebody with another token signs in very often. The first session of the watcher stays."""
    write_rules(tmp_path / "access.toml", [may(Right.OPERATE, who="token:watcher")])
    watcher, other = token(tmp_path, "watcher"), token(tmp_path, "other")
    async with (
        http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node,
        node.client() as client,
        node.client() as busy,
    ):
        await send(client, await get(client, "/sign-in"), "/dashboard/sign-in", token=watcher)
        for _ in range(SESSIONS_OF_ONE_MAX + 1):
            await send(busy, await get(busy, "/sign-in"), "/dashboard/sign-in", token=other)
        assert "Free disk" in (await get(client, "")).text


async def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """A node that refuses pushes for lack of space says so, with both sizes."""
    async with http_node(tmp_path, free_disk_bytes_min=2**60) as node, node.client() as client:
        page = await get(client, "")
        assert "The disk is full:" in page.text
        assert "pushes need 1024 PiB (free_disk_bytes_min)" in page.text


async def test_the_overview_needs_a_right(tmp_path: Path) -> None:
    """With rules, a stranger sees no figure; a token on the form opens them, and ends with its revocation. The
    cookie is no good beyond the dashboard, and a form without its secret changes nothing."""
    write_rules(tmp_path / "access.toml", [may(Right.OPERATE, who="token:watcher")])
    text = token(tmp_path, "watcher")
    async with http_node(tmp_path, access_rules=str(tmp_path / "access.toml")) as node, node.client() as client:
        closed = await get(client, "")
        assert "need the right operate" in closed.text
        assert "Free disk" not in closed.text
        refused = await client.get("/dashboard/rates")
        assert (refused.status_code, "access denied" in refused.text) == (403, True)
        form = await get(client, "/sign-in", to="/now")
        assert (await send(client, form, "/dashboard/sign-in", csrf="0" * 64, token=text)).status_code == 403
        wrong = await send(client, form, "/dashboard/sign-in", token="wrong")
        assert (wrong.status_code, "refusal" in wrong.text, "set-cookie" in wrong.headers) == (401, True, False)
        answer = await send(client, form, "/dashboard/sign-in", token=text)
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/now")
        cookie = answer.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/dashboard"))
        assert text not in cookie
        opened = await get(client, "")
        assert "Free disk" in opened.text
        assert "token:watcher" in opened.text
        # The cookie alone proves nothing to other endpoints.
        name, value = cookie.partition(";")[0].split("=", 1)
        metrics = await client.get("/metrics", headers={"cookie": f"{name}={value}"})
        assert metrics.status_code == 403
        revoke_token(tmp_path / "data" / "tokens.json", "watcher", int(time.time()))
        while "Free disk" in (await get(client, "")).text:
            pass


async def test_signing_out_ends_the_session(tmp_path: Path) -> None:
    """After the sign-out, the old cookie is worth nothing; the header Authorization works as well as the form."""
    write_rules(tmp_path / "access.toml", [may(Right.OPERATE, who="token:watcher")])
    text = token(tmp_path, "watcher")
    settings = {"access_rules": str(tmp_path / "access.toml")}
    async with http_node(tmp_path, **settings) as node, node.client() as client, node.client(token=text) as script:
        form = await get(client, "/sign-in")
        await send(client, form, "/dashboard/sign-in", token=text)
        page = await get(client, "")
        cookies = dict(client.cookies)
        assert (await send(client, page, "/dashboard/sign-out")).status_code == 303
        client.cookies.update(cookies)
        assert "Free disk" not in (await get(client, "")).text
        assert "Free disk" in (await get(script, "")).text
        lines = (tmp_path / "data" / "audit.jsonl").read_text().splitlines()
        assert text not in json.dumps(lines)


@pytest.mark.parametrize(("target", "location"), [("//evil.test/", "/dashboard"), ("https://evil.test", "/dashboard")])
async def test_the_form_leads_to_no_other_site(tmp_path: Path, target: str, location: str) -> None:
    """The address after the sign-in is one of the dashboard, whatever a link says."""
    text = token(tmp_path, "watcher")
    async with http_node(tmp_path) as node, node.client() as client:
        form = await get(client, "/sign-in", to=target)
        answer = await send(client, form, "/dashboard/sign-in", token=text, to=target)
        assert answer.headers["location"] == location
