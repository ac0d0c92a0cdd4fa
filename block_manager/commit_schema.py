"""The table of the commit store, the SQL statements for the table, and the conversion between rows and blocks.

The commit store keeps one branch of blocks on disk. This module builds the statements but does not execute them.

Each row is one block of one store. The primary key is (store, number). The numbers of a branch increase, so the table
refuses a second block with the same number. The head, the newest block, is the row with the largest number in the
store.

The checksum of a row is a CRC-32. The CRC first covers the text `number:previous_id:block_id` and then the data. The
checksum detects damaged rows and exchanged parts of rows. It does not protect against an attacker.
"""

from __future__ import annotations

from typing import Final, TypeAlias
from zlib import crc32

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

from block_manager.block import Block
from block_manager.errors import BlockStoreError
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

NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1
"""The largest block number in a commit store. NUMBER_MIN is the smallest. They are the limits of an integer in SQLite.
"""

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
"""Selects the numbers and ids of the newest blocks of a store, newest first."""
NEWEST_BELOW: Final = compiled(_page.where(_columns.number < bindparam("number")), *("store", "number", "limit"))
"""Selects the numbers and ids of the newest blocks with a number below a given number, newest first."""


def row_of(store_name: str, block: Block) -> tuple[str, int, str, str, int, bytes]:
    """Returns the parameters of the statement INSERT for a block.

    Raises BlockStoreError if SQLite cannot store the number or the ids of the block.
    """
    if not NUMBER_MIN <= block.number <= NUMBER_MAX:
        raise BlockStoreError(f"block {block.block_id} has number {block.number}, which a commit store cannot hold")
    if not (is_text(block.block_id) and is_text(block.previous_id)):
        raise BlockStoreError(f"block {block.block_id!r} has an id that cannot be written as UTF-8")
    return store_name, block.number, block.block_id, block.previous_id, _checksum(block), block.data


def is_text(block_id: str) -> bool:
    """Returns whether a block id can be encoded as UTF-8. SQLite cannot store other ids."""
    try:
        block_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def block_of(row: Row) -> Block:
    """Returns the block that a row contains. Raises BlockStoreError if the checksum shows that the row is damaged."""
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
