"""The table of mirrors: which streams follow a source, and which primaries have a source to fence.

Functions that write are called inside a transaction. Functions that read raise DatabaseCorrupt if a row is damaged.
"""

from __future__ import annotations

import enum

import msgspec
from sqlalchemy import BigInteger, Column, Integer, String, Table, bindparam, delete, insert, select

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, StorageError, corrupt_text
from stream_storage.schema import metadata
from stream_storage.seal import is_sealed, seal_column, seal_of
from stream_storage.statement import compiled


class Task(enum.IntEnum):
    """What the node does for a stream of this table."""

    FOLLOW = 1  # the stream is a mirror and follows its source
    FENCE = 2  # it was a mirror and is a primary now; the node makes its former source a mirror
    PROMOTE = 4  # it follows and is being promoted, also after a start: its source may be a mirror already
    GIVE_BACK = 5  # it follows, and a promotion failed; its source becomes a primary again


FOLLOWING = frozenset({Task.FOLLOW, Task.PROMOTE, Task.GIVE_BACK})


class NoMirror(StorageError):
    """Error: a stream does not follow its source any more, or its task is not one that the change expects."""


class FenceUnfinished(StorageError):
    """Error: a primary does not become a mirror, because its former source is still to be fenced. Nobody else would do
    it, so the former source would take pushes when it returns."""


class MirrorRow(msgspec.Struct, frozen=True):
    """One row of the table of mirrors."""

    stream_id: int
    task: Task
    source: str  # the `host:port` of the source's node
    source_name: str
    sets_aside: bool = False  # whether messages that the source does not have may be moved to another stream
    source_next_index: int = 0  # that of the source, when the node last heard of it
    heard_us: int = 0  # when that was; 0: never
    aside_name: str = ""  # the stream to which such messages were moved
    aside_messages: int = 0  # their number; 0 with a name: they are being moved

    @property
    def follows(self) -> bool:
        return self.task in FOLLOWING

    def fences_another(self, source: str, source_name: str) -> bool:
        """Whether the stream has a former source to fence, and this is another one."""
        return self.task is Task.FENCE and (self.source, self.source_name) != (source, source_name)

    @property
    def source_role(self) -> int:
        """What the stream is for a mirror that asks, as a number of `stream_service.mirroring.SourceRole`."""
        return {Task.FOLLOW: 1, Task.FENCE: 2, Task.PROMOTE: 3, Task.GIVE_BACK: 3}[self.task]

    def find_refusal(self, name: str) -> str | None:
        """Returns the reason why the stream of this name takes no pushes; None if it takes them."""
        if not self.follows:
            return None
        return f"{name!r} is a mirror of {self.source_name!r} at {self.source}, and takes no messages; push them there"

    def fence_text(self) -> str:
        """Returns why an operator cannot make a primary with an unfinished fence a mirror."""
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

_COLUMNS = tuple(column.name for column in mirrors.columns)
_of_stream = mirrors.c.stream_id == bindparam("stream_id")
_FIND = compiled(select(*mirrors.columns).where(_of_stream), "stream_id")
_LIST = compiled(select(*mirrors.columns))
_DELETE = compiled(delete(mirrors).where(_of_stream), "stream_id")
_INSERT = compiled(insert(mirrors), *_COLUMNS)


def find_mirror(session: Session, stream_id: int) -> MirrorRow | None:
    """Returns the row of a stream; None if it neither follows nor fences."""
    row = session.execute(_FIND, (stream_id,)).fetchone()
    return None if row is None else _checked(row)


def list_mirrors(session: Session) -> dict[int, MirrorRow]:
    rows = map(_checked, session.execute(_LIST).fetchall())
    return {row.stream_id: row for row in rows}


def write_mirror(session: Session, row: MirrorRow) -> None:
    values = (
        row.stream_id,
        int(row.task),
        row.source,
        row.source_name,
        int(row.sets_aside),
        row.source_next_index,
        row.heard_us,
        row.aside_name,
        row.aside_messages,
    )
    session.execute(_DELETE, (row.stream_id,))
    session.execute(_INSERT, (*values, seal_of(mirrors.name, values)))


def change_following(session: Session, stream_id: int, **changes: object) -> MirrorRow:
    """Changes and returns the row of a stream that follows, as it is now. Raises NoMirror.

    Since the caller has last seen the row, an operator may have begun a promotion, or ended it.
    """
    row = find_mirror(session, stream_id)
    if row is None or not row.follows:
        raise NoMirror("the stream is no mirror any more")
    changed = msgspec.structs.replace(row, **changes)
    if changed != row:
        write_mirror(session, changed)
    return changed


def forget_mirror(session: Session, stream_id: int) -> None:
    session.execute(_DELETE, (stream_id,))


def _checked(row: tuple[object, ...]) -> MirrorRow:
    if not is_sealed(mirrors.name, _COLUMNS[:-1], row):
        raise DatabaseCorrupt(
            corrupt_text(f"the row of the mirror with the stream id {row[0]} is not what was written")
        )
    stream_id, task, source, source_name, sets_aside, source_next_index, heard_us, aside_name, aside_messages, _ = row
    known = {"source_next_index": source_next_index, "heard_us": heard_us}
    aside = {"aside_name": aside_name, "aside_messages": aside_messages}
    values = {"stream_id": stream_id, "source": source, "source_name": source_name, **known, **aside}
    return msgspec.convert({**values, "task": task, "sets_aside": bool(sets_aside)}, MirrorRow)
