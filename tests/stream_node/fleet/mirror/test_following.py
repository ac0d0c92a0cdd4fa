"""Goal: a mirror has the messages of its source at the same indexes, with the same times, keys and headers, and what
belongs to them: retention, positions, fences and sequence numbers.

Method: two real servers with real sockets and files; what pulls get from both is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    SET_POSITION,
    FencedSave,
    LeaseRequest,
    PositionKey,
    SaveStatus,
    SetRequest,
)
from index_service.fences import FENCES, FencesRequest
from ockam.actors.address import Route
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_service.extensions import (
    RETENTION,
    TRUNCATE,
    BeforeIndex,
    FromIndex,
    Header,
    Retention,
    RetentionRequest,
    RichStatus,
    TruncateRequest,
)
from stream_service.mirroring import ROLE, BeMirror, RoleRequest
from stream_service.names import stream_address
from stream_service.protocol import Status
from tests.metrics.test_metrics import scrape
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.fleet.mirror.mirrors import (
    MirrorRefused,
    add,
    contents,
    follows_to,
    is_in,
    request,
    states,
    wait_for,
)
from tests.support.rich import ask, info, pull, push
from tests.support.served import served
from tests.support.stream_peer import INDEX_SERVICE, StreamPeer, stream_peer


async def fill(peer: StreamPeer, route: Route, count: int, publisher: bytes = b"me") -> None:
    """Messages of every shape, one at a time, so that most have a time of their own."""
    for number in range(count):
        headers = [Header("n", b"%d" % number), Header("n", b"")] if number % 3 == 0 else []
        sequence = (publisher, number // 2) if number % 2 == 0 else None
        key = None if number % 5 else b"key %d" % number
        data = b"data %d" % number * (number % 7)
        # A source that has just started refuses pushes while it asks where its mirror was.
        while (await push(peer, route, data, key=key, headers=headers, sequence=sequence)).status is RichStatus.ERROR:
            await trio.sleep(0.01)


async def test_a_mirror_has_what_its_source_has(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await fill(peer, route, 60)
        await peer.push_all(route, [b"plain %d" % number for number in range(3_000)])
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(3_060))
        assert await contents(b.address, "s") == await contents(a.address, "s")
        await fill(peer, route, 20, b"second")
        await wait_for(b.address, follows_to(3_080))
        first_index, next_index, messages = await contents(b.address, "s")
        assert (first_index, next_index, len(messages)) == (0, 3_080, 3_080)
        assert (first_index, next_index, messages) == await contents(a.address, "s")
    # Both go on after a restart, at other addresses: the mirror is told its source anew.
    quick = {"error_delay_s": 0.0}
    async with served(tmp_path / "a", **quick) as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await fill(peer, route, 10, b"third")
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(3_090))
        assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_a_large_message_is_mirrored(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await push(peer, route, b"x" * 8_000_000, key=b"k")
        await push(peer, route, b"y")
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(2))
        assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_all_partitions_are_mirrored_and_new_ones_too(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        routes = [route for _, route in await peer.create_partitions("s", 3)]
        for number, route in enumerate(routes):
            await peer.push_all(route, [b"%d" % number] * (number + 1))
        await peer.create("s longer name")
        await add(b.address, "other", a.address, source_name="s")
        ends = [(await info(peer, route)).next_index for route in routes]
        found = await wait_for(b.address, lambda found: sum(each.next_index for each in found) == 6)
        assert [(each.stream_name, each.partition, each.source_name) for each in found] == [
            ("other", partition, "s") for partition in range(3)
        ]
        assert sorted(each.next_index for each in found) == sorted(ends)
        await peer.create_partitions("s", 4)
        await wait_for(b.address, lambda found: len(found) == 4)


async def test_a_mirror_begins_where_its_source_begins_and_follows_truncations(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push_all(route, [b"%d" % number for number in range(100)])
        await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(40)))
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(100))
        assert await contents(b.address, "s") == await contents(a.address, "s")
        await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(70)))
        await peer.push(route, b"behind")
        await wait_for(b.address, follows_to(101))
        with trio.fail_after(30):
            while (await contents(b.address, "s"))[0] != 70:
                await trio.sleep(0.02)
        assert await contents(b.address, "s") == await contents(a.address, "s")
        # All messages go, and later ones come.
        await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(101)))
        await peer.push(route, b"alone")
        with trio.fail_after(30):
            while (await contents(b.address, "s"))[:2] != (101, 102):
                await trio.sleep(0.02)
        assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_a_mirror_that_was_away_skips_what_its_source_has_deleted(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push_all(route, [b"%d" % number for number in range(50)])
        async with served(tmp_path / "b") as b:
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(50))
        await peer.push_all(route, [b"%d" % number for number in range(50, 90)])
        await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(80)))
        async with served(tmp_path / "b") as b:
            await wait_for(b.address, follows_to(90))
            assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_an_empty_source_that_had_messages_is_mirrored(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push_all(route, [b"x"] * 30)
        await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(30)))
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(30))
        await peer.push(route, b"first")
        await wait_for(b.address, follows_to(31))
        assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_retention_is_copied_and_not_applied_by_the_mirror(tmp_path: Path) -> None:
    quick = {"retention_interval_s": 0.02, "retention_messages": 5}
    async with served(tmp_path / "a") as a, served(tmp_path / "b", **quick) as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push_all(route, [b"x"] * 40)
        await ask(peer, route, RETENTION, RetentionRequest(1, Retention(messages=20)))
        await add(b.address, "s", a.address)
        await wait_for(b.address, lambda found: found and found[0].next_index == 40)
        async with stream_peer(b.address) as other:
            there = await other.create("s")
            with trio.fail_after(30):
                while (await info(other, there)).retention != Retention(messages=20):
                    await trio.sleep(0.02)
            about = await info(peer, route)
            assert (await info(other, there)).count >= min(20, about.count), "the default of the mirror's node is 5"


async def test_positions_are_copied_also_when_they_are_set_back(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b") as b,
        stream_peer(a.address) as peer,
        stream_peer(b.address) as other,
    ):
        route = await peer.create("s")
        await peer.push_all(route, [b"x"] * 10)
        await peer.save_index("app", "s", 7)
        await add(b.address, "s", a.address)

        async def wait_position(index: int) -> None:
            with trio.fail_after(30):
                while await other.get_index("app", "s") != index:
                    await trio.sleep(0.05)

        await wait_position(7)
        await ask(peer, INDEX_SERVICE, SET_POSITION, SetRequest(1, PositionKey("app", "s", 0), 2))
        await wait_position(2)


async def test_fences_of_a_promoted_mirror_are_above_all_that_the_source_has_given(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push(route, b"x")
        given = await ask(peer, INDEX_SERVICE, LEASE, LeaseRequest(1, "app", "s", "me", 1, [], False))
        await add(b.address, "s", a.address)
        async with stream_peer(b.address) as other:
            with trio.fail_after(30):
                while not (found := await ask(other, INDEX_SERVICE, FENCES, FencesRequest(1, "s", None, 10))).fences:
                    await trio.sleep(0.05)
            assert [(each.client_id, each.fence) for each in found.fences] == [("app", given.leases[0].fence)]
            await request(b.address, MirrorAction.PROMOTE, "s")
            taken = await ask(other, INDEX_SERVICE, LEASE, LeaseRequest(1, "app", "s", "you", 1, [], False))
            assert taken.leases[0].fence > given.leases[0].fence + 10


async def test_a_group_at_the_former_source_gets_leases_with_which_it_can_save(tmp_path: Path) -> None:
    """The former source has become a mirror, and copies the raised fences while its group has lower ones in memory."""
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b, stream_peer(a.address) as peer:
        route = await peer.create("s")
        await peer.push(route, b"x")
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(1))
        given = await ask(peer, INDEX_SERVICE, LEASE, LeaseRequest(1, "app", "s", "me", 1, [], False))
        await request(b.address, MirrorAction.PROMOTE, "s")
        with trio.fail_after(30):
            while True:
                (found,) = (await ask(peer, INDEX_SERVICE, FENCES, FencesRequest(1, "s", None, 10))).fences
                if found.fence > given.leases[0].fence + 10:
                    break
                await trio.sleep(0.05)

        async def save(fence: int) -> SaveStatus:
            return (await ask(peer, INDEX_SERVICE, FENCED_SAVE, FencedSave(1, "app", "s", 0, 1, fence))).status

        # The lease from before is still renewed, but a save with it is refused.
        assert await save(given.leases[0].fence) is SaveStatus.FENCED
        statuses: list[SaveStatus] = []
        for number in range(2, 5):
            asked = LeaseRequest(number, "app", "s", "me", 1, [], False)
            statuses += [await save(each.fence) for each in (await ask(peer, INDEX_SERVICE, LEASE, asked)).leases]
        assert statuses[-1:] == [SaveStatus.OK]
        assert SaveStatus.FENCED not in statuses


async def test_a_mirror_serves_pulls_and_refuses_pushes_and_forgets_no_sequence_number(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b", error_delay_s=0.0) as b,
        stream_peer(a.address) as peer,
        stream_peer(b.address) as other,
    ):
        route = await peer.create("s")
        await push(peer, route, b"0", sequence=(b"me", 0))
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(1))
        there = await other.create("s")
        assert (await other.push(there, b"no")).status is Status.ERROR
        # A pull that waits on the mirror is answered by a push to the source.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push, peer, route, b"1")
            page = await pull(other, there, FromIndex(1), wait_ms=5_000)
        assert [message.data for message in page.messages] == [b"1"]
        await push(peer, route, b"2", sequence=(b"me", 1))
        await request(b.address, MirrorAction.PROMOTE, "s")
        again = await push(other, there, b"2", sequence=(b"me", 1))
        assert (again.status, again.index) == (RichStatus.DUPLICATE, 2)
        assert (await push(other, there, b"3", sequence=(b"me", 2))).index == 3


@pytest.mark.parametrize("how", ["no node", "no stream", "itself", "not an address"])
async def test_what_cannot_be_followed_is_refused_at_once(tmp_path: Path, how: str) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b:
        source = {"no node": "127.0.0.1:9", "itself": b.address, "not an address": "nowhere"}.get(how, a.address)
        with pytest.raises(MirrorRefused) as caught:
            await add(b.address, "s", source)
        says = {"no node": "cannot be reached", "no stream": "has no stream 's'", "itself": "mirror of itself"}
        assert says.get(how, "HOST:PORT") in str(caught.value)
        assert await states(b.address) == []


async def test_a_stream_with_messages_of_its_own_is_not_taken_without_force(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b", error_delay_s=0.0) as b,
        stream_peer(a.address) as peer,
        stream_peer(b.address) as other,
    ):
        route, there = await peer.create("s"), await other.create("s")
        await peer.push_all(route, [b"theirs"] * 3)
        await other.push_all(there, [b"ours"] * 5)
        with pytest.raises(MirrorRefused, match="--force"):
            await add(b.address, "s", a.address)
        assert (await other.push(there, b"ours")).index == 5
        await add(b.address, "s", a.address, force=True)
        (found,) = await wait_for(b.address, follows_to(3))
        assert await contents(b.address, "s") == await contents(a.address, "s")
        assert found.aside_messages == 6
        first_index, _, aside = await contents(b.address, found.aside_name)
        assert (first_index, [message.data for message in aside]) == (0, [b"ours"] * 6)
        assert (await other.push(await other.create(found.aside_name), b"more")).index == 6


async def test_a_mirror_says_that_its_source_is_gone_and_comes_back_to_it(tmp_path: Path) -> None:
    async with served(tmp_path / "b") as b:
        async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
            route = await peer.create("s")
            await peer.push(route, b"x")
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(1))
        (found,) = await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        assert found.lag == 0
        assert found.heard_us > 0
        assert a.address in found.reason


async def test_a_removed_mirror_is_a_stream_of_its_own(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b") as b,
        stream_peer(a.address) as peer,
        stream_peer(b.address) as other,
    ):
        route = await peer.create("s")
        await peer.push(route, b"x")
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(1))
        await request(b.address, MirrorAction.REMOVE, "s")
        assert await states(b.address) == []
        assert (await other.push(await other.create("s"), b"ours")).index == 1
        assert (await peer.push(route, b"theirs")).index == 1
        with pytest.raises(MirrorRefused, match="is no mirror"):
            await request(b.address, MirrorAction.REMOVE, "s")
        # It cannot follow again: both have another message at index 1.
        await add(b.address, "s", a.address, force=True)
        (found,) = await wait_for(b.address, follows_to(2))
        assert found.aside_messages == 1
        assert await contents(b.address, "s") == await contents(a.address, "s")


async def test_a_stream_is_mirrored_by_two_nodes_and_by_a_mirror_of_a_mirror(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b") as b,
        served(tmp_path / "c") as c,
        stream_peer(a.address) as peer,
    ):
        route = await peer.create("s")
        await peer.push_all(route, [b"x"] * 10)
        await add(b.address, "s", a.address)
        await add(c.address, "s", b.address)
        await peer.push_all(route, [b"y"] * 10)
        for node in (b, c):
            await wait_for(node.address, follows_to(20))
            assert await contents(node.address, "s") == await contents(a.address, "s")


async def test_metrics_tell_how_far_a_mirror_is_behind(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, http_node(tmp_path / "b") as b, stream_peer(a.address) as peer:
        await peer.push_all(await peer.create("s"), [b"x"] * 5)
        await add(b.running.address, "s", a.address)
        await wait_for(b.running.address, follows_to(5))
        samples = await scrape(b)
        assert samples["stream_node_mirrors", (("condition", "following"),)] == 1
        assert samples["stream_node_mirrors", (("condition", "parted"),)] == 0
        assert samples["stream_node_mirror_lag_messages", (("stream", "s"),)] == 0
        assert samples["stream_node_mirror_lag_seconds", (("stream", "s"),)] == 0
        a.server.stop()
        await wait_for(b.running.address, is_in(MirrorCondition.UNREACHABLE))
        assert (await scrape(b))["stream_node_mirror_lag_seconds", (("stream", "s"),)] > 0


async def test_a_mirror_that_took_the_time_of_its_source_is_followed_over_http(tmp_path: Path) -> None:
    """Claim: events of a mirror begin after it has taken the creation time of its source.

    Method: the stream is read over HTTP before it becomes a mirror, and so with the time of its own creation.
    """
    async with served(tmp_path / "a") as a, http_node(tmp_path / "b") as b, b.client() as client:
        async with stream_peer(a.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"])
        await client.put("/v1/streams/s")
        assert (await client.get("/v1/streams/s")).json()["messages"] == []
        role = RoleRequest(1, BeMirror(a.address, "s"), force=False)
        async with stream_peer(b.running.address) as peer:
            await peer.ask((stream_address("s", 0),), ROLE.encode_request(role))
        await wait_for(b.running.address, follows_to(1))
        headers, lines = {"Accept": "text/event-stream"}, []
        async with client.stream("GET", "/v1/streams/s?from=earliest", headers=headers) as events:
            with trio.move_on_after(0.5):
                async for line in events.aiter_lines():
                    lines.append(line)
        assert any(line.startswith("data: ") for line in lines)
        assert "event: problem" not in lines
