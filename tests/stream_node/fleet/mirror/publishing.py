"""A publisher of the tests of promotions, which notes every confirm, and what pulls get afterwards."""

from __future__ import annotations

import time

import trio

from ockam.actors.address import Route
from stream_service.names import stream_address
from stream_service.protocol import PUSH, PushRequest, Status
from tests.stream_node.fleet.mirror.mirrors import contents
from tests.support.served import PATIENCE_S, wait_until
from tests.support.stream_peer import StreamPeer, stream_peer

S: Route = (stream_address("s", 0),)


class Publishing:
    """Pushes numbered messages without a pause, and notes the index of each confirmed one. A push that was not stored
    is pushed again with a new number."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confirmed: dict[int, bytes] = {}
        self.confirmed_us: dict[int, int] = {}
        self.refused = 0
        self._number = 0

    async def wait(self, confirms: int) -> None:
        await wait_until(lambda: len(self.confirmed) > confirms)

    async def wait_refused(self) -> None:
        await wait_until(lambda: self.refused)

    async def run(self, peer: StreamPeer, count: int | None = None) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, peer, nursery.cancel_scope, count)
            while count is None or self._number < count:
                data = b"%s %d" % (self.name.encode(), self._number)
                await peer.send(S, PUSH.encode_request(PushRequest(self._number, data)))
                self._number += 1
                if self._number % 50 == 0:
                    await trio.sleep(0.001)

    async def _receive(self, peer: StreamPeer, scope: trio.CancelScope, count: int | None) -> None:
        answers = 0
        while count is None or answers < count:
            confirm = PUSH.decode_response((await peer.receive()).payload)
            answers += 1
            if confirm.status is Status.OK:
                assert confirm.index not in self.confirmed, "an index was given twice"
                self.confirmed_us[confirm.index] = time.time_ns() // 1000
                self.confirmed[confirm.index] = b"%s %d" % (self.name.encode(), confirm.request_id)
            else:
                self.refused += 1
        scope.cancel()


async def data_by_index(address: str, name: str = "s", start: int = 0) -> dict[int, bytes]:
    return {message.index: message.data for message in (await contents(address, name, 0, start))[2]}


async def seconds_to_confirm(address: str, since_s: float) -> tuple[float, int, bytes]:
    """Pushes until the node confirms. Returns the seconds since that time, and the index and the data."""
    async with stream_peer(address) as peer:
        with trio.fail_after(PATIENCE_S):
            while (confirm := await peer.push(S, b"first")).status is not Status.OK:
                await trio.sleep(0.01)
    return time.monotonic() - since_s, confirm.index, b"first"
