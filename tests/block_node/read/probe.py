"""A subscriber on the node itself: a worker that notes what comes, takes it or not, and can go away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from block_node.protocol import Piece
from block_node.protocol_reading import (
    SUBSCRIBE,
    Received,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedBlockWithdrawn,
    SubscribedItems,
    SubscribeResponse,
    SubscribeStatus,
    SubscriptionEnded,
    Unsubscribe,
)
from block_node.read.feed import SubscribeLimits
from block_node.read.subscribe import SubscribeService
from ockam.actors.address import Address, local
from ockam.actors.message import Message, Origin
from ockam.actors.worker import Worker
from ockam.protocol import ERROR
from tests.block_node.persist.block_samples import items_of, root_of
from tests.block_node.persist.block_world import World
from tests.support.served import wait_until

SERVICE = local("block_subscribe")
T = TypeVar("T")


class Probe(Worker):
    """takes: whether it says `Received` for what comes."""

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.seen: list[SubscribeResponse] = []
        self.errors: list[str] = []
        self.taken_bytes = 0
        self.session: Address | None = None

    def handle(self, message: Message) -> None:
        if ERROR.is_in(message.payload):
            self.errors.append(ERROR.decode_response(message.payload).reason)
            return
        response = SUBSCRIBE.decode_response(message.payload)
        self.session = message.return_route[0]
        self.seen.append(response)
        if isinstance(response, SubscribedItems):
            self.taken_bytes += sum(map(len, response.items))
            if self.takes:
                self.say(Received(1, self.taken_bytes))

    def say(self, request: Received | Unsubscribe) -> None:
        assert self.session is not None
        self.context.send(Message((self.session,), (self.context.address,), SUBSCRIBE.encode_request(request)))


class Subscriber:
    """What a probe has got, as blocks."""

    def __init__(self, made: World, number: int, takes: bool) -> None:
        self.made = made
        self.address = local(f"probe{number}")
        self.probe = Probe(takes)
        made.node.register([self.address], lambda: self.probe)

    def ask(self, request: Subscribe, origin: Origin | None = None) -> None:
        payload = SUBSCRIBE.encode_request(request)
        message = Message((SERVICE,), (self.address,), payload)
        self.made.node.send(msgspec.structs.replace(message, origin=origin) if origin is not None else message)

    def send(self, address: Address, payload: bytes) -> None:
        self.made.node.send(Message((address,), (self.address,), payload))

    def withdrawn(self) -> list[int]:
        return [each.block_number for each in self.of(SubscribedBlockWithdrawn)]

    def go_away(self) -> None:
        self.made.node.unregister(self.address)

    def of(self, kind: type[T]) -> list[T]:
        return [each for each in self.probe.seen if isinstance(each, kind)]

    def ends(self) -> list[int]:
        """The blocks that have ended, in the order in which they did."""
        return [each.block_number for each in self.of(SubscribedBlockEnd)]

    def blocks(self) -> dict[int, list[bytes]]:
        """The items of each block, as they came; what was withdrawn is left out."""
        found: dict[int, list[bytes]] = {}
        for each in self.probe.seen:
            if isinstance(each, SubscribedBlockWithdrawn):
                found.pop(each.block_number, None)
            elif isinstance(each, SubscribedItems):
                items = found.setdefault(each.block_number, [])
                if each.piece in (Piece.MIDDLE, Piece.LAST):
                    items[-1] += each.items[0]
                else:
                    items += each.items
        return found

    @property
    def status(self) -> SubscribeStatus | None:
        ended = self.of(SubscriptionEnded)
        return ended[-1].status if ended else None

    async def wait_ends(self, count: int) -> list[int]:
        await wait_until(lambda: len(self.ends()) >= count)
        return self.ends()

    async def wait_status(self) -> SubscribeStatus:
        await wait_until(lambda: self.status is not None)
        self.check()
        ended = self.of(SubscriptionEnded)
        assert len(ended) == 1
        assert self.probe.seen[-1] is ended[0]
        return ended[0].status

    async def wait_subscribed(self) -> None:
        await wait_until(lambda: self.of(Subscribed))

    def check(self) -> None:
        """Numbers rise by one from 0, and the first answer is `Subscribed`, unless it was refused at once."""
        numbered = [each for each in self.probe.seen if not isinstance(each, Subscribed)]
        assert [each.sequence for each in numbered] == list(range(len(numbered)))
        assert isinstance(self.probe.seen[0], Subscribed | SubscriptionEnded)


class Subscribers:
    """Makes subscribers on a world, and has the service."""

    def __init__(self, made: World, limits: SubscribeLimits, now_s: Callable[[], float]) -> None:
        self.made = made
        self.numbers = 0
        self.services: list[SubscribeService] = []

        def make() -> SubscribeService:
            self.services.append(
                SubscribeService(made.facility, made.node, made.store, now_s=now_s, new_id=self._new_id, limits=limits)
            )
            return self.services[-1]

        made.node.register([SERVICE], make)

    @property
    def service(self) -> SubscribeService:
        return self.services[-1]

    def subscribe(
        self,
        start: int | None,
        end: int | None,
        *,
        early: bool = False,
        window_bytes: int = 1 << 24,
        takes: bool = True,
        origin: Origin | None = None,
    ) -> Subscriber:
        self.numbers += 1
        subscriber = Subscriber(self.made, self.numbers, takes)
        subscriber.ask(Subscribe(1, start, end, early, window_bytes), origin)
        return subscriber

    def _new_id(self) -> str:
        self.numbers += 1
        return f"{self.numbers:016x}"


async def persist(made: World, *numbers: int) -> None:
    count = len(made.witness.seen)
    for number in numbers:
        made.persist(number)
    await made.persisted(count + len(numbers))


def check_blocks(subscriber: Subscriber, numbers: list[int]) -> None:
    """These blocks, each once and whole, and nothing else."""
    subscriber.check()
    assert subscriber.ends() == numbers
    assert subscriber.blocks() == {number: items_of(number) for number in numbers}
    assert [each.root for each in subscriber.of(SubscribedBlockEnd)] == [root_of(items_of(n)) for n in numbers]
    assert all(each.verified for each in subscriber.of(SubscribedItems))
