"""Goal: a consumer gets every message of the stream that it reads, also where an index gets another message: after a
promotion by force, after `mirror add --force`, and beside a source that has other messages.

Method: positions beyond the messages of a mirror; consumers that begin again then, and the stored positions.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from index_service.extensions import MarkedPosition
from index_service.fences import StoredFence, copy_positions, list_fences
from index_service.storage import find_positions, lower_positions
from ockam.actors.address import Route
from stream_client import connect
from stream_node.fleet.mirror.mirror import SourceLost
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.fleet.mirror.stream_copier import is_mirror
from stream_node.node.process import NodeProcess
from stream_service.extensions import DELETE, RETENTION, DeleteRequest, Retention, RetentionRequest
from stream_service.mirror_rows import MirrorRow, write_mirror
from stream_service.mirroring import ROLE, BePrimary, RoleRequest
from stream_service.names import stream_address
from stream_service.protocol import Status
from stream_service.role_machine import StreamRole
from stream_storage.contract import Append
from tests.stream_node.fleet.mirror.mirrors import add, follows_to, is_in, request, wait_for
from tests.support.databases import open_database
from tests.support.rich import ask, info
from tests.support.served import PATIENCE_S, Served, served
from tests.support.stream_peer import stream_peer

S: Route = (stream_address("s", 0),)


async def push(address: str, *data: bytes) -> None:
    async with stream_peer(address) as peer:
        await peer.create("s")
        with trio.fail_after(PATIENCE_S):
            for each in data:
                # A source that has just started refuses pushes while it asks where its mirror was.
                while (await peer.push(S, each)).status is not Status.OK:
                    await trio.sleep(0.01)


async def save(address: str, index: int) -> None:
    async with stream_peer(address) as peer:
        await peer.save_index("c", "s", index)
        assert await peer.get_index("c", "s") == index


async def wait_position(address: str, index: int) -> None:
    async with stream_peer(address) as peer:
        with trio.fail_after(PATIENCE_S):
            while await peer.get_index("c", "s") != index:
                await trio.sleep(0.02)


async def indexes_read(address: str) -> list[int]:
    """The messages that the consumer `c` gets when it begins again."""
    async with connect(address) as client:
        (stream,) = (await client.get_stream("s")).partitions
        async with stream.consumer("c") as consumer:
            return [each.index async for each in consumer.messages(stop_at_end=True)]


async def copy_once(running: Served) -> None:
    """A round of the copier of the stream. The connection to the source may be lost and not yet made anew."""
    assert running.server._parts is not None
    copier = running.server._parts.services.mirrors.tasks.copiers["s"]
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await copier.copy_once()
            except SourceLost:
                await trio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("action", [MirrorAction.PROMOTE, MirrorAction.REMOVE, None])
async def test_a_position_beyond_a_mirror_that_takes_pushes_now_is_set_back_to_its_end(
    tmp_path: Path, action: MirrorAction | None
) -> None:
    """The consumer has read ten messages at the source that the mirror does not have, and goes on at the mirror."""
    async with served(tmp_path / "b", error_delay_s=0.0) as b:
        async with served(tmp_path / "a") as a:
            await push(a.address, *[b"both"] * 20)
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(20))
        await wait_for(b.address, is_in(MirrorCondition.UNREACHABLE))
        await save(b.address, 30)
        if action is None:
            # Without the command, by a request to the stream.
            async with stream_peer(b.address) as peer:
                await ask(peer, S, ROLE, RoleRequest(1, BePrimary(fences=True), force=True))
        else:
            await request(b.address, action, "s", force=action is MirrorAction.PROMOTE)
        await push(b.address, *[b"new"] * 20)
        assert await indexes_read(b.address) == list(range(20, 40))


async def test_a_mirror_that_gets_another_source_gives_its_consumers_all_messages_of_that_source(
    tmp_path: Path,
) -> None:
    """The consumer has read ten messages at the former source that neither the mirror nor the new source has."""
    async with (
        served(tmp_path / "a") as a,
        served(tmp_path / "b", error_delay_s=0.0) as b,
        served(tmp_path / "c", error_delay_s=0.0) as c,
    ):
        await push(a.address, *[b"both"] * 20)
        for mirror in (b, c):
            await add(mirror.address, "s", a.address)
            await wait_for(mirror.address, follows_to(20))
        await request(b.address, MirrorAction.REMOVE, "s")
        await push(b.address, *[b"new"] * 20)
        await save(a.address, 30)
        await wait_position(c.address, 20)
        await add(c.address, "s", b.address)
        await wait_for(c.address, follows_to(40))
        await request(c.address, MirrorAction.PROMOTE, "s")
        assert await indexes_read(c.address) == list(range(20, 40))


async def test_a_stream_that_follows_by_force_gives_its_consumers_all_messages_of_its_source(tmp_path: Path) -> None:
    """The consumer has read twelve messages of the stream that was here before."""
    async with served(tmp_path / "a") as a, served(tmp_path / "b", error_delay_s=0.0) as b:
        await push(a.address, *[b"theirs"] * 30)
        await push(b.address, *[b"ours"] * 20)
        async with connect(b.address) as client:
            (stream,) = (await client.get_stream("s")).partitions
            async with stream.consumer("c") as consumer:
                messages = consumer.messages()
                assert [(await anext(messages)).index for _ in range(12)] == list(range(12))
        await wait_position(b.address, 12)
        await add(b.address, "s", a.address, force=True)
        await wait_for(b.address, follows_to(30))
        assert await indexes_read(b.address) == list(range(30))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["made anew", "put back"])
async def test_a_mirror_that_has_parted_keeps_its_positions_and_its_retention(tmp_path: Path, how: str) -> None:
    """The source has other messages now, of which the consumer there has read more than of those of the mirror."""
    with NodeProcess(tmp_path / "a") as a:
        await push(a.address, *[b"both"] * 20)
        if how == "put back":
            a.stop()
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            a.start()
        await push(a.address, *[b"old"] * 10)
        await save(a.address, 25)
        async with served(tmp_path / "b", error_delay_s=0.0) as b:
            await add(b.address, "s", a.address)
            await wait_for(b.address, follows_to(30))
            await wait_position(b.address, 25)
            await copy_once(b)
            if how == "put back":
                # The directory as a whole: neither its history nor its creation time tells it.
                a.kill()
                shutil.rmtree(tmp_path / "a")
                shutil.move(tmp_path / "copy", tmp_path / "a")
                a.start()
            else:
                async with stream_peer(a.address) as peer:
                    await ask(peer, S, DELETE, DeleteRequest(1))
            await push(a.address, *[b"new"] * 60)
            await save(a.address, 50)
            async with stream_peer(a.address) as peer:
                await ask(peer, S, RETENTION, RetentionRequest(1, Retention(messages=1_000)))
            # Also before the mirror has compared its messages.
            await copy_once(b)
            await wait_position(b.address, 25)
            await wait_for(b.address, is_in(MirrorCondition.PARTED))
            await copy_once(b)
            await wait_position(b.address, 25)
            async with stream_peer(b.address) as peer:
                assert (await info(peer, S)).retention is None
            # A mirror that follows again takes everything from its source.
            await add(b.address, "s", a.address, force=True)
            await wait_for(b.address, lambda found: found[0].condition is MirrorCondition.FOLLOWING)
            await wait_position(b.address, 50)


def test_positions_of_the_source_are_stored_only_while_the_stream_follows_it(tmp_path: Path) -> None:
    """Claim: what was asked before a promotion, and is stored after it, changes nothing. A position that the source has
    set back, because it has other messages, is set back here as well, although it was not saved since."""
    database = open_database(tmp_path)
    session = database.session()
    session.begin()

    def append(count: int) -> None:
        at = session.log.get_stream(stream.stream_id).next_index
        session.log.append((Append(stream.stream_id, at, 1, [b"x"] * count),))

    stream = session.log.ensure_stream("s", 0, 7)
    append(40)

    def copy(index: int, saved_us: int, generation: int, created: dict[int, int]) -> tuple[int | None, int | None]:
        """Returns the index and the fence that are stored then."""
        position = MarkedPosition("c", "s", 0, index, saved_us, None, 3, generation)
        copy_positions(session, "s", [position], [StoredFence("c", 0, index)], created, is_mirror)
        row = find_positions(session, [("c", "s", 0)])["c", "s", 0]
        return None if row is None else row[0], next((each.fence for each in list_fences(session, "s")), None)

    assert copy(10, 100, 1, {0: 3}) == (None, None), "a primary"
    write_mirror(session, MirrorRow(stream.stream_id, StreamRole.FOLLOWING, "127.0.0.1:1", "s"))
    assert copy(10, 100, 1, {}) == (None, None), "a source with other messages"
    assert copy(30, 100, 1, {0: 3}) == (30, 30)
    assert copy(20, 100, 1, {0: 3}) == (30, 30), "not newer"
    assert copy(20, 100, 2, {0: 3}) == (20, 30), "set back by the source"
    lower_positions(session, "s", 0, 15, 200)
    assert copy(20, 100, 2, {0: 3}) == (15, 30), "set back here"
    assert copy(18, 101, 2, {0: 3}) == (18, 30), "saved since"
    assert copy(60, 102, 3, {0: 3}) == (40, 60), "the messages behind are not here"
    append(40)
    assert copy(60, 102, 3, {0: 3}) == (60, 60), "and now they are"
    write_mirror(session, MirrorRow(stream.stream_id, StreamRole.FENCING, "127.0.0.1:1", "s"))
    assert copy(70, 300, 9, {0: 3}) == (60, 60), "promoted"
    session.rollback()
    session.close()
    database.close()
