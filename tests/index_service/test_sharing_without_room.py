"""Goal: a consumer for which the node or its group has no room waits for room, and goes on when there is some.

Method: a whole node that takes one group or one member, and a peer that has the only place until the consumer was
refused. Then the peer leaves, or its connection ends.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from index_service.extensions import LEASE, LeaseRequest
from index_service.limits import LeaseLimits
from stream_client import connect
from stream_node.node import services
from tests.support.rich import ask
from tests.support.served import PATIENCE_S, served, wait_until
from tests.support.stream_peer import INDEX_SERVICE


@pytest.mark.parametrize(("limit", "group"), [("groups_max", ("other", "t")), ("members_max", ("c", "s"))])
@pytest.mark.parametrize("leaves", [True, False])
async def test_a_consumer_that_found_no_room_reads_when_there_is_room(
    limit: str, group: tuple[str, str], leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LeaseLimits", partial(LeaseLimits, **{limit: 1}))
    read: list[tuple[int, bytes]] = []
    async with served(tmp_path) as server, connect(server.address) as client:
        stream = await client.create_partitioned("s", 1)
        await stream.partitions[0].push(b"x")
        peer = await server.peer()
        joined = await ask(peer, INDEX_SERVICE, LEASE, LeaseRequest(1, *group, "m", 1, [], False))
        assert len(joined.leases) == 1

        async def consume() -> None:
            async with stream.shared_consumer("c") as consumer:
                async for partition, message in consumer:
                    read.append((partition, message.data))
                    return

        with trio.fail_after(2 * PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume)
                # It has asked twice, so that the first refusal was no answer to a protocol that the node does not know.
                await wait_until(lambda: server.statistics().services.index.refused >= 2)
                if leaves:
                    await ask(peer, INDEX_SERVICE, LEASE, LeaseRequest(2, *group, "m", 1, [], True))
                else:
                    await peer.stream.aclose()
    assert read == [(0, b"x")]
