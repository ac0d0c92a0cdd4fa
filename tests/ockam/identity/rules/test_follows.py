"""Goal: a follower that loses its right gets no further part, whoever it is; another one's rules do not end its follow.

Method: every way to prove an identity, in both framings. A raw peer follows a stream in parts while the rules change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.transport.wire import Wire
from stream_service.extensions import PACKED_PULL, FromIndex, PackedPull
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.ockam.identity.rules.ways import WAYS, WIRES, Way
from tests.support.rich import messages_of
from tests.support.served import wait_until
from tests.support.stream_peer import StreamPeer

BOTH_WIRES = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


async def part(peer: StreamPeer) -> tuple[list[bytes], bool]:
    """The data of the next part, and whether another one follows."""
    found = PACKED_PULL.decode_response((await peer.receive()).payload)
    return [each.data for each in messages_of(found) or ()], found.more


@pytest.mark.slow
@BOTH_WIRES
@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.name)
async def test_no_part_comes_after_the_right_is_gone(tmp_path: Path, kind: type[Way], wire: Wire) -> None:
    way = kind(tmp_path)
    everything, other = may(ALL_RIGHTS, who=way.identity), "certificate:bob"
    async with guarded(tmp_path, everything, may(ALL_RIGHTS, who=other, name="bob"), **way.settings) as node:
        follower, pusher = await way.peer(node, wire), await way.peer(node, wire)
        route = await pusher.create("orders")
        await pusher.push(route, b"0")
        await follower.send(route, PACKED_PULL.encode_request(PackedPull(1, FromIndex(0), 100, 5_000, 0)))
        assert await part(follower) == ([b"0"], True)
        await pusher.push(route, b"1")
        assert await part(follower) == ([b"1"], True)
        # The rules of somebody else change.
        node.allow(everything, may(Right.READ, who=other, name="bob"))
        await pusher.push(route, b"2")
        assert await part(follower) == ([b"2"], True)
        # The right to read is gone, and messages go on to come.
        node.allow(may(ALL_RIGHTS & ~Right.READ, who=way.identity))
        later = await way.peer(node, wire)
        for data in (b"3", b"4"):
            assert (await later.push(route, data)).index == int(data)
        with pytest.raises(AssertionError, match="the node closed the c"):
            await part(follower)
        await wait_until(lambda: not node.running.statistics().limits.open.get("pulls_parked_max"))
