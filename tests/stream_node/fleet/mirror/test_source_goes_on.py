"""Goal: a mirror is not promoted beside a source that goes on, unless the operator says so; then the status says so.

Method: sources that cannot become mirrors: a node with workers, and a node that does not give the right for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.actors.address import Route
from ockam.identity.rules.rights import Right
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition, MirrorRequest
from stream_node.node.process import NodeProcess
from stream_service.mirroring import Role
from stream_service.names import stream_address
from stream_service.protocol import Status
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.stream_node.fleet.mirror.mirrors import (
    MirrorRefused,
    add,
    ask_once,
    follows_to,
    is_in,
    request,
    role_of,
    wait_for,
)
from tests.support.served import served
from tests.support.stream_peer import stream_peer

S: Route = (stream_address("s", 0),)


@pytest.mark.slow
async def test_a_mirror_of_a_node_with_workers_is_promoted_beside_it_only_if_told(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "a", arguments=("--workers", "2")) as a:
        async with served(tmp_path / "b", error_delay_s=0.0) as b:
            async with stream_peer(a.address) as peer:
                await peer.create("s")
                await peer.push_all(S, [b"x"] * 10)
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(10))
            for force in (False, True):
                with pytest.raises(MirrorRefused, match=r"several workers.*Stop its publishers.*--source-goes-on"):
                    await request(b.address, MirrorAction.PROMOTE, "s", force=force)
            assert await role_of(b.address) is Role.MIRROR
            await wait_for(b.address, follows_to(10))
            with pytest.raises(MirrorRefused, match="only a forced promotion"):
                await ask_once(b.address, MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False, 9, True))
            await request(b.address, MirrorAction.PROMOTE, "s", force=True, source_goes_on=True)
            for node in (a, b):
                async with stream_peer(node.address) as peer:
                    assert (await peer.push(S, b"both")).status is Status.OK
            (found,) = await wait_for(b.address, is_in(MirrorCondition.UNFENCED))
            assert "cannot become mirrors" in found.reason
            # A source that is lost later can return, and is still not fenced.
            a.kill()
            await wait_for(b.address, is_in(MirrorCondition.FENCING))


async def test_a_mirror_without_the_right_to_fence_is_promoted_only_if_told_or_if_the_source_is_lost(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    async with served(tmp_path / "b", error_delay_s=0.0) as b:
        async with guarded(folder, may(Right.READ | Right.WRITE | Right.CREATE, "s")) as a:
            source = a.running.address
            async with stream_peer(source) as peer:
                await peer.push_all(await peer.create("s"), [b"x"] * 5)
            await add(b.address, "s", source)
            await wait_for(b.address, follows_to(5))
            with pytest.raises(MirrorRefused, match="access denied"):
                await request(b.address, MirrorAction.PROMOTE, "s", force=True)
            assert await role_of(b.address) is Role.MIRROR
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        async with stream_peer(b.address) as peer:
            assert (await peer.push(S, b"after")).index == 5
        await wait_for(b.address, is_in(MirrorCondition.FENCING))
