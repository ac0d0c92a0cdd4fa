"""Goal: a node that is killed in any step of a promotion goes on after its start: in the end exactly one of both nodes
takes pushes, and nothing that was confirmed is lost. Two mirrors of each other are told.

Method: the mirror kills itself at named places (`stream_storage/failpoint.py::SITES`), while a publisher pushes to the
source; then pushes to both nodes, and pulls.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition, MirrorRequest
from stream_node.node.process import NodeProcess
from stream_service.mirroring import ROLE, BeMirror, BePrimary, Role, RoleRequest
from stream_service.names import stream_address
from stream_service.protocol import Status
from stream_storage.failpoint import ENVIRONMENT_VARIABLE, SITES
from tests.stream_node.fleet.mirror.mirrors import (
    PROMOTION_IDS,
    MirrorRefused,
    add,
    ask_once,
    contents,
    follows_to,
    is_in,
    request,
    role_of,
    wait_for,
)
from tests.stream_node.fleet.mirror.publishing import Publishing, data_by_index
from tests.support.rich import ask
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import stream_peer

ROUTES: tuple[Route, Route] = ((stream_address("s", 0),), (stream_address("s", 1),))
AS_PLANNED = ["promotion_source_demoted:1"]
MORE = [
    "promotion_begun",
    "promotion_noted:1",
    "promotion_noted:2",
    "promotion_source_demoted:2",
    "promotion_copied",
    "promotion_fences_raised",
    "promotion_partition_taken:1",
    "promotion_partition_taken:2",
]
GIVING_BACK = ["promotion_give_back_noted"]
MORE_GIVING_BACK = ["promotion_source_restored:1", "promotion_source_restored:2"]


def promotes_and_leaves() -> MirrorRequest:
    return MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False, next(PROMOTION_IDS))


async def takers(*addresses: str) -> list[tuple[bool, ...]]:
    """For each address, which partitions of the stream take pushes there."""
    found = []
    for address in addresses:
        async with stream_peer(address) as peer:
            found.append(tuple([(await peer.push(route, b"who")).status is Status.OK for route in ROUTES]))
    return found


async def die(node: NodeProcess) -> None:
    with trio.fail_after(PATIENCE_S):
        assert await trio.to_thread.run_sync(node.wait) == -9


async def die_promoting(a: NodeProcess, b: NodeProcess, partition: int) -> None:
    """The node b follows the two partitions of a, of which one has messages, and dies while it promotes them."""
    async with stream_peer(a.address) as peer:
        await peer.create_partitions("s", 2)
        await peer.push_all(ROUTES[partition], [b"x"] * 10)
    await add(b.address, "s", a.address)
    await wait_for(b.address, follows_to(*(10 * (each == partition) for each in range(2))))
    with suppress(Exception):
        await ask_once(b.address, promotes_and_leaves())
    await die(b)


def test_every_site_of_a_promotion_has_its_case() -> None:
    cases = {case.split(":")[0] for case in (*AS_PLANNED, *MORE, *GIVING_BACK, *MORE_GIVING_BACK)}
    assert cases == {site for site in SITES if "promotion" in site}


@pytest.mark.slow
@pytest.mark.parametrize("site", [*AS_PLANNED, *(pytest.param(each, marks=pytest.mark.soak) for each in MORE)])
async def test_a_mirror_that_is_killed_in_a_promotion_goes_on_with_it(tmp_path: Path, site: str) -> None:
    failing = {ENVIRONMENT_VARIABLE: site}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        async with stream_peer(a.address) as peer:
            await peer.create_partitions("s", 2)
            await peer.push_all(ROUTES[1], [b"x"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, is_in(MirrorCondition.FOLLOWING))
        publishing = Publishing("old")
        async with stream_peer(a.address) as peer, trio.open_nursery() as nursery:
            nursery.start_soon(publishing.run, peer)
            await publishing.wait(200)
            # The operator is cut off, too.
            with suppress(Exception):
                await ask_once(b.address, promotes_and_leaves())
            await die(b)
            nursery.cancel_scope.cancel()
        with NodeProcess(tmp_path / "b", listen=b.address) as b:
            # Before the intention is written down, nothing has been done.
            begins = site != "promotion_begun"
            new, old = (b.address, a.address) if begins else (a.address, b.address)
            await wait_for(old, is_in(MirrorCondition.FOLLOWING))
            await wait_for(new, lambda found: not found)
            assert await takers(new, old) == [(True, True), (False, False)]
            stored = await data_by_index(new)
            assert {index: stored[index] for index in publishing.confirmed} == publishing.confirmed
            ends = [(await contents(new, "s", partition))[1] for partition in (0, 1)]
            (first, second) = await wait_for(old, follows_to(*ends))
            assert first.aside_messages == second.aside_messages == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "moves"),
    [
        *((site, moves) for site in GIVING_BACK for moves in (False, True)),
        *(pytest.param(each, False, marks=pytest.mark.soak) for each in MORE_GIVING_BACK),
    ],
)
async def test_a_promotion_that_fails_gives_the_source_its_role_back_over_a_kill(
    tmp_path: Path, site: str, moves: bool
) -> None:
    """The messages of the source are others than those of the mirror, so what is missing cannot be copied. The node may
    start again at another address."""
    failing = {ENVIRONMENT_VARIABLE: site}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        for count in (10, 20):
            async with stream_peer(a.address) as peer:
                await peer.create_partitions("s", 2)
                await peer.push_all(ROUTES[0], [b"%d" % count] * count)
            if count == 10:
                await add(b.address, "s", a.address)
                await wait_for(b.address, follows_to(10, 0))
                a.kill()
                shutil.rmtree(tmp_path / "a")
                a.start()
        await wait_for(b.address, lambda found: found[0].condition is MirrorCondition.PARTED)
        with suppress(Exception):
            await ask_once(b.address, promotes_and_leaves())
        await die(b)
        with NodeProcess(tmp_path / "b", listen="127.0.0.1:0" if moves else b.address) as b:
            await wait_for(b.address, lambda found: found and found[0].condition is MirrorCondition.PARTED)
            with trio.fail_after(PATIENCE_S):
                while await takers(a.address, b.address) != [(True, True), (False, False)]:
                    await trio.sleep(0.05)
            assert [data for _, data in sorted((await data_by_index(a.address)).items())][:20] == [b"20"] * 20
            assert await role_of(b.address) is Role.MIRROR


@pytest.mark.slow
async def test_a_promotion_that_has_taken_a_part_of_a_stream_is_not_undone_after_a_kill(tmp_path: Path) -> None:
    """The rest cannot be promoted at first: on the source, it is the mirror of a third node."""
    failing = {ENVIRONMENT_VARIABLE: "promotion_partition_taken:1"}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        await die_promoting(a, b, 1)
        async with stream_peer(a.address) as peer:
            await ask(peer, ROUTES[1], ROLE, RoleRequest(1, BeMirror("127.0.0.1:1", "s"), True))
        with NodeProcess(tmp_path / "b", listen=b.address) as b:
            for _ in range(2):
                # The first part is done, and its fence as well.
                (found,) = await wait_for(b.address, lambda found: len(found) == 1 and found[0].reason)
                assert (found.partition, found.condition) == (1, MirrorCondition.PROMOTING)
                assert "itself a mirror" in found.reason
                b.kill()
                b.start()
            async with stream_peer(a.address) as peer:
                await ask(peer, ROUTES[1], ROLE, RoleRequest(1, BePrimary(False), True))
            await wait_for(b.address, lambda found: not found)
            assert await takers(b.address, a.address) == [(True, True), (False, False)]


@pytest.mark.slow
async def test_a_node_goes_on_with_a_promotion_at_another_address(tmp_path: Path) -> None:
    """The source has become a mirror of the node at its earlier address, where nobody is any more."""
    failing = {ENVIRONMENT_VARIABLE: "promotion_source_demoted:2"}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        await die_promoting(a, b, 0)
        async with stream_peer(a.address) as peer:
            await peer.save_index("c", "s", 7)
            assert await peer.get_index("c", "s") == 7
        with NodeProcess(tmp_path / "b") as moved:
            assert moved.address != b.address
            (first, second) = await wait_for(a.address, follows_to(10, 0))
            assert first.source == second.source == moved.address
            await wait_for(moved.address, lambda found: not found)
            assert await takers(moved.address, a.address) == [(True, True), (False, False)]
            # The promotion copies the positions once more, after the new start, too.
            async with stream_peer(moved.address) as peer:
                assert await peer.get_index("c", "s") == 7


@pytest.mark.slow
async def test_a_source_that_is_lost_in_the_middle_gets_its_role_back_when_it_returns(tmp_path: Path) -> None:
    """The mirror is killed when the source has become one, too, and the source is away when the mirror returns."""
    failing = {ENVIRONMENT_VARIABLE: "promotion_source_demoted:2"}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        await die_promoting(a, b, 0)
        a.kill()
        with NodeProcess(tmp_path / "b", listen=b.address) as b:
            (first, _) = await wait_for(b.address, lambda found: found and all(each.reason for each in found))
            assert first.condition is MirrorCondition.PROMOTING
            assert "cannot be reached" in first.reason
            with pytest.raises(MirrorRefused, match="is being promoted"):
                await add(b.address, "s", a.address)
            a.start()
            await wait_for(a.address, follows_to(10, 0))
            await wait_for(b.address, lambda found: not found)
            assert await takers(b.address, a.address) == [(True, True), (False, False)]


async def test_a_promotion_that_waits_for_its_source_ends_when_nothing_is_left_to_promote(tmp_path: Path) -> None:
    """Claim: a promotion that goes on after a start does not do so for ever. Method: its source is away, and another
    request makes the partitions primaries. Who promotes the stream then is told so, and not to wait."""
    failing = {ENVIRONMENT_VARIABLE: "promotion_source_demoted:2"}
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b", environment=failing) as b:
        await die_promoting(a, b, 0)
    async with served(tmp_path / "b") as running:
        await wait_for(running.address, lambda found: found and all(each.reason for each in found))
        async with stream_peer(running.address) as peer:
            for route in ROUTES:
                await ask(peer, route, ROLE, RoleRequest(1, BePrimary(False), True))
        with pytest.raises(MirrorRefused, match=r"has ended the promotion|is no mirror on this node"):
            await request(running.address, MirrorAction.PROMOTE, "s")


async def test_two_mirrors_of_each_other_are_told_and_a_promotion_mends_them(tmp_path: Path) -> None:
    async with served(tmp_path / "a", error_delay_s=0.0) as a, served(tmp_path / "b", error_delay_s=0.0) as b:
        async with stream_peer(a.address) as peer:
            await peer.create_partitions("s", 2)
            await peer.push_all(ROUTES[0], [b"x"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(10, 0))
        async with stream_peer(a.address) as peer:
            for route in ROUTES:
                await ask(peer, route, ROLE, RoleRequest(1, BeMirror(b.address, "s"), False))
        for each in (a, b):
            (found, _) = await wait_for(each.address, is_in(MirrorCondition.CIRCLE))
            assert "neither takes pushes" in found.reason
        await request(b.address, MirrorAction.PROMOTE, "s")
        assert await takers(b.address, a.address) == [(True, True), (False, False)]
        await wait_for(a.address, is_in(MirrorCondition.FOLLOWING))
        # The source is a mirror already, so it may follow before the new primary has fenced it.
        await wait_for(b.address, lambda found: not found)
