"""Reads and writes the table of followers: where the mirrors of the streams of this node are.

A primary that starts asks its mirrors whether one of them has taken its place (`stream_node.fleet.mirror.followers`).
Functions that write are called inside a transaction. Functions that read a row raise DatabaseCorrupt if it is damaged.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Column, Integer, String, Table

from stream_storage.contract import Session
from stream_storage.schema import metadata
from stream_storage.seal import seal_column
from stream_storage.sealed_rows import SealedRows

FOLLOWERS_MAX = 8
"""The largest number of stored mirrors of one stream-partition. All of them are asked after a start."""
FORGET_S = 30 * 24 * 3600
"""The time, in seconds, after which a mirror that has not asked for messages is forgotten."""


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

_rows = SealedRows(followers, "a row of the mirrors of stream {} is not what was written")


def list_followers(session: Session) -> dict[int, list[FollowerRow]]:
    """Returns the mirrors by the ids of their streams."""
    found: dict[int, list[FollowerRow]] = {}
    for row in map(_read, _rows.all(session)):
        found.setdefault(row.stream_id, []).append(row)
    return found


def note_follower(session: Session, row: FollowerRow) -> list[FollowerRow]:
    """Stores a mirror, and deletes the mirrors that were not heard of for FORGET_S, and the oldest above FOLLOWERS_MAX.
    Returns the remaining mirrors of the stream."""
    known = map(_read, _rows.of(session, row.stream_id))
    since_us = row.heard_us - FORGET_S * 1_000_000
    others = [
        each
        for each in known
        if (each.address, each.stream_name) != (row.address, row.stream_name) and each.heard_us > since_us
    ]
    others.sort(key=lambda each: each.heard_us, reverse=True)
    return _set(session, row.stream_id, [row, *others[: FOLLOWERS_MAX - 1]])


def drop_follower(session: Session, stream_id: int, address: str, stream_name: str) -> None:
    known = map(_read, _rows.of(session, stream_id))
    _set(session, stream_id, [each for each in known if (each.address, each.stream_name) != (address, stream_name)])


def forget_followers(session: Session, stream_id: int) -> None:
    _rows.forget(session, stream_id)


def _set(session: Session, stream_id: int, rows: list[FollowerRow]) -> list[FollowerRow]:
    _rows.write(session, stream_id, map(msgspec.structs.astuple, rows))
    return rows


def _read(row: tuple[object, ...]) -> FollowerRow:
    return msgspec.convert(dict(zip(FollowerRow.__struct_fields__, row, strict=True)), FollowerRow)
