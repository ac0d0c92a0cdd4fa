"""Random histories of forks, reorgs and restarts: the chain store has what a plain replay has, and undoes any depth."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from block_manager import SessionTransactions
from cardinal_streams.application import Application
from cardinal_streams.consume.chain_store import KeptChain
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, ConsumerEvent, Revert
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.prefixes import TRACK_ALL
from tests.block_manager.commit_samples import open_transactions
from tests.cardinal_streams.chain_journal import replayed, stored_chain, text_of, write_of
from tests.cardinal_streams.helpers import payload
from tests.cardinal_streams.shell import Application as Applied
from tests.cardinal_streams.shell import Logs, Shell
from tests.cardinal_streams.world import GENESIS, GENESIS_HASH, producer_of, send, send_reorg

THRESHOLD = 4
LETTERS = Application("letters", "default")


class History:
    """The messages of a random chain: forks up to the threshold that win or lose, and reorgs of any depth."""

    def __init__(self, randomness: random.Random) -> None:
        # With one partition of each topic, blocks are complete in the order of sending, so that the chain is known.
        self.logs = Logs(partitions=1)
        self._randomness = randomness
        self._count = 0
        self._producer = producer_of()
        self.chain: list[Payload] = []
        # The lowest place in the chain at which a fork can begin: blocks below were final at some time.
        self._floor = 0
        for _ in range(randomness.randint(4, 12)):
            act = randomness.random()
            if act < 0.5 or len(self.chain) < 2:
                self._extend(randomness.randint(1, 4))
            elif act < 0.85 and len(self.chain) - 1 > self._floor:
                self._fork(randomness.randint(1, len(self.chain) - 1 - self._floor))
            elif len(self.chain) > THRESHOLD + 1:
                self._reorg(randomness.randint(THRESHOLD + 1, len(self.chain) - 1))
            self._floor = max(self._floor, len(self.chain) - 1 - THRESHOLD)

    def _block(self, parent: Payload | None) -> Payload:
        self._count += 1
        name = f"{self._count}"
        number, weight = (0, 0) if parent is None else (parent.number, parent.weight)
        # No two blocks have the same weight, so that the heaviest chain is known.
        weight = (weight // 1000 + self._randomness.randint(1, 3)) * 1000 + self._count
        parent_name = "g" if parent is None else parent.hash.lstrip(b"\0").decode()
        updates = {f"a/{name}": name.encode(), "x/\udcff": self._randomness.randbytes(3)}
        return payload(name, parent_name, number + 1, weight, updates=updates)

    def _branch(self, parent: Payload | None, length: int) -> list[Payload]:
        blocks: list[Payload] = []
        for _ in range(length):
            blocks.append(self._block(blocks[-1] if blocks else parent))
        return blocks

    def _extend(self, length: int) -> None:
        blocks = self._branch(self.chain[-1] if self.chain else None, length)
        self.chain += blocks
        send(self.logs, self._producer, blocks)

    def _fork(self, depth: int) -> None:
        blocks = self._branch(self.chain[-1 - depth], self._randomness.randint(1, depth + 2))
        send(self.logs, self._producer, blocks)
        if blocks[-1].weight > self.chain[-1].weight:
            self.chain[-depth:] = blocks

    def _reorg(self, depth: int) -> None:
        ancestor = self.chain[-1 - depth]
        # Of two deep reorgs, the second can begin on blocks of the first: the order of reading then decides what is
        # known of it. The simulated chains have several.
        if self.logs.channels:
            return
        blocks = self._branch(ancestor, 1)
        while blocks[-1].weight <= self.chain[-1].weight:
            blocks.append(self._block(blocks[-1]))
        send_reorg(self.logs, self._producer, ancestor, blocks, self.chain[-1].weight)
        self._floor = len(self.chain) - 1 - depth
        self.chain[-depth:] = blocks


class HistoryShell(Shell):
    """A shell that reads an open channel before the normal feed: what follows a reorg there can be dropped as too deep
    as long as the reorg is not known, so that the order of reading would decide."""

    def __init__(self, logs: Logs) -> None:
        super().__init__(logs, Applied(GENESIS_HASH), THRESHOLD, GENESIS)

    def readable(self) -> list[str | bytes]:
        found = super().readable()
        return [feed for feed in found if isinstance(feed, bytes)] or found


class StoredShell(HistoryShell):
    """A shell whose updates wait for a chain store."""

    def __init__(self, logs: Logs) -> None:
        self.updates: list[ChainUpdate | Revert] = []
        super().__init__(logs)

    def _handle(self, events: list[ConsumerEvent]) -> None:
        self.updates += [event for event in events if isinstance(event, ChainUpdate | Revert)]
        super()._handle([event for event in events if not isinstance(event, ChainUpdate | Revert)])


async def live(shell: StoredShell, store: KeptChain, randomness: random.Random, reads_max: int) -> None:
    """One life of a consumer, without a save at its end."""
    waiting: list[tuple[ChainUpdate | Revert, tuple[CompleteBatch, ...]]] = []
    for _ in range(reads_max):
        shell.run(choose=randomness.choice, reads_max=1)
        if not shell.readable() and not shell.updates and not waiting:
            return
        while shell.updates:
            event = shell.updates.pop(0)
            waiting.append((event, await store.deliver(event)))
        # The application finishes some updates late, and saves sometimes, so that lives end between any two steps.
        while waiting and randomness.random() < 0.6:
            event, removed = waiting.pop(0)
            shell.consumer.done(event)
            store.finish(event, write_of(removed, event.added if isinstance(event, ChainUpdate) else ()))
        if randomness.random() < 0.2:
            await store.save(shell.consumer.checkpoint())


async def check_history(seed: int, transactions: SessionTransactions, database: Path) -> bool:
    """Runs one history in several lives. Returns whether its chain does not depend on the order of reading."""
    randomness = random.Random(seed)
    history = History(randomness)
    plain = HistoryShell(history.logs)
    plain.run(choose=randomness.choice)
    is_decided = plain.application.hashes == [GENESIS_HASH, *(block.hash for block in history.chain)]
    # 1. Some lives that end anywhere, and one that comes to the end.
    shell = StoredShell(history.logs)
    for reads_max in (*(randomness.randrange(60) for _ in range(randomness.randint(1, 4))), 1 << 30):
        store = KeptChain(transactions, LETTERS, TRACK_ALL)
        shell.updates.clear()
        known = await store.load() or GENESIS
        shell.restart(known)
        await live(shell, store, randomness, reads_max)
    await store.save(shell.consumer.checkpoint())
    # 2. The store, read without this package, and the journal in the same transactions have the plain chain.
    stored = stored_chain(database)
    expected = [(each.hash, text_of(each.values)) for each in stored]
    # A fork that was dropped as too deep, before the reorg came on whose blocks it begins, is not read again. So some
    # histories end elsewhere, with a store or without: as a consumer without one that begins where the last life began.
    if not is_decided or expected != [(block.hash, text_of(dict(block.updates))) for block in history.chain]:
        is_decided = False
        plain.application.take = applied_nowhere  # type: ignore[method-assign]
        plain.restart(known)
        plain.run()
        head = plain.consumer.head
        assert head is not None
        assert head.hash == stored[-1].hash, seed
    assert [each.parent for each in stored] == [GENESIS_HASH, *(each.hash for each in stored[:-1])]
    assert replayed(database) == expected, seed
    # 3. After one more restart, the chain goes back to any depth, and what it undoes has its contents.
    store = KeptChain(transactions, LETTERS, TRACK_ALL)
    depth = randomness.randint(0, len(expected))
    ancestor = stored[-1 - depth] if depth < len(expected) else GENESIS.start
    assert ancestor is not None
    revert = Revert(ancestor.hash, ancestor.number, ancestor.weight, ())
    removed = await store.deliver(revert)
    assert [(batch.hash, text_of(batch.values)) for batch in removed] == expected[len(expected) - depth :]
    store.finish(revert, write_of(removed, ()))
    await store.save(Checkpoint(start=GENESIS.start))
    assert len(stored_chain(database)) == len(replayed(database)) == len(expected) - depth
    store._manager.check_integrity()
    transactions.write(forget)
    return is_decided


def applied_nowhere(events: list[ConsumerEvent]) -> list[ChainUpdate | Revert]:
    return [event for event in events if isinstance(event, ChainUpdate | Revert)]


def forget(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM commit_blocks")
    connection.execute("DELETE FROM journal")


@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_random_histories_equal_a_plain_replay(count: int, tmp_path: Path) -> None:
    """Goal: any history of forks and reorgs, with restarts between any two steps, leaves in the store and in the
    application's own table exactly what a plain replay has; undoing works at any depth after a restart. Method: seeded
    histories; the plain replay is a consumer without a store and without restarts."""
    decided = 0
    with open_transactions(tmp_path) as transactions:
        # Nothing here crashes, so nothing needs the disk to sync.
        transactions._writing.connection.execute("PRAGMA synchronous=OFF")  # type: ignore[attr-defined]
        for seed in range(count):
            decided += await check_history(seed, transactions, tmp_path / "streams.sqlite")
    assert decided > 0.98 * count
