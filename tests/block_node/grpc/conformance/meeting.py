"""What the conformance cases share: a node, a client of some kind that meets it, publishers and subscribers by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias, TypeVar

from block_node.events import BackfilledBlockNotification, Notification
from block_node.grpc.messages import WireMessage, read_message, write_message
from tests.block_node.grpc.calls.block_door import (
    PUBLISH,
    SUBSCRIBE,
    BlockDoor,
    BlockPublisher,
    blocks_of,
    range_of,
)
from tests.block_node.grpc.foreign.peers import MESSAGES, Peer, PeerCall
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.publish.samples import Bench, chain_of

F = TypeVar("F", bound=Callable[..., Any])
SCHEMA_ONLY: Final = "it sends only what its schema can say"


def lacks(reasons: Mapping[str, str]) -> Callable[[F], F]:
    """Says which clients cannot run a case, and why not."""

    def note(case: F) -> F:
        case.lacks = reasons  # type: ignore[attr-defined]
        return case

    return note


class PeerPublisher(BlockPublisher):
    def __init__(self, call: PeerCall) -> None:
        self.call = call

    async def put(self, message: bytes) -> None:
        await self.call.send(message)

    async def hear(self) -> bytes:
        return await self.call.next()

    async def ended(self) -> int:
        return await self.call.status()


class PeerSubscriber:
    def __init__(self, call: PeerCall) -> None:
        self.call = call
        self.parts: list[WireMessage] = []

    async def next(self) -> WireMessage:
        self.parts.append(read_message("SubscribeStreamResponse", await self.call.next()))
        return self.parts[-1]

    async def until_block(self, number: int) -> None:
        """Until the end of that block has come."""
        while (await self.next()).get("end_of_block", {"block_number": -1}).get("block_number", 0) != number:
            pass

    async def until_status(self) -> int:
        """The status of the subscription. The call ends well behind it."""
        while "status" not in (part := await self.next()):
            pass
        assert await self.call.status() == 0
        return int(part["status"])

    def blocks(self) -> list[int]:
        """The blocks that have come. Each has the items of `chain_of`, once."""
        found = blocks_of([part for part in self.parts if "status" not in part])
        ends = [part for part in self.parts if "end_of_block" in part]
        assert len(ends) == len(found)
        assert found == {number: list(chain_of(max(found) + 1)[number].items) for number in found}
        return list(found)


class Meeting:
    """A node and a client of it."""

    def __init__(self, door: BlockDoor, peer: Peer) -> None:
        self.door = door
        self.peer = peer

    @property
    def world(self) -> Bench:
        return self.door.world

    @property
    def publishers(self) -> int:
        return self.world.publishing.machine.publishers

    async def publisher(self) -> PeerPublisher:
        """One more publisher, which the node has let in."""
        before = self.publishers
        made = PeerPublisher(await self.peer.call(PUBLISH))
        await wait_until(lambda: self.publishers == before + 1)
        return made

    async def published(self, count: int, first: int = 0) -> PeerPublisher:
        """Blocks `first` to `count` - 1, acknowledged, by a publisher that stays."""
        one = await self.publisher()
        for block in chain_of(count)[first:]:
            await one.block(block)
        await one.wait_for("acknowledgement", count - 1)
        return one

    async def begun(self, blocks: int) -> None:
        """Waits until so many blocks are in flight."""
        await wait_until(lambda: self.world.publishing.statistics().in_flight.blocks == blocks)

    async def subscribe(self, start: int, end: int) -> PeerSubscriber:
        """A subscription whose request has been sent."""
        call = await self.peer.call(SUBSCRIBE)
        await call.send(range_of(start, end))
        await call.end()
        return PeerSubscriber(call)

    async def following(self, start: int, end: int) -> PeerSubscriber:
        """A subscription that the node has begun."""
        before = self.door.services.statistics().subscribe.sessions
        made = await self.subscribe(start, end)
        await wait_until(lambda: self.door.services.statistics().subscribe.sessions == before + 1)
        return made

    async def ask(self, path: str, request: WireMessage | None = None) -> WireMessage:
        """One call with one answer, which ends well."""
        asks, answers = MESSAGES[path]
        call = await self.peer.call(path)
        await call.send(write_message(asks, request or {}))
        await call.end()
        found = read_message(answers, await call.next())
        assert await call.status() == 0
        return found

    def notify(self, notification: Notification) -> None:
        self.world.block_node.facility.publish(notification)

    def backfill(self, number: int) -> None:
        items = list(chain_of(number + 1)[number].items)
        self.notify(BackfilledBlockNotification(number, items, sum(map(len, items))))


Meet: TypeAlias = Callable[..., AbstractAsyncContextManager[Meeting]]
