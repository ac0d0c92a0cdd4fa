"""Reads and writes the table of saved positions. It does not read streams.

A position is the next index that a consumer will read in one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
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

from index_service.extensions import PositionsRequest
from index_service.keys import Key
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases, find_fences, lease_fences
from index_service.limits import INDEX_MAX
from storage.contract import Operation, Session
from storage.errors import StorageError
from storage.schema import metadata
from storage.seal import check_sealed, seal_column, seal_of
from storage.statement import Statement, compiled, upsert

saved_indexes = Table(
    "saved_indexes",
    metadata,
    Column("client_id", String, primary_key=True),
    Column("stream_name", String, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, nullable=False),
    Column("saved_us", BigInteger, nullable=False),
    seal_column(),
    Index("saved_indexes_by_stream", "stream_name", "client_id", "partition"),
    sqlite_with_rowid=False,
)


_insert = upsert(saved_indexes).values(
    client_id=bindparam("client_id"),
    stream_name=bindparam("stream_name"),
    partition=bindparam("partition"),
    idx=bindparam("idx"),
    saved_us=bindparam("saved_us"),
    seal=bindparam("seal"),
)
_RAISE = compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={column: _insert.excluded[column] for column in ("idx", "saved_us", "seal")},
        where=_insert.excluded.idx > saved_indexes.c.idx,
    )
)
_REPLACE = compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={column: _insert.excluded[column] for column in ("idx", "saved_us", "seal")},
    )
)
REPLACE_OLDER = compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={column: _insert.excluded[column] for column in ("idx", "saved_us", "seal")},
        # A get makes a position 0 that nobody has saved.
        where=(_insert.excluded.saved_us > saved_indexes.c.saved_us) | (saved_indexes.c.idx == literal_column("0")),
    )
)
_of_key = (
    saved_indexes.c.client_id == bindparam("client_id"),
    saved_indexes.c.stream_name == bindparam("stream_name"),
    saved_indexes.c.partition == bindparam("partition"),
)
_FIND = compiled(select(saved_indexes.c.idx, saved_indexes.c.saved_us, saved_indexes.c.seal).where(*_of_key))
_DELETE = compiled(delete(saved_indexes).where(*_of_key))
_EVERY_ROW = compiled(text("SELECT * FROM saved_indexes NOT INDEXED"))
"""For a damaged SQLite file: reading without the table's index finds the rows in their pages, even if the index is
damaged."""


class Access(NamedTuple):
    """One access to the table of positions: a get or a save.

    save: the index to save. None for a get, which creates a missing position with index 0.
    answered: whether the client of a save expects an answer. A get always has an answer.
    fence: the number of the client's lease. None for a get, or for a client without leases.
    """

    key: Key
    save: int | None
    answered: bool = False
    fence: int | None = None


class IndexRequests(Operation):
    """Carries out many gets and saves in their order.

    A save never lowers a saved index. A save with a fence (lease number) is refused if its fence is not the newest one
    of the partition.

    indexes: for each request, the saved index after the request; None for a save whose client expects no answer.
    fenced: the places of the refused saves in `requests`, counted from 0.
    """

    __slots__ = ("fenced", "indexes", "now_us", "requests")

    def __init__(
        self,
        requests: Sequence[Access],
        now_us: int,
        on_done: Callable[[IndexRequests], None],
    ) -> None:
        super().__init__(on_done)
        self.requests = requests
        self.now_us = now_us
        self.indexes: list[int | None] = []
        self.fenced: set[int] = set()

    def apply(self, session: Session) -> None:
        self.indexes = []
        self.fenced = set()
        # Read what the requests need, in two statements. A plain save has no answer, so nothing is read for it.
        requests = self.requests
        fences = find_fences(session, _keys([each for each in requests if each.fence is not None]))
        stored = _find_positions(session, _keys([each for each in requests if each.save is None or each.answered]))
        # Several requests can have the same key: a later one sees what the earlier ones have saved.
        raised: dict[Key, int] = {}
        for place, (key, index, answered, fence) in enumerate(requests):
            # Save, unless another member has the partition by now.
            if fence is not None and fences[key] != fence:
                self.fenced.add(place)
            elif index is not None:
                raised[key] = max(index, raised.get(key, index))
            if index is not None and not answered:
                self.indexes.append(None)
                continue
            found = _newest(key, stored[key], raised.get(key))
            # A get creates a missing position, as the specification demands.
            if found is None and index is None:
                raised[key] = 0
            self.indexes.append(found or 0)
        # The highest index of each key, in one statement.
        if raised:
            session.execute_many(_RAISE, [sealed_row(key, index, self.now_us) for key, index in raised.items()])


class SetPosition(WriteLeases):
    """Sets or deletes one position, and writes changed leases in the same transaction.

    index: the new position; None deletes the position.
    changes: the changed leases. In them, the caller has raised the fence (lease number) of the partition, so that a
    member that had the lease earlier cannot save any more.
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
        else:
            execute(_REPLACE, sealed_row(self.key, self.index, self.now_us))


class PositionRow(NamedTuple):
    """A saved position together with the lease of its partition.

    saved_us: when the position was saved, in microseconds since 1970.
    holder: the member that has the lease; None if no member has it.
    ttl_ms: the time to live of the lease, in milliseconds; None if the partition was never leased.
    """

    client_id: str
    stream_name: str
    partition: int
    next_index: int
    saved_us: int
    holder: str | None
    ttl_ms: int | None


class ListPositions(Operation):
    """Reads a page of positions, sorted by client, stream and partition.

    limit: the largest number of positions in the page.
    rows: the positions of the page. If more positions follow, `rows` has one position more than `limit`.
    """

    __slots__ = ("limit", "request", "rows")

    def __init__(self, request: PositionsRequest, limit: int, on_done: Callable[[ListPositions], None]) -> None:
        super().__init__(on_done)
        self.request = request
        self.limit = limit
        self.rows: list[PositionRow] = []

    def apply(self, session: Session) -> None:
        after, stream_name = self.request.after, self.request.stream_name
        after_partition = None if after is None else after.partition
        if after is not None and stream_name not in (None, after.stream_name):
            # Only one stream is listed, but `after` names another stream. The page begins with the same client if the
            # listed stream sorts after that stream, and with the next client if not.
            after_partition = -1 if stream_name > after.stream_name else INDEX_MAX
        found = session.execute(
            _LISTS[self.request.client_id is not None, self.request.stream_name is not None, after is not None],
            {
                "client_id": self.request.client_id,
                "stream_name": stream_name,
                "after_client": None if after is None else after.client_id,
                "after_stream": None if after is None else after.stream_name,
                "after_partition": after_partition,
                "limit": self.limit + 1,
            },
        )
        self.rows = [PositionRow(*row) for row in found]


def merge_positions(session: Session, other: Session) -> None:
    """Copies positions from the database of `other` to the database of `session`, if they are missing or lower there.

    A row of `other` whose checksum is wrong is skipped. If `other` cannot be read further because its database is
    damaged, or has no positions, the function ends without an error. Call it inside a transaction.
    """
    with suppress(StorageError):
        # In a database of an older version, rows have no checksum.
        for client_id, stream_name, partition, index, saved_us, *seal in other.execute(_EVERY_ROW):
            row = sealed_row((client_id, stream_name, partition), index, saved_us)
            if not seal or seal == [row["seal"]]:
                session.execute(_RAISE, row)


def _keys(requests: Sequence[Access]) -> list[Key]:
    """Returns the keys of requests, each once."""
    return list(dict.fromkeys(each.key for each in requests))


def _find_positions(session: Session, keys: Sequence[Key]) -> dict[Key, tuple[int, int, int] | None]:
    """Returns for each key its row: the index, when it was saved, and the checksum, which is not compared; or None."""
    return dict(zip(keys, session.find_many(_FIND, list(map(_row, keys))), strict=True))


def _newest(key: Key, stored: tuple[int, int, int] | None, raised: int | None) -> int | None:
    """Returns the index of a key after a save that never lowers it; None if there is none.

    stored: the row of the position, as it is in the table. raised: the highest index that the operation saves.
    Raises DatabaseCorrupt if the row is damaged and stays.
    """
    if stored is None or (raised is not None and raised > stored[0]):
        return raised
    check_sealed(saved_indexes.name, (*key, *stored), "set the position anew with `stream-node index set`")
    return int(stored[0])


def sealed_row(key: Key, index: int, saved_us: int) -> dict[str, str | int]:
    """Returns the row of a position, with its checksum (`seal`), as the parameters of a statement."""
    client_id, stream_name, partition = key
    return {
        "client_id": client_id,
        "stream_name": stream_name,
        "partition": partition,
        "idx": index,
        "saved_us": saved_us,
        "seal": seal_of("saved_indexes", (client_id, stream_name, partition, index, saved_us)),
    }


def _row(key: Key) -> dict[str, str | int]:
    client_id, stream_name, partition = key
    return {"client_id": client_id, "stream_name": stream_name, "partition": partition}


def _list_statement(by_client: bool, by_stream: bool, after: bool) -> Statement:
    position, lease = saved_indexes.c, lease_fences.c
    joined = saved_indexes.outerjoin(
        lease_fences,
        (lease.client_id == position.client_id)
        & (lease.stream_name == position.stream_name)
        & (lease.partition == position.partition),
    )
    statement = select(
        position.client_id,
        position.stream_name,
        position.partition,
        position.idx,
        position.saved_us,
        lease.holder,
        lease.ttl_ms,
    ).select_from(joined)
    if by_client:
        statement = statement.where(position.client_id == bindparam("client_id"))
    if by_stream:
        statement = statement.where(position.stream_name == bindparam("stream_name"))
    if after and by_stream:
        # The comparison leaves out the stream, so that SQLite finds the first row of the page through the index by
        # stream.
        statement = statement.where(
            tuple_(position.client_id, position.partition)
            > tuple_(bindparam("after_client"), bindparam("after_partition"))
        )
    elif after:
        statement = statement.where(
            tuple_(position.client_id, position.stream_name, position.partition)
            > tuple_(bindparam("after_client"), bindparam("after_stream"), bindparam("after_partition"))
        )
    ordered = statement.order_by(position.client_id, position.stream_name, position.partition)
    return compiled(ordered.limit(bindparam("limit", type_=Integer)).offset(literal_column("0", Integer)))


_LISTS = {asked: _list_statement(*asked) for asked in product((False, True), repeat=3)}
