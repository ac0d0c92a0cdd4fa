"""The tables for the blocks of a chain, and their SQL statements as text.

`block_index` finds a block by its number, and can be rebuilt from the stream alone. `block_evicted` (blocks that
retention has deleted, so that they are not fetched again) and `block_damaged` cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text
from sqlalchemy import insert as insert_into

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.schema import metadata
from stream_storage.seal import seal_column, seal_of
from stream_storage.statement import compiled, replacing, sql, upsert

NUMBER_MAX: Final = 2**63 - 1
"""The largest integer of SQLite. A chain with one block per nanosecond reaches it after three centuries."""

block_chains = Table(
    "block_chains",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("stream_id", Integer, nullable=False),
    Column("indexed_to", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("verifier_state", LargeBinary, nullable=False),
    seal_column(),
)
"""One row for each chain. indexed_to: the stream's next index when `block_index` was last written; if the stream has
another one, `block_index` is rebuilt. blocks, size_bytes: the totals of `block_index`. verifier_state: the state of the
verifier that was stored last; empty if unknown."""

block_index = Table(
    "block_index",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("first_index", BigInteger, nullable=False),
    Column("parts", Integer, nullable=False),
    Column("items", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("root", LargeBinary, nullable=False),
    seal_column(),
    Index("block_index_by_place", "chain", "first_index"),
)
block_evicted = Table(
    "block_evicted",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("first", BigInteger, primary_key=True),
    Column("last", BigInteger, nullable=False),
    seal_column(),
)
block_damaged = Table(
    "block_damaged",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    seal_column(),
)
"""The stored blocks whose bytes a reader found damaged or gone. They count as missing until they are stored again."""
block_staged = Table(
    "block_staged",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("attempt", BigInteger, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The parts of blocks that are too large to wait in memory for their verification. Opening the chain deletes them."""


class BlockPlace(msgspec.Struct, frozen=True):
    """The location of a stored block in its stream: `parts` consecutive messages from `first_index` on."""

    number: int
    first_index: int
    parts: int
    items: int
    size_bytes: int
    root: bytes


_PLACE: Final = ", ".join(BlockPlace.__struct_fields__)
_OF_CHAIN: Final = "FROM block_index WHERE chain = :chain"

GET_CHAIN: Final = sql(
    "SELECT stream_id, indexed_to, blocks, size_bytes, verifier_state, seal FROM block_chains WHERE chain = :chain"
)
_SET_CHAIN: Final = replacing(block_chains, "chain")

_COUNT_PLACES: Final = sql(f"SELECT count(*), coalesce(sum(size_bytes), 0) {_OF_CHAIN}")
_ADD_PLACE: Final = compiled(insert_into(block_index), *block_index.c.keys())
FIND_PLACE: Final = sql(f"SELECT {_PLACE} {_OF_CHAIN} AND number = :number")
_FIND_SEALED_PLACE: Final = sql(f"SELECT {_PLACE}, seal {_OF_CHAIN} AND number = :number")
PLACES_FROM: Final = sql(f"SELECT {_PLACE} {_OF_CHAIN} AND number >= :number ORDER BY number LIMIT :limit")
NEWEST_PLACES: Final = sql(f"SELECT {_PLACE} {_OF_CHAIN} ORDER BY number DESC LIMIT :limit")
ROOTS: Final = sql(f"SELECT root {_OF_CHAIN} AND number <= :number ORDER BY number")
_SET_ROOT: Final = sql("UPDATE block_index SET root = :root, seal = :seal WHERE chain = :chain AND number = :number")
DELETE_PLACE: Final = sql(f"DELETE {_OF_CHAIN} AND number = :number")
CLEAR_PLACES: Final = sql(f"DELETE {_OF_CHAIN}")
FIRST_PLACE: Final = sql(f"SELECT min(first_index) {_OF_CHAIN}")
SPAN: Final = sql(f"SELECT min(number), max(number), count(*) {_OF_CHAIN}")
"""Finds the lowest and the highest number, and the count. If no block is missing, they are the only range; this is
eight times faster than `RANGES`."""
RANGES: Final = sql(
    "SELECT min(number), max(number) FROM ("
    f"SELECT number, number - row_number() OVER (ORDER BY number) AS run {_OF_CHAIN}"
    ") AS numbered GROUP BY run ORDER BY run"
)

EVICTED: Final = sql("SELECT first, last FROM block_evicted WHERE chain = :chain ORDER BY first")
_CLEAR_EVICTED: Final = sql("DELETE FROM block_evicted WHERE chain = :chain")
_ADD_EVICTED: Final = compiled(insert_into(block_evicted), *block_evicted.c.keys())

DAMAGED: Final = sql("SELECT number FROM block_damaged WHERE chain = :chain ORDER BY number")
_ADD_DAMAGED: Final = compiled(upsert(block_damaged).on_conflict_do_nothing(), *block_damaged.c.keys())
CLEAR_DAMAGED: Final = sql("DELETE FROM block_damaged WHERE chain = :chain AND number = :number")

ADD_STAGED: Final = compiled(insert_into(block_staged), *block_staged.c.keys())
_STAGED: Final = "FROM block_staged WHERE chain = :chain AND attempt = :attempt"
GET_STAGED: Final = sql(f"SELECT data {_STAGED} AND part = :part")
CLEAR_STAGED: Final = sql(f"DELETE {_STAGED}")
CLEAR_ALL_STAGED: Final = sql("DELETE FROM block_staged WHERE chain = :chain")

ChainRow: TypeAlias = tuple[int, int, int, int, bytes]


def find_chain(session: Session, chain: str) -> ChainRow | None:
    """Returns the row of a chain. Raises DatabaseCorrupt if the row is damaged."""
    row = session.execute(GET_CHAIN, (chain,)).fetchone()
    if row is None:
        return None
    found: ChainRow = tuple(row[:-1])
    if row[-1] != seal_of(block_chains.name, (chain, *found)):
        raise DatabaseCorrupt(corrupt_text(f"the row of the chain {chain!r} is not what was written"))
    return found


def set_chain(session: Session, chain: str, row: ChainRow) -> None:
    session.execute(_SET_CHAIN, (chain, *row, seal_of(block_chains.name, (chain, *row))))


def get_chain(session: Session, chain: str) -> ChainRow:
    known = find_chain(session, chain)
    assert known is not None, "the chain has begun"
    return known


def grow_chain(
    session: Session,
    chain: str,
    known: ChainRow,
    indexed_to: int,
    more_blocks: int,
    more_bytes: int,
    verifier_state: bytes = b"",
) -> None:
    """Changes the totals of a chain, whose `known` row was read and checked. An empty state keeps the present one."""
    stream_id, _, blocks, size_bytes, state = known
    row = (stream_id, indexed_to, blocks + more_blocks, size_bytes + more_bytes, verifier_state or state)
    set_chain(session, chain, row)


def recount_chain(session: Session, chain: str) -> None:
    known = find_chain(session, chain)
    if known is not None:
        blocks, size_bytes = session.execute(_COUNT_PLACES, (chain,)).fetchone()
        set_chain(session, chain, (known[0], known[1], blocks, size_bytes, known[4]))


def add_place(session: Session, chain: str, place: BlockPlace) -> None:
    row = (chain, *msgspec.structs.astuple(place))
    session.execute(_ADD_PLACE, (*row, seal_of(block_index.name, row)))


def set_root(session: Session, chain: str, number: int, root: bytes) -> None:
    """Replaces the root hash of a block, because the next block has shown that another one is right."""
    row = session.execute(FIND_PLACE, (chain, number)).fetchone()
    if row is not None:
        seal = seal_of(block_index.name, (chain, *row[:-1], root))
        session.execute(_SET_ROOT, (root, seal, chain, number))


def mark_damaged(session: Session, chain: str, number: int) -> None:
    row = (chain, number)
    session.execute(_ADD_DAMAGED, (*row, seal_of(block_damaged.name, row)))


def find_sound_place(session: Session, chain: str, number: int) -> BlockPlace | None:
    row = session.execute(_FIND_SEALED_PLACE, (chain, number)).fetchone()
    if row is None or row[-1] != seal_of(block_index.name, (chain, *row[:-1])):
        return None
    return BlockPlace(*row[:-1])


def set_evicted(session: Session, chain: str, ranges: Iterable[tuple[int, int]]) -> None:
    session.execute(_CLEAR_EVICTED, (chain,))
    rows = [(chain, first, last) for first, last in ranges]
    session.execute_many(_ADD_EVICTED, [(*row, seal_of(block_evicted.name, row)) for row in rows])
