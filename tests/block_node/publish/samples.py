"""What the tests of publishing share: a block node on a real database, publishers as workers, chains of blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TypeVar

import trio
import trio.testing

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.errors import Level
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.blocks.items import Item, ItemKind, item_kind, make_header
from block_node.blocks.settings import VerifierSettings
from block_node.events import Event, ItemEvent, Notification
from block_node.facility import Plugin
from block_node.node import BlockNode, BlockNodeSettings
from block_node.persist.chain_log import StoreBlock
from block_node.persist.store import BlockRetention
from block_node.protocol import (
    PUBLISH,
    BlockItems,
    EndOfBlock,
    EndStream,
    OpenSession,
    Piece,
    PublisherEndCode,
    PublishRequest,
    PublishResponse,
    SessionOpened,
)
from block_node.publish.block_machine import PublishLimits
from block_node.publish.service import PublishService
from ockam.actors.address import Address, local
from ockam.actors.message import HERE, Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from stream_storage.commit import fail_all
from stream_storage.contract import Operation
from stream_storage.errors import DiskFull
from stream_storage.sqlite.database import Database
from tests.support.storage.inline_runner import InlineRunner

A = TypeVar("A")
PATIENCE_S = 10.0


@cache
def chain_of(count_: int, shape: BlockShape | None = None, seed: int = 0) -> tuple[GeneratedBlock, ...]:
    """The first blocks of a chain; the same ones each time in a test run."""
    return tuple(ChainGenerator(_keys(), shape=shape, seed=seed).blocks(count_))


@cache
def _keys() -> SigningKeys:
    return SigningKeys.generate(key_bits=2048)


def header_of(number: int) -> Item:
    """A header alone; a block that begins with it is never verified."""
    return make_header(number, (0, 78, 0), 1_750_000_000, 0)


def spoilt(block: GeneratedBlock) -> list[Item]:
    """The items of a block whose record file is not what was signed: its last byte has changed."""
    return [
        item[:-1] + bytes((item[-1] ^ 1,)) if item_kind(item) == ItemKind.RECORD_FILE else item for item in block.items
    ]


def address_books() -> AddressBooks:
    """Those that the blocks of `chain_of` are verified against."""
    return AddressBooks.always(_keys().address_book)


VERIFIER = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE | Level.CHAIN | Level.RECORD_PROOF)
"""What is checked: all levels but those that need a real network's signatures."""


class Publisher(Worker):
    """A publisher on the same node: sends what the test says, keeps what it is told."""

    _names = count()

    def __init__(self, node: Node) -> None:
        self._node = node
        self.address = local(f"publisher_{next(self._names)}")
        self.to: Address | None = None
        self.told: deque[PublishResponse] = deque()
        self.sequence = 0
        self.origin = HERE
        self._arrived = trio.Event()
        node.register([self.address], lambda: self)

    def handle(self, message: Message) -> None:
        response = PUBLISH.decode_response(message.payload)
        if isinstance(response, SessionOpened):
            self.to = message.return_route[0]
        self.told.append(response)
        self._arrived.set()

    async def open(self, token: bytes = b"") -> SessionOpened:
        """A session of its own, from message 0 on."""
        self.sequence = 0
        self.send_to(local("block_publish"), OpenSession(token))
        return await self.expect(SessionOpened)

    def send(self, request: PublishRequest) -> None:
        assert self.to is not None, "open a session first"
        self.send_to(self.to, request)

    def send_to(self, to: Address, request: PublishRequest) -> None:
        self._node.send(Message((to,), (self.address,), PUBLISH.encode_request(request), self.origin))

    def items(self, items: Sequence[Item], piece: Piece = Piece.WHOLE) -> None:
        self.send(BlockItems(self._next(), list(items), piece))

    def header(self, number: int) -> None:
        self.items([header_of(number)])

    def end_block(self, number: int) -> None:
        self.send(EndOfBlock(self._next(), number))

    def block(self, block: GeneratedBlock, set_size: int = 4) -> None:
        """A whole block, some items at a time."""
        for start in range(0, len(block.items), set_size):
            self.items(block.items[start : start + set_size])
        self.end_block(block.number)

    def end_stream(
        self, code: PublisherEndCode = PublisherEndCode.RESET, earliest: int | None = None, latest: int | None = None
    ) -> None:
        self.send(EndStream(self._next(), code, earliest, latest))

    def vanish(self) -> None:
        """As when its connection is lost."""
        self._node.unregister(self.address)

    async def expect(self, kind: type[A]) -> A:
        """The next answer, which must be of that kind."""
        response = await self.next()
        assert isinstance(response, kind), f"{response} came where a {kind.__name__} was expected"
        return response

    async def next(self) -> PublishResponse:
        with trio.fail_after(PATIENCE_S):
            while not self.told:
                self._arrived = trio.Event()
                await self._arrived.wait()
        return self.told.popleft()

    async def wait_for(self, wanted: PublishResponse) -> list[PublishResponse]:
        """Until that answer has come; those before it."""
        before = []
        while (response := await self.next()) != wanted:
            before.append(response)
        return before

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


class Witness(Plugin):
    """Keeps every event."""

    name = "witness"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.block_node.facility)
        self._seen = bench.seen

    def handle_items(self, event: ItemEvent) -> None:
        self._seen.append(event)

    def handle_notification(self, notification: Notification) -> None:
        self._seen.append(notification)


class Bench:
    """A block node in one process; `seen` has every event of its facility."""

    def __init__(self, node: Node, runner: Disk, block_node: BlockNode) -> None:
        self.node = node
        self.runner = runner
        self.block_node = block_node
        self.seen: list[Event] = []

    @property
    def publishing(self) -> PublishService:
        assert self.block_node.publishing is not None
        return self.block_node.publishing

    async def publisher(self) -> Publisher:
        """One more publisher, with an open session."""
        publisher = Publisher(self.node)
        await publisher.open(publisher.address.value)
        return publisher

    def all_of(self, kind: type[A]) -> list[A]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def settle(self) -> None:
        """Until nothing is on its way to the disk, nor from it."""
        await trio.testing.wait_all_tasks_blocked()
        await self.runner.wait_idle()
        await trio.testing.wait_all_tasks_blocked()

    def stored(self) -> list[int]:
        return [number for each in self.block_node.store.available for number in range(each.first, each.last + 1)]


class Disk(InlineRunner):
    """Storage that stores no block while it is `full`."""

    full = False

    def commit(self, batch: list[Operation]) -> None:
        refused = [operation for operation in batch if self.full and isinstance(operation, StoreBlock)]
        fail_all(refused, DiskFull("no room to write"))
        super().commit([operation for operation in batch if operation.error is None])


@asynccontextmanager
async def bench(
    directory: Path,
    limits: PublishLimits | None = None,
    first_block: int = 0,
    *,
    verifier: VerifierSettings = VERIFIER,
    books: AddressBooks | None = None,
    retention: BlockRetention | None = None,
) -> AsyncIterator[Bench]:
    """A node that lives inside. At its end no lease may be lost."""
    database = Database.open(directory)
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            runner = Disk(database, nursery, batches=node)
            ids = count()
            block_node = BlockNode(
                node,
                runner,
                BlockNodeSettings(first_block=first_block, publish=limits, verifier=verifier, retention=retention),
                now_us=lambda: int(trio.current_time() * 1e6),
                new_id=lambda: f"{next(ids):04}",
                address_books=books or address_books(),
            )
            made = Bench(node, runner, block_node)
            ready = trio.Event()
            node.register([local("witness")], lambda: Witness(made))
            block_node.when_ready(ready.set)
            block_node.start()
            await ready.wait()
            yield made
            made.publishing.machine.check()
            await runner.aclose()
            nursery.cancel_scope.cancel()
    finally:
        database.close()
