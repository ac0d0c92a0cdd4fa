"""Carries out the gets and saves of clients in the table of positions (`index_service.storage`), and lists its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from sqlalchemy import Integer, bindparam, literal_column, select, tuple_

from index_service.extensions import LoadRequest, PositionsRequest
from index_service.lease_storage import Key, find_fences, lease_fences
from index_service.limits import INDEX_MAX
from index_service.storage import RAISE, REPLACE, StoredPosition, checked, find_positions, saved_indexes, sealed_row
from stream_storage.contract import Operation, Session
from stream_storage.errors import DatabaseCorrupt
from stream_storage.statement import Statement, compiled


class Access(NamedTuple):
    """One access to the table of positions: a get or a save."""

    key: Key
    save: int | None  # the index to save; None for a get, which creates a missing position with index 0
    answered: bool = False  # whether the client of a save expects an answer; a get always has one
    fence: int | None = None  # the number of the client's lease; None without a lease
    mark: PositionMark | None = None  # None for a get, or for a protocol without marks


class PositionMark(NamedTuple):
    """The incarnation of the stream (its creation time in microseconds since 1970; 0: unknown) and the generation of
    the position, as the consumer that saves knows them."""

    created_us: int
    generation: int


class IndexRequests(Operation):
    """Carries out many gets and saves in their order.

    A save never lowers a saved index. A save with a fence is refused if its fence is not the newest one of the
    partition. A save with a `PositionMark` is refused if the position is missing or has another generation. If the mark
    names another incarnation of the stream, the save replaces the position and changes its generation.

    indexes: for each request, the saved index after the request; None for a save whose client expects no answer.
    fenced, reset: the places of the refused saves in `requests`, counted from 0, by the reason.
    generations: the generations of the positions after the saves with a `PositionMark`, by the place in `requests`.
    """

    __slots__ = ("fenced", "generations", "indexes", "now_us", "requests", "reset")
    needs_little = True

    def __init__(
        self,
        requests: Sequence[Access],
        now_us: int,
        on_done: Callable[[IndexRequests], None],
    ) -> None:
        super().__init__(on_done)
        self.requests = requests
        self.now_us = now_us
        self.indexes: list[int | None] = []
        self.fenced: set[int] = set()
        self.reset: set[int] = set()
        self.generations: dict[int, int] = {}

    def apply(self, session: Session) -> None:
        # A storage operation can be applied a second time, and must then begin anew.
        self.indexes = []
        self.fenced, self.reset, self.generations = set(), set(), {}
        # Read what the requests need, in two statements. A plain save has no answer, so nothing is read for it alone.
        requests = self.requests
        fences = find_fences(session, _keys([each for each in requests if each.fence is not None]))
        rows = find_positions(session, _keys([each for each in requests if each.save is None or each.answered]))
        # Several requests can have the same key: a later one sees what the earlier ones have saved.
        changed: dict[Key, StoredPosition] = {}
        raised: dict[Key, int] = {}
        for place, access in enumerate(requests):
            key, index = access.key, access.save
            # With another fence, another member has the partition by now.
            fenced = access.fence is not None and fences[key] != access.fence
            if fenced:
                self.fenced.add(place)
            # A plain save, whose row was not read: the statement itself never lowers an index.
            if key not in rows:
                assert index is not None, "the row of a get was read"
                raised[key] = max(index, raised.get(key, index))
                self.indexes.append(None)
                continue
            # A later request with the same key goes on from the result of an earlier one.
            before = changed.get(key) or _find_valid(key, rows[key], index)
            after = before if fenced else self._after(place, access, before)
            if after is not None and after is not before:
                changed[key] = after
            shown = index is None or access.answered
            self.indexes.append((after.next_index if after is not None else 0) if shown else None)
        if changed:
            session.execute_many(REPLACE, [sealed_row(key, *position) for key, position in changed.items()])
        if raised:
            session.execute_many(
                RAISE, [sealed_row(key, index, self.now_us, 0, self.now_us) for key, index in raised.items()]
            )

    def _after(self, place: int, access: Access, before: StoredPosition | None) -> StoredPosition | None:
        """Applies one request to the stored position `before`, and returns the new one. None stands for no position.
        place: the place of the request in its batch."""
        index, mark = access.save, access.mark
        if mark is None:
            # A get creates a missing position, as the specification demands.
            if before is None:
                return StoredPosition(index or 0, self.now_us, 0, self.now_us)
            return before if index is None or index <= before.next_index else before.moved(index, self.now_us)
        # Somebody has set, deleted or made the position anew, and this consumer does not know it yet.
        if before is None or before.generation != mark.generation:
            self.reset.add(place)
            return before
        assert index is not None, "a request with a mark is a save"
        after = before
        if mark.created_us not in (0, before.created_us):
            # A position of an unknown incarnation belongs to the stream that existed when the position was saved.
            is_other = before.created_us != 0 or before.saved_us < mark.created_us
            generation = max(self.now_us, before.generation + 1) if is_other else before.generation
            after = StoredPosition(0 if is_other else before.next_index, self.now_us, mark.created_us, generation)
        # A save never lowers a position of the same incarnation.
        if index > after.next_index:
            after = after.moved(index, self.now_us)
        self.generations[place] = after.generation
        return after


def load_positions(session: Session, request: LoadRequest, now_us: int) -> list[StoredPosition | None]:
    """Returns the positions that a client asks for, in order; None for a missing position. With `creates`, missing
    positions are created with index 0. Raises DatabaseCorrupt."""
    keys = [(request.client_id, request.stream_name, partition) for partition in request.partitions]
    rows = find_positions(session, keys)
    found: list[StoredPosition | None] = []
    for key in keys:
        row = rows[key]
        position = None if row is None else checked(key, row)
        if position is None and request.creates:
            position = StoredPosition(0, now_us, 0, now_us)
            session.execute(REPLACE, sealed_row(key, *position))
        found.append(position)
    return found


def _keys(requests: Sequence[Access]) -> list[Key]:
    return list(dict.fromkeys(each.key for each in requests))


def _find_valid(key: Key, row: tuple[int, ...] | None, save: int | None) -> StoredPosition | None:
    """Returns the position of a stored row; None without a row, or if a higher index may replace a damaged row.
    Raises DatabaseCorrupt for any other damaged row."""
    if row is None:
        return None
    try:
        return checked(key, row)
    except DatabaseCorrupt:
        if save is None or save <= row[0]:
            raise
        return None


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
