"""Goal: a member whose request waits learns at once what it gets or should give up, and nothing else is changed by it.

Method: a real node and database in virtual time, in which members without waiting requests stand beside waiting ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from index_service import requests
from index_service.extensions import LEASE, WAITING_LEASE, Lease, LeaseResponse, WaitingLeaseRequest
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases
from index_service.lease_waits import MOVES_GATHER_S
from index_service.limits import LeaseLimits
from ockam.actors.address import Address, local
from ockam.actors.cell import RESTART_DELAY_S_MIN
from ockam.actors.message import Message
from stream_storage.contract import ignore_done
from tests.index_service.index_node import IndexNode, Member, index_node

pytestmark = pytest.mark.usefixtures("each_database")

TTL_S = LeaseLimits().ttl_s
TTL_MS = round(TTL_S * 1000)
WAIT_S = 2.0


class OtherNode:
    """An `ockam.transport.forwarding.RemoteStreams` with one other node, which keeps all consumers while
    `is_owner`."""

    name = "n0"

    def __init__(self) -> None:
        self.is_owner = False
        self.sent: list[bytes] = []

    def is_remote(self, stream: Address) -> bool:
        return self.is_owner

    def send(self, stream: Address, message: Message) -> None:
        self.sent.append(message.payload)

    def home_of(self, stream_name: str) -> Address:
        return local(stream_name)

    def served_since_s(self, stream: Address) -> float:
        return trio.current_time()

    def owner_of(self, stream: Address) -> tuple[str, int]:
        return "", 0

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        return False


def wait_for_news(member: Member, wait_s: float = WAIT_S) -> None:
    """Sends a request that waits, with the leases that the member has now."""
    fields = msgspec.structs.asdict(member.request())
    request = WaitingLeaseRequest(**fields, wait_ms=round(wait_s * 1000))
    member.index_node.send(WAITING_LEASE.encode_request(request))


async def answers(running: IndexNode) -> list[LeaseResponse]:
    """What the waiting requests were answered, in the protocol of their requests."""
    return [WAITING_LEASE.decode_response(payload) for payload in await running.idle()]


async def test_a_waiting_member_learns_at_once_what_it_should_give_up_and_what_it_gets(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        await first.renew()
        wait_for_news(first)
        assert await answers(running) == []
        # Another member joins: the first one is asked for half of its partitions.
        assert (await second.renew()).leases == []
        assert await answers(running) == []
        await trio.sleep(MOVES_GATHER_S)
        (asked,) = await answers(running)
        assert (asked.request_id, asked.release, asked.members) == (first.requests, [0, 1], 2)
        # It gives them up, and the other one, which waits, gets them.
        wait_for_news(second)
        assert await answers(running) == []
        assert (await first.renew(without=[0, 1])).leases == [Lease(2, 1), Lease(3, 1)]
        await trio.sleep(MOVES_GATHER_S)
        (given,) = await answers(running)
        assert (given.request_id, given.leases) == (second.requests, [Lease(0, 2), Lease(1, 2)])


async def test_the_partitions_of_a_member_that_leaves_go_to_one_that_waits(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        first, second = running.member("a"), running.member("b")
        await second.renew()
        await first.renew()
        await second.renew(without=[0, 1])
        assert len((await first.renew()).leases) == 2
        wait_for_news(second)
        await running.idle()
        await first.leave()
        await trio.sleep(MOVES_GATHER_S)
        (given,) = await answers(running)
        assert [lease.partition for lease in given.leases] == [0, 1, 2, 3]


async def test_a_wait_ends_without_news_and_never_lasts_longer_than_a_lease_allows(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        member = running.member("a")
        await member.renew()
        for wait_s, expected_s in ((WAIT_S, WAIT_S), (1_000_000.0, TTL_S / 3)):
            wait_for_news(member, wait_s)
            await trio.sleep(expected_s - 0.01)
            assert await answers(running) == []
            await trio.sleep(0.02)
            (unchanged,) = await answers(running)
            assert (unchanged.request_id, unchanged.leases) == (member.requests, member.leases)
        # Without a wait, and with leases that the node does not know, there is an answer at once.
        wait_for_news(member, 0)
        assert len(await answers(running)) == 1
        member.leases = ()
        wait_for_news(member)
        assert len(await answers(running)) == 1


async def test_a_later_request_ends_the_wait_of_an_earlier_one_and_an_overtaken_one_does_not(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with index_node(tmp_path) as running:
        member, other = running.member("a"), running.member("b")
        await member.renew()
        wait_for_news(member)
        wait_for_news(member)
        newest = member.requests
        # One that was sent before both comes last: it is answered, and the newest goes on waiting.
        member.requests = newest - 2
        wait_for_news(member)
        (late,) = await answers(running)
        assert late.request_id == newest - 1
        await other.renew()
        await trio.sleep(WAIT_S + 0.1)
        assert [answer.request_id for answer in await answers(running)] == [newest]


async def test_a_waiting_request_renews_when_it_comes_and_not_when_it_is_answered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A member that has died while its request waits keeps nothing longer because others come and go."""
    async with index_node(tmp_path) as running:
        dead, other = running.member("a"), running.member("b")
        await dead.renew()
        wait_for_news(dead, TTL_S)
        asked_s = trio.current_time()
        while trio.current_time() < asked_s + TTL_S - 0.2:
            # The other one joins and leaves, so that the dead one is asked for partitions and may keep them again.
            await other.renew()
            await trio.sleep(0.15)
            await running.idle()
            await other.leave()
        await trio.sleep(asked_s + TTL_S - trio.current_time())
        await running.idle()
        assert [lease.partition for lease in (await other.renew()).leases] == [0, 1, 2, 3]


async def test_a_crash_of_the_worker_ends_waits_and_loses_no_lease(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with index_node(tmp_path) as running:
        member, other = running.member("a"), running.member("b")
        await member.renew()
        wait_for_news(member)
        await running.idle()
        with monkeypatch.context() as patched:
            patched.setattr(requests, "read_extension", lambda payload, partitions_max: 1 / 0)
            assert "the worker failed" in await running.refused(LEASE, other.request())
        await trio.sleep(2 * RESTART_DELAY_S_MIN)
        wait_for_news(member)
        await other.renew()
        await trio.sleep(MOVES_GATHER_S)
        (asked,) = await answers(running)
        assert (asked.request_id, len(asked.leases), asked.release) == (member.requests, 4, [0, 1])


async def test_a_request_that_waits_while_its_stream_moves_is_answered_by_the_new_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Claim: the end of a wait reads no leases of a stream that another node has taken over. Such leases would be old
    when the stream comes back, and a fence would be given twice.

    Method: the other node is played. It gives a lease while it has the stream, and then gives the stream back.
    """
    other = OtherNode()
    async with index_node(tmp_path, remote_streams=other) as running:
        first, third = running.member("a", 1), running.member("c", 1)
        await first.renew()
        wait_for_news(first)
        assert await answers(running) == []
        other.is_owner = True
        running.service.groups.forget(lambda name: True)
        await trio.sleep(WAIT_S)
        assert await answers(running) == []
        (passed_on,) = other.sent
        assert WAITING_LEASE.decode_request(passed_on).member_id == "a"
        # The first member has left, and the lease with the next fence is that of a second one.
        given = WriteLeases("c", "s", [StoredLease(0, 2, "b")], TTL_MS, ignore_done)
        running.runner.submit_write(given)
        await trio.sleep(TTL_S)
        other.is_owner = False
        assert (await third.renew()).leases == []
        await trio.sleep(TTL_S)
        assert (await third.renew()).leases == [Lease(0, 3)]


async def test_a_member_has_one_timer_however_often_it_asks(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Claim: each request ends in its own time, and none leaves a timer. Method: many requests at once, the last of
    which waits for longer than those before it; later one waits for less than the one before it."""
    async with index_node(tmp_path) as running:
        member = running.member("a")
        await member.renew()
        before = len(running.node._timers)
        for wait_s in [1.0] * 50 + [WAIT_S]:
            wait_for_news(member, wait_s)
        assert await answers(running) == []
        assert len(running.node._timers) == before + 1
        for until_s in (WAIT_S, 1.0):
            await trio.sleep(until_s - 0.01)
            assert await answers(running) == []
            await trio.sleep(0.02)
            (unchanged,) = await answers(running)
            assert unchanged.request_id == member.requests
            wait_for_news(member, WAIT_S)
            wait_for_news(member, 1.0)
