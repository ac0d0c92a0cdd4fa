"""Lists saved positions page by page, each with the lease of its partition. It changes nothing."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from sqlalchemy import Integer, bindparam, literal_column, select, tuple_

from index_service.extensions import PositionsRequest
from index_service.lease_storage import lease_fences
from index_service.limits import INDEX_MAX
from index_service.storage import saved_indexes
from stream_storage.contract import Session
from stream_storage.statement import Statement, compiled


class PositionRow(NamedTuple):
    """A saved position together with the lease of its partition. `holder` is None if no member has the lease, and
    `ttl_ms` is None if the partition was never leased. `extensions.LoadedPosition` explains the other fields."""

    client_id: str
    stream_name: str
    partition: int
    next_index: int
    saved_us: int
    holder: str | None
    ttl_ms: int | None
    created_us: int
    generation: int


def list_positions(session: Session, request: PositionsRequest, limit: int) -> list[PositionRow]:
    """Returns a page of positions, sorted by client, stream and partition, and one more if more follow."""
    after, stream_name = request.after, request.stream_name
    after_partition = None if after is None else after.partition
    if after is not None and stream_name not in (None, after.stream_name):
        # Only one stream is listed, but `after` names another stream. The page begins with the same client if the
        # listed stream sorts after that stream, and with the next client if not.
        after_partition = -1 if stream_name > after.stream_name else INDEX_MAX
    found = session.execute(
        _LISTS[request.client_id is not None, request.stream_name is not None, after is not None],
        {
            "client_id": request.client_id,
            "stream_name": stream_name,
            "after_client": None if after is None else after.client_id,
            "after_stream": None if after is None else after.stream_name,
            "after_partition": after_partition,
            "limit": limit + 1,
        },
    )
    return [PositionRow(*row) for row in found]


def _list_statement(by_client: bool, by_stream: bool, after: bool) -> Statement:
    position, lease = saved_indexes.c, lease_fences.c
    joined = saved_indexes.outerjoin(
        lease_fences,
        (lease.client_id == position.client_id)
        & (lease.stream_name == position.stream_name)
        & (lease.partition == position.partition),
    )
    statement = select(
        *position["client_id", "stream_name", "partition", "idx", "saved_us"],
        *lease["holder", "ttl_ms"],
        *position["created_us", "generation"],
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
