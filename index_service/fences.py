"""Copies the positions and fences of consumers to the node of a mirror (`node/index_fences/1`).

A fence is the number of a lease (`index_service.lease_storage`). A mirror that becomes a primary gives only fences that
are higher than all that its source can have given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from sqlalchemy import BigInteger, Integer, bindparam, literal_column, select, tuple_

import bare
from index_service import lease_storage
from index_service.extensions import MarkedPosition, PositionKey
from index_service.storage import REPLACE_OLDER, sealed_row
from ockam.protocol import Protocol
from stream_storage.contract import Session
from stream_storage.seal import check_sealed
from stream_storage.statement import compiled


# type StoredFence struct { client_id: str  partition: uint  fence: uint }
class StoredFence(msgspec.Struct, frozen=True):
    """The highest fence that was given for one partition of a stream, to members of one client id."""

    client_id: str
    partition: bare.UInt
    fence: bare.UInt


# type FencesRequest struct { request_id: uint  stream_name: str  after: optional<PositionKey>  limit: uint }
class FencesRequest(msgspec.Struct, frozen=True):
    """A request for a page of the fences of a stream, sorted by client and partition."""

    request_id: bare.UInt
    stream_name: str
    after: PositionKey | None  # the `following` of the previous page; None for the first page
    limit: bare.UInt  # the most fences of the page; the service can send fewer


# type FencesResponse struct { request_id: uint  fences: list<StoredFence>  following: optional<PositionKey> }
class FencesResponse(msgspec.Struct, frozen=True):
    """A page of fences."""

    request_id: bare.UInt
    fences: list[StoredFence]
    following: PositionKey | None  # where the next page begins; None after the last page


FENCES = Protocol("node/index_fences/1", FencesRequest, FencesResponse)

_fence = lease_storage.lease_fences.c
_LIST = compiled(
    select(*_fence)
    .where(
        _fence.stream_name == bindparam("stream_name"),
        tuple_(_fence.client_id, _fence.partition) > tuple_(bindparam("after_client"), bindparam("after_partition")),
    )
    .order_by(_fence.client_id, _fence.partition)
    .limit(bindparam("limit", type_=Integer))
    .offset(literal_column("0", BigInteger)),
    *("stream_name", "after_client", "after_partition", "limit"),
)
_EVERYTHING = 2**31 - 1


def copy_positions(
    session: Session,
    stream_name: str,
    positions: Sequence[MarkedPosition],
    fences: Sequence[StoredFence],
    created: Mapping[int, int],
    follows: Callable[[Session, int], bool],
) -> None:
    """Stores positions and fences of the source of a mirror.

    A position replaces an older position of the same consumer, even one with a higher index: an operator may have set
    the position back. A position beyond the last message of this node is stored as the index after that message, until
    further messages are copied: this node may get other messages there. A fence is never lowered.

    created: the creation time of each partition of the source whose messages this node has, in microseconds since 1970.
        Every other partition of this node keeps its positions and fences, because the source has other messages there.
    follows: returns whether the stream with this id is a mirror. A stream that was promoted after the source was asked
        keeps its positions and fences, too: it gives the indexes before such a position to new messages.
    """
    partitions = {each.partition for each in positions} | {each.partition for each in fences}
    streams = {partition: session.log.find_stream(stream_name, partition) for partition in sorted(partitions)}
    kept = {
        partition
        for partition, stream in streams.items()
        if stream is not None and (partition not in created or not follows(session, stream.stream_id))
    }
    for each in positions:
        if each.partition in kept:
            continue
        key, index = (each.client_id, stream_name, each.partition), each.index
        created_us, generation = each.created_us, each.generation or each.saved_us
        stream = streams[each.partition]
        # A position of the source's present stream, or of an unknown incarnation, becomes one of our present stream.
        if stream is not None and created_us in (0, created.get(each.partition)):
            created_us, index = stream.created_us, min(index, stream.next_index)
        session.execute(REPLACE_OLDER, sealed_row(key, index, each.saved_us, created_us, generation))
    known = {(row.client_id, row.partition): row.fence for row in list_fences(session, stream_name)}
    # A fence that is lower than the present one would let a former holder save.
    for fence in fences:
        if fence.partition not in kept and fence.fence > known.get((fence.client_id, fence.partition), -1):
            key = (fence.client_id, stream_name, fence.partition)
            session.execute(lease_storage.WRITE_FENCE, lease_storage.fence_row(key, fence.fence, None, 0))


def raise_fences(session: Session, stream_name: str, now_us: int) -> None:
    """Raises the fences of one stream above all that its source can have given.

    now_us: the present time in microseconds since 1970, which is above every fence: fences rise more slowly than time.
        New fences of all streams begin there, too.
    """
    # A lease that the source has given has no holder here.
    rows = [
        lease_storage.fence_row((each.client_id, stream_name, each.partition), max(each.fence + 1, now_us), None, 0)
        for each in list_fences(session, stream_name)
    ]
    session.execute_many(lease_storage.WRITE_FENCE, rows)
    lease_storage.raise_floor(session, now_us)


def list_fences(
    session: Session, stream_name: str, after: tuple[str, int] = ("", -1), limit: int = _EVERYTHING
) -> list[StoredFence]:
    """Returns the fences of a stream, sorted by client and partition. Raises DatabaseCorrupt."""
    found = []
    for row in session.execute(_LIST, (stream_name, *after, limit)).fetchall():
        check_sealed(lease_storage.lease_fences.name, row, lease_storage.FENCE_REMEDY)
        client_id, _, partition, fence, *_ = row
        found.append(StoredFence(client_id, partition, fence))
    return found
