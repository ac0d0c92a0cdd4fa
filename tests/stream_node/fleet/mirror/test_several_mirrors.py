"""Goal: a primary that comes back asks every mirror that it has had, so it confirms nothing beside the one that has
taken its place. It forgets mirrors that are gone.

Method: nodes in processes; the second mirror is promoted while the primary is away, and nobody can fence the primary.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.process import NodeProcess
from stream_node.node.services import stored_streams
from stream_service.extensions import DELETE, DeleteRequest
from stream_service.mirror_rows import FOLLOWERS_MAX, FORGET_S, FollowerRow, note_follower
from stream_service.mirroring import MIRROR, AskingMirror, MirrorPull, Role, decode_mirror_page
from stream_service.names import stream_address
from stream_service.protocol import Status
from stream_storage.contract import Session
from tests.stream_node.fleet.mirror.mirrors import add, follows_to, is_in, request, role_of, wait_for
from tests.support.databases import open_database
from tests.support.rich import ask
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import stream_peer

S: Route = (stream_address("s", 0),)


def places(data_dir: Path) -> set[str]:
    """The addresses of the mirrors that a stopped node has written down."""
    database = open_database(data_dir)
    try:
        return {row.address for stored in stored_streams(database) for row in stored.followers}
    finally:
        database.close()


async def wait_written(a: NodeProcess, *nodes: NodeProcess) -> None:
    """Restarts a node until it has written down where these mirrors are."""
    with trio.fail_after(PATIENCE_S):
        while True:
            a.stop()
            found = places(a.data_dir)
            a.start()
            if found == {node.address for node in nodes}:
                return
            await trio.sleep(0.2)


@pytest.mark.slow
async def test_an_old_primary_asks_all_its_mirrors_and_confirms_nothing_after_its_return(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b, NodeProcess(tmp_path / "c") as c:
        async with stream_peer(a.address) as peer:
            await peer.create("s")
            await peer.push_all(S, [b"x"] * 10)
        for mirror in (b, c):
            await add(mirror.address, "s", a.address)
            await wait_for(mirror.address, follows_to(10))
        await wait_written(a, b, c)
        for mirror in (b, c):
            await wait_for(mirror.address, follows_to(10))
        a.kill()
        await request(c.address, MirrorAction.PROMOTE, "s", force=True)
        c.kill()
        # Nobody fences it: the new primary comes back after the old one has begun to listen.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, c.start)
            nursery.start_soon(trio.to_thread.run_sync, a.start)
        async with stream_peer(a.address) as peer:
            confirms = await peer.push_all(S, [b"late"] * 20)
        assert {confirm.status for confirm in confirms} == {Status.ERROR}
        (found,) = await wait_for(a.address, is_in(MirrorCondition.FOLLOWING))
        assert (found.source, found.aside_messages) == (c.address, 0)
        assert await role_of(c.address) is Role.PRIMARY
        # The other mirror gets the messages of the new primary by the old one.
        async with stream_peer(c.address) as peer:
            assert (await peer.push(S, b"new")).index == 10
        await wait_for(b.address, follows_to(11))
        # A mirror that is a stream of its own now is forgotten when it has said so.
        await request(b.address, MirrorAction.REMOVE, "s")
        await wait_for(c.address, lambda found: not found)
        await request(a.address, MirrorAction.PROMOTE, "s")
        await wait_for(c.address, follows_to(11))
        await wait_written(a, c)


async def test_the_mirrors_of_a_stream_have_a_bound_and_go_with_it(tmp_path: Path) -> None:
    async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
        await peer.create("s")
        for number in range(FOLLOWERS_MAX + 3):
            follower = AskingMirror(f"127.0.0.1:{1000 + number}", "s")
            asked = MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0, follower))
            assert decode_mirror_page((await peer.ask(S, asked)).payload).records == []
    # All of them are there, so a further one is not written down.
    assert places(tmp_path / "a") == {f"127.0.0.1:{1000 + number}" for number in range(FOLLOWERS_MAX)}


def test_a_mirror_that_was_not_heard_of_for_long_is_forgotten(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    session: Session = database.session()
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id

    def note(address: str, heard_s: int) -> list[str]:
        return [row.address for row in note_follower(session, FollowerRow(stream_id, address, "s", heard_s * 10**6))]

    assert note("a:1", 1_000) == ["a:1"]
    assert note("b:1", 2_000) == ["b:1", "a:1"]
    assert note("c:1", 1_000 + FORGET_S) == ["c:1", "b:1"]
    assert note("b:1", 1_001 + FORGET_S) == ["b:1", "c:1"]
    for number in range(FOLLOWERS_MAX):
        kept = note(f"d:{number}", 2_000 + FORGET_S + number)
    assert kept == [f"d:{number}" for number in reversed(range(FOLLOWERS_MAX))]
    session.commit()
    session.close()
    database.close()


async def test_a_deleted_stream_leaves_no_mirrors_in_memory(tmp_path: Path) -> None:
    """Claim: a node on which streams with mirrors come and go does not grow. Method: the request of a mirror for each
    stream, which is deleted then."""
    async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
        assert a.server._parts is not None
        heard_us = a.server._parts.services.mirrors.tasks._followers._heard_us
        for name in ("s", "t"):
            route = await peer.create(name)
            await peer.ask(route, MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0, AskingMirror("127.0.0.1:1", name))))
            assert list(heard_us) == [(name, 0)]
            await ask(peer, route, DELETE, DeleteRequest(1))
            assert not heard_us
