"""Reads and writes the table of fences. A fence is the number of a lease. Each new lease of a partition gets a higher
fence, which is on disk before a member gets the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, Column, Integer, String, Table, bindparam, delete, select
from sqlalchemy.schema import CreateTable

from index_service.lease_machine import StoredLease
from stream_storage.contract import Operation, Session
from stream_storage.schema import metadata
from stream_storage.seal import check_sealed, seal_column, seal_of
from stream_storage.statement import compiled, replacing, upsert

Key: TypeAlias = tuple[str, str, int]
"""The key of a position and of a fence: client id, stream name, partition."""

lease_fences = Table(
    "lease_fences",
    metadata,
    Column("client_id", String, primary_key=True),
    Column("stream_name", String, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, nullable=False),
    Column("holder", String),
    Column("ttl_ms", Integer, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""The table of fences: one row for each partition that members have leased, or had leased until recently.

fence: the highest fence given so far.
holder: the member that has the lease, or NULL.
ttl_ms: the time to live of the lease, in milliseconds: a holder can use it at most this long after a restart.

A row is only deleted in a transaction that raises the floor to its fence (`forget_leases`). Otherwise the fences of its
partition would begin at 1 again. Then a member that lost its lease long ago could save again with its old fence, as
soon as a new lease gets the same number.
"""

lease_floor = Table(
    "lease_floor", metadata, Column("fence", BigInteger, primary_key=True, autoincrement=False), seal_column()
)
"""A table whose highest row has the floor: each new fence is higher. There are two rows if two nodes of a cluster have
raised the floor at the same time, until the next raise. The deletion of fences raises the floor. So does a restore or a
repair, since a restored database does not contain the fences that were given after its backup."""

_insert = upsert(lease_fences)
WRITE_FENCE = compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={column: _insert.excluded[column] for column in ("fence", "holder", "ttl_ms", "seal")},
        where=_insert.excluded.fence >= lease_fences.c.fence,
    )
)
_of_group = (
    lease_fences.c.client_id == bindparam("client_id"),
    lease_fences.c.stream_name == bindparam("stream_name"),
)
_LOAD = compiled(
    select(*lease_fences.c["partition", "fence", "holder", "ttl_ms", "seal"])
    .where(*_of_group)
    .order_by(lease_fences.c.partition)
)
FLOOR = compiled(select(lease_floor.c.fence, lease_floor.c.seal).order_by(lease_floor.c.fence.desc()))
_FENCE = compiled(
    select(*lease_fences.c["fence", "holder", "ttl_ms", "seal"]).where(
        *_of_group, lease_fences.c.partition == bindparam("partition")
    )
)
_ALL = compiled(select(*lease_fences.c["client_id", "stream_name", "partition", "fence", "holder", "ttl_ms"]))
_SET_FLOOR = replacing(lease_floor, "fence")
_CLEAR_FLOORS = compiled(delete(lease_floor).where(lease_floor.c.fence < bindparam("fence")), "fence")
_FORGET = compiled(
    delete(lease_fences).where(
        *_of_group, lease_fences.c.holder.is_(None), lease_fences.c.fence <= bindparam("fence_max")
    ),
    *("client_id", "stream_name", "fence_max"),
)
_CREATE_TABLES = [compiled(CreateTable(table, if_not_exists=True)) for table in (lease_fences, lease_floor)]
FENCE_REMEDY = "run `stream-node verify`, then restore a backup: a fence that is too low lets a former holder save"
"""What an operator does if the row of a fence is damaged."""


class StoredLeases(NamedTuple):
    """The fences of one client id on one stream."""

    rows: list[StoredLease]
    floor: int  # each new fence must be higher
    ttl_ms_max: int  # the longest time to live among the rows that have a holder; 0 if no row has one


def load_leases(session: Session, client_id: str, stream_name: str) -> StoredLeases:
    found = session.execute(_LOAD, {"client_id": client_id, "stream_name": stream_name}).fetchall()
    for row in found:
        check_sealed(lease_fences.name, (client_id, stream_name, *row), FENCE_REMEDY)
    floor = session.execute(FLOOR).fetchone()
    if floor is not None:
        check_sealed(lease_floor.name, floor, FENCE_REMEDY)
    return StoredLeases(
        [StoredLease(partition, fence, holder) for partition, fence, holder, _, _ in found],
        0 if floor is None else int(floor[0]),
        max((ttl_ms for _, _, holder, ttl_ms, _ in found if holder is not None), default=0),
    )


def forget_leases(session: Session, client_id: str, stream_name: str, fence_max: int) -> None:
    """Deletes the rows of one client id on one stream that have no holder, and raises the floor to their fences.

    fence_max: a row with a higher fence stays. The floor is that of all groups, so one damaged or foreign row must not
        raise it without bound.
    """
    rows = load_leases(session, client_id, stream_name).rows
    fences = [row.fence for row in rows if row.holder is None and row.fence <= fence_max]
    if fences:
        raise_floor(session, max(fences))
        # A row that another node of the cluster has written meanwhile has a holder or a higher fence, and stays.
        session.execute(_FORGET, (client_id, stream_name, max(fences)))


class WriteLeases(Operation):
    """Writes rows of the table `lease_fences`, for one client id on one stream. Without rows, the operation writes
    nothing, but it still ends after all earlier writes.

    raised: after the operation, the fences in the database that are higher than those in `changes`, by partition. The
        rows of these partitions are not written. A mirror raises fences in the database when it copies those of its
        source (`index_service.fences.copy_positions`).
    """

    __slots__ = ("changes", "client_id", "raised", "stream_name", "ttl_ms")
    needs_little = True

    def __init__(
        self,
        client_id: str,
        stream_name: str,
        changes: Sequence[StoredLease],
        ttl_ms: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(on_done)
        self.client_id = client_id
        self.stream_name = stream_name
        self.changes = changes
        self.ttl_ms = ttl_ms
        self.raised: dict[int, int] = {}

    def apply(self, session: Session) -> None:
        self.raised = {}
        keys = [(self.client_id, self.stream_name, row.partition) for row in self.changes]
        rows = []
        for row, key, stored in zip(self.changes, keys, _find(session, keys), strict=True):
            if stored is None or stored[0] <= row.fence:
                rows.append(fence_row(key, row.fence, row.holder, self.ttl_ms))
            else:
                # A damaged row may be replaced, but a damaged fence must not become that of later leases.
                check_sealed(lease_fences.name, (*key, *stored), FENCE_REMEDY)
                self.raised[row.partition] = int(stored[0])
        session.execute_many(WRITE_FENCE, rows)


def fence_row(key: Key, fence: int, holder: str | None, ttl_ms: int) -> dict[str, Any]:
    """Returns a row of `lease_fences`, with its seal, as the parameters of WRITE_FENCE."""
    values = (*key, fence, holder, ttl_ms)
    return dict(zip(lease_fences.columns.keys(), (*values, seal_of(lease_fences.name, values)), strict=True))


def find_fences(session: Session, keys: Sequence[Key]) -> dict[Key, int | None]:
    """Returns the highest fence given for each partition; None if it was never leased. Raises DatabaseCorrupt."""
    fences: dict[Key, int | None] = dict.fromkeys(keys)
    for key, found in zip(keys, _find(session, keys), strict=True):
        if found is not None:
            check_sealed(lease_fences.name, (*key, *found), FENCE_REMEDY)
            fences[key] = int(found[0])
    return fences


def _find(session: Session, keys: Sequence[Key]) -> list[Any]:
    """Returns the row of each partition, without its key, or None. The seals are not compared."""
    asked = [{"client_id": client, "stream_name": stream, "partition": partition} for client, stream, partition in keys]
    return session.find_many(_FENCE, asked) if asked else []


def raise_fences(session: Session, floor: int) -> None:
    """Raises all stored fences, so that no member can save with a lease that it has now. New fences begin above
    `floor`.

    A restore or a repair of the database calls this function. The database must have the present schema version and no
    other user. Call it inside a transaction.
    """
    # Both tables may be missing in a database that never had a lease.
    for statement in _CREATE_TABLES:
        session.execute(statement)
    # The holder stays, so that no other member gets the partition before the time to live of the lease is over.
    rows = [
        fence_row((client_id, stream_name, partition), max(fence + 1, floor), holder, ttl_ms)
        for client_id, stream_name, partition, fence, holder, ttl_ms in session.execute(_ALL).fetchall()
    ]
    session.execute_many(WRITE_FENCE, rows)
    raise_floor(session, floor)


def raise_floor(session: Session, floor: int) -> None:
    """Raises the floor, above which all new fences are, unless it is higher already. Call it inside a transaction."""
    floor = max([floor, *(known for known, _ in session.execute(FLOOR))])
    # In the other order, two members of a cluster could each hold a row for which the other one waits.
    session.execute(_CLEAR_FLOORS, (floor,))
    session.execute(_SET_FLOOR, (floor, seal_of(lease_floor.name, (floor,))))
