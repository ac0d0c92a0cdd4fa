"""Goal: what a promotion tells is so when it is told, also if an earlier promotion of the same stream was not asked for
to its end.

Method: requests of an operator who goes away after the first one, as an interrupt of the command does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from ockam.actors.address import Route, local
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorCondition, MirrorRequest
from stream_service.mirror_rows import list_mirrors, write_mirror
from stream_service.mirroring import Role
from stream_service.names import stream_address
from stream_service.role_machine import StreamRole
from tests.stream_node.fleet.mirror.mirrors import (
    PROMOTION_IDS,
    MirrorRefused,
    add,
    ask_once,
    follows_to,
    is_in,
    request,
    role_of,
    wait_for,
)
from tests.support.databases import open_database
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import stream_peer

S: Route = (stream_address("s", 0),)


async def wait_role(address: str, role: Role) -> None:
    with trio.fail_after(PATIENCE_S):
        while await role_of(address) is not role:
            await trio.sleep(0.01)


@pytest.mark.parametrize("force", [False, True])
async def test_the_end_of_a_promotion_that_nobody_asked_for_is_not_told_to_a_later_one(
    tmp_path: Path, force: bool
) -> None:
    async with served(tmp_path / "a", error_delay_s=0.0) as a, served(tmp_path / "b", error_delay_s=0.0) as b:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"x"] * 5)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(5))
        # The operator begins a promotion and goes away. It is done, and then the nodes change places again.
        left = MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False, next(PROMOTION_IDS))
        assert not (await ask_once(b.address, left)).done
        await wait_role(b.address, Role.PRIMARY)
        await wait_for(a.address, is_in(MirrorCondition.FOLLOWING))
        await request(a.address, MirrorAction.PROMOTE, "s")
        await wait_for(b.address, is_in(MirrorCondition.FOLLOWING))
        # The same operator asks again: the promotion was done, and is undone since.
        with pytest.raises(MirrorRefused, match="has become a mirror again since"):
            await ask_once(b.address, left)
        # A later promotion says that it is done when this node takes pushes.
        await request(b.address, MirrorAction.PROMOTE, "s", force=force)
        assert await role_of(b.address) is Role.PRIMARY
        async with stream_peer(b.address) as peer:
            assert (await peer.push(S, b"here")).index == 5
        await wait_for(a.address, is_in(MirrorCondition.FOLLOWING))


async def test_an_operator_who_waits_is_told_that_another_one_has_promoted_by_force(tmp_path: Path) -> None:
    """A promotion of an earlier run waits for its source, which is gone."""
    async with served(tmp_path / "b") as b, served(tmp_path / "a") as a, stream_peer(a.address) as peer:
        await peer.push_all(await peer.create("s"), [b"x"] * 5)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(5))
    database = open_database(tmp_path / "b")
    session = database.session()
    session.begin()
    (row,) = list_mirrors(session).values()
    write_mirror(session, msgspec.structs.replace(row, role=StreamRole.PROMOTING))
    session.commit()
    session.close()
    database.close()
    async with served(tmp_path / "b") as b:
        await wait_for(b.address, is_in(MirrorCondition.PROMOTING))
        waiting = MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False, next(PROMOTION_IDS))
        assert not (await ask_once(b.address, waiting)).done
        assert (await request(b.address, MirrorAction.PROMOTE, "s", force=True)).done
        for _ in range(2):
            with pytest.raises(MirrorRefused, match=r"by force meanwhile.*may be missing"):
                await ask_once(b.address, waiting)
        with pytest.raises(MirrorRefused, match="is no mirror on this node"):
            await request(b.address, MirrorAction.PROMOTE, "s")


async def test_two_operators_who_promote_the_same_stream_are_both_told_its_end(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b") as b:
        async with stream_peer(a.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 5)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(5))
        asked = [MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False, next(PROMOTION_IDS)) for _ in range(2)]
        async with stream_peer(b.address) as peer:
            # Both come before the promotion has had an answer of the source.
            for each in asked:
                await peer.send((local(ADDRESS),), MIRRORS.encode_request(each))
            for _ in asked:
                assert not MIRRORS.decode_response((await peer.receive()).payload).done
        for each in asked:
            with trio.fail_after(PATIENCE_S):
                while not (await ask_once(b.address, each)).done:
                    await trio.sleep(0.01)
        with pytest.raises(MirrorRefused, match="needs an id"):
            await ask_once(b.address, MirrorRequest(1, MirrorAction.PROMOTE, "s", "", "", False))
        with pytest.raises(MirrorRefused, match="is no mirror on this node"):
            await request(b.address, MirrorAction.PROMOTE, "s")
