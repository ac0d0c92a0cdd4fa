"""Reads and writes the rows of one commit store, inside a transaction that the caller begins and commits.

The transaction can contain the work of other callers, and an exception would undo that work. So an error caused by
wrong arguments is returned, not raised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from block_manager import commit_schema as sql
from block_manager.block import Block
from block_manager.errors import BlockManagerError, BlockStoreError, UnknownBlock
from block_manager.store import check_follows

PAGE_IDS = 64
"""The number of block ids, or of blocks, that one query returns while somebody iterates over the blocks of a store."""


class CommitTable:
    """CommitTable: the rows of one commit store. Every method that uses a connection raises sqlite3.Error if SQLite
    fails.
    """

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name

    def ensure(self, connection: sqlite3.Connection) -> None:
        """Create the table if it is missing.

        The table is missing if the database was opened before the package `block_manager` was imported.
        """
        connection.execute(sql.CREATE_TABLE)

    def exchange(
        self, connection: sqlite3.Connection, blocks: Sequence[Block], displaced_ids: Sequence[str]
    ) -> BlockManagerError | None:
        """Delete the blocks in `displaced_ids` and insert the blocks in `blocks`, as `BlockStore.put` describes.

        Returns None on success. If the arguments are wrong, changes nothing and returns the error.
        """
        for block_id in displaced_ids:
            if not self._has(connection, block_id):
                return UnknownBlock(block_id)
        try:
            rows = [sql.row_of(self._store_name, block) for block in blocks]
            check_follows(blocks, self._head_without(connection, set(displaced_ids)))
        except BlockStoreError as problem:
            return problem
        for block in blocks:
            if block.block_id not in displaced_ids and self._has(connection, block.block_id):
                return BlockStoreError(f"block {block.block_id} is stored already")
        connection.executemany(sql.DELETE, self._keys(displaced_ids))
        connection.executemany(sql.INSERT, rows)
        return None

    def delete(self, connection: sqlite3.Connection, block_ids: Sequence[str]) -> list[Block] | BlockManagerError:
        """Delete blocks, as `BlockStore.delete` describes.

        Returns the deleted blocks. If the arguments are wrong or a row is damaged, changes nothing and returns the
        error.
        """
        try:
            blocks = {row[1]: sql.block_of(row) for row in self.select(connection, block_ids)}
        except BlockStoreError as problem:
            return problem
        for block_id in block_ids:
            if block_id not in blocks:
                return UnknownBlock(block_id)
        connection.executemany(sql.DELETE, self._keys(block_ids))
        return [blocks[block_id] for block_id in block_ids]

    def select(self, connection: sqlite3.Connection, block_ids: Iterable[str]) -> list[sql.Row]:
        """Returns the rows of the blocks with these ids. An id without a row is skipped."""
        rows: list[sql.Row] = []
        for key in self._keys(block_ids):
            rows += connection.execute(sql.FIND, key)
        return rows

    def select_page(self, connection: sqlite3.Connection, block_id: str, below_max: int) -> list[sql.Row]:
        """Returns the row of a block, and the rows of up to `below_max` blocks below it, newest first."""
        rows = self.select(connection, (block_id,))
        for row in rows[:1]:
            below = connection.execute(sql.NEWEST_BELOW, (self._store_name, sql.block_of(row).number, below_max))
            rows += self.select(connection, [each for _, each in below])
        return rows

    def select_ids(self, connection: sqlite3.Connection, last: Block | None) -> list[str] | None:
        """Returns the next ids for an iteration from the newest to the oldest block.

        If `last` is None, returns the id of the newest block, or an empty list for an empty store. Otherwise returns up
        to PAGE_IDS ids of blocks with lower numbers than `last`, newest first. Returns None if the store does not
        contain `last`.
        """
        if last is None:
            rows = connection.execute(sql.NEWEST, (self._store_name, 1))
        elif self._has(connection, last.block_id):
            rows = connection.execute(sql.NEWEST_BELOW, (self._store_name, last.number, PAGE_IDS))
        else:
            return None
        return [block_id for _, block_id in rows]

    def _head_without(self, connection: sqlite3.Connection, displaced_ids: set[str]) -> Block | None:
        newest = connection.execute(sql.NEWEST, (self._store_name, len(displaced_ids) + 1))
        kept = (Block(block_id, "", number) for number, block_id in newest if block_id not in displaced_ids)
        return next(kept, None)

    def _has(self, connection: sqlite3.Connection, block_id: str) -> bool:
        return any(connection.execute(sql.FIND_NUMBER, key).fetchone() for key in self._keys((block_id,)))

    def _keys(self, block_ids: Iterable[str]) -> list[tuple[str, str]]:
        """Returns the parameters of the statement FIND for these block ids.

        An id that is not valid UTF-8 is skipped, because no row can have it and the SQLite driver would raise.
        """
        return [(self._store_name, block_id) for block_id in block_ids if sql.is_text(block_id)]
