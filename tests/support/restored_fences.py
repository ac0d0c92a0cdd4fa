"""Checks that a restored database gives no fence a second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from index_service.extensions import FENCED_SAVE, LEASE, FencedSave, LeaseRequest, SaveStatus
from tests.support.served import Served, served
from tests.support.stream_peer import INDEX_SERVICE


async def check_no_fence_twice(data: Path, take: Callable[[Path], object], put_back: Callable[[Path], object]) -> None:
    """Leases partitions before and after `take`, puts the copy back, and leases them again.

    take: makes a copy of the data directory of a node that runs. put_back: replaces the data directory by the copy.
    """
    held: list[dict[int, int]] = []

    async def lease(server: Served, member_id: str, partitions: int) -> None:
        peer = await server.peer()
        request = LeaseRequest(1, "c", "s", member_id, partitions, [], False)
        answer = LEASE.decode_response((await peer.ask(INDEX_SERVICE, LEASE.encode_request(request))).payload)
        held.append({each.partition: each.fence for each in answer.leases})
        leave = LeaseRequest(2, "c", "s", member_id, partitions, answer.leases, True)
        await peer.ask(INDEX_SERVICE, LEASE.encode_request(leave))

    async with served(data, lease_ttl_s=0.2) as server:
        await lease(server, "a", 1)
        await trio.to_thread.run_sync(take, data)
        await lease(server, "b", 2)
        await lease(server, "c", 2)
    await trio.to_thread.run_sync(put_back, data)
    async with served(data, lease_ttl_s=0.2) as server:
        await lease(server, "d", 2)
        peer = await server.peer()
        save = FENCED_SAVE.encode_request(FencedSave(1, "c", "s", 0, 7, held[2][0]))
        assert FENCED_SAVE.decode_response((await peer.ask(INDEX_SERVICE, save)).payload).status is SaveStatus.FENCED
    before, after = held[:3], held[3]
    assert all(after[partition] > fence for each in before for partition, fence in each.items()), held
    assert set(after) == {0, 1}
