"""Goal: along a chain of mirrors (C follows B, which follows A), promotions forget no source: an old source that
returns confirms nothing, whichever of the others has taken its place.

Method: three nodes in processes. The first one is killed, and the others are promoted; then it returns and gets pushes.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.process import NodeProcess
from stream_service.mirroring import Role
from stream_service.protocol import Status
from tests.stream_node.fleet.mirror.mirrors import (
    MirrorRefused,
    add,
    contents,
    follows_to,
    is_in,
    request,
    role_of,
    wait_for,
)
from tests.stream_node.fleet.mirror.publishing import S
from tests.stream_node.fleet.mirror.test_several_mirrors import wait_written
from tests.support.served import PATIENCE_S
from tests.support.stream_peer import stream_peer

Chain = tuple[NodeProcess, NodeProcess, NodeProcess]


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Chain]:
    """A chain with ten messages, whose first node was killed and whose second one was promoted by force."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b, NodeProcess(tmp_path / "c") as c:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"x"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(10))
        await add(c.address, "s", b.address)
        await wait_written(a, b)
        a.kill()
        await wait_for(c.address, follows_to(10))
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        yield a, b, c


async def push_confirmed(a: NodeProcess) -> int:
    """Pushes until a node that has just started, and asks its mirrors, confirms. Returns the index."""
    async with stream_peer(a.address) as peer:
        with trio.fail_after(PATIENCE_S):
            while (confirm := await peer.push(S, b"alone")).status is not Status.OK:
                await trio.sleep(0.01)
    return confirm.index


async def check_refused(a: NodeProcess) -> None:
    async with stream_peer(a.address) as peer:
        confirms = await peer.push_all(S, [b"late"] * 20)
    assert {confirm.status for confirm in confirms} == {Status.ERROR}


@pytest.mark.slow
async def test_a_primary_that_has_a_source_to_fence_becomes_no_mirror_as_planned(chain: Chain) -> None:
    a, b, c = chain
    with pytest.raises(MirrorRefused, match=r"'s' at .* to fence.*mirror remove"):
        await request(c.address, MirrorAction.PROMOTE, "s")
    assert (await role_of(b.address), await role_of(c.address)) == (Role.PRIMARY, Role.MIRROR)
    with pytest.raises(MirrorRefused, match=r"'s' at .* to fence.*mirror remove"):
        await add(b.address, "s", c.address, force=True)
    (found,) = await wait_for(b.address, is_in(MirrorCondition.FENCING))
    assert found.source == a.address
    async with stream_peer(b.address) as peer:
        assert (await peer.push(S, b"after")).index == 10
    await wait_for(c.address, follows_to(11))
    a.start()
    await check_refused(a)
    (found,) = await wait_for(a.address, follows_to(11))
    assert (found.source, found.aside_messages) == (b.address, 0)
    # The fence is done, so the last one may take the place now.
    await wait_for(b.address, lambda found: not found)
    await request(c.address, MirrorAction.PROMOTE, "s")
    await wait_for(b.address, follows_to(11))
    await wait_for(a.address, follows_to(11))


async def test_an_old_source_finds_the_last_primary_behind_a_mirror_that_was_one(chain: Chain) -> None:
    """The second node is fenced by the third one before it could fence the first."""
    a, b, c = chain
    async with stream_peer(b.address) as peer:
        assert (await peer.push(S, b"second")).index == 10
    await wait_for(c.address, follows_to(11))
    await request(c.address, MirrorAction.PROMOTE, "s", force=True)
    await wait_for(b.address, follows_to(11))
    await wait_for(c.address, lambda found: not found)
    async with stream_peer(c.address) as peer:
        assert (await peer.push(S, b"third")).index == 11
    a.start()
    await check_refused(a)
    (found,) = await wait_for(a.address, follows_to(12))
    assert (found.source, found.aside_messages) == (b.address, 0)
    assert await contents(a.address, "s") == await contents(c.address, "s")


@pytest.mark.slow
async def test_a_primary_whose_older_files_were_put_back_does_not_follow_its_own_mirror(tmp_path: Path) -> None:
    """The mirror knows more of the history than the primary, and follows nobody but the primary."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(10))
        await wait_written(a, b)
        a.stop()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        a.start()
        assert await push_confirmed(a) == 10
        for new, old in ((b, a), (a, b)):
            await wait_for(new.address, follows_to(11))
            await request(new.address, MirrorAction.PROMOTE, "s")
            await wait_for(old.address, follows_to(11))
        a.kill()
        shutil.rmtree(tmp_path / "a")
        shutil.move(tmp_path / "copy", tmp_path / "a")
        a.start()
        (found,) = await wait_for(b.address, is_in(MirrorCondition.PARTED))
        assert "mirror add --force" in found.reason
        assert await role_of(a.address) is Role.PRIMARY
        assert await push_confirmed(a) == 10
