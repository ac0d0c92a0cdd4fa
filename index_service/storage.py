"""Reads and writes the table of saved positions. It does not read streams.

A position is the next index that a consumer will read in one partition. A position belongs to one incarnation of the
stream: its `created_us` is the creation time of that stream, or 0 if the time is unknown. Each change other than an
ordinary save gives the position another generation. A save that names an older generation comes from a consumer that
does not know of the change, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Integer,
    String,
    Table,
    bindparam,
    delete,
    literal_column,
    select,
    text,
    tuple_,
)

from index_service.lease_machine import StoredLease
from index_service.lease_storage import Key, WriteLeases
from stream_storage.contract import Session
from stream_storage.errors import StorageError
from stream_storage.schema import metadata
from stream_storage.seal import (
    CREATED_FACTOR,
    GENERATION_FACTOR,
    MODULUS,
    SEAL,
    check_sealed,
    position_seal,
    row_seal,
    seal_column,
)
from stream_storage.statement import compiled, sql, upsert

saved_indexes = Table(
    "saved_indexes",
    metadata,
    Column("client_id", String, primary_key=True),
    Column("stream_name", String, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, nullable=False),
    Column("saved_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False, server_default="0"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    seal_column(),
    Index("saved_indexes_by_stream", "stream_name", "client_id", "partition"),
    sqlite_with_rowid=False,
)


_insert = upsert(saved_indexes)
_KEY = ("client_id", "stream_name", "partition")
_CHANGED = ("idx", "saved_us", "created_us", "generation", "seal")
_replaced = {column: _insert.excluded[column] for column in _CHANGED}


def _number(value: int) -> ColumnElement[int]:
    return literal_column(str(value), BigInteger)


# The stored row keeps its creation time and generation, so the seal of the new row is corrected for the differences.
_kept_seal = (
    _insert.excluded.seal
    + _number(CREATED_FACTOR) * (saved_indexes.c.created_us - _insert.excluded.created_us)
    + _number(GENERATION_FACTOR) * (saved_indexes.c.generation - _insert.excluded.generation)
    + _number(MODULUS)
).op("%")(_number(MODULUS))
RAISE = compiled(
    _insert.on_conflict_do_update(
        index_elements=_KEY,
        set_={"idx": _insert.excluded.idx, "saved_us": _insert.excluded.saved_us, "seal": _kept_seal},
        where=_insert.excluded.idx > saved_indexes.c.idx,
    )
)
REPLACE = compiled(_insert.on_conflict_do_update(index_elements=_KEY, set_=_replaced))
REPLACE_OLDER = compiled(
    _insert.on_conflict_do_update(
        index_elements=_KEY,
        set_=_replaced,
        # A lowered position keeps the time of its save, so its newer generation tells that it replaces the higher one.
        # With the same time and generation, both rows are of one save, and the higher index counts: a mirror stores a
        # position only up to its own end, which rises.
        # A position 0 is always replaced: a get may have created it, and nobody has saved it.
        where=(
            tuple_(_insert.excluded.saved_us, _insert.excluded.generation, _insert.excluded.idx)
            > tuple_(saved_indexes.c.saved_us, saved_indexes.c.generation, saved_indexes.c.idx)
        )
        | (saved_indexes.c.idx == literal_column("0")),
    )
)
_of_key = [saved_indexes.c[column] == bindparam(column) for column in _KEY]
_FIND = compiled(select(*saved_indexes.c[_CHANGED]).where(*_of_key))
_DELETE_OF_STREAM = sql("DELETE FROM saved_indexes WHERE stream_name = :stream_name AND partition = :partition")
_LIST_ABOVE = compiled(
    select(*saved_indexes.columns).where(
        saved_indexes.c.stream_name == bindparam("stream_name"),
        saved_indexes.c.partition == bindparam("partition"),
        saved_indexes.c.idx > bindparam("index"),
    ),
    *("stream_name", "partition", "index"),
)
_MOVE = sql(
    "UPDATE saved_indexes SET created_us = :to_us, "
    f"seal = (seal + {CREATED_FACTOR} * :later_us + {MODULUS}) % {MODULUS} "
    "WHERE stream_name = :of_stream AND partition = :of_partition AND created_us = :from_us"
)
_DELETE = compiled(delete(saved_indexes).where(*_of_key))
_COLUMNS = compiled(text("PRAGMA table_info('saved_indexes')"))
_EVERY_ROW = compiled(text("SELECT * FROM saved_indexes NOT INDEXED"))
"""For a damaged SQLite file: reading without the table's index finds the rows even if the index is damaged."""


class StoredPosition(NamedTuple):
    """A row of the table of positions, without its key and its seal. The times are in microseconds since 1970."""

    next_index: int
    saved_us: int
    created_us: int
    generation: int

    def moved(self, index: int, now_us: int) -> StoredPosition:
        return StoredPosition(index, now_us, self.created_us, self.generation)


class SetPosition(WriteLeases):
    """Sets or deletes one position, and writes changed leases in the same transaction.

    The position gets a new generation, so that a running consumer cannot overwrite it.

    index: the new position; None deletes the position.
    changes: the changed leases. In them, the caller has raised the fence of the partition, so that a member that had
        the lease earlier cannot save any more.
    before: after the operation, the index that was saved before the change; None if there was no position.
    """

    __slots__ = ("before", "index", "key", "now_us")

    def __init__(
        self,
        key: Key,
        index: int | None,
        now_us: int,
        changes: Sequence[StoredLease],
        ttl_ms: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(key[0], key[1], changes, ttl_ms, on_done)
        self.key = key
        self.index = index
        self.now_us = now_us
        self.before: int | None = None

    def apply(self, session: Session) -> None:
        super().apply(session)
        execute = session.execute
        row = _row(self.key)
        found = execute(_FIND, row).fetchone()
        # The seal is not checked: setting or deleting a position is the way to repair a damaged one.
        self.before = None if found is None else found[0]
        if self.index is None:
            execute(_DELETE, row)
            return
        # Time makes the generation higher than that of any position that was deleted before.
        generation = self.now_us if found is None else max(self.now_us, found[3] + 1)
        # A stream of another worker of the node is not in this database: then its incarnation is unknown.
        stream = session.log.find_stream(self.key[1], self.key[2])
        created_us = 0 if stream is None else stream.created_us
        execute(REPLACE, sealed_row(self.key, self.index, self.now_us, created_us, generation))


def merge_positions(session: Session, other: Session) -> None:
    """Copies positions from the database of `other` to the database of `session`, if they are missing or lower there.
    Skips damaged rows, and ends without an error at a damaged database. Call it inside a transaction."""
    with suppress(StorageError):
        # Columns are found by name. A database of an older version lacks the incarnation and the generation, and may
        # lack the checksum. After an upgrade from schema version 2, the checksum is the column before both.
        columns = [each[1] for each in other.execute(_COLUMNS)]
        for values in other.execute(_EVERY_ROW):
            found = dict(zip(columns, values, strict=True))
            key = (found["client_id"], found["stream_name"], found["partition"])
            created_us, generation = found.get("created_us", 0), found.get("generation", 0)
            row = sealed_row(key, found["idx"], found["saved_us"], created_us, generation)
            if SEAL not in found or found[SEAL] == row["seal"]:
                session.execute(RAISE, row)


def find_positions(session: Session, keys: Sequence[Key]) -> dict[Key, tuple[int, ...] | None]:
    """Returns the row of each key: the columns of a `StoredPosition` and the unchecked checksum; None: no row."""
    return dict(zip(keys, session.find_many(_FIND, list(map(_row, keys))), strict=True))


def checked(key: Key, row: tuple[int, ...]) -> StoredPosition:
    """Returns the position of a stored row. Raises DatabaseCorrupt if the row is damaged."""
    check_sealed(saved_indexes.name, (*key, *row), "set the position anew with `stream-node index set`")
    return StoredPosition(*row[:-1])


def delete_positions(session: Session, stream_name: str, partition: int) -> None:
    """Deletes the positions of all consumers in one deleted partition. Call it inside a transaction."""
    session.execute(_DELETE_OF_STREAM, (stream_name, partition))


def lower_positions(
    session: Session, stream_name: str, partition: int, index: int, now_us: int, *, renews_all: bool = False
) -> None:
    """Lowers the positions above `index` to `index`, because the indexes from there on get other messages. A consumer
    that went on at a higher index would miss these. Call it inside a transaction.

    A lowered position gets a new generation, so that a running consumer goes on there and does not overwrite it. It
    keeps the time of its save, so that a position that was saved later at the source of a mirror still replaces it.
    now_us: the present time in microseconds since 1970. renews_all: also gives the lower positions a new generation,
    because a consumer can keep a higher position elsewhere, such as in the checkpoint of a chain.
    """
    lowered = []
    for row in session.execute(_LIST_ABOVE, (stream_name, partition, -1 if renews_all else index)).fetchall():
        # The true index of a damaged row may be lower. The row stays damaged, so that an operator sets the position.
        if row[-1] != row_seal(saved_indexes.name, row[:-1]):
            continue
        client_id, _, _, before, saved_us, created_us, generation, _ = row
        key = (client_id, stream_name, partition)
        # A client takes a position whose generation is before its save for one that a consumer saved. The save can have
        # the time of another node, whose clock is ahead.
        renewed = max(now_us, saved_us, generation + 1)
        lowered.append(sealed_row(key, min(index, before), saved_us, created_us, renewed))
    session.execute_many(REPLACE, lowered)


def move_positions(session: Session, stream_name: str, partition: int, from_us: int, to_us: int) -> None:
    """Gives the positions of one incarnation of a partition to another: a mirror takes the creation time of its source.
    Call it inside a transaction. from_us, to_us: the creation times in microseconds since 1970."""
    session.execute(_MOVE, (to_us, to_us - from_us, stream_name, partition, from_us))


def sealed_row(key: Key, index: int, saved_us: int, created_us: int, generation: int) -> dict[str, Any]:
    """Returns the row of a position, with its checksum (`seal`), as the parameters of a statement."""
    client_id, stream_name, partition = key
    return _row(key) | {
        "idx": index,
        "saved_us": saved_us,
        "created_us": created_us,
        "generation": generation,
        "seal": position_seal(client_id, stream_name, partition, index, saved_us, created_us, generation),
    }


def _row(key: Key) -> dict[str, str | int]:
    return dict(zip(_KEY, key, strict=True))
