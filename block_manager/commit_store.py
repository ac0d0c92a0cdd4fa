"""A block store on disk: one branch of blocks in a table of the node's database, with a cache of recently used blocks.

Each `put` and each `delete` is one transaction. A call returns after its transaction is on disk. The cache keeps the
blocks that were read or written last (RFC block-manager, "Internal Representation"). Whoever walks down the branch, one
block after the other, gets a page of blocks for each read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final

import msgspec

from block_manager import commit_schema as sql
from block_manager.block import Block
from block_manager.commit_table import PAGE_IDS, CommitTable
from block_manager.errors import BlockManagerError, BlockStoreError
from block_manager.lru import LruCache
from block_manager.store import changed_error
from block_manager.transactions import Transactions
from stream_storage.errors import StorageError

CACHED_BLOCKS_MAX: Final = 256
"""The default maximum number of blocks in the cache.

Most forks are shorter than this number. A cache of this size uses little memory compared with the rest of a node.
"""


WALKS_MAX: Final = 8
"""The number of walks along the store for which blocks are read ahead at the same time."""


class CommitStoreStatistics(msgspec.Struct, frozen=True):
    """CommitStoreStatistics: counters of a commit store since the store was opened.

    hit_count: the number of blocks found in the cache.
    miss_count: the number of blocks read from disk.
    write_count: the number of successful write transactions.
    cached_count: the number of blocks that are in the cache now.
    """

    hit_count: int
    miss_count: int
    write_count: int
    cached_count: int


class CommitStore:
    """CommitStore: a `BlockStore` on disk, with a cache of blocks.

    While a write runs, the cache can be out of date, so reads use only the disk. If a write begins or ends during a
    read, the read adds nothing to the cache.

    Invariant: every block in the cache is on disk, except while a write runs.
    """

    def __init__(
        self, transactions: Transactions, name: str = "commit", *, cached_blocks_max: int = CACHED_BLOCKS_MAX
    ) -> None:
        """Open the store, and create its table if the table is missing.

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
        # The parents of the blocks that were asked for last, one at a time: whoever asks for one of them walks down.
        self._ahead_max = max(0, min(PAGE_IDS, cached_blocks_max) - 1)
        self._parents: deque[str] = deque(maxlen=WALKS_MAX)
        self._writing = False
        self._generation = 0
        self._hit_count = 0
        self._miss_count = 0
        self._write_count = 0
        with self._mapped_errors("be opened"):
            transactions.write(self._table.ensure)

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
        with self._lock:
            generation, by_cache = self._generation, not self._writing
            cached = self._find_cached(wanted) if by_cache else {}
            walks = by_cache and len(wanted) == 1 and wanted[0] in self._parents
        read = self._read([block_id for block_id in wanted if block_id not in cached], ahead=walks)
        with self._lock:
            by_cache = by_cache and generation == self._generation
            if by_cache:
                # The block that is wanted next is used last, so that it leaves the cache last.
                for block in reversed(read.values()):
                    self._cache.use(block)
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
            return CommitStoreStatistics(
                self._hit_count, self._miss_count, self._write_count, len(self._cache.block_ids())
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Returns a context manager for one write to the database.

        If the write fails, the cache is cleared, because the transaction could have been committed despite the error.
        """
        with self._write_lock, self._mapped_errors("be written"):
            self._mark(writing=True)
            try:
                yield
                self._write_count += 1
            except BaseException:
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
                self._cache.discard(block_id)
            for block in blocks:
                self._cache.use(block)

    def _find_cached(self, block_ids: Iterable[str]) -> dict[str, Block]:
        found = ((block_id, self._cache.find(block_id)) for block_id in block_ids)
        cached = {block_id: block for block_id, block in found if block is not None}
        self._hit_count += len(cached)
        return cached

    def _read(self, block_ids: Sequence[str], *, ahead: bool = False) -> dict[str, Block]:
        """Reads blocks from disk in one transaction. Returns a dict from block id to block; missing blocks are left
        out.

        ahead: whether to read also a page of the blocks below the only block in `block_ids`.
        """
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
                found[row[1]] = sql.block_of(row)
            except BlockStoreError:
                # A damaged block is reported to who asks for it, not to who asks for a block above it.
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
