"""The table of saved indexes and the operation that reads and raises them. It knows nothing of streams' contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlalchemy import BigInteger, Column, Integer, String, Table, bindparam, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

from storage.contract import Operation, Session
from storage.schema import metadata

INDEX_MAX = 2**63 - 1
"""No stream has an index above this (SQLite's integers end here), so no position can be there either."""

saved_indexes = Table(
    "saved_indexes",
    metadata,
    Column("client_id", String, primary_key=True),
    Column("stream_name", String, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, nullable=False),
    Column("saved_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


def _compiled(statement: ClauseElement) -> str:
    """The statement as text with named parameters, made once; it runs on the driver connection."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


_insert = sqlite.insert(saved_indexes).values(
    client_id=bindparam("client_id"),
    stream_name=bindparam("stream_name"),
    partition=bindparam("partition"),
    idx=bindparam("idx"),
    saved_us=bindparam("saved_us"),
)
_CREATE = _compiled(_insert.on_conflict_do_nothing())
_RAISE = _compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={"idx": _insert.excluded.idx, "saved_us": _insert.excluded.saved_us},
        where=_insert.excluded.idx > saved_indexes.c.idx,
    )
)
_FIND = _compiled(
    select(saved_indexes.c.idx).where(
        saved_indexes.c.client_id == bindparam("client_id"),
        saved_indexes.c.stream_name == bindparam("stream_name"),
        saved_indexes.c.partition == bindparam("partition"),
    )
)
_COUNT = _compiled(select(func.count()).select_from(saved_indexes))

Key: TypeAlias = tuple[str, str, int]
"""client id, stream name, partition."""


class IndexRequests(Operation):
    """A run of requests, in order: each a key and the index to save, or None to get (and to create, with 0).

    `indexes` has the index of each get; a save leaves the larger of the old and the new one and has None there.
    """

    __slots__ = ("indexes", "now_us", "requests")

    def __init__(
        self,
        requests: Sequence[tuple[Key, int | None]],
        now_us: int,
        on_done: Callable[[IndexRequests], None],
    ) -> None:
        super().__init__(on_done)
        self.requests = requests
        self.now_us = now_us
        self.indexes: list[int | None] = []

    def apply(self, session: Session) -> None:
        execute = session.connection.execute
        self.indexes = []
        for (client_id, stream_name, partition), index in self.requests:
            key = {"client_id": client_id, "stream_name": stream_name, "partition": partition}
            if index is not None:
                execute(_RAISE, {**key, "idx": index, "saved_us": self.now_us})
                self.indexes.append(None)
                continue
            found = execute(_FIND, key).fetchone()
            if found is None:
                execute(_CREATE, {**key, "idx": 0, "saved_us": self.now_us})
            self.indexes.append(0 if found is None else found[0])
