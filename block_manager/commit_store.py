"""A block store on disk: one branch of blocks in a table of an SQLite database, with a cache of recently used blocks.

Each row is one block of one store. The primary key is (store, number). The numbers of a branch increase, so the table
refuses a second block with the same number. The head, the newest block, is the row with the largest number in the
store.

The checksum of a row is a CRC-32. The CRC first covers the text `number:previous_id:block_id` and then the data. The
checksum detects damaged rows and exchanged parts of rows. It does not protect against an attacker.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final, TypeAlias
from zlib import crc32

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    literal_column,
    select,
)
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from block_manager.errors import BlockManagerError, BlockStoreError, UnknownBlock
from block_manager.store import changed_error, check_follows
from block_manager.transactions import Transactions
from block_manager.tree import Block
from stream_storage.errors import StorageError
from stream_storage.schema import metadata
from stream_storage.statement import compiled

commit_blocks = Table(
    "commit_blocks",
    metadata,
    Column("store", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("block_id", Text, nullable=False),
    Column("previous_id", Text, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("store", "block_id"),
)

# The limits of an integer in SQLite.
NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1

PAGE_IDS: Final = 64
"""The number of block ids, or of blocks, that one query returns while somebody iterates over the blocks of a store."""

CACHED_BLOCKS_MAX: Final = 256
"""The default maximum number of blocks in the cache. Most forks are shorter, and these blocks use little memory."""

WALKS_MAX: Final = 8
"""The most iterations over the store that read ahead at the same time."""

Row: TypeAlias = tuple[int, str, str, int, bytes]
"""One row of the table: the number, block id, previous id, checksum and data of a block."""

_columns = commit_blocks.c
_of_store = _columns.store == bindparam("store")
_of_block = _of_store & (_columns.block_id == bindparam("block_id"))
_newest = select(_columns.number, _columns.block_id).where(_of_store).order_by(_columns.number.desc())
_page = _newest.limit(bindparam("limit", type_=Integer)).offset(literal_column("0"))

CREATE_TABLE: Final = str(CreateTable(commit_blocks, if_not_exists=True).compile(dialect=sqlite.dialect()))
INSERT: Final = compiled(
    insert_into(commit_blocks), *("store", "number", "block_id", "previous_id", "checksum", "data")
)
DELETE: Final = compiled(delete_from(commit_blocks).where(_of_block), *("store", "block_id"))
FIND: Final = compiled(
    select(_columns.number, _columns.block_id, _columns.previous_id, _columns.checksum, _columns.data).where(_of_block),
    *("store", "block_id"),
)
FIND_NUMBER: Final = compiled(select(_columns.number).where(_of_block), *("store", "block_id"))
NEWEST: Final = compiled(_page, *("store", "limit"))
NEWEST_BELOW: Final = compiled(_page.where(_columns.number < bindparam("number")), *("store", "number", "limit"))


def row_of(store_name: str, block: Block) -> tuple[str, int, str, str, int, bytes]:
    """Returns the parameters of INSERT. Raises BlockStoreError if SQLite cannot store the number or the ids."""
    if not NUMBER_MIN <= block.number <= NUMBER_MAX:
        raise BlockStoreError(f"block {block.block_id} has number {block.number}, which a commit store cannot hold")
    if not (is_text(block.block_id) and is_text(block.previous_id)):
        raise BlockStoreError(f"block {block.block_id!r} has an id that cannot be written as UTF-8")
    return store_name, block.number, block.block_id, block.previous_id, _checksum(block), block.data


def is_text(block_id: str) -> bool:
    try:
        block_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def block_of(row: Row) -> Block:
    """Returns the block of a row. Raises BlockStoreError if the checksum shows that the row is damaged."""
    number, block_id, previous_id, checksum, data = row
    block = Block(block_id, previous_id, number, data)
    if _checksum(block) != checksum:
        raise BlockStoreError(
            f"block {block_id} in the commit store is damaged; stop the node, keep a copy of the data directory, "
            "then restore a backup or let the block come again from another node"
        )
    return block


def _checksum(block: Block) -> int:
    return crc32(block.data, crc32(f"{block.number}:{block.previous_id}:{block.block_id}".encode()))


class CommitTable:
    """CommitTable: the rows of one commit store, read and written inside a transaction of the caller.

    The transaction can contain the work of other callers, and an exception would undo that work. So an error caused by
    wrong arguments, or by a damaged row, is returned, not raised, and then nothing was changed.
    """

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name

    def exchange(
        self, connection: sqlite3.Connection, blocks: Sequence[Block], displaced_ids: Sequence[str]
    ) -> BlockManagerError | None:
        """Deletes the displaced blocks and inserts the new ones, as `BlockStore.put` describes."""
        for block_id in displaced_ids:
            if not self._has(connection, block_id):
                return UnknownBlock(block_id)
        try:
            rows = [row_of(self._store_name, block) for block in blocks]
            check_follows(blocks, self._head_without(connection, set(displaced_ids)))
        except BlockStoreError as problem:
            return problem
        for block in blocks:
            if block.block_id not in displaced_ids and self._has(connection, block.block_id):
                return BlockStoreError(f"block {block.block_id} is stored already")
        connection.executemany(DELETE, self._keys(displaced_ids))
        connection.executemany(INSERT, rows)
        return None

    def delete(self, connection: sqlite3.Connection, block_ids: Sequence[str]) -> list[Block] | BlockManagerError:
        try:
            blocks = {row[1]: block_of(row) for row in self.select(connection, block_ids)}
        except BlockStoreError as problem:
            return problem
        for block_id in block_ids:
            if block_id not in blocks:
                return UnknownBlock(block_id)
        connection.executemany(DELETE, self._keys(block_ids))
        return [blocks[block_id] for block_id in block_ids]

    def select(self, connection: sqlite3.Connection, block_ids: Iterable[str]) -> list[Row]:
        rows: list[Row] = []
        for key in self._keys(block_ids):
            rows += connection.execute(FIND, key)
        return rows

    def select_page(self, connection: sqlite3.Connection, block_id: str, below_max: int) -> list[Row]:
        """Returns the row of a block, and the rows of up to `below_max` blocks below it, newest first. No row is
        checked."""
        rows = self.select(connection, (block_id,))
        for row in rows[:1]:
            below = connection.execute(NEWEST_BELOW, (self._store_name, row[0], below_max))
            rows += self.select(connection, [each for _, each in below])
        return rows

    def select_ids(self, connection: sqlite3.Connection, last: Block | None) -> list[str] | None:
        """Returns up to PAGE_IDS ids below the block `last`, newest first, or None if `last` is not stored.

        If `last` is None, returns the id of the newest block, or an empty list for an empty store.
        """
        if last is None:
            rows = connection.execute(NEWEST, (self._store_name, 1))
        elif self._has(connection, last.block_id):
            rows = connection.execute(NEWEST_BELOW, (self._store_name, last.number, PAGE_IDS))
        else:
            return None
        return [block_id for _, block_id in rows]

    def _head_without(self, connection: sqlite3.Connection, displaced_ids: set[str]) -> Block | None:
        newest = connection.execute(NEWEST, (self._store_name, len(displaced_ids) + 1))
        kept = (Block(block_id, "", number) for number, block_id in newest if block_id not in displaced_ids)
        return next(kept, None)

    def _has(self, connection: sqlite3.Connection, block_id: str) -> bool:
        return any(connection.execute(FIND_NUMBER, key).fetchone() for key in self._keys((block_id,)))

    def _keys(self, block_ids: Iterable[str]) -> list[tuple[str, str]]:
        # An id that is not valid UTF-8 is in no row, and SQLite would raise an error for it.
        return [(self._store_name, block_id) for block_id in block_ids if is_text(block_id)]


class LruCache(OrderedDict[str, Block]):
    """LruCache: a cache of blocks by id. When the cache is full, a new block replaces the least recently used block.

    Invariant: the cache has at most `block_count_max` blocks, ordered from the least to the most recently used.
    """

    def __init__(self, block_count_max: int) -> None:
        assert block_count_max >= 0, "a cache cannot keep fewer than no blocks"
        super().__init__()
        self.block_count_max = block_count_max

    def find(self, block_id: str) -> Block | None:
        block = self.get(block_id)
        if block is not None:
            self.move_to_end(block_id)
        return block

    def use(self, block: Block) -> None:
        self[block.block_id] = block
        self.move_to_end(block.block_id)
        if len(self) > self.block_count_max:
            self.popitem(last=False)


class CommitStoreStatistics(msgspec.Struct, frozen=True):
    """CommitStoreStatistics: blocks found in the cache and on disk, and transactions, since the store was opened.

    cached_count: the number of blocks that are in the cache now.
    """

    hit_count: int
    miss_count: int
    write_count: int
    cached_count: int


class CommitStore:
    """CommitStore: a `BlockStore` on disk, with a cache of blocks.

    Each `put` and each `delete` is one transaction that is on disk when the call returns. A walk down the branch reads
    a page of blocks at a time.

    Invariant: every block in the cache is on disk, except while a write runs.
    """

    def __init__(
        self, transactions: Transactions, name: str = "commit", *, cached_blocks_max: int = CACHED_BLOCKS_MAX
    ) -> None:
        """Opens the store, and creates its table if the table is missing.

        transactions: gives access to the database.
        name: the name of this store. One database can contain several commit stores.
        cached_blocks_max: the maximum number of blocks in the cache.

        Raises BlockStoreError if the database cannot be written.
        """
        self._transactions = transactions
        self._name = name
        self._table = CommitTable(name)
        self._write_lock = Lock()
        self._lock = Lock()
        self._cache = LruCache(cached_blocks_max)
        # The parents of the last blocks that `get` returned one by one. A `get` of one of them reads ahead.
        self._ahead_max = max(0, min(PAGE_IDS, cached_blocks_max) - 1)
        self._parents: deque[str] = deque(maxlen=WALKS_MAX)
        self._writing = False
        self._generation = 0
        self._hit_count = 0
        self._miss_count = 0
        self._write_count = 0
        with self._mapped_errors("be opened"):
            # The table is missing if the database was opened before this module was imported.
            transactions.write(lambda connection: connection.execute(CREATE_TABLE).close())

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        with self._changing():
            problem = self._transactions.write(
                lambda connection: self._table.exchange(connection, blocks, displaced_ids)
            )
            if problem is not None:
                raise problem
            self._update_cache(displaced_ids, blocks)

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        wanted = list(block_ids)
        # While a write runs, the cache may already have uncommitted blocks, so only the disk is asked.
        with self._lock:
            generation, by_cache = self._generation, not self._writing
            cached = self._find_cached(wanted) if by_cache else {}
            walks = by_cache and len(wanted) == 1 and wanted[0] in self._parents
        read = self._read([block_id for block_id in wanted if block_id not in cached], ahead=walks)
        # If a write began or ended meanwhile, the read blocks may be old, and the cache must not keep them.
        with self._lock:
            by_cache = by_cache and generation == self._generation
            if by_cache:
                # The block that is wanted next is used last, so that it leaves the cache last.
                for block in reversed(read.values()):
                    self._cache.use(block)
        # All blocks must be from one state of the store, so those of the cache do not mix with later ones of the disk.
        if cached and not by_cache:
            cached, read = {}, self._read(wanted)
        found = cached | read
        if len(wanted) == 1 and wanted[0] in found:
            self._parents.append(found[wanted[0]].previous_id)
        return iter([found[block_id] for block_id in wanted if block_id in found])

    def iter(self) -> Iterator[Block]:
        last: Block | None = None
        while page := self._read_page(last):
            for block_id in page:
                block = next(self.get((block_id,)), None)
                if block is None or (last is not None and last.previous_id != block_id):
                    raise changed_error(block_id if last is None else last.block_id)
                yield block
                last = block

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        with self._changing():
            result = self._transactions.write(lambda connection: self._table.delete(connection, block_ids))
            if isinstance(result, BlockManagerError):
                raise result
            self._update_cache(block_ids, ())
            return result

    def statistics(self) -> CommitStoreStatistics:
        with self._lock:
            return CommitStoreStatistics(self._hit_count, self._miss_count, self._write_count, len(self._cache))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._write_lock, self._mapped_errors("be written"):
            self._mark(writing=True)
            try:
                yield
                self._write_count += 1
            except BaseException:
                # The transaction could have been committed despite the error.
                with self._lock:
                    self._cache.clear()
                raise
            finally:
                self._mark(writing=False)

    def _mark(self, *, writing: bool) -> None:
        with self._lock:
            self._writing = writing
            self._generation += 1

    def _update_cache(self, deleted_ids: Iterable[str], blocks: Iterable[Block]) -> None:
        with self._lock:
            for block_id in deleted_ids:
                self._cache.pop(block_id, None)
            for block in blocks:
                self._cache.use(block)

    def _find_cached(self, block_ids: Iterable[str]) -> dict[str, Block]:
        found = ((block_id, self._cache.find(block_id)) for block_id in block_ids)
        cached = {block_id: block for block_id, block in found if block is not None}
        self._hit_count += len(cached)
        return cached

    def _read(self, block_ids: Sequence[str], *, ahead: bool = False) -> dict[str, Block]:
        """Reads blocks in one transaction. ahead: `block_ids` has one block; also read a page of blocks below it."""
        if not block_ids:
            return {}
        with self._mapped_errors("be read"):
            rows = self._transactions.read(
                lambda connection: (
                    self._table.select_page(connection, block_ids[0], self._ahead_max)
                    if ahead
                    else self._table.select(connection, block_ids)
                )
            )
        with self._lock:
            self._miss_count += len(rows)
        found: dict[str, Block] = {}
        for row in rows:
            try:
                found[row[1]] = block_of(row)
            except BlockStoreError:
                # A damaged block fails the call that asks for it, not a call for a block above it.
                if not ahead or not found:
                    raise
                break
        return found

    def _read_page(self, last: Block | None) -> list[str]:
        with self._mapped_errors("be read"):
            page = self._transactions.read(lambda connection: self._table.select_ids(connection, last))
        if page is None:
            assert last is not None, "the beginning is always there"
            raise changed_error(last.block_id)
        return page

    @contextmanager
    def _mapped_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            raise BlockStoreError(f"the commit store {self._name!r} cannot {what}: {error}") from error
