"""Goal: a position belongs to one incarnation of its stream, on every database; deletion removes positions in the same
transaction unless it is told to keep them; and a client of an earlier version sees what it saw before.

Method: a real node with each kind of database, spoken to in the bytes of the first version and of this one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from index_service.extensions import (
    FENCED_SAVE,
    LOAD_POSITIONS,
    MARKED_POSITIONS,
    MARKED_SAVE,
    POSITIONS,
    SET_POSITION,
    FencedSave,
    LoadedPosition,
    LoadRequest,
    MarkedSave,
    PositionKey,
    PositionsRequest,
    SaveStatus,
    SetRequest,
)
from ockam.actors.address import Route
from stream_service.extensions import (
    DELETE,
    DELETE_ALL,
    INFO,
    MARKED_PULL,
    RICH_PULL,
    DeleteAllRequest,
    DeleteRequest,
    FromEnd,
    FromIndex,
    InfoRequest,
    MarkedPull,
    RichPull,
)
from tests.support.rich import ask
from tests.support.served import served
from tests.support.stream_peer import INDEX_SERVICE, StreamPeer, stream_peer

pytestmark = pytest.mark.usefixtures("each_database")


async def filled(peer: StreamPeer, messages: int) -> tuple[Route, int]:
    """Creates the stream "s" with some messages. Returns its route and its creation time."""
    route = await peer.create("s")
    await peer.push_all(route, [b"%d" % number for number in range(messages)])
    return route, (await ask(peer, route, INFO, InfoRequest(1))).info.created_us


async def loaded(peer: StreamPeer, client_id: str, *, creates: bool = False) -> LoadedPosition | None:
    request = LoadRequest(1, client_id, "s", [0], creates)
    (position,) = (await ask(peer, INDEX_SERVICE, LOAD_POSITIONS, request)).positions
    return position


async def save(
    peer: StreamPeer, client_id: str, index: int, created_us: int, generation: int
) -> tuple[SaveStatus, int, int]:
    request = MarkedSave(1, client_id, "s", 0, index, None, created_us, generation)
    answer = await ask(peer, INDEX_SERVICE, MARKED_SAVE, request)
    return answer.status, answer.index, answer.generation


async def test_a_pull_says_which_incarnation_it_reads_and_waits_for_no_other(tmp_path: Path) -> None:
    async with served(tmp_path) as running, stream_peer(running.address) as peer:
        route, created_us = await filled(peer, 3)
        page = await ask(peer, route, MARKED_PULL, MarkedPull(1, FromIndex(1), 9, 0, created_us))
        plain = await ask(peer, route, RICH_PULL, RichPull(1, FromIndex(1), 9, 0))
        assert (page.created_us, page.messages) == (created_us, plain.messages)
        assert [each.data for each in page.messages] == [b"1", b"2"]
        # At once, although the wait is longer than this test may take.
        other = await ask(peer, route, MARKED_PULL, MarkedPull(1, FromIndex(1), 9, 5_000, created_us + 1))
        assert (other.created_us, other.messages, other.resume_index) == (created_us, [], 1)
        last = await ask(peer, route, MARKED_PULL, MarkedPull(1, FromEnd(1), 9, 0, 0))
        assert [each.data for each in last.messages] == [b"2"]


async def test_a_save_belongs_to_an_incarnation_and_a_generation(tmp_path: Path) -> None:
    async with served(tmp_path) as running, stream_peer(running.address) as peer:
        _, created_us = await filled(peer, 3)
        assert await loaded(peer, "c") is None, "looking creates nothing"
        first = await loaded(peer, "c", creates=True)
        assert first is not None
        assert (first.index, first.created_us) == (0, 0)
        assert await loaded(peer, "c", creates=True) == first, "safe to repeat"
        generation = first.generation
        assert await save(peer, "c", 2, created_us, generation) == (SaveStatus.OK, 2, generation)
        assert await save(peer, "c", 1, created_us, generation) == (SaveStatus.OK, 2, generation), "never lowered"
        # Another incarnation replaces the position, and what comes late for the former one is refused.
        status, index, newer = await save(peer, "c", 1, created_us + 5, generation)
        assert (status, index) == (SaveStatus.OK, 1)
        assert newer > generation
        assert await save(peer, "c", 3, created_us, generation) == (SaveStatus.RESET, 1, 0)
        # So is a save of a consumer that has not heard of an operator's change, or of a deletion.
        for to in (0, None):
            await ask(peer, INDEX_SERVICE, SET_POSITION, SetRequest(1, PositionKey("c", "s", 0), to))
            assert await save(peer, "c", 3, created_us + 5, newer) == (SaveStatus.RESET, 0, 0)
        again = await loaded(peer, "c", creates=True)
        assert again is not None
        assert again.generation > newer


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_deletion_removes_the_positions_of_its_partition_alone(tmp_path: Path, keeps: bool) -> None:
    async with served(tmp_path) as running, stream_peer(running.address) as peer:
        for name in ("s", "t"):
            made = await peer.create_partitions(name, 2)
            for partition in (0, 1):
                for client_id in ("a", "b"):
                    await peer.save_partition_index(client_id, name, partition, 7)
                    # A save has no answer, so a later question shows that it is stored.
                    assert await peer.get_partition_index(client_id, name, partition) == 7
        route = next(route for answer, route in made if answer.partition == 1)
        (name, partition) = ("t", 1)
        await ask(peer, route, DELETE_ALL, DeleteAllRequest(1, keeps))
        listed = await ask(peer, INDEX_SERVICE, POSITIONS, PositionsRequest(1, None, None, None, 100))
        assert {(each.client_id, each.stream_name, each.partition) for each in listed.positions} == {
            (client_id, stream, number)
            for client_id in ("a", "b")
            for stream in ("s", "t")
            for number in (0, 1)
            if keeps or (stream, number) != (name, partition)
        }


async def test_a_client_of_an_earlier_version_sees_what_it_saw_before(tmp_path: Path) -> None:
    """Beside a client of this version, which uses the same position."""
    async with served(tmp_path) as running, stream_peer(running.address) as old, stream_peer(running.address) as new:
        route, created_us = await filled(old, 9)
        assert await old.get_index("c", "s") == 0
        await old.save_index("c", "s", 4)
        position = await loaded(new, "c", creates=True)
        assert position is not None
        assert (position.index, position.created_us) == (4, 0), "the old client has not said of which stream it is"
        assert (await save(new, "c", 6, created_us, position.generation))[0] is SaveStatus.OK
        assert await old.get_index("c", "s") == 6
        answer = await ask(old, INDEX_SERVICE, FENCED_SAVE, FencedSave(1, "c", "s", 0, 5, None))
        assert (answer.status, answer.index) == (SaveStatus.OK, 6)
        await old.save_index("c", "s", 7)
        kept = await loaded(new, "c")
        assert kept is not None
        assert (kept.index, kept.created_us, kept.generation) == (7, created_us, position.generation)
        # Its deletion keeps the positions, and its consumer goes on at the old index, as ever.
        await ask(old, route, DELETE, DeleteRequest(1))
        route, later_us = await filled(old, 9)
        assert later_us > created_us
        assert await old.get_index("c", "s") == 7
        assert [each.index for each in (await old.pull(route, 7, 9)).messages] == [7, 8]
        await old.save_index("c", "s", 9)
        # A client of this version sees that the position is not one of this stream.
        stale = await loaded(new, "c")
        assert stale is not None
        assert (stale.index, stale.created_us) == (9, created_us)
        listed = (await ask(new, INDEX_SERVICE, MARKED_POSITIONS, PositionsRequest(1, "s", None, None, 9))).positions
        assert [(each.index, each.created_us) for each in listed] == [(9, created_us)]
        plain = (await ask(old, INDEX_SERVICE, POSITIONS, PositionsRequest(1, "s", None, None, 9))).positions
        assert [each.index for each in plain] == [9]
