"""Goal: a planned promotion loses nothing, a forced one says what may be lost, and the old primary is refused when it
returns: it keeps aside what nobody else has, and follows.

Method: real servers in this process, and processes that are killed; publishers note every confirm, and what was
confirmed is looked for in what pulls get from both nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.process import NodeProcess
from stream_service.extensions import DELETE, DeleteRequest
from stream_service.mirroring import (
    MIRROR,
    ROLE,
    BeMirror,
    BePrimary,
    MirrorPull,
    Role,
    RoleRequest,
    decode_mirror_page,
)
from stream_service.names import stream_address
from stream_service.protocol import Status
from stream_storage.history import History
from tests.stream_node.fleet.mirror.mirrors import (
    MirrorRefused,
    add,
    contents,
    follows_to,
    is_in,
    request,
    role_of,
    states,
    wait_for,
)
from tests.stream_node.fleet.mirror.publishing import Publishing, data_by_index
from tests.support.rich import ask
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import stream_peer

S: Route = (stream_address("s", 0),)


def in_rounds(few: int) -> pytest.MarkDecorator:
    """A test that goes through so many rounds, and through more in the soak."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(10 * few, marks=pytest.mark.soak)])


async def history_of(address: str) -> History:
    async with stream_peer(address) as peer:
        payload = (await peer.ask(S, MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0)))).payload
    return decode_mirror_page(payload).history


@pytest.mark.slow
async def test_a_promotion_without_the_source_needs_force_and_says_what_was_missing(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "a") as a:
        async with served(tmp_path / "b", error_delay_s=0.0) as b:
            async with stream_peer(a.address) as peer:
                await peer.create("s")
                await peer.push_all(S, [b"%d" % number for number in range(100)])
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(100))
            a.kill()
            await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
            with pytest.raises(MirrorRefused, match="cannot be reached"):
                await request(b.address, MirrorAction.PROMOTE, "s")
            assert await role_of(b.address) is Role.MIRROR
            (before,) = (await request(b.address, MirrorAction.PROMOTE, "s", force=True)).mirrors
            assert (before.lag, before.next_index, before.source_next_index) == (0, 100, 100)
            assert before.lag_us > 0, "what was pushed since the source was heard of last may be missing"
            assert await role_of(b.address) is Role.PRIMARY
            async with stream_peer(b.address) as peer:
                assert (await peer.push(S, b"after")).index == 100
            (fencing,) = await states(b.address)
            assert fencing.condition is MirrorCondition.FENCING
            # What was told is written down, so it is told again later.
            assert (fencing.heard_us, fencing.source_next_index) == (before.heard_us, 100)


@pytest.mark.parametrize("lost", [30, 1])
async def test_an_old_primary_that_returns_is_refused_keeps_its_tail_aside_and_follows(
    tmp_path: Path, lost: int
) -> None:
    """No index has two meanings unnoticed: each confirmed message is on the new primary, or aside at its index."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"both %d" % number for number in range(100)])
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(100))
        # The mirror stops, the source goes on: these messages are on the source alone.
        b.kill()
        async with stream_peer(a.address) as peer:
            await peer.push_all(S, [b"lost %d" % number for number in range(lost)])
            await peer.save_index("c", "s", 100 + lost)
            assert await peer.get_index("c", "s") == 100 + lost
        a.kill()
        b.start()
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        (before,) = (await request(b.address, MirrorAction.PROMOTE, "s", force=True)).mirrors
        assert (before.next_index, before.lag) == (100, 0), "it had heard of no more"
        async with stream_peer(b.address) as peer:
            await peer.push_all(S, [b"new %d" % number for number in range(50)])
        a.start()
        await wait_for(a.address, follows_to(150))
        # The fence is done.
        await wait_for(b.address, lambda found: not found)
        assert await role_of(a.address) is Role.MIRROR
        async with stream_peer(a.address) as peer:
            assert (await peer.push(S, b"refused")).status is Status.ERROR
        assert await contents(a.address, "s") == await contents(b.address, "s")
        (found,) = await states(a.address)
        assert found.aside_messages == lost
        first_index, next_index, aside = await contents(a.address, found.aside_name)
        assert (first_index, next_index) == (100, 100 + lost)
        assert [message.data for message in aside] == [b"lost %d" % number for number in range(lost)]
        # A consumer that has read the lost messages goes on at the first new one.
        async with stream_peer(a.address) as peer:
            assert await peer.get_index("c", "s") == 100
        # And back again, as planned.
        await request(a.address, MirrorAction.PROMOTE, "s")
        async with stream_peer(a.address) as peer:
            assert (await peer.push(S, b"back")).index == 150
        await wait_for(b.address, follows_to(151))


async def test_a_mirror_that_was_still_empty_fences_its_source_and_keeps_its_messages_aside(tmp_path: Path) -> None:
    """The source gets its first messages when the mirror is gone."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
        await add(b.address, "s", a.address)
        with trio.fail_after(PATIENCE_S):
            while await history_of(b.address) != await history_of(a.address):
                await trio.sleep(0.02)
        b.kill()
        async with stream_peer(a.address) as peer:
            await peer.push_all(S, [b"lost"] * 3)
        a.kill()
        b.start()
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        async with stream_peer(b.address) as peer:
            assert (await peer.push(S, b"new")).index == 0
        a.start()
        (found,) = await wait_for(a.address, follows_to(1))
        assert (found.source, found.aside_messages) == (b.address, 3)
        await wait_for(b.address, lambda found: not found)
        assert await contents(a.address, "s") == await contents(b.address, "s")


async def test_a_source_that_a_planned_promotion_has_demoted_keeps_its_tail_aside_if_it_was_forced_then(
    tmp_path: Path,
) -> None:
    """The source is lost when it is a mirror already, before its last messages are copied."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"both"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(10))
        b.kill()
        async with stream_peer(a.address) as peer:
            await peer.push_all(S, [b"lost"] * 5)
            # This is what the promotion does to its source.
            await ask(peer, S, ROLE, RoleRequest(1, BeMirror(b.address, "s"), False))
        a.kill()
        b.start()
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        async with stream_peer(b.address) as peer:
            await peer.push_all(S, [b"new"] * 2)
        a.start()
        (found,) = await wait_for(a.address, follows_to(12))
        assert found.aside_messages == 5
        _, _, aside = await contents(a.address, found.aside_name)
        assert [(each.index, each.data) for each in aside] == [(index, b"lost") for index in range(10, 15)]
        assert await contents(a.address, "s") == await contents(b.address, "s")
        await wait_for(b.address, lambda found: not found)


async def test_a_stream_that_is_deleted_while_it_fences_leaves_its_name_free(tmp_path: Path) -> None:
    async with served(tmp_path / "b", error_delay_s=0.0) as b, served(tmp_path / "c") as c:
        async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
            await peer.create_partitions("s", 2)
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(0, 0))
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        await wait_for(b.address, is_in(MirrorCondition.FENCING))
        async with stream_peer(b.address) as peer:
            await ask(peer, (stream_address("s", 1),), DELETE, DeleteRequest(1))
            (found,) = await states(b.address)
            assert (found.partition, found.condition) == (0, MirrorCondition.FENCING)
            await ask(peer, S, DELETE, DeleteRequest(1))
        assert not b.server.statistics().services.mirrors
        with pytest.raises(MirrorRefused, match="is no mirror on this node"):
            await request(b.address, MirrorAction.REMOVE, "s")
        async with stream_peer(c.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 3)
        await add(b.address, "s", c.address)
        await wait_for(b.address, follows_to(3))


@in_rounds(2)
async def test_kills_of_the_mirror_and_of_the_source_lose_and_double_nothing(tmp_path: Path, rounds: int) -> None:
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
        await add(b.address, "s", a.address)
        confirmed: dict[int, bytes] = {}
        for round_ in range(rounds):
            publishing, killed = Publishing(f"round {round_}"), (b, a)[round_ % 2]
            try:
                async with stream_peer(a.address) as peer, trio.open_nursery() as nursery:
                    nursery.start_soon(publishing.run, peer)
                    await publishing.wait(200)
                    killed.kill()
                    await trio.sleep(0.05)
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup:
                assert killed is a, "only the source closes the connection of its publisher"
            killed.start()
            confirmed |= publishing.confirmed
        end = (await contents(a.address, "s"))[1]
        await wait_for(b.address, follows_to(end))
        assert await contents(b.address, "s") == await contents(a.address, "s")
        stored = await data_by_index(b.address)
        assert {index: stored[index] for index in confirmed} == confirmed


async def test_a_promotion_that_fails_in_the_middle_gives_the_source_its_role_back(tmp_path: Path) -> None:
    """One partition of the source is itself a mirror of a third node, so the promotion cannot be planned."""
    async with (
        served(tmp_path / "a", error_delay_s=0.0) as a,
        served(tmp_path / "b") as b,
        served(tmp_path / "c") as c,
        stream_peer(a.address) as peer,
    ):
        await peer.create_partitions("s", 2)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(0, 0))
        there = (stream_address("s", 1),)
        await ask(peer, there, ROLE, RoleRequest(1, BeMirror(c.address, "s"), False))
        with pytest.raises(MirrorRefused, match="itself a mirror"):
            await request(b.address, MirrorAction.PROMOTE, "s")
        assert (await peer.push(S, b"goes on")).index == 0
        assert await role_of(b.address) is Role.MIRROR
        await ask(peer, there, ROLE, RoleRequest(1, BePrimary(False), True))
        await request(b.address, MirrorAction.PROMOTE, "s")
        assert await role_of(b.address) is Role.PRIMARY


@pytest.mark.slow
@in_rounds(2)
async def test_an_old_primary_confirms_nothing_after_its_return(tmp_path: Path, rounds: int) -> None:
    """Publishers wait for it at its address; it asks its mirror before it serves the first of their pushes."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"x"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(10))
        for round_ in range(rounds):
            a.kill()
            await request(b.address, MirrorAction.PROMOTE, "s", force=True)
            b.kill()
            # Nobody fences it: the new primary comes back after the old one has begun to listen.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, b.start)
                nursery.start_soon(trio.to_thread.run_sync, a.start)
            async with stream_peer(a.address) as peer:
                confirms = await peer.push_all(S, [b"late"] * 20)
            assert {confirm.status for confirm in confirms} == {Status.ERROR}, round_
            (found,) = await wait_for(a.address, is_in(MirrorCondition.FOLLOWING))
            assert found.aside_messages == 0
            await wait_for(b.address, lambda found: not found)
            await request(a.address, MirrorAction.PROMOTE, "s")
            await wait_for(b.address, is_in(MirrorCondition.FOLLOWING))


async def test_a_primary_whose_mirror_is_gone_or_was_removed_goes_on_alone(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push(S, b"x")
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(1))
        await request(b.address, MirrorAction.REMOVE, "s")
        async with stream_peer(b.address) as peer:
            assert (await peer.push(S, b"ours")).index == 1
        for index, message in ((1, b"theirs"), (2, b"alone")):
            a.kill()
            a.start()
            async with stream_peer(a.address) as peer:
                with trio.fail_after(PATIENCE_S):
                    while (confirm := await peer.push(S, message)).status is not Status.OK:
                        await trio.sleep(0.01)
                assert confirm.index == index
            b.kill()
        assert await role_of(a.address) is Role.PRIMARY
