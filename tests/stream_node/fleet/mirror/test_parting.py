"""Goal: a mirror notices a source that has other messages than it, whatever has happened to the source, and loses
nothing when it is told to follow.

Method: sources that are put back by a backup, by a copy of their files, or made anew; kills while messages are moved
aside. All messages that either node ever confirmed are looked for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.process import NodeProcess
from stream_service.mirror_operations import copy_aside
from stream_service.mirror_rows import MirrorRow, write_mirror
from stream_service.mirroring import Role
from stream_service.names import stream_address
from stream_service.role_machine import StreamRole
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
from tests.support.databases import open_database
from tests.support.served import served
from tests.support.stream_peer import StreamPeer, stream_peer

S: Route = (stream_address("s", 0),)


async def push(address: str, *data: bytes) -> None:
    async with stream_peer(address) as peer:
        await peer.create("s")
        await push_all(peer, data)


async def push_all(peer: StreamPeer, data: tuple[bytes, ...]) -> None:
    with trio.fail_after(30):
        for each in data:
            while (await peer.push(S, each)).status != 0:
                await trio.sleep(0.01)


async def data_of(address: str, name: str = "s") -> list[bytes]:
    return [message.data for message in (await contents(address, name))[2]]


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "stream_node", *arguments], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["backup", "files", "made anew"])
async def test_a_source_that_has_gone_back_is_noticed_and_nothing_is_lost(tmp_path: Path, how: str) -> None:
    """`files`: the whole directory is put back, so that no history tells it. Only the messages differ."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        await push(a.address, *(b"old %d" % number for number in range(20)))
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(20))
        if how == "backup":
            command("backup", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "a"))
        elif how == "files":
            a.stop()
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            a.start()
        await push(a.address, *(b"both %d" % number for number in range(10)))
        await wait_for(b.address, follows_to(30))
        b.kill()
        a.kill()
        shutil.rmtree(tmp_path / "a")
        if how == "backup":
            command("restore", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "a"))
        elif how == "files":
            shutil.move(tmp_path / "copy", tmp_path / "a")
        a.start()
        # The source has passed the end of the mirror again, with other messages.
        await push(a.address, *(b"new %d" % number for number in range(35)))
        b.start()
        (found,) = await wait_for(b.address, is_in(MirrorCondition.PARTED))
        assert "mirror add --force" in found.reason
        assert len(await data_of(b.address)) == 30, "a mirror that has parted changes nothing"
        await add(b.address, "s", a.address, force=True)
        end = (await contents(a.address, "s"))[1]
        (found,) = await wait_for(b.address, follows_to(end))
        assert await contents(b.address, "s") == await contents(a.address, "s")
        aside = await data_of(b.address, found.aside_name)
        assert aside[-10:] == [b"both %d" % number for number in range(10)]
        assert found.aside_messages == len(aside) == (10 if how == "backup" else 30)


async def test_a_mirror_that_is_killed_while_it_moves_messages_aside_goes_on(tmp_path: Path) -> None:
    """Thousands of messages are moved in steps; the mirror is killed again and again meanwhile."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        await push(a.address, b"source")
        async with stream_peer(b.address) as peer:
            await peer.create("s")
            ours = [b"ours %d" % number for number in range(12_000)]
            for start in range(0, len(ours), 3_000):
                await peer.push_all(S, ours[start : start + 3_000])
        await add(b.address, "s", a.address, force=True)
        for _ in range(6):
            # Some of the steps are done by then; the messages of others are on their way.
            await trio.sleep(0.03)
            b.kill()
            b.start()
        (found,) = await wait_for(b.address, follows_to(1))
        assert await data_of(b.address) == [b"source"]
        assert found.aside_messages == 12_000
        assert await data_of(b.address, found.aside_name) == ours
        assert len([each for each in await states(b.address) if each.aside_name]) == 1


@pytest.mark.parametrize("earlier", [100, 20])
async def test_a_move_that_goes_on_from_another_index_keeps_all_messages(tmp_path: Path, earlier: int) -> None:
    """The mirror was killed while it moved messages from `earlier` on, and its source was replaced by one that parts at
    50."""
    async with served(tmp_path / "a") as a:
        await push(a.address, *(b"both %d" % number for number in range(50)))
        async with served(tmp_path / "b", error_delay_s=0.0) as b:
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(50))
            await request(b.address, MirrorAction.REMOVE, "s")
            await push(b.address, *(b"ours %d" % number for number in range(50, 200)))
        database = open_database(tmp_path / "b")
        session = database.session()
        session.begin()
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        name = "s.aside-earlier"
        write_mirror(
            session, MirrorRow(stream_id, StreamRole.FOLLOWING, a.address, "s", sets_aside=True, aside_name=name)
        )
        copy_aside(session, stream_id, earlier, name, 0, 1)
        session.commit()
        session.close()
        database.close()
        async with served(tmp_path / "b") as b:
            (found,) = await wait_for(b.address, follows_to(50))
            assert await contents(b.address, "s") == await contents(a.address, "s")
            assert found.aside_messages == 150
            first_index, _, aside = await contents(b.address, found.aside_name)
            assert (first_index, [each.data for each in aside]) == (50, [b"ours %d" % each for each in range(50, 200)])
            # What the earlier move has copied is kept.
            assert (await contents(b.address, name))[:2] == (earlier, 200)


async def test_messages_are_moved_aside_twice_and_both_are_kept(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, served(tmp_path / "b", error_delay_s=0.0) as b:
        await push(a.address, b"source")
        kept: list[tuple[str, list[bytes]]] = []
        for round_ in range(2):
            await push(b.address, b"ours %d" % round_)
            await add(b.address, "s", a.address, force=True)
            (found,) = await wait_for(b.address, follows_to(1))
            kept.append((found.aside_name, [b"ours %d" % round_]))
            await request(b.address, MirrorAction.REMOVE, "s")
        assert len({name for name, _ in kept}) == 2
        assert [(name, await data_of(b.address, name)) for name, _ in kept] == kept


async def test_a_mirror_that_is_longer_than_its_source_is_not_promoted_as_planned(tmp_path: Path) -> None:
    """Claim: the messages that the source has confirmed since it was put back are not moved aside by a promotion that
    loses nothing, whether or not the mirror has found out yet. By force, the mirror is promoted."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        await push(a.address, *[b"both"] * 20)
        a.stop()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        a.start()
        await push(a.address, *[b"old"] * 10)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(30))
        a.kill()
        shutil.rmtree(tmp_path / "a")
        shutil.move(tmp_path / "copy", tmp_path / "a")
        a.start()
        await push(a.address, b"new")
        # At once, the source may not answer yet; then the mirror knows that it has parted.
        for reason in (".", r"'s' at .* does not have all messages .*mirror promote --force"):
            with pytest.raises(MirrorRefused, match=reason):
                await request(b.address, MirrorAction.PROMOTE, "s")
            await push(a.address, b"new")
            await wait_for(b.address, is_in(MirrorCondition.PARTED))
            assert await role_of(b.address) is Role.MIRROR
        await request(b.address, MirrorAction.PROMOTE, "s", force=True)
        (found,) = await wait_for(a.address, follows_to(30))
        assert await data_of(a.address) == await data_of(b.address) == [b"both"] * 20 + [b"old"] * 10
        assert await data_of(a.address, found.aside_name) == [b"both"] * 20 + [b"new"] * 3


async def test_a_mirror_that_waits_while_its_source_gets_other_messages_has_parted(tmp_path: Path) -> None:
    """Claim: a mirror never goes on behind messages that its source has not any more. Method: the mirror waits at the
    end of its source. The source follows another node, and replaces its last 50 messages by 60 others in one write."""
    async with (
        served(tmp_path / "a", error_delay_s=0.0) as a,
        served(tmp_path / "b", error_delay_s=0.0) as b,
        served(tmp_path / "c", error_delay_s=0.0) as c,
    ):
        await push(a.address, *[b"both"] * 80)
        await add(b.address, "s", a.address)
        await wait_for(b.address, follows_to(80))
        await request(b.address, MirrorAction.REMOVE, "s")
        await push(b.address, *[b"new"] * 60)
        await push(a.address, *[b"old"] * 50)
        await add(c.address, "s", a.address)
        await wait_for(c.address, follows_to(130))
        await add(a.address, "s", b.address, force=True)
        await wait_for(a.address, follows_to(140))
        (found,) = await wait_for(c.address, is_in(MirrorCondition.PARTED))
        assert found.next_index == 130
        await add(c.address, "s", a.address, force=True)
        await wait_for(c.address, follows_to(140))
        assert await contents(c.address, "s") == await contents(b.address, "s")
