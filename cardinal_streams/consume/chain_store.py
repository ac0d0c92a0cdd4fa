"""The chain of a consumer on disk: a block manager over a commit store, with the checkpoint in the same transactions.

The commit store has the branch up to the last update that the application has finished; blocks of later updates are in
memory. The manager holds the newest block of each update, so it drops no block that must still be stored or undone. The
branch in the store never gets shorter: after a `Revert`, its end is left over until other blocks replace it, and only
the saved state (`SavedChain.tip`) says where the chain ends.

The id of a block is its hash in hexadecimal. It ends with a `~` if the manager still has the same block after another
parent, for example in the end that is left over."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import anyio
import msgspec
from anyio import to_thread

import bare
from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockConflict,
    BlockIterator,
    BlockManager,
    BlockStoreError,
    CommitStore,
    JoinedTransactions,
    SessionTransactions,
    Transactions,
    UnknownBlock,
)
from block_manager.commit_store import CommitTable
from block_manager.transactions import Write
from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import format_checkpoint, parse_checkpoint
from cardinal_streams.errors import ChainStoreMismatch, CheckpointError, CheckpointTaken
from cardinal_streams.limits import HASH_BYTES
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, Revert
from cardinal_streams.message.avro import bytes_of, text_of
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from stream_storage.errors import OperationFailed, StorageError
from stream_storage.sqlite.database import Database

VERSION: Final = 1
STORE: Final = "chain"
STATES: Final = "chain state"
"""The name of the store whose only block is the saved state. Its number counts the saves."""
MOVED: Final = "~"
UNSAVED_BYTES_MAX: Final = 32 * 1024 * 1024
"""When the finished blocks have this size, they are saved at once, without waiting for the interval."""
PAGE_BLOCKS: Final = 64
"""The number of blocks that an iteration over a branch reads at a time, as many as a commit store reads together."""

Event: TypeAlias = ChainUpdate | Revert
Result = TypeVar("Result")


# type BlockBody struct {
#   hash: data[32]
#   parent: data[32]
#   weight: data
#   values: map[data]data
#   deletes: []data
# }
class BlockBody(msgspec.Struct, frozen=True):
    """The data of a block in the store. `weight` is big-endian, without zeros at its beginning. Keys are sorted."""

    hash: Annotated[bytes, bare.Fixed(HASH_BYTES)]
    parent: Annotated[bytes, bare.Fixed(HASH_BYTES)]
    weight: bytes
    values: dict[bytes, bytes]
    deletes: list[bytes]


class SavedChain(msgspec.Struct, forbid_unknown_fields=True):
    """The saved state, as JSON in the only block of the store `chain state`. `tip`: the id of the last finished block,
    None if there is none. `application`, `default_topic` and `tracked` identify the consumer."""

    version: int
    application: str
    default_topic: str
    tracked: list[str]
    tip: str | None
    checkpoint: msgspec.Raw


class _SavedVersion(msgspec.Struct):
    version: int


_STATES = msgspec.json.Decoder(SavedChain)
_BODIES = bare.Decoder(BlockBody)
_encode = bare.Encoder(BlockBody).encode


class _Delivered(msgspec.Struct, eq=False):
    """An update that the application got. `tip`: the id of the chain's newest block after this update, or None; valid
    once the manager has the update's blocks. `undone`: if the update goes back, the id of the chain's newest block
    before the update; the manager holds it until the save."""

    event: Event | None
    tip: str | None = None
    undone: str | None = None


class KeptChain:
    """The chain store of one consumer, which is also its `CheckpointStore`. The disk is read and written in threads.

    `tip`: the hash of the newest delivered block; None while this store has no block.

    Invariant: the manager holds `_held`, the newest block of the delivered chain that is in the manager. The updates in
    `_pending` have the blocks that follow `_held`. `_done` is the last finished update."""

    def __init__(self, transactions: Transactions, application: Application, tracked: Tracked) -> None:
        """Reads the store. Raises BlockStoreError, CheckpointError for a damaged state, and ChainStoreMismatch."""
        self._unsaved_bytes = 0
        self._lock = anyio.Lock(fast_acquire=True)
        self._identity = application.name, application.default_topic, list(tracked.patterns)
        self._joined = JoinedTransactions(transactions)
        self._store = CommitStore(self._joined, STORE)
        self._manager = BlockManager()
        self._manager.add_store(STORE, self._store)
        self._state = next(CommitStore(transactions, STATES).iter(), None)
        self._checkpoint, self._held = self._read_state()
        if self._held is not None:
            self._manager.ref_block(self._held)
        # `add_store` has held the newest stored block for us. The chain needs `_held` alone: that other reference would
        # keep the blocks in memory that a reorg removes later.
        if (head := self._manager.head(STORE)) is not None:
            self._manager.unref_block(head.block_id)
        self.tip = None if self._held is None else bytes.fromhex(self._held.removesuffix(MOVED))
        self._done = _Delivered(None, self._held)
        self._delivered: deque[_Delivered] = deque()
        self._pending: list[_Delivered] = []
        self._writes: list[Write] = []
        self._released: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether the finished blocks take so much memory that they should be saved at once."""
        return self._unsaved_bytes >= UNSAVED_BYTES_MAX

    async def load(self) -> Checkpoint | None:
        return self._checkpoint

    async def save(self, checkpoint: Checkpoint) -> None:
        """Commits the finished blocks, the checkpoint and the writes of the application. After an error nothing is
        committed, and a later call tries again. Raises BlockStoreError, CheckpointTaken, and the errors of the
        functions that the application gave to `done`."""
        # Taken before anything is awaited: other tasks can finish more updates, which the checkpoint does not cover.
        done, writes, released = self._done, self._writes, self._released
        self._writes, self._released, self._unsaved_bytes = [], [], 0
        with anyio.CancelScope(shield=True):
            try:
                await self._in_thread(lambda: self._commit(checkpoint, done, writes))
            except BaseException:
                self._writes, self._released = writes + self._writes, released + self._released
                raise
        for block_id in released:
            self._manager.unref_block(block_id)

    async def deliver(self, event: Event) -> tuple[CompleteBatch, ...]:
        """Takes an update that the application is about to get. Returns the blocks that it removes, ascending."""
        base = event.hash if isinstance(event, Revert) else event.added[0].parent
        with anyio.CancelScope(shield=True):
            async with self._lock:
                # The usual way: the update continues the chain.
                removed, undone = event.removed, None
                if base != self.tip or isinstance(event, Revert):
                    removed, undone = await to_thread.run_sync(self._go_back, event, base)
        delivered = _Delivered(event, self._held, undone)
        if isinstance(event, ChainUpdate):
            self._pending.append(delivered)
            self.tip = event.added[-1].hash
        self._delivered.append(delivered)
        return removed

    def finish(self, event: Event, write: Write | None) -> None:
        """Notes that the application has finished this update and all before it."""
        while self._done.event is not event:
            self._done = self._delivered.popleft()
            if self._done.undone is not None:
                self._released.append(self._done.undone)
            if isinstance(self._done.event, ChainUpdate):
                self._unsaved_bytes += sum(batch.size_bytes for batch in self._done.event.added)
        if write is not None:
            self._writes.append(write)

    async def get(self, hash_: bytes) -> CompleteBatch:
        """Returns a block of the chain, or a removed block that the manager still has. Raises UnknownBlock and
        BlockStoreError."""

        def read() -> CompleteBatch:
            block_id = self._get_id(hash_)
            (block,) = self._manager.get([block_id])
            if block is None:
                raise UnknownBlock(block_id)
            return _batch_of(block)

        return await self._in_thread(read)

    async def branch(self, tip: bytes | None, exclude: bytes | None) -> AsyncGenerator[CompleteBatch, None]:
        def walk() -> BlockIterator | None:
            top = self._held if tip is None else self._get_id(tip)
            if top is None:
                return None
            return (
                self._manager.branch(top) if exclude is None else self._manager.branch_diff(top, self._get_id(exclude))
            )

        blocks = await self._in_thread(walk)
        if blocks is not None:
            with blocks:
                while page := await to_thread.run_sync(lambda: list(map(_batch_of, islice(blocks, PAGE_BLOCKS)))):
                    for batch in page:
                        yield batch

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def do() -> Result:
            self._put_pending()
            return work()

        async with self._lock:
            return await to_thread.run_sync(do)

    def _read_state(self) -> tuple[Checkpoint | None, str | None]:
        if self._state is None:
            if self._manager.head(STORE) is not None:
                raise ChainStoreMismatch("its blocks are those of another program")
            return None, None
        try:
            # The version comes first, since another version can have other fields.
            version = msgspec.json.decode(self._state.data, type=_SavedVersion).version
            if version != VERSION:
                raise ChainStoreMismatch(f"its version is {version}, and this program knows version {VERSION}")
            saved = _STATES.decode(self._state.data)
        except msgspec.DecodeError as error:
            raise CheckpointError(
                f"the state of the chain store is damaged: {error}; restore a backup of it"
            ) from error
        found = saved.application, saved.default_topic, saved.tracked
        for name, theirs, ours in zip(
            ("application", "default topic", "tracked entries"), found, self._identity, strict=True
        ):
            if theirs != ours:
                raise ChainStoreMismatch(f"its {name}: {theirs!r}; of this consumer: {ours!r}")
        if saved.tip is not None and not self._manager.contains(saved.tip):
            raise BlockStoreError(f"the chain store has lost its newest block {saved.tip}; restore a backup of it")
        return parse_checkpoint(bytes(saved.checkpoint)), saved.tip

    def _commit(self, checkpoint: Checkpoint, done: _Delivered, writes: Sequence[Write]) -> None:
        count = 1 if self._state is None else self._state.number + 1
        saved = SavedChain(VERSION, *self._identity, done.tip, msgspec.Raw(format_checkpoint(checkpoint)))
        state = Block(str(count), NULL_BLOCK_ID, count, msgspec.json.encode(saved))
        problems: list[Exception] = []

        def also(connection: Any) -> None:
            # The last state must be the one that this consumer has read or saved: two consumers would mix their chains.
            before = [] if self._state is None else [self._state.block_id]
            try:
                if CommitTable(STATES).exchange(connection, [state], before) is not None:
                    raise CheckpointTaken(self._identity[0])
                for write in writes:
                    write(connection)
            except Exception as problem:
                problems.append(problem)
                raise

        try:
            # A tip that is stored already needs no write of blocks; the state is then written alone.
            with self._joined.also(also):
                if done.tip is not None:
                    self._manager.persist(done.tip, STORE)
        except (StorageError, BlockStoreError) as error:
            cause = error.__cause__ if isinstance(error, BlockStoreError) else error
            # An error of the application's function, or `CheckpointTaken`, is raised unchanged.
            if problems and isinstance(cause, OperationFailed):
                raise problems[0] from None
            if isinstance(error, StorageError):
                raise BlockStoreError(f"the chain store cannot be written: {error}") from error
            raise
        self._state = state

    def _go_back(self, event: Event, base: bytes) -> tuple[tuple[CompleteBatch, ...], str | None]:
        """Removes the blocks after `base` from the delivered chain; all its blocks if it lacks `base`. Returns the
        removed blocks, and the id of the chain's newest block before the call, which the manager still holds."""
        self._put_pending()
        before, found = self._held, self._find_id(base)
        stored: list[Block] = []
        if before is not None:
            stored = list(self._manager.branch(before) if found is None else self._manager.branch_diff(before, found))
            # A chain that began above the ancestor is removed as a whole. A chain that reaches down to the ancestor's
            # number must have the ancestor.
            if found is None and isinstance(event, Revert) and stored[-1].number <= event.number:
                raise ChainStoreMismatch(f"a reorg goes back to block {base.hex()}, which is not on its chain")
        # The block that was the newest stays held until the update is saved.
        if found is not None:
            self._manager.ref_block(found)
        self._held, self.tip = found, None if found is None else base
        removed = {batch.hash: batch for batch in (*map(_batch_of, stored), *event.removed)}
        return tuple(sorted(removed.values(), key=lambda batch: batch.number)), before

    def _put_pending(self) -> None:
        """Puts the blocks of the updates in `_pending` into the manager. The newest block becomes `_held`."""
        pending = list(self._pending)
        batches = [batch for each in pending if isinstance(each.event, ChainUpdate) for batch in each.event.added]
        if not batches:
            return
        blocks = self._blocks_of(batches, {})
        try:
            is_new = not self._manager.contains(blocks[-1].block_id)
            self._manager.put(blocks)
        except BlockConflict:
            # The manager has a block with another parent: the chain went back before its first block, and returned.
            known = self._manager.get([block.block_id for block in blocks])
            blocks = self._blocks_of(batches, {block.block_id: block for block in known if block is not None})
            is_new = not self._manager.contains(blocks[-1].block_id)
            self._manager.put(blocks)
        # `put` has added a reference to a new block.
        if not is_new:
            self._manager.ref_block(blocks[-1].block_id)
        if self._held is not None:
            self._manager.unref_block(self._held)
        self._held = blocks[-1].block_id
        ids = iter(blocks)
        for each in pending:
            assert isinstance(each.event, ChainUpdate)
            for _ in each.event.added:
                each.tip = next(ids).block_id
        del self._pending[: len(pending)]

    def _blocks_of(self, batches: Sequence[CompleteBatch], known: Mapping[str, Block]) -> list[Block]:
        """Returns the blocks that follow `_held`. known: the manager's blocks by id. If one of them has the id of a new
        block but differs, the new block gets another id."""
        blocks: list[Block] = []
        previous = self._held or NULL_BLOCK_ID
        for batch in batches:
            weight = batch.weight.to_bytes((batch.weight.bit_length() + 7) // 8, "big")
            values = {bytes_of(key): batch.values[key] for key in sorted(batch.values)}
            deletes = [bytes_of(key) for key in sorted(batch.deletes)]
            body = _encode(BlockBody(batch.hash, batch.parent, weight, values, deletes))
            block = Block(batch.hash.hex(), previous, batch.number, body)
            if known.get(block.block_id, block) != block:
                block = msgspec.structs.replace(block, block_id=block.block_id + MOVED)
            blocks.append(block)
            previous = block.block_id
        return blocks

    def _find_id(self, hash_: bytes) -> str | None:
        """Returns the id of the block with this hash. If two blocks have it, returns the id of the one on the chain."""
        ids = [hash_.hex(), hash_.hex() + MOVED]
        found = [block.block_id for block in self._manager.get(ids) if block is not None]
        if len(found) < 2 or self._held is None:
            return found[-1] if found else None
        return next((block.block_id for block in self._manager.branch(self._held) if block.block_id in found), found[0])

    def _get_id(self, hash_: bytes) -> str:
        found = self._find_id(hash_)
        if found is None:
            raise UnknownBlock(hash_.hex())
        return found


def _batch_of(block: Block) -> CompleteBatch:
    body = _BODIES.decode(block.data)
    return CompleteBatch(
        hash=body.hash,
        number=block.number,
        parent=body.parent,
        weight=int.from_bytes(body.weight, "big"),
        values={text_of(key): value for key, value in body.values.items()},
        deletes=frozenset(map(text_of, body.deletes)),
    )


@asynccontextmanager
async def open_chain_store(
    location: str | os.PathLike[str] | Transactions, application: Application, tracked: Tracked
) -> AsyncIterator[KeptChain]:
    """Opens a chain store: in a folder, which only one process can have open, or by the transactions of a database that
    the program has opened. Raises StorageError, such as DatabaseInUse, and the errors of `KeptChain`."""
    with ExitStack() as stack:

        def open_() -> KeptChain:
            if not isinstance(location, str | os.PathLike):
                return KeptChain(location, application, tracked)
            database = stack.enter_context(closing(Database.open(Path(location))))
            transactions = SessionTransactions(database, on_fatal=database.distrust)
            return KeptChain(stack.enter_context(closing(transactions)), application, tracked)

        yield await to_thread.run_sync(open_)
