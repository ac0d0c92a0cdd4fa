"""A facility with a persistence plugin on a node with real threads and a real database, and a witness of what it tells.

Items come from the test, as publishers and verification would publish them; nobody looks into them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, NoReturn

import trio

from block_node.events import (
    BlockBegun,
    BlockDropped,
    BlockEnded,
    BlockOrigin,
    ItemsReceived,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.persist import plugin as persistence
from block_node.persist.chain_log import ChainLog, ReadBlocks, StageParts, StoreBlock
from block_node.persist.plugin import Persistence
from block_node.persist.store import BlockRetention, ChainStore
from ockam.actors.address import local
from ockam.actors.node import Node
from stream_storage.contract import Operation, Session
from stream_storage.errors import DatabaseLost, DiskFull
from stream_storage.runner import Runner
from stream_storage.thread_runner import ThreadRunner
from tests.block_node.persist.block_samples import check_database, items_of, root_of
from tests.support.databases import execute_text, open_database
from tests.support.served import wait_until


class Witness(Plugin):
    """Notes what is persisted."""

    name: ClassVar[str] = "witness"

    def __init__(self, facility: Facility) -> None:
        super().__init__(facility)
        self.seen: list[PersistedNotification] = []
        self.failures: list[NodeFailure] = []

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, PersistedNotification):
            self.seen.append(notification)
        elif isinstance(notification, NodeFailure):
            self.failures.append(notification)


class Statement(Operation):
    """Any SQL."""

    def __init__(self, statement: str, on_done: Callable[[Operation], None]) -> None:
        super().__init__(on_done)
        self.statement = statement

    def apply(self, session: Session) -> None:
        execute_text(session, self.statement)


def has_no_room(session: Session) -> NoReturn:
    raise DiskFull("no room to write: said the test")


class AwayLog(ChainLog):
    """A chain in a database that is away."""

    def places(self, *arguments: object) -> NoReturn:
        raise DatabaseLost("said the test")


class FussyRunner:
    """A runner that refuses chosen operations as a full disk would, or a database that is away; all else it hands
    on."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.refuses: Callable[[Operation], bool] = lambda operation: False

    def submit_write(self, operation: Operation) -> None:
        if self.refuses(operation):
            assert isinstance(operation, StoreBlock | StageParts)
            operation._work = has_no_room
        self.runner.submit_write(operation)

    def submit_read(self, operation: Operation) -> None:
        if self.refuses(operation):
            assert isinstance(operation, ReadBlocks)
            operation.log = AwayLog("away")
        self.runner.submit_read(operation)


class World:
    """A facility with a persistence plugin and a witness, on a node."""

    def __init__(self, node: Node, runner: FussyRunner, store: ChainStore, held_bytes_max: int) -> None:
        self.node = node
        self.runner = runner
        self.store = store
        self.facility = Facility()
        self.witness = Witness(self.facility)
        self.attempts = 0
        self.damaged = False
        node.register([local("witness")], lambda: self.witness)
        node.register([local("persistence")], lambda: Persistence(self.facility, store, held_bytes_max=held_bytes_max))

    def begin(self, number: int) -> int:
        self.attempts += 1
        self.facility.publish(BlockBegun(number, self.attempts))
        return self.attempts

    def add(self, number: int, attempt: int, items: list[bytes]) -> None:
        for item in items:
            self.facility.publish(ItemsReceived(number, attempt, [item], len(item)))

    def finish(self, number: int, attempt: int) -> None:
        """The block is complete, and verified, as it was sent."""
        self.facility.publish(BlockEnded(number, attempt))
        self.verify(number, attempt, items_of(number))

    def drop(self, number: int, attempt: int) -> None:
        self.facility.publish(BlockDropped(number, attempt, "the publisher went"))

    def refuse(self, number: int, attempt: int) -> None:
        self.facility.publish(
            VerificationNotification(number, attempt, BlockOrigin.PUBLISHER, False, failure="bad_root")
        )

    def send(self, number: int, items: list[bytes]) -> int:
        attempt = self.begin(number)
        self.add(number, attempt, items)
        self.facility.publish(BlockEnded(number, attempt))
        return attempt

    def verify(
        self, number: int, attempt: int, items: list[bytes], source: BlockOrigin = BlockOrigin.PUBLISHER
    ) -> None:
        self.facility.publish(VerificationNotification(number, attempt, source, True, root_of(items)))

    def persist(self, number: int, items: list[bytes] | None = None) -> None:
        items = items_of(number) if items is None else items
        self.verify(number, self.send(number, items), items)

    async def persisted(self, count: int) -> list[tuple[int, bool]]:
        await wait_until(lambda: len(self.witness.seen) >= count)
        return [(each.block_number, each.succeeded) for each in self.witness.seen]

    async def change(self, statement: str) -> None:
        """Change the database behind everybody's back, as a bad disk would; it is not verified at the end."""
        self.damaged = True
        done: list[Operation] = []
        self.runner.submit_write(Statement(statement, done.append))
        await wait_until(lambda: done)
        assert done[0].error is None

    async def stored(self, number: int) -> bytes:
        found: list[ReadBlocks] = []
        data = b""
        part = 0
        while True:
            self.store.read(number, part, 1 << 22, found.append, blocks=1)
            await wait_until(lambda: found)
            read = found.pop()
            assert read.error is None, read.error
            data += b"".join(read.found[0].parts)
            part = read.found[0].next_part
            if read.found[0].is_last:
                return data


@asynccontextmanager
async def world(
    path: Path, retention: BlockRetention | None = None, *, held_bytes_max: int = persistence.HELD_BYTES_MAX
) -> AsyncIterator[World]:
    database = open_database(path)
    made: World | None = None
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            async with ThreadRunner(database, batches=node) as threads:
                runner = FussyRunner(threads)
                store = ChainStore(runner, now_us=lambda: 5, retention=retention)  # type: ignore[arg-type]
                made = World(node, runner, store, held_bytes_max)
                await wait_until(lambda: store.is_open)
                yield made
                await threads.wait_idle()
            nursery.cancel_scope.cancel()
    finally:
        database.close()
    if made is not None and not made.damaged:
        check_database(path)
