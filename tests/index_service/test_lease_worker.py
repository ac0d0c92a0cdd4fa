"""Goal: leases as a client sees them, over a real node and database. Method: virtual time; a node that dies."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from index_service import requests
from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    SET_POSITION,
    FencedSave,
    Lease,
    LeaseRequest,
    PositionKey,
    SaveStatus,
    SetRequest,
)
from index_service.lease_groups import LeaseGroups
from index_service.lease_storage import load_leases
from index_service.limits import FAILURE_DELAY_S, SWEEP_GROUPS_MAX, TEXT_BYTES_MAX, LeaseLimits
from index_service.protocol import INDEX, GetIndex
from index_service.requests import read_extension
from ockam.actors.cell import RESTART_DELAY_S_MIN
from ockam.actors.message import Origin
from ockam.protocol import ERROR
from tests.index_service.index_node import index_node

pytestmark = pytest.mark.usefixtures("each_database")

TTL_S = LeaseLimits().ttl_s


async def test_a_partition_changes_hands_when_its_holder_no_longer_names_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        joined = await first.renew()
        assert joined.leases == [Lease(partition, 1) for partition in range(4)]
        assert (joined.release, joined.ttl_ms, joined.members) == ([], 10_000, 1)
        assert (await second.renew()).leases == []
        asked = await first.renew()
        assert (len(asked.leases), asked.release, asked.members) == (4, [0, 1], 2)
        assert (await second.renew()).leases == []
        assert (await first.renew(without=[0])).release == [1]
        assert (await second.renew()).leases == [Lease(0, 2)]
        assert (await first.renew(without=[1])).leases == [Lease(2, 1), Lease(3, 1)]
        assert (await second.renew()).leases == [Lease(0, 2), Lease(1, 2)]
        assert running.service.statistics().leases.held == 4


async def test_who_leaves_leaves_everything_at_once_and_who_is_not_heard_after_the_time_to_live(
    tmp_path: Path,
    autojump_clock: MockClock,
) -> None:
    async with index_node(tmp_path) as running:
        members = [running.member(name, partitions=3) for name in "abc"]
        for member in members:
            await member.renew()
        assert (await members[0].leave()).members == 2
        await members[1].renew()
        await trio.sleep(TTL_S / 2)
        await members[2].renew()
        before = members[2].fences()
        await trio.sleep(TTL_S / 2 - 0.01)
        assert members[2].fences() == before
        await trio.sleep(0.01)
        await members[2].renew()
        assert set(members[2].fences()) == {0, 1, 2}
        lost = await members[1].renew()
        assert lost.leases == []
        statistics = running.service.statistics().leases
        assert (statistics.expired, statistics.members) == (1, 2)
        assert statistics.lost > 0


async def test_an_old_lease_is_honoured_after_a_restart_until_its_holder_names_it_or_its_time_is_over(
    tmp_path: Path,
    autojump_clock: MockClock,
) -> None:
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        await first.renew()
        await second.renew()
        await first.renew(without=[0, 1])
        await second.renew()
    async with index_node(tmp_path) as running:
        first.index_node = running
        third = running.member("c")
        assert (await third.renew()).leases == []
        assert (await first.renew()).leases == [Lease(2, 1), Lease(3, 1)]
        await trio.sleep(TTL_S * 0.9)
        await first.renew()
        assert (await third.renew()).leases == []
        await trio.sleep(TTL_S * 0.1)
        await third.renew()
        assert third.fences() == {0: 3, 1: 3}
        assert (await first.renew()).leases == [Lease(2, 1), Lease(3, 1)]


async def test_a_node_that_starts_long_after_or_after_all_have_left_makes_nobody_wait(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        member = running.member("a")
        await member.renew()
        await member.leave()
    async with index_node(tmp_path) as running:
        assert (await running.member("b").renew()).leases == [Lease(partition, 2) for partition in range(4)]
    async with index_node(tmp_path) as running:
        await trio.sleep(TTL_S)
        assert (await running.member("c").renew()).leases == [Lease(partition, 3) for partition in range(4)]


async def test_a_crash_of_the_worker_loses_no_lease(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with index_node(tmp_path) as running:
        member = running.member("a")
        await member.renew()
        with monkeypatch.context() as patched:
            patched.setattr(requests, "read_extension", lambda payload, partitions_max: 1 / 0)
            assert "the worker failed" in await running.refused(LEASE, member.request())
        await trio.sleep(2 * RESTART_DELAY_S_MIN)
        before = member.fences()
        assert (await member.renew()).leases
        assert member.fences() == before


async def test_a_crash_takes_only_its_own_request_from_a_run(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_or_crash(payload: bytes, partitions_max: int) -> object:
        request = read_extension(payload, partitions_max)
        return 1 / 0 if request.request_id == 2 else request

    monkeypatch.setattr(requests, "read_extension", read_or_crash)
    async with index_node(tmp_path) as running:
        saves = [FencedSave(number, "c", "s", 0, number, None) for number in (1, 2, 3)]
        running.send(*map(FENCED_SAVE.encode_request, saves))
        await trio.sleep(2 * RESTART_DELAY_S_MIN)
        answers = await running.idle()
        assert [FENCED_SAVE.decode_response(each).index for each in answers if FENCED_SAVE.is_in(each)] == [1, 3]
        assert sum(map(ERROR.is_in, answers)) == 1


async def test_a_lease_is_answered_when_its_fence_is_on_disk_and_not_given_where_it_cannot_be(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        member, other = running.member("a"), running.member("b")
        await member.renew()
        await running.execute("ALTER TABLE lease_fences RENAME TO hidden")
        assert (await member.renew()).leases, "a renewal needs no disk"
        running.send(LEASE.encode_request(member.request(holding=[])))
        assert await running.idle() == []
        await trio.sleep(FAILURE_DELAY_S)
        (payload,) = await running.idle()
        assert "lease_fences" in ERROR.decode_response(payload).reason
        await running.execute("ALTER TABLE hidden RENAME TO lease_fences")
        member.leases = []
        assert {lease.fence for lease in (await member.renew()).leases} == {3}
        assert (await other.renew()).leases == []
        assert running.service.statistics().failed == 1


async def test_leases_that_cannot_be_read_are_an_error_and_are_read_anew_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        await running.execute("ALTER TABLE lease_fences RENAME TO hidden")
        running.send(*(LEASE.encode_request(running.member(name).request()) for name in "ab"))
        assert await running.idle() == []
        await trio.sleep(FAILURE_DELAY_S)
        assert [ERROR.is_in(payload) for payload in await running.idle()] == [True, True]
        await running.execute("ALTER TABLE hidden RENAME TO lease_fences")
        assert len((await running.member("a").renew()).leases) == 4


async def test_requests_that_come_while_a_group_is_read_are_served_in_their_order(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        running.send(*(LEASE.encode_request(member.request()) for member in (first, second)))
        answers = [LEASE.decode_response(payload) for payload in await running.idle()]
        assert [len(answer.leases) for answer in answers] == [4, 0]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (LeaseRequest(1, "c", "s", "", 1, [], False), "a member id is empty"),
        (LeaseRequest(1, "c", "s", "m", 0, [], False), "0 partitions; 1 to 4096 can be shared"),
        (LeaseRequest(1, "c", "s", "m", 4_097, [], False), "4097 partitions; 1 to 4096 can be shared"),
        (LeaseRequest(1, "c", "s", "m", 2, [Lease(1, 1), Lease(1, 2)], False), "a partition is held twice"),
        (LeaseRequest(1, "c", "s", "m", 2, [Lease(2, 1)], False), "partition 2 is held, of 2"),
        (LeaseRequest(1, "c", "s", "m" * (TEXT_BYTES_MAX + 1), 1, [], False), "above 1024 bytes"),
        (LeaseRequest(1, "c", "ü" * TEXT_BYTES_MAX, "m", 1, [], False), "above 1024 bytes"),
    ],
)
async def test_what_a_member_cannot_ask_is_an_error(
    tmp_path: Path, autojump_clock: MockClock, request_: LeaseRequest, reason: str
) -> None:
    async with index_node(tmp_path) as running:
        assert reason in await running.refused(LEASE, request_)
        statistics = running.service.statistics()
        assert (statistics.refused, statistics.ignored, statistics.leases.members) == (1, 0, 0)


async def test_protocols_of_our_own_are_answered_even_where_nobody_knows_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        running.send(b"\x09node/ab/1\x00", LEASE.tag + b"\x01\x00", b"\x04nope\x00", INDEX.tag + b"\x00")
        reasons = [ERROR.decode_response(payload).reason for payload in await running.idle()]
        assert reasons[0] == "Invalid request: node/ab/1 is not served here"
        assert reasons[1].startswith("Invalid request: node/lease/1 request: ")
        assert len(reasons) == 2
        statistics = running.service.statistics()
        assert (statistics.refused, statistics.ignored) == (2, 2)


async def test_members_groups_and_partitions_have_a_bound_and_make_room_when_they_are_gone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limits = LeaseLimits(members_max=2, groups_max=2, entries_max=10)
    async with index_node(tmp_path, limits) as running:
        first, second = running.member("a", 2), running.member("b", 2)
        await first.renew()
        await second.renew()
        reason = await running.refused_now(LEASE, running.member("c").request())
        assert "the group has 2 members; end one, or ask again later" in reason
        assert "too many" in await running.refused_now(LEASE, running.member("a", 9, "other").request())
        await running.member("a", 2, "other").renew()
        assert "2 groups share" in await running.refused_now(LEASE, running.member("a", 1, "third").request())
        first.partitions = 20
        assert "too many" in await running.refused_now(LEASE, first.request())
        await trio.sleep(2 * TTL_S)
        assert len((await running.member("a", 9, "third").renew()).leases) == 9


async def test_one_party_leaves_room_for_the_groups_of_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Claim: one party can have a quarter of what all groups together can have. Method: two hosts, and limits that are
    small; what the first host does not get, the second one gets."""
    first, second = (Origin("http", f"192.0.2.{number}:5000") for number in (1, 2))
    async with index_node(tmp_path, LeaseLimits(groups_max=8, entries_max=40)) as running:
        await running.ask(LEASE, running.member("a", 3).request(), origin=first)
        # With this member, the first host would have eleven members and partitions.
        more = running.member("b", 9)
        assert "4 of them of this client" in await running.refused_now(LEASE, more.request(), origin=first)
        await running.ask(LEASE, running.member("a", 1, stream_name="t").request(), origin=first)
        third = running.member("a", 1, stream_name="u")
        assert "2 of them of this client" in await running.refused_now(LEASE, third.request(), origin=first)
        for stream_name, partitions in (("u", 1), ("v", 7)):
            member = running.member("a", partitions, stream_name=stream_name)
            assert len((await running.ask(LEASE, member.request(), origin=second)).leases) == partitions
        # The node's own workers have no share.
        for number in range(4):
            await running.member("a", 1, stream_name=f"own {number}").renew()
        await trio.sleep(2 * TTL_S)
        member = running.member("a", 9, stream_name="w")
        assert len((await running.ask(LEASE, member.request(), origin=first)).leases) == 9


async def test_groups_are_forgotten_and_their_fences_are_not(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with index_node(tmp_path) as running:
        await running.member("a").renew()
        await trio.sleep(3 * TTL_S + 0.1)
        assert running.service.statistics().leases.groups == 0
        assert {lease.fence for lease in (await running.member("b").renew()).leases} == {2}


async def test_groups_without_members_leave_nothing_on_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Goal: a client that invents names does not fill the disk, and no fence is given twice, over a restart, too.
    Method: groups that leave or fall silent beside one that stays; then somebody saves with a deleted fence."""
    invented, given = [f"invented {number}" for number in range(6)], list[int]()
    async with index_node(tmp_path) as running:

        async def stored() -> set[str]:
            names = ["kept", *invented]
            return {
                name
                for name in names
                if (await running.read(partial(load_leases, client_id="c", stream_name=name))).rows
            }

        kept = running.member("k", stream_name="kept")
        await kept.renew()
        for number, name in enumerate(invented):
            member = running.member("a", stream_name=name)
            for _ in range(number):
                await member.renew(without=range(4))
            await member.renew()
            given += member.fences().values()
            if number % 2:
                await member.leave()
        assert max(given) > 1
        assert await stored() == {"kept", *invented}
        for _ in range(9):
            await trio.sleep(TTL_S / 3)
            await kept.renew()
        assert await stored() == {"kept"}
        assert kept.fences() == dict.fromkeys(range(4), 1)
        refused = await running.ask(FENCED_SAVE, FencedSave(1, "c", invented[0], 0, 5, 1))
        assert refused.status is SaveStatus.FENCED
    async with index_node(tmp_path) as running:
        for name in invented:
            member = running.member("b", stream_name=name)
            await member.renew()
            assert min(member.fences().values()) > max(given)


async def test_a_member_that_is_connected_again_can_save_with_the_lease_that_it_had(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The end of its connection has ended its leases, and its save was on the way."""
    async with index_node(tmp_path) as running:
        other, member = running.member("k", stream_name="kept"), running.member("a")
        await other.renew()
        await trio.sleep(0.9 * TTL_S)
        await member.renew()
        running.service.groups.leave(("c", "s"), "a")
        await trio.sleep(0.9 * TTL_S)
        saved = await running.ask(FENCED_SAVE, FencedSave(1, "c", "s", 0, 5, member.fences()[0]))
        assert (saved.status, saved.index) == (SaveStatus.OK, 5)


async def test_a_member_that_ends_as_another_expires_can_save_with_the_lease_that_it_had(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The end of the leases of the other one is written, and the group stays for the time to live all the same."""
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        await first.renew()
        await second.renew()
        await first.renew(without=[0, 1])
        await second.renew()
        await trio.sleep(0.9 * TTL_S)
        await second.renew()
        running.service.groups.leave(("c", "s"), "b")
        await trio.sleep(0.2 * TTL_S)
        assert running.service.statistics().leases.expired == 1
        saved = await running.ask(FENCED_SAVE, FencedSave(1, "c", "s", 0, 5, second.fences()[0]))
        assert (saved.status, saved.index) == (SaveStatus.OK, 5)


async def test_a_lease_outlives_a_restart_though_other_groups_have_raised_the_floor(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its next holder gets a fence above the floor."""
    async with index_node(tmp_path) as running:
        kept = running.member("k", stream_name="kept")
        await kept.renew()
        other = running.member("a", stream_name="other")
        for _ in range(5):
            await other.renew(without=range(4))
        for _ in range(9):
            await trio.sleep(TTL_S / 3)
            await kept.renew()
        floor = (await running.read(partial(load_leases, client_id="c", stream_name="other"))).floor
        assert floor > 1
    async with index_node(tmp_path) as running:
        held = kept.fences()
        kept.index_node = running
        await kept.renew()
        assert kept.fences() == held == dict.fromkeys(range(4), 1)
        await kept.leave()
        follower = running.member("f", stream_name="kept")
        await follower.renew()
        assert set(follower.fences().values()) == {floor + 1}


async def test_a_group_that_only_an_operator_touched_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with index_node(tmp_path) as running:
        await running.ask(SET_POSITION, SetRequest(1, PositionKey("c", "s", 0), 1))
        assert running.service.statistics().leases.groups == 1
        await trio.sleep(TTL_S + 0.1)
        assert running.service.statistics().leases.groups == 0


async def test_many_groups_are_swept_in_parts(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Claim: the end of the leases of thousands of groups holds up no other task for long. Method: each end is noted
    with the turn of trio's loop in which it came."""
    turns = 0
    ends: Counter[int] = Counter()

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal turns
            turns += 1

    async with index_node(tmp_path) as running:
        groups = running.service.groups
        joins = [running.member("a", stream_name=f"s{number}").request() for number in range(2 * SWEEP_GROUPS_MAX + 1)]
        for join in joins:
            running.send(LEASE.encode_request(join))
        assert len(await running.idle()) == len(joins)
        groups.on_move = lambda key: ends.update((turns,))
        trio.lowlevel.add_instrument(Turns())
        await trio.sleep(3 * TTL_S)
        assert len(groups) == 0
    assert ends.total() == len(joins)
    assert max(ends.values()) <= SWEEP_GROUPS_MAX


async def test_a_group_is_not_forgotten_while_it_writes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep after each request of the same run finds groups without members whose rows are on their way."""
    async with index_node(tmp_path) as running:
        member = running.member("a")
        await member.renew()
        lease = LeaseGroups.lease

        def lease_and_sweep(groups: LeaseGroups, *args: object) -> None:
            lease(groups, *args)  # type: ignore[arg-type]
            groups.sweep(groups.keys, for_room=True)

        monkeypatch.setattr(LeaseGroups, "lease", lease_and_sweep)
        running.send(
            LEASE.encode_request(member.request(leave=True)), LEASE.encode_request(running.member("b").request())
        )
        answers = [LEASE.decode_response(payload) for payload in await running.idle()]
        assert [[lease.fence for lease in answer.leases] for answer in answers] == [[], [2, 2, 2, 2]]


async def test_the_plain_protocols_know_nothing_of_leases(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with index_node(tmp_path) as running:
        await running.member("a").renew()
        assert (await running.ask(INDEX, GetIndex("c", "s"))).index == 0
