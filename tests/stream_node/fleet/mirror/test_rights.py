"""Goal: between nodes with rules, a mirror needs the rights that docs/scale.md lists, and gets nothing without them.

Method: a source with rules for anonymous peers, which the node of the mirror is to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.identity.rules.rights import Right
from stream_node.fleet.mirror import mirror
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.stream_node.fleet.mirror.mirrors import MirrorRefused, add, contents, follows_to, is_in, request, wait_for
from tests.support.served import served
from tests.support.stream_peer import stream_peer

CLIENT = Right.READ | Right.WRITE | Right.CREATE


async def test_a_mirror_reads_with_the_right_to_read_and_is_promoted_with_admin(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    async with guarded(folder, may(CLIENT, "s")) as a, served(tmp_path / "b", error_delay_s=0.0) as b:
        source = a.running.address
        async with stream_peer(source) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 5)
        await add(b.address, "s", source)
        await wait_for(b.address, follows_to(5))
        # A right to read is not enough to take the place of the source.
        with pytest.raises(MirrorRefused, match="access denied"):
            await request(b.address, MirrorAction.PROMOTE, "s")
        async with stream_peer(source) as peer:
            assert (await peer.push(await peer.create("s"), b"goes on")).index == 5
        # Nor is it enough to be asked by the source after its next start.
        # Only that the stream was made.
        assert [entry["right"] for entry in a.audit() if entry["event"] == "admitted"] == ["create"]
        # To promote it, the source has to follow this node: that is an act of its own in the name of the source.
        a.allow(may(CLIENT | Right.ADMIN, "s"))
        # New rules close the connection: the mirror follows again when it has what comes afterwards.
        async with stream_peer(source) as peer:
            assert (await peer.push(await peer.create("s"), b"goes on")).index == 6
        await wait_for(b.address, follows_to(7))
        with pytest.raises(MirrorRefused, match="no right to make it call here"):
            await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        a.allow(may(CLIENT | Right.ADMIN, "s"), may(Right.FORWARD, f"{b.address}/s", name="calls"))
        async with stream_peer(source) as peer:
            assert (await peer.push(await peer.create("s"), b"goes on")).index == 7
        await wait_for(b.address, follows_to(8))
        await request(b.address, MirrorAction.PROMOTE, "s")
        async with stream_peer(b.address) as peer:
            assert (await peer.push(await peer.create("s"), b"here")).index == 8
        roles = [entry for entry in a.audit() if entry.get("request") == "node/stream_role/1"]
        assert {entry["event"] for entry in roles} >= {"admitted", "refused"}


async def test_a_mirror_without_rights_says_so_and_goes_on_when_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # New rules close the connection, and the answer to what was asked over it never comes.
    monkeypatch.setattr(mirror, "ANSWER_S_MAX", 1.0)
    folder = tmp_path / "a"
    folder.mkdir()
    async with guarded(folder, may(CLIENT, "s")) as a, served(tmp_path / "b") as b:
        source = a.running.address
        async with stream_peer(source) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 5)
        await add(b.address, "s", source)
        await wait_for(b.address, follows_to(5))
        a.allow(may(Right.WRITE, "s"))
        (found,) = await wait_for(b.address, is_in(MirrorCondition.FAILED))
        assert "access denied" in found.reason
        async with stream_peer(source) as peer:
            await peer.push(await peer.create("s"), b"y")
        a.allow(may(CLIENT, "s"), may(Right.INDEX, "app", name="positions"))
        await wait_for(b.address, follows_to(6))
        async with stream_peer(source) as peer:
            await peer.save_index("app", "s", 4)
            await peer.save_index("other", "s", 3)
        async with stream_peer(b.address) as peer:
            with trio.fail_after(30):
                while await peer.get_index("app", "s") != 4:
                    await trio.sleep(0.05)
            assert await peer.get_index("other", "s") == 0, "the mirror may not see this consumer"


async def test_an_operator_needs_admin_for_the_mirrors_of_a_stream(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    async with served(tmp_path / "a") as a, guarded(folder, may(CLIENT | Right.OPERATE, "")) as b:
        mirror = b.running.address
        async with stream_peer(a.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 5)
        for action in (MirrorAction.ADD, MirrorAction.PROMOTE, MirrorAction.REMOVE):
            with pytest.raises(MirrorRefused, match="access denied"):
                await request(mirror, action, "s", a.address if action is MirrorAction.ADD else "")
        assert (await request(mirror, MirrorAction.STATUS)).mirrors == []
        b.allow(may(CLIENT | Right.ADMIN | Right.FORWARD, ""))
        await add(mirror, "s", a.address)
        await wait_for(mirror, follows_to(5))
        assert await contents(mirror, "s") == await contents(a.address, "s")
