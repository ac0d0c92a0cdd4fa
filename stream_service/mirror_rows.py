"""The tables about mirrors. Each has a seal in every row.

    mirrors       which streams follow a source, and which primaries have a source to fence
    followers     where the mirrors of the streams of this node are: a primary that starts asks them whether one of them
                  has taken its place (`stream_node.fleet.mirror.followers`)
    promotions    at which addresses this node was reached while it promoted a stream: the source of a promoted stream
                  becomes a mirror of this node, at its address of that time. If the node starts again at another
                  address in the middle of the promotion, the table shows that the source follows this node.

Functions that write are called inside a transaction. Functions that read raise DatabaseCorrupt if a row is damaged.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Column, Integer, String, Table

from stream_service.role_machine import FOLLOWING, StreamRole
from stream_storage.contract import Session
from stream_storage.errors import StorageError
from stream_storage.schema import metadata
from stream_storage.seal import SealedRows, seal_column

FOLLOWERS_MAX = 8
"""The largest number of stored mirrors of one stream-partition. All of them are asked after a start."""
FORGET_S = 30 * 24 * 3600
"""The time, in seconds, after which a mirror that has not asked for messages is forgotten."""
ADDRESSES_MAX = 16
"""The largest number of addresses that one promotion keeps. Each needs a start of the node at a new address."""


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

_mirrors = SealedRows(mirrors, MirrorRow, "the row of the mirror with the stream id {} is not what was written")


def find_mirror(session: Session, stream_id: int) -> MirrorRow | None:
    """Returns the row of a stream; None if it follows no source and has none to fence."""
    return next(iter(_mirrors.of(session, stream_id)), None)


def list_mirrors(session: Session) -> dict[int, MirrorRow]:
    return {row.stream_id: row for row in _mirrors.all(session)}


def write_mirror(session: Session, row: MirrorRow) -> None:
    _mirrors.write(session, row.stream_id, [row])


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
    _mirrors.forget(session, stream_id)


class FollowerRow(msgspec.Struct, frozen=True):
    """One mirror of a stream of this node."""

    stream_id: int
    address: str  # the `host:port` of its node
    stream_name: str  # the name of the mirror on that node
    heard_us: int  # about when it has last asked for messages


followers = Table(
    "stream_followers",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("address", String, primary_key=True),
    Column("stream_name", String, primary_key=True),
    Column("heard_us", BigInteger, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)

_followers = SealedRows(followers, FollowerRow, "a row of the mirrors of stream {} is not what was written")


def list_followers(session: Session) -> dict[int, list[FollowerRow]]:
    """Returns the mirrors by the ids of their streams."""
    found: dict[int, list[FollowerRow]] = {}
    for row in _followers.all(session):
        found.setdefault(row.stream_id, []).append(row)
    return found


def note_follower(session: Session, row: FollowerRow) -> list[FollowerRow]:
    """Stores a mirror, and deletes the mirrors that were not heard of for FORGET_S, and the oldest above FOLLOWERS_MAX.
    Returns the remaining mirrors of the stream."""
    since_us = row.heard_us - FORGET_S * 1_000_000
    others = [
        each
        for each in _followers.of(session, row.stream_id)
        if (each.address, each.stream_name) != (row.address, row.stream_name) and each.heard_us > since_us
    ]
    others.sort(key=lambda each: each.heard_us, reverse=True)
    remaining = [row, *others[: FOLLOWERS_MAX - 1]]
    _followers.write(session, row.stream_id, remaining)
    return remaining


def drop_follower(session: Session, stream_id: int, address: str, stream_name: str) -> None:
    known = _followers.of(session, stream_id)
    others = [each for each in known if (each.address, each.stream_name) != (address, stream_name)]
    _followers.write(session, stream_id, others)


class PromotionRow(msgspec.Struct, frozen=True):
    """The addresses of this node during the promotion of a stream."""

    stream_id: int
    addresses: str  # the `host:port` of each address, the latest first, separated by spaces


promotions = Table(
    "stream_promotions",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("addresses", String, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)

_promotions = SealedRows(promotions, PromotionRow, "the addresses of the promotion of stream {} are not as written")


def list_addresses(session: Session, stream_id: int) -> list[str]:
    """Returns the addresses of this node during the promotion of a stream."""
    return [address for row in _promotions.of(session, stream_id) for address in row.addresses.split()]


def note_address(session: Session, stream_id: int, address: str) -> None:
    """Writes down at which address this node is reached now."""
    known = list_addresses(session, stream_id)
    if address not in known:
        _promotions.write(session, stream_id, [PromotionRow(stream_id, " ".join([address, *known][:ADDRESSES_MAX]))])


def forget_addresses(session: Session, stream_id: int) -> None:
    _promotions.forget(session, stream_id)


def forget_rows(session: Session, stream_id: int) -> None:
    """Deletes the rows of a stream that is being deleted."""
    for table in (_mirrors, _followers, _promotions):
        table.forget(session, stream_id)
