"""Goal: positions that can be seen and set, and saves that a lost lease cannot make. Method: a node on SQLite."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    LOAD_POSITIONS,
    POSITIONS,
    SET_POSITION,
    FencedSave,
    LoadRequest,
    PositionKey,
    PositionsRequest,
    SavedPosition,
    SaveResponse,
    SaveStatus,
    SetRequest,
)
from index_service.limits import (
    FAILURE_DELAY_S,
    INDEX_MAX,
    LISTS_WAITING_MAX,
    PARTITION_MAX,
    TEXT_BYTES_MAX,
    UNDER_WAY_MAX,
    LeaseLimits,
)
from index_service.protocol import INDEX, GetIndex, Index, SaveIndex
from ockam.actors.message import Origin
from ockam.protocol import ERROR
from tests.index_service.index_node import IndexNode, index_node

pytestmark = pytest.mark.usefixtures("each_database")

TTL_S = LeaseLimits().ttl_s
KEY = PositionKey("c", "s", 0)
LEGACY_FRAME_BYTES_MAX = 65_000


def save(index: int, fence: int | None = None, partition: int = 0) -> FencedSave:
    return FencedSave(7, "c", "s", partition, index, fence)


async def listed(
    running: IndexNode,
    stream_name: str | None = None,
    client_id: str | None = None,
    after: PositionKey | None = None,
    limit: int = 1_000,
) -> list[SavedPosition]:
    """All of them, page by page."""
    found: list[SavedPosition] = []
    more = True
    while more:
        page = await running.ask(POSITIONS, PositionsRequest(1, stream_name, client_id, after, limit))
        assert len(page.positions) <= limit
        found += page.positions
        more = page.more
        if more:
            last = found[-1]
            after = PositionKey(last.client_id, last.stream_name, last.partition)
    return found


async def test_an_answered_save_keeps_the_maximum_and_tells_it(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        assert await running.ask(FENCED_SAVE, save(5)) == SaveResponse(7, SaveStatus.OK, 5)
        assert await running.ask(FENCED_SAVE, save(3)) == SaveResponse(7, SaveStatus.OK, 5)
        assert await running.ask(FENCED_SAVE, save(INDEX_MAX)) == SaveResponse(7, SaveStatus.OK, INDEX_MAX)
        assert running.service.statistics().saves == 3


async def test_a_save_under_any_fence_but_the_latest_is_refused_and_saves_nothing(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        assert await running.ask(FENCED_SAVE, save(5, fence=1)) == SaveResponse(7, SaveStatus.FENCED, 0)
        first, second = running.member("a", 1), running.member("b", 1)
        await first.renew()
        assert await running.ask(FENCED_SAVE, save(5, fence=1)) == SaveResponse(7, SaveStatus.OK, 5)
        await first.leave()
        assert (await running.ask(FENCED_SAVE, save(6, fence=1))).status is SaveStatus.OK, "nobody else has it"
        await second.renew()
        assert await running.ask(FENCED_SAVE, save(9, fence=1)) == SaveResponse(7, SaveStatus.FENCED, 6)
        assert await running.ask(FENCED_SAVE, save(9, fence=3)) == SaveResponse(7, SaveStatus.FENCED, 6)
        assert await running.ask(FENCED_SAVE, save(7, fence=2)) == SaveResponse(7, SaveStatus.OK, 7)
        statistics = running.service.statistics()
        assert (statistics.saves, statistics.fenced) == (3, 3)


async def test_a_fence_is_checked_in_the_order_of_what_was_sent(tmp_path: Path) -> None:
    """One run: the holder saves, gives up, another takes over, and both save again."""
    async with index_node(tmp_path) as running:
        first, second = running.member("a", 1), running.member("b", 1)
        await first.renew()
        running.send(
            FENCED_SAVE.encode_request(save(1, fence=1)),
            LEASE.encode_request(first.request(leave=True)),
            LEASE.encode_request(second.request()),
            FENCED_SAVE.encode_request(save(2, fence=1)),
            FENCED_SAVE.encode_request(save(3, fence=2)),
            INDEX.encode_request(GetIndex("c", "s")),
        )
        answers = await running.idle()
        saves = [FENCED_SAVE.decode_response(each) for each in answers if FENCED_SAVE.is_in(each)]
        assert [(each.status, each.index) for each in saves] == [
            (SaveStatus.OK, 1),
            (SaveStatus.FENCED, 1),
            (SaveStatus.OK, 3),
        ]
        assert INDEX.decode_response(answers[-1]).index == 3


async def test_an_operator_sets_an_index_in_any_direction_and_deletes_it(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        assert (await running.ask(SET_POSITION, SetRequest(1, KEY, 8))).before is None
        assert (await running.ask(SET_POSITION, SetRequest(1, KEY, 2))).before == 8
        assert (await running.ask(INDEX, GetIndex("c", "s"))).index == 2
        assert (await running.ask(SET_POSITION, SetRequest(1, KEY, None))).before == 2
        assert (await running.ask(SET_POSITION, SetRequest(1, KEY, None))).before is None
        assert await listed(running) == []
    async with index_node(tmp_path) as running:
        assert (await running.ask(INDEX, GetIndex("c", "s"))).index == 0
        assert running.service.statistics().sets == 0


async def test_an_index_is_not_set_while_a_member_holds_the_lease_and_its_late_saves_do_not_undo_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        member = running.member("worker 1", 2)
        await member.renew()
        await running.ask(FENCED_SAVE, save(8, fence=1))
        assert "'worker 1' holds partition 0" in await running.refused(SET_POSITION, SetRequest(1, KEY, 2))
        await running.ask(SET_POSITION, SetRequest(1, PositionKey("c", "other", 0), 2))
    async with index_node(tmp_path) as running:
        assert "'worker 1' holds partition 0" in await running.refused(SET_POSITION, SetRequest(1, KEY, 2))
        await trio.sleep(TTL_S)
        assert (await running.ask(SET_POSITION, SetRequest(1, KEY, 2))).before == 8
        assert (await running.ask(FENCED_SAVE, save(9, fence=1))).status is SaveStatus.FENCED
        member.index_node, member.leases = running, []
        await member.renew()
        assert member.fences() == {0: 3, 1: 2}
        assert await running.ask(FENCED_SAVE, save(3, fence=3)) == SaveResponse(7, SaveStatus.OK, 3)


async def test_the_list_tells_who_holds_what_also_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with index_node(tmp_path) as running:
        await running.member("m", 1).renew()
        await running.ask(FENCED_SAVE, save(4))
        await running.ask(FENCED_SAVE, save(5, partition=1))
        await trio.sleep(1)
        now_us = int(trio.current_time() * 1e6)
        assert [(each.index, each.holder) for each in await listed(running)] == [(4, "m"), (5, None)]
        assert all(0 < now_us - each.saved_us < 2_000_000 for each in await listed(running))
    async with index_node(tmp_path) as running:
        assert [each.holder for each in await listed(running)] == ["m", None]
        await trio.sleep(TTL_S)
        assert [each.holder for each in await listed(running)] == [None, None]


texts = st.sampled_from(["", "a", "b", "é", "é\x00", "z", "\U0001f600", "\uffff"])
keys = st.tuples(texts, texts, st.sampled_from([0, 1, PARTITION_MAX]))


@settings(max_examples=25)
@given(st.sets(keys, max_size=12), st.none() | texts, st.none() | texts, st.none() | keys, st.integers(1, 4))
def test_pages_have_every_position_once_and_in_order(
    stored: set[tuple[str, str, int]],
    stream_name: str | None,
    client_id: str | None,
    after: tuple[str, str, int] | None,
    limit: int,
) -> None:
    async def check(directory: Path) -> None:
        async with index_node(directory) as running:
            running.send(*(FENCED_SAVE.encode_request(FencedSave(1, *key, 3, None)) for key in stored))
            await running.idle()
            beyond = None if after is None else PositionKey(*after)
            found = await listed(running, stream_name, client_id, beyond, limit)
            wanted = [
                key
                for key in sorted(stored)
                if client_id in (None, key[0]) and stream_name in (None, key[1]) and (after is None or key > after)
            ]
            assert [(each.client_id, each.stream_name, each.partition) for each in found] == wanted

    with tempfile.TemporaryDirectory() as directory:
        trio.run(check, Path(directory))


async def test_a_page_of_no_positions_tells_whether_there_are_any(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        for more in (False, True):
            page = await running.ask(POSITIONS, PositionsRequest(9, None, None, None, 0))
            assert (page.request_id, page.positions, page.more) == (9, [], more)
            await running.ask(FENCED_SAVE, save(1))


async def test_a_page_fits_the_frame_that_brings_it(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        name = "ü" * (TEXT_BYTES_MAX // 2)
        saves = [FencedSave(1, name, name, partition, INDEX_MAX, None) for partition in range(200)]
        running.send(*map(FENCED_SAVE.encode_request, saves))
        await running.idle()
        for frame_bytes_max, fewest in ((LEGACY_FRAME_BYTES_MAX, 25), (16 * 1024 * 1024, 100), (100, 1)):
            origin = Origin("tcp", frame_bytes_max=frame_bytes_max)
            request = PositionsRequest(1, None, None, None, 2**64 - 1)
            running.send(POSITIONS.encode_request(request), origin=origin)
            (payload,) = await running.idle()
            page = POSITIONS.decode_response(payload)
            assert fewest <= len(page.positions) < 200
            assert page.more
            assert len(payload) < max(frame_bytes_max, 4_000)
        assert len(await listed(running)) == 200


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (FENCED_SAVE.encode_request(save(INDEX_MAX + 1)), "index 9223372036854775808"),
        (FENCED_SAVE.encode_request(save(1, partition=PARTITION_MAX + 1)), "partition 2147483648"),
        (SET_POSITION.encode_request(SetRequest(1, KEY, INDEX_MAX + 1)), "index 9223372036854775808"),
        (SET_POSITION.encode_request(SetRequest(1, PositionKey("c" * 1_025, "s", 0), 1)), "above 1024 bytes"),
        (POSITIONS.encode_request(PositionsRequest(1, None, "c" * 1_025, None, 1)), "above 1024 bytes"),
        (POSITIONS.encode_request(PositionsRequest(1, None, None, PositionKey("", "", 2**63), 1)), "partition 9223"),
        (POSITIONS.encode_request(PositionsRequest(1, None, None, None, 1)) + b"\x00", "envelope"),
    ],
)
async def test_what_cannot_be_kept_is_an_error(tmp_path: Path, payload: bytes, reason: str) -> None:
    async with index_node(tmp_path) as running:
        running.send(payload)
        (answer,) = await running.idle()
        assert reason in ERROR.decode_response(answer).reason
        assert await listed(running) == []
        assert running.service.statistics().refused == 1


async def test_only_so_many_lists_wait(tmp_path: Path) -> None:
    async with index_node(tmp_path) as running:
        request = POSITIONS.encode_request(PositionsRequest(1, None, None, None, 1))
        running.send(*[request] * (LISTS_WAITING_MAX + 2))
        assert sum(map(ERROR.is_in, await running.idle())) == 2
        assert await listed(running) == []


async def test_a_flood_of_requests_waits_in_the_mailbox(tmp_path: Path) -> None:
    """Claim: a client that asks faster than the disk answers is slowed down, and takes no memory for what the node has
    not begun. Method: two runs of loads before the storage does any of them; all get their answers."""
    async with index_node(tmp_path) as running:
        load = LOAD_POSITIONS.encode_request(LoadRequest(1, "c", "s", [0], False))
        for _ in range(2):
            running.send(*[load] * UNDER_WAY_MAX)
        assert running.runner.statistics().outstanding == UNDER_WAY_MAX
        assert len(await running.idle()) == 2 * UNDER_WAY_MAX


async def test_a_damaged_position_fails_no_request_of_another_consumer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Claim: only who asks for a damaged row gets an error; a save of another consumer is kept. Method: one run has a
    save without an answer, a get of a row with a wrong seal, and a get."""
    async with index_node(tmp_path) as running:
        await running.ask(INDEX, GetIndex("bad", "s"))
        await running.execute("UPDATE saved_indexes SET seal = 1")
        running.send(
            INDEX.encode_request(SaveIndex("good", "s", 7)),
            INDEX.encode_request(GetIndex("bad", "s")),
            INDEX.encode_request(GetIndex("good", "s")),
        )
        (answer,) = await running.idle()
        assert INDEX.decode_response(answer) == Index("good", "s", 7)
        await trio.sleep(FAILURE_DELAY_S)
        (refusal,) = await running.idle()
        assert "'bad'" in ERROR.decode_response(refusal).reason


async def test_what_the_disk_refuses_is_an_error_after_a_while_and_silence_where_the_specification_has_none(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        await running.execute("ALTER TABLE saved_indexes RENAME TO hidden")
        running.send(
            INDEX.encode_request(SaveIndex("c", "s", 1)),
            FENCED_SAVE.encode_request(save(1)),
            SET_POSITION.encode_request(SetRequest(1, KEY, 1)),
            POSITIONS.encode_request(PositionsRequest(1, None, None, None, 1)),
        )
        assert await running.idle() == []
        await trio.sleep(FAILURE_DELAY_S)
        answers = await running.idle()
        assert len(answers) == 3
        assert all("saved_indexes" in ERROR.decode_response(each).reason for each in answers)
        await running.execute("ALTER TABLE hidden RENAME TO saved_indexes")
        assert await running.ask(FENCED_SAVE, save(2)) == SaveResponse(7, SaveStatus.OK, 2)
        statistics = running.service.statistics()
        assert (statistics.failed, statistics.saves) == (4, 1)
