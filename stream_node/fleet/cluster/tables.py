"""The tables of a cluster, and the operations on them. Every member reads both tables at each of its beats.
Beats, moves and leaving name the values that they expect, and change nothing if the tables have others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    literal_column,
    select,
    update,
)

from stream_node.fleet.cluster.view import SHARDS, ClusterView, Shard, StoredMember
from stream_storage.contract import Session
from stream_storage.errors import MemberFenced
from stream_storage.statement import compiled, upsert

T = TypeVar("T")

metadata = MetaData()
"""The tables of a cluster. They are not in `stream_storage.schema.metadata`: a database file has no members."""

cluster_members = Table(
    "cluster_members",
    metadata,
    Column("name", String, primary_key=True),
    Column("address", String, nullable=False),
    Column("token", String, nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("leaves", Integer, nullable=False),
)
cluster_shards = Table(
    "cluster_shards",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)
TABLES: Final = (cluster_members, cluster_shards)

_zero: ColumnElement[int] = literal_column("0")
_one: ColumnElement[int] = literal_column("1")
_nobody: ColumnElement[str] = literal_column("''")

_join = upsert(cluster_members).values(
    name=bindparam("name"), address=bindparam("address"), token=bindparam("token"), beats=_zero, leaves=_zero
)
_JOIN = compiled(
    _join.on_conflict_do_update(
        index_elements=["name"],
        set_={column: _join.excluded[column] for column in ("address", "token", "beats", "leaves")},
    )
)
_ADD_SHARD = compiled(
    upsert(cluster_shards).values(shard=bindparam("shard"), owner=_nobody, epoch=_zero).on_conflict_do_nothing()
)
_FIND_SHARD = compiled(select(cluster_shards.c.shard).where(cluster_shards.c.shard == bindparam("shard")))
_of_process = (cluster_members.c.name == bindparam("of_name"), cluster_members.c.token == bindparam("of_token"))
_BEAT = compiled(update(cluster_members).where(*_of_process).values(beats=cluster_members.c.beats + _one))
_LEAVE = compiled(update(cluster_members).where(cluster_members.c.name == bindparam("of_name")).values(leaves=_one))
_STAY = compiled(update(cluster_members).where(cluster_members.c.name == bindparam("of_name")).values(leaves=_zero))
_FENCE = compiled(update(cluster_members).where(*_of_process).values(token=_nobody))
_TOKEN = compiled(select(cluster_members.c.token).where(cluster_members.c.name == bindparam("of_name")))
_FORGET = compiled(delete(cluster_members).where(*_of_process))
_MEMBERS = compiled(select(cluster_members).order_by(cluster_members.c.name))
_SHARDS = compiled(select(cluster_shards).order_by(cluster_shards.c.shard))
_MOVE = compiled(
    update(cluster_shards)
    .where(cluster_shards.c.shard == bindparam("of_shard"), cluster_shards.c.owner == bindparam("of_owner"))
    .values(owner=bindparam("owner"), epoch=cluster_shards.c.epoch + _one)
)
_LET_GO = compiled(
    update(cluster_shards)
    .where(cluster_shards.c.owner == bindparam("of_owner"))
    .values(owner=_nobody, epoch=cluster_shards.c.epoch + _one)
)


def with_view(work: Callable[[Session], T], session: Session) -> tuple[T, ClusterView]:
    """Calls a function below, which changes the tables. Also returns the content of the tables after the change."""
    result = work(session)
    members = [
        StoredMember(name, address, token, beats, bool(leaves))
        for name, address, token, beats, leaves in session.execute(_MEMBERS, {})
    ]
    shards = tuple(Shard(owner, epoch) for _, owner, epoch in session.execute(_SHARDS, {}))
    return result, ClusterView({member.name: member for member in members}, shards)


def join(session: Session, name: str, address: str, token: str) -> None:
    """Makes this process the member of a name, in place of an earlier process of that name, whose shards it keeps."""
    # The first member of a cluster adds the shards.
    if session.execute(_FIND_SHARD, {"shard": SHARDS - 1}).fetchone() is None:
        session.execute_many(_ADD_SHARD, [{"shard": shard} for shard in range(SHARDS)])
    session.execute(_JOIN, {"name": name, "address": address, "token": token})


def beat(session: Session, name: str, token: str) -> None:
    """Stores that this process lives. Raises MemberFenced if another one has taken its name."""
    if session.execute(_BEAT, {"of_name": name, "of_token": token}).rowcount != 1:
        raise MemberFenced


def move_shards(session: Session, owner: str, moves: Sequence[tuple[int, str]], fences: Mapping[str, str]) -> list[str]:
    """Gives shards a new owner. moves: each shard with its owner before; a shard of another owner is left out.
    Owners that do not live are fenced first, so that they can never write again. fences: their tokens by owner.
    Returns the names of the owners that this operation has fenced."""
    # A member that is frozen in the middle of a COPY keeps its locks, for which the next statements would wait.
    for token in filter(None, fences.values()):
        session.disconnect(token)
    fenced: list[str] = []
    # The row of the member shows whether the silent process is still the member. If another process has its place, that
    # process keeps the shards.
    gone = {name for name, token in fences.items() if _is_fenced(session, name, token, fenced)}
    rows = [
        {"of_shard": shard, "of_owner": before, "owner": owner}
        for shard, before in moves
        if before not in fences or before in gone
    ]
    session.execute_many(_MOVE, rows)
    return fenced


def _is_fenced(session: Session, name: str, token: str, fenced: list[str]) -> bool:
    if token and session.execute(_FENCE, {"of_name": name, "of_token": token}).rowcount == 1:
        session.fence(token)
        fenced.append(name)
        return True
    row = session.execute(_TOKEN, {"of_name": name}).fetchone()
    # Another member has fenced this member before.
    return row is None or row[0] == ""


def set_leaving(session: Session, name: str, leaves: bool) -> None:
    session.execute(_LEAVE if leaves else _STAY, {"of_name": name})


def leave(session: Session, name: str, token: str) -> None:
    """Ends the membership of this process. The shards that it still owns have no owner after that."""
    if session.execute(_FORGET, {"of_name": name, "of_token": token}).rowcount == 1:
        session.execute(_LET_GO, {"of_owner": name})
