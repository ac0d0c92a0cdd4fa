"""Goal: an address that is none harms no node: it is refused where it comes in, and where one is stored, the node
starts, serves the stream, and does what an operator asks for.

Method: requests with such addresses, and rows with them, as an earlier version of the program has written them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.services import stored_streams
from stream_service.mirror_rows import FollowerRow, MirrorRow, note_follower, write_mirror
from stream_service.mirroring import MIRROR, ROLE, AskingMirror, BeMirror, MirrorPull, Role, RoleRequest
from stream_service.protocol import Status
from stream_service.role_machine import FOLLOWING, STORED, StreamRole
from tests.stream_node.fleet.mirror.mirrors import is_in, request, role_of, wait_for
from tests.stream_node.fleet.mirror.publishing import S
from tests.stream_node.fleet.mirror.test_several_mirrors import places
from tests.support.databases import open_database
from tests.support.rich import refusal
from tests.support.served import served
from tests.support.stream_peer import stream_peer

ADDRESSES = ["x", "host:99999", "", "a b:1", "a..b:1", "a:²", "a:" + "1" * 5_000, "127.0.0.1:4000\n"]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_that_is_none_is_refused_where_it_comes_in(tmp_path: Path, address: str) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        await peer.push_all(await peer.create("s"), [b"x"] * 3)
        await peer.ask(S, MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0, AskingMirror(address, "s"))))
        assert "HOST:PORT" in await refusal(peer, S, ROLE, RoleRequest(1, BeMirror(address, "s"), True))
        assert await role_of(node.address) is Role.PRIMARY
    assert places(tmp_path) == set()


def write(data_dir: Path, address: str, role: StreamRole | None) -> None:
    """Writes a stream whose only mirror, and source, is at this address."""
    database = open_database(data_dir)
    session = database.session()
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    note_follower(session, FollowerRow(stream_id, address, "s", 1))
    if role is not None:
        write_mirror(session, MirrorRow(stream_id, role, address, "s"))
    session.commit()
    session.close()
    database.close()


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("role", [None, *sorted(STORED)])
async def test_an_address_that_is_none_and_stored_stops_no_start(
    tmp_path: Path, address: str, role: StreamRole | None
) -> None:
    write(tmp_path, address, role)
    async with served(tmp_path, error_delay_s=0.0) as node, stream_peer(node.address) as peer:
        if role in FOLLOWING:
            told = MirrorCondition.UNREACHABLE if role is StreamRole.FOLLOWING else MirrorCondition.PROMOTING
            await wait_for(node.address, is_in(told))
            await request(node.address, MirrorAction.PROMOTE, "s", force=True)
        if role is not None:
            (found,) = await wait_for(node.address, is_in(MirrorCondition.FENCING))
            assert "HOST:PORT" in found.reason
            await request(node.address, MirrorAction.REMOVE, "s")
        assert (await peer.push(S, b"x")).status is Status.OK
    database = open_database(tmp_path)
    (stored,) = stored_streams(database)
    database.close()
    assert stored.mirror is None
    # A primary has forgotten the mirror at its start; a mirror asks nobody then.
    assert role in FOLLOWING or not stored.followers
