"""The table of mirrors: which streams follow a source, and which primaries have a source to fence.

Functions that write are called inside a transaction. Functions that read raise DatabaseCorrupt if a row is damaged.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Column, Integer, String, Table

from stream_service.role_machine import FOLLOWING, StreamRole
from stream_storage.contract import Session
from stream_storage.errors import StorageError
from stream_storage.schema import metadata
from stream_storage.seal import seal_column
from stream_storage.sealed_rows import SealedRows


class NoMirror(StorageError):
    """Error: a stream does not follow its source any more, or its role is not one that the change expects."""


class FenceUnfinished(StorageError):
    """Error: a primary cannot become a mirror before it has fenced its former source, that is, made it a mirror. Nobody
    else would fence the former source, and it would take pushes when it returns."""


class MirrorRow(msgspec.Struct, frozen=True):
    """One row of the table of mirrors."""

    stream_id: int
    role: StreamRole
    source: str  # the `host:port` of the source's node
    source_name: str
    sets_aside: bool = False  # whether messages that the source does not have may be moved to another stream
    source_next_index: int = 0  # the next index of the source, when the node last heard of the source
    heard_us: int = 0  # when the node last heard of the source; 0: never
    aside_name: str = ""  # the stream to which messages were moved that the source does not have
    aside_messages: int = 0  # the number of these messages; 0 with a name: they are being moved

    @property
    def follows(self) -> bool:
        return self.role in FOLLOWING

    def fences_another(self, source: str, source_name: str) -> bool:
        """Whether the stream has a former source to fence that is not the given source."""
        return self.role is StreamRole.FENCING and (self.source, self.source_name) != (source, source_name)

    def find_refusal(self, name: str) -> str | None:
        """Returns the reason why the stream of this name takes no pushes; None if it takes them."""
        if not self.follows:
            return None
        return f"{name!r} is a mirror of {self.source_name!r} at {self.source}, and takes no messages; push them there"

    def fence_text(self) -> str:
        """Returns why this primary cannot become a mirror: it has not fenced its former source yet."""
        return (
            f"has its former source {self.source_name!r} at {self.source} to fence, so it becomes no mirror before "
            "that is done; `mirror remove` gives the fence up"
        )


mirrors = Table(
    "stream_mirrors",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("task", Integer, nullable=False),
    Column("source", String, nullable=False),
    Column("source_name", String, nullable=False),
    Column("sets_aside", Integer, nullable=False),
    Column("source_next_index", BigInteger, nullable=False),
    Column("heard_us", BigInteger, nullable=False),
    Column("aside_name", String, nullable=False),
    Column("aside_messages", BigInteger, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)

_rows = SealedRows(mirrors, "the row of the mirror with the stream id {} is not what was written")


def find_mirror(session: Session, stream_id: int) -> MirrorRow | None:
    """Returns the row of a stream; None if it follows no source and has none to fence."""
    return next(map(_read, _rows.of(session, stream_id)), None)


def list_mirrors(session: Session) -> dict[int, MirrorRow]:
    rows = map(_read, _rows.all(session))
    return {row.stream_id: row for row in rows}


def write_mirror(session: Session, row: MirrorRow) -> None:
    stream_id, role, source, source_name, sets_aside, *known = msgspec.structs.astuple(row)
    _rows.write(session, stream_id, [(stream_id, int(role), source, source_name, int(sets_aside), *known)])


def change_following(session: Session, stream_id: int, **changes: object) -> MirrorRow:
    """Changes the row of a mirror and returns the changed row. Raises NoMirror if the stream is no mirror any more.

    The row is read here: an operator may have begun or ended a promotion since the caller has last seen the row.
    """
    row = find_mirror(session, stream_id)
    if row is None or not row.follows:
        raise NoMirror("the stream is no mirror any more")
    changed = msgspec.structs.replace(row, **changes)
    if changed != row:
        write_mirror(session, changed)
    return changed


def forget_mirror(session: Session, stream_id: int) -> None:
    _rows.forget(session, stream_id)


def _read(row: tuple[object, ...]) -> MirrorRow:
    values = dict(zip(MirrorRow.__struct_fields__, row, strict=True))
    return msgspec.convert({**values, "sets_aside": bool(values["sets_aside"])}, MirrorRow)
