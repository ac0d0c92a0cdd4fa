"""An application, blocks and a database of updates, for tests of the shells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cardinal_streams.application import Application, Prefix
from cardinal_streams.consume.checkpoints import NodeCheckpoints
from cardinal_streams.consume.consuming import Update, consume
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.produce.publishing import ChainBlock, SubBatch
from cardinal_streams.transports.stream_transport import StreamTransport
from stream_client import connect
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, chain
from tests.support.served import Served, served

APPLICATION = Application(
    "letters",
    "default",
    (
        Prefix(pattern="a/", topic="ta", schema="text", check=lambda value: value.decode("ascii")),
        Prefix(pattern="b/", topic="tb"),
        Prefix(pattern="q/", topic="tq", tracked=False),
    ),
    reorg_threshold=4,
)
EVERYTHING = Application("letters", "default", APPLICATION.prefixes[:2], reorg_threshold=4)


def blocks_of(prefix: str, parent: str, first: int, count: int, bonus: int = 0) -> list[ChainBlock]:
    """`world.chain` with the contents of the sub batches."""
    return [block_of(payload) for payload in chain(prefix, parent, first, count, bonus)]


def block_of(payload: Payload) -> ChainBlock:
    contents = SubBatch(updates={"b/s/1": payload.hash})
    return ChainBlock(payload, {id_: contents for id_ in payload.sub_batches.values()})


def values_of(block: ChainBlock) -> dict[str, bytes]:
    """What a consumer gets of it."""
    return dict(block.payload.updates) | {"b/s/1": block.payload.hash}


class Ledger:
    """What an application has after the updates that it finished. It refuses updates that do not fit."""

    def __init__(self, first: bytes = GENESIS_HASH) -> None:
        self.hashes = [first]
        self.batches: dict[bytes, CompleteBatch] = {}
        self.reverts = 0

    def apply(self, update: Update) -> None:
        if update.reverted_to is not None:
            self.reverts += 1
            del self.hashes[self.hashes.index(update.reverted_to.hash) + 1 :]
            return
        keep = len(self.hashes) - len(update.removed)
        assert self.hashes[keep:] == [batch.hash for batch in update.removed]
        del self.hashes[keep:]
        for batch in update.added:
            assert batch.parent == self.hashes[-1]
            self.hashes.append(batch.hash)
            self.batches[batch.hash] = batch

    def repeat(self, update: Update) -> None:
        """As `apply`, for an update that may have been applied before a crash: what is known is not added again."""
        if update.reverted_to is not None or update.removed or update.added[0].parent != self.hashes[-1]:
            known = update.reverted_to.hash if update.reverted_to is not None else update.added[0].parent
            del self.hashes[self.hashes.index(known) + 1 :]
        for batch in update.added:
            assert batch.parent == self.hashes[-1]
            self.hashes.append(batch.hash)
            self.batches[batch.hash] = batch


@asynccontextmanager
async def transport_to(address: str, partitions: int = 3) -> AsyncIterator[StreamTransport]:
    async with connect(address) as client:
        yield StreamTransport(client, partitions=partitions)


@asynccontextmanager
async def served_transport(data_dir: Path, partitions: int = 3) -> AsyncIterator[tuple[Served, StreamTransport]]:
    """A node, and a transport to it."""
    async with served(data_dir) as running, transport_to(running.address, partitions) as transport:
        yield running, transport


def hashes(*chains: list[ChainBlock]) -> list[bytes]:
    return [GENESIS_HASH, *(block.payload.hash for blocks in chains for block in blocks)]


async def read_all(transport: StreamTransport, ledger: Ledger, client_id: str | None = None) -> int:
    """Consume up to the end, finishing everything; how many updates there were."""
    store = None if client_id is None else NodeCheckpoints(transport.client, client_id)
    count = 0
    async with consume(EVERYTHING, transport, store, start=GENESIS.start, stop_at_end=True) as updates:
        async for update in updates:
            ledger.apply(update)
            update.done()
            count += 1
        updates.machine.check()
    return count


OLD = blocks_of("o", "g", 1, 10)
NEW = blocks_of("n", "o2", 3, 9, bonus=5)
AFTER = blocks_of("n", "n11", 12, 3, bonus=5)
