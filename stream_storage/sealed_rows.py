"""SealedRows: reads and writes the sealed rows of a table whose key begins with the id of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Table, bindparam, delete, insert, select

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.seal import is_sealed, seal_of
from stream_storage.statement import compiled

RowT = TypeVar("RowT", bound=msgspec.Struct)


class SealedRows(Generic[RowT]):
    """The rows of one table, as structs. Functions that write are called in a transaction.

    row: the struct, with a field for each column but the seal, in the order of the table.
    damaged: the text about a damaged row, with the id of its stream in the braces."""

    def __init__(self, table: Table, row: type[RowT], damaged: str) -> None:
        of_stream = table.c.stream_id == bindparam("stream_id")
        rows = select(*table.columns).order_by(*table.primary_key.columns)
        self._name, self._row, self._damaged = table.name, row, damaged
        self._columns = tuple(column.name for column in table.columns)
        self._all = compiled(rows)
        self._of_stream = compiled(rows.where(of_stream), "stream_id")
        self._delete = compiled(delete(table).where(of_stream), "stream_id")
        self._insert = compiled(insert(table), *self._columns)

    def all(self, session: Session) -> list[RowT]:
        """Returns the rows of all streams, in the order of their keys. Raises DatabaseCorrupt."""
        return [self._checked(row) for row in session.execute(self._all).fetchall()]

    def of(self, session: Session, stream_id: int) -> list[RowT]:
        """Returns the rows of one stream, in the order of their keys. Raises DatabaseCorrupt."""
        return [self._checked(row) for row in session.execute(self._of_stream, (stream_id,)).fetchall()]

    def write(self, session: Session, stream_id: int, rows: Iterable[RowT]) -> None:
        """Replaces all rows of a stream."""
        self.forget(session, stream_id)
        # Members of enumerations and booleans are stored, and sealed, as numbers.
        made = map(msgspec.structs.astuple, rows)
        values = [[int(value) if isinstance(value, int) else value for value in row] for row in made]
        session.execute_many(self._insert, [(*each, seal_of(self._name, each)) for each in values])

    def forget(self, session: Session, stream_id: int) -> None:
        session.execute(self._delete, (stream_id,))

    def _checked(self, values: tuple[Any, ...]) -> RowT:
        if not is_sealed(self._name, self._columns[:-1], values):
            raise DatabaseCorrupt(corrupt_text(self._damaged.format(values[0])))
        fields = dict(zip(self._row.__struct_fields__, values[:-1], strict=True))
        return msgspec.convert(fields, self._row, strict=False)
