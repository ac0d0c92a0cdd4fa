"""Goal: the overview and the metrics name mirrors that need somebody, and name none that will mend themselves.

Method: the watch with made states and times; and real nodes whose mirrors get into trouble and out of it, read by real
HTTP.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import trio

from ockam.identity.rules.rights import Right
from stream_client import connect
from stream_node.care.trouble import LISTED_MAX, CurrentTroubles
from stream_node.doors.dashboard import history
from stream_node.doors.dashboard.history import KINDS, LASTS_S_MIN, MirrorWatch
from stream_node.doors.dashboard.overview import listed
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition, MirrorState
from stream_node.node.process import NodeProcess
from stream_service.mirroring import ROLE, BeMirror, RoleRequest
from stream_service.names import stream_address
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.stream_node.doors.dashboard.dashboard_page import wait_page
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.fleet.mirror.mirrors import add, follows_to, is_in, request, wait_for
from tests.support.rich import ask
from tests.support.served import served
from tests.support.stream_peer import stream_peer

AT_ONCE = (MirrorCondition.CIRCLE, MirrorCondition.UNFENCED, MirrorCondition.PARTED)
IF_IT_LASTS = (MirrorCondition.UNREACHABLE, MirrorCondition.FAILED, MirrorCondition.PROMOTING)


def state(condition: MirrorCondition, name: str = "orders", partition: int = 0, reason: str = "why") -> MirrorState:
    return MirrorState(name, partition, condition, reason, "10.0.0.5:4000", name, 5, 5, 0, 0, 1, "", 0)


def kinds(watch: MirrorWatch, now_s: float) -> list[str]:
    return [each.kind for each in watch.find(now_s)]


def test_every_condition_is_in_order_or_in_trouble_at_once_or_if_it_lasts() -> None:
    fine = {MirrorCondition.STARTING, MirrorCondition.FOLLOWING, MirrorCondition.FENCING}
    assert set(MirrorCondition) == {*fine, *AT_ONCE, *IF_IT_LASTS}
    for condition in MirrorCondition:
        watch = MirrorWatch()
        watch.look([state(condition)], 100.0)
        assert (kinds(watch, 100.0) != []) == (condition in AT_ONCE), condition
        watch.look([state(condition)], 100.0 + LASTS_S_MIN / 2)
        assert (kinds(watch, 99.9 + LASTS_S_MIN) != []) == (condition in AT_ONCE), condition
        expected = [] if condition in fine else [KINDS[condition]]
        assert kinds(watch, 100.0 + LASTS_S_MIN) == expected, condition
        # Whatever it was, it is over when the mirror follows, and when it is no mirror any more.
        watch.look([state(MirrorCondition.FOLLOWING)], 200.0)
        assert kinds(watch, 999.0) == []
        watch.look([state(condition)], 201.0)
        watch.look([], 202.0)
        assert kinds(watch, 999.0) == []


def test_a_mirror_that_is_refused_and_lost_in_turn_does_not_follow_all_the_while() -> None:
    watch = MirrorWatch()
    for second in range(40):
        watch.look([state((MirrorCondition.UNREACHABLE, MirrorCondition.FAILED)[second % 2])], float(second))
        assert kinds(watch, float(second)) == (["mirror_not_following"] if second >= LASTS_S_MIN else [])
    # A moment in which it follows begins the time anew.
    watch.look([state(MirrorCondition.FOLLOWING)], 40.0)
    watch.look([state(MirrorCondition.UNREACHABLE)], 41.0)
    assert kinds(watch, 41.0 + LASTS_S_MIN / 2) == []


def test_each_stream_is_named_once_with_what_is_known_and_not_more_than_can_be_read() -> None:
    watch = MirrorWatch()
    parted = [state(MirrorCondition.PARTED, f"s{number}") for number in range(LISTED_MAX + 5)]
    circles = [state(MirrorCondition.CIRCLE, "{x}", partition, "") for partition in range(3)]
    watch.look([*parted, *circles[:1]], 0.0)
    watch.look([*parted, *circles], 60.0)
    first, *others = [each.written() for each in watch.find(61.0)]
    assert (first.kind, first.level, first.lasts_s) == ("mirror_circle", "bad", 61.0)
    assert first.title == "Nobody takes pushes for {x}: this node and 10.0.0.5:4000 follow each other"
    assert [each.level for each in others] == ["warning"] * (LISTED_MAX + 5)
    assert [each.title for each in listed(CurrentTroubles([first, *others]))][
        -1
    ] == "5 more streams are in the same trouble"
    assert [each.title for each in others[:2]] == [f"s{n} does not follow 10.0.0.5:4000: why" for n in range(2)]


async def counted(client: httpx.AsyncClient, kind: str) -> bool:
    """Whether the metrics count one trouble of this kind, and none of another kind of mirrors."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith('stream_node_troubles{kind="mirror_') and line[-4:] != " 0.0"]
    return found == [f'stream_node_troubles{{kind="{kind}"}} 1.0']


async def fill(address: str, name: str, *messages: bytes) -> None:
    async with connect(address) as client:
        stream = await client.create(name)
        for message in messages:
            await stream.push(message)


@pytest.mark.slow
async def test_mirrors_of_each_other_are_named_until_one_is_promoted(tmp_path: Path) -> None:
    async with served(tmp_path / "a", error_delay_s=0.0) as a, http_node(tmp_path / "b") as b, b.client() as client:
        await fill(a.address, "orders", b"1", b"2")
        await add(b.running.address, "orders", a.address)
        await wait_for(b.running.address, follows_to(2))
        await wait_page(client, "What is wrong now Nothing.")
        async with stream_peer(a.address) as peer:
            mirror = BeMirror(b.running.address, "orders")
            await ask(peer, (stream_address("orders", 0),), ROLE, RoleRequest(1, mirror, False))
        page = await wait_page(client, f"Nobody takes pushes for orders: this node and {a.address} follow each other.")
        assert "Promote the stream on one of both." in page.text
        assert page.links("/dashboard/mirrors")
        assert await counted(client, "mirror_circle")
        await request(b.running.address, MirrorAction.PROMOTE, "orders")
        await wait_page(client, "What is wrong now Nothing.")


async def test_two_nodes_that_take_pushes_are_named_until_the_mirror_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    rights = may(Right.READ | Right.WRITE | Right.CREATE, "orders")
    async with guarded(tmp_path / "a", rights) as a, http_node(tmp_path / "b") as b, b.client() as client:
        source, address = a.running.address, b.running.address
        await fill(source, "orders", b"1", b"2")
        await add(address, "orders", source)
        await wait_for(address, follows_to(2))
        await request(address, MirrorAction.PROMOTE, "orders", force=True, source_goes_on=True)
        await wait_for(address, is_in(MirrorCondition.UNFENCED))
        page = await wait_page(client, "Two nodes may take pushes for orders, this one and its former source")
        assert f"{source}: " in page.text
        assert await counted(client, "mirror_unfenced")
        await request(address, MirrorAction.REMOVE, "orders")
        await wait_page(client, "What is wrong now Nothing.")


async def test_a_mirror_that_has_parted_is_named_until_it_follows(tmp_path: Path) -> None:
    async with served(tmp_path / "a", error_delay_s=0.0) as a, http_node(tmp_path / "b") as b, b.client() as client:
        address = b.running.address
        await fill(a.address, "orders", b"1", b"2")
        await add(address, "orders", a.address)
        await wait_for(address, follows_to(2))
        async with connect(a.address) as streams:
            await (await streams.get_stream("orders")).delete()
        await fill(a.address, "orders", b"other 1", b"other 2", b"other 3")
        await wait_for(address, is_in(MirrorCondition.PARTED))
        await wait_page(client, f"orders does not follow {a.address}: the 2 messages from index 0 on are not those")
        assert await counted(client, "mirror_parted")
        await add(address, "orders", a.address, force=True)
        await wait_page(client, "What is wrong now Nothing.")


async def test_a_lost_source_is_named_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LASTS_S_MIN", 0.2)
    with NodeProcess(tmp_path / "a") as a:
        async with http_node(tmp_path / "b") as b, b.client() as client:
            await fill(a.address, "orders", b"1", b"2")
            await add(b.running.address, "orders", a.address)
            await wait_for(b.running.address, follows_to(2))
            a.kill()
            await wait_page(client, f"orders has not followed {a.address} for")
            await wait_page(client, "cannot be reached")
            assert await counted(client, "mirror_not_following")
            await trio.to_thread.run_sync(a.start)
            await wait_page(client, "What is wrong now Nothing.")
