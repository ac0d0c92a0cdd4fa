"""Reads and writes the table of promotions: at which addresses this node was reached while it promoted a stream.

The source of a promoted stream becomes a mirror of this node, at its address of that time. If the node starts again at
another address in the middle of the promotion, it recognizes by this table that the source follows it and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Column, Integer, String, Table, bindparam, delete, insert, select

from stream_storage.contract import Operation, Session
from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.schema import metadata
from stream_storage.seal import is_sealed, seal_column, seal_of
from stream_storage.statement import compiled

ADDRESSES_MAX = 16
"""The largest number of addresses that one promotion keeps. Each needs a start of the node at a new address."""

promotions = Table(
    "stream_promotions",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("addresses", String, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""`addresses` has the `host:port` of each address of the node, the latest first, with a space between two."""

_COLUMNS = ("stream_id", "addresses")
_of_stream = promotions.c.stream_id == bindparam("stream_id")
_FIND = compiled(select(*promotions.columns).where(_of_stream), "stream_id")
_DELETE = compiled(delete(promotions).where(_of_stream), "stream_id")
_INSERT = compiled(insert(promotions), *(column.name for column in promotions.columns))


def list_addresses(session: Session, stream_id: int) -> list[str]:
    """Returns the addresses of this node during the promotion of a stream. Raises DatabaseCorrupt."""
    row = session.execute(_FIND, (stream_id,)).fetchone()
    if row is None:
        return []
    if not is_sealed(promotions.name, _COLUMNS, row):
        raise DatabaseCorrupt(corrupt_text(f"the addresses of the promotion of stream {stream_id} are not as written"))
    return msgspec.convert(row[1], str).split()


def note_address(session: Session, stream_id: int, address: str) -> None:
    """Writes down at which address this node is reached now, in a transaction. Raises DatabaseCorrupt."""
    known = list_addresses(session, stream_id)
    if address in known:
        return
    values = (stream_id, " ".join([address, *known][:ADDRESSES_MAX]))
    session.execute(_DELETE, (stream_id,))
    session.execute(_INSERT, (*values, seal_of(promotions.name, values)))


def forget_addresses(session: Session, stream_id: int) -> None:
    session.execute(_DELETE, (stream_id,))


class ListAddresses(Operation):
    """Reads the addresses of this node during the promotion of a stream. found: the addresses, after the operation."""

    __slots__ = ("found", "stream_id")

    def __init__(self, stream_id: int, on_done: Callable[[ListAddresses], None]) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.found: list[str] = []

    def apply(self, session: Session) -> None:
        self.found = list_addresses(session, self.stream_id)
