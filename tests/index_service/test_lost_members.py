"""Goal: a member of a group whose connection ends gives its partitions back at once, and nobody else's.

Method: a real node, and two workers of a node, with leases that last for an hour; members on sockets of their own, one
of which ends; and members that are processes with the client, one of which is killed.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from index_service.extensions import LEASE, Lease, LeaseRequest
from index_service.limits import LEASE_LIMITS
from index_service.member_watch import MEMBERS_MAX
from ockam.actors.address import local
from ockam.actors.message import Origin
from ockam.identity.channel.identity_file import create_identity
from ockam.quotas.memory import Holdings, PeerMemory
from ockam.transport import connection_machine
from stream_client import blocking
from stream_node.fleet.cluster.view import choose_owner, shard_of
from stream_node.node.process import NodeProcess
from stream_service.names import stream_address
from tests.client.members import processed, start_member, wait_for
from tests.index_service.index_node import index_node
from tests.index_service.test_waiting_leases import OtherNode
from tests.stream_node.doors.dashboard.test_cluster import two_workers
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import StreamPeer, stream_peer

INDEX = (local("stream_index"),)


class Member:
    """One member, that holds what it was given last."""

    def __init__(self, peer: StreamPeer, name: str, stream: str = "s") -> None:
        self.peer = peer
        self._stream = stream
        self._name = name
        self._number = 0
        self.holding: list[Lease] = []

    async def renew(self) -> list[int]:
        """Renews the leases; the partitions that the member may read now."""
        self._number += 1
        request = LeaseRequest(self._number, "c", self._stream, self._name, 4, self.holding, leave=False)
        answer = LEASE.decode_response((await self.peer.ask(INDEX, LEASE.encode_request(request))).payload)
        # It gives up at once what it is asked for.
        self.holding = [each for each in answer.leases if each.partition not in answer.release]
        return sorted(each.partition for each in self.holding)

    async def holds(self, partitions: list[int]) -> None:
        with trio.fail_after(PATIENCE_S):
            while await self.renew() != partitions:
                await trio.sleep(0.01)


async def test_a_member_whose_connection_ends_gives_its_partitions_back(tmp_path: Path) -> None:
    async with served(tmp_path, lease_ttl_s=3_600.0) as server:
        await (await server.peer()).create("s")
        first, second = Member(await server.peer(), "first"), Member(await server.peer(), "second")
        await first.holds([0, 1, 2, 3])
        with trio.fail_after(PATIENCE_S):
            while len(await second.renew()) < 2:
                await first.renew()
        # The first member comes back on another connection before the end of the old one: it keeps what it has.
        old, first.peer = first.peer, await server.peer()
        kept = await first.renew()
        old.stream.socket.close()
        await server.wait_closed_because("closed_by_peer")
        assert (await first.renew(), len(kept)) == (kept, 2)
        # Its second connection ends, too, and nothing comes instead.
        first.peer.stream.socket.close()
        await second.holds([0, 1, 2, 3])
        statistics = server.statistics().services.index.leases
        assert (statistics.members, statistics.expired) == (1, 0)
    # A node that stops takes no lease from its members.
    async with served(tmp_path, lease_ttl_s=3_600.0) as server:
        second.peer = await server.peer()
        assert await second.renew() == [0, 1, 2, 3]


async def test_a_member_that_can_ask_no_more_gives_its_partitions_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a killed process closes its sending side, as a peer does that still takes answers: here for an hour,
    while its connection is open. It can not renew its leases."""
    monkeypatch.setattr(connection_machine, "LINGER_QUIET_S", 3_600.0)
    monkeypatch.setattr(connection_machine, "LINGER_S_MAX", 3_600.0)
    async with served(tmp_path, lease_ttl_s=3_600.0) as server:
        await (await server.peer()).create("s")
        first, second = Member(await server.peer(), "first"), Member(await server.peer(), "second")
        await first.holds([0, 1, 2, 3])
        await second.renew()
        await first.peer.stream.send_eof()
        await second.holds([0, 1, 2, 3])


@pytest.mark.parametrize("at", [(0, 0), (0, 1), (1, 0)])
async def test_a_member_at_another_worker_gives_its_partitions_back(tmp_path: Path, at: tuple[int, int]) -> None:
    """at: the workers of the member whose connection ends and of the other one. The second worker keeps the group."""
    async with two_workers(tmp_path, lease_ttl_s=3_600.0) as nodes, AsyncExitStack() as stack:

        async def peer(worker: int) -> StreamPeer:
            return await stack.enter_async_context(stream_peer(nodes[worker].running.address))

        names = (f"s{number}" for number in range(1_000))
        name = next(n for n in names if choose_owner(shard_of(stream_address(n, 0)), ("w00", "w01")) == "w01")
        first, second = Member(await peer(at[0]), "first", name), Member(await peer(at[1]), "second", name)
        await first.peer.create(name)
        await first.holds([0, 1, 2, 3])
        with trio.fail_after(PATIENCE_S):
            while len(await second.renew()) < 2:
                await first.renew()
        # The first member comes to the other worker before the end of its old connection: it keeps what it has.
        old, first.peer = first.peer, await peer(1 - at[0])
        kept = await first.renew()
        old.stream.socket.close()
        await nodes[at[0]].running.wait_closed_because("closed_by_peer")
        assert (await first.renew(), len(kept)) == (kept, 2)
        assert sorted([*kept, *await second.renew()]) == [0, 1, 2, 3]
        first.peer.stream.socket.close()
        await second.holds([0, 1, 2, 3])


async def test_members_that_end_without_a_word_on_one_connection_leave_room_for_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Claim: a node that passes lease requests on watches also members that come after as many as it watches at most
    have fallen silent on a connection that goes on. Method: a real service in virtual time; the node that keeps the
    leases is played."""
    other = OtherNode()
    other.is_owner = True
    memory = PeerMemory()
    long, own = (Origin("tcp", holdings=Holdings(memory, lambda: None, lambda: None)) for _ in range(2))
    async with index_node(tmp_path, remote_streams=other) as running:

        def ask(origin: Origin, *names: str) -> None:
            requests = [LeaseRequest(1, "c", "s", name, 4, [], leave=False) for name in names]
            running.send(*map(LEASE.encode_request, requests), origin=origin)

        ask(long, *map(str, range(MEMBERS_MAX)))
        await trio.sleep(2 * LEASE_LIMITS.ttl_s)
        ask(own, "late")
        await trio.testing.wait_all_tasks_blocked()
        other.sent.clear()
        for each in (own, long):
            each.holdings.end()
        assert [LEASE.decode_request(payload).member_id for payload in other.sent] == ["late"]
        assert LEASE.decode_request(other.sent[0]).leave


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "by_channel"), [(1, False), (2, False), (1, True)])
def test_the_partitions_of_a_killed_process_go_to_the_other_one_before_it_would_renew(
    tmp_path: Path, workers: int, by_channel: bool
) -> None:
    """With leases of an hour, a member asks the node by itself after a quarter of an hour. Then nothing would come.
    by_channel: whether the members use a secure channel, each of its own."""
    settings = {"STREAM_NODE_LEASE_TTL_S": "3600", "STREAM_NODE_WORKERS": str(workers)}
    channel = {}
    if by_channel:
        now_s = int(time.time())
        own = create_identity(tmp_path / "client.json", now_s)
        peer = create_identity(tmp_path / "data/identity.json", now_s)
        settings["STREAM_NODE_SECURE_CHANNEL_TRUSTED"] = str(own)
        channel = {"CHANNEL_IDENTITY": str(tmp_path / "client.json"), "CHANNEL_PEER": str(peer)}
    with NodeProcess(tmp_path / "data", environment=settings) as node, blocking.connect(node.address) as client:
        stream = client.create_partitioned("shared", 4)
        files = {name: tmp_path / name for name in "ab"}

        def has_got(name: str, partitions: int) -> bool:
            """Pushes to all partitions; whether this member has had messages of so many of them by now."""
            for part in stream.partitions:
                part.push(b"x")
            return len({partition for partition, _, _ in processed(files[name])}) == partitions

        members = {}
        try:
            members["a"] = start_member(node.address, "a", files["a"], **channel)
            wait_for(lambda: has_got("a", 4))
            members["b"] = start_member(node.address, "b", files["b"], **channel)
            wait_for(lambda: has_got("b", 2))
            members["a"].kill()
            wait_for(lambda: has_got("b", 4))
        finally:
            for member in members.values():
                member.kill()
                member.wait()
