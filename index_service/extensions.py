"""Protocols of our own for the positions of consumers, beyond the specification. Their address is the index service.

- `node/index_save/1` saves a position with an answer. A member that has lost its lease is refused.
- `node/index_list/1` lists positions and the members that hold them.
- `node/index_set/1` sets or deletes a position, for an operator.
- `node/lease/1` shares the partitions of a stream among the members of one client id.

A request that cannot be served is answered with `error`. docs/wire.md describes these protocols for other clients.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol


# type FencedSave struct { request_id: uint  client_id: str  stream_name: str  partition: uint  index: uint
#   fence: optional<uint> }
class FencedSave(msgspec.Struct, frozen=True):
    """Save a position. fence: the fence of the lease that the consumer has; None for a consumer without leases."""

    request_id: bare.UInt
    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    fence: bare.UInt | None


# type SaveStatus enum { OK FENCED }
class SaveStatus(enum.IntEnum):
    """The result of a fenced save. FENCED: another member has had the partition since; nothing was saved."""

    OK = 0
    FENCED = 1


# type SaveResponse struct { request_id: uint  status: SaveStatus  index: uint }
class SaveResponse(msgspec.Struct, frozen=True):
    """The answer to a fenced save. index: the index that is kept now, the highest ever saved."""

    request_id: bare.UInt
    status: SaveStatus
    index: bare.UInt


# type SavedPosition struct { client_id: str  stream_name: str  partition: uint  index: uint  saved_us: u64
#   holder: optional<str> }
class SavedPosition(msgspec.Struct, frozen=True):
    """The position of a consumer in one partition. holder: the member that has its lease now, or None."""

    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    saved_us: bare.U64
    holder: str | None


# type PositionKey struct { client_id: str  stream_name: str  partition: uint }
class PositionKey(msgspec.Struct, frozen=True):
    """The key of a position."""

    client_id: str
    stream_name: str
    partition: bare.UInt


# type PositionsRequest struct { request_id: uint  stream_name: optional<str>  client_id: optional<str>
#   after: optional<PositionKey>  limit: uint }
class PositionsRequest(msgspec.Struct, frozen=True):
    """Ask for saved positions: of one stream, of one client, of both, or all.

    They are ordered by client, stream and partition, and begin behind `after`.
    """

    request_id: bare.UInt
    stream_name: str | None
    client_id: str | None
    after: PositionKey | None
    limit: bare.UInt


# type PositionsResponse struct { request_id: uint  positions: list<SavedPosition>  more: bool }
class PositionsResponse(msgspec.Struct, frozen=True):
    """A page of positions. more: whether others follow."""

    request_id: bare.UInt
    positions: list[SavedPosition]
    more: bool


# type SetRequest struct { request_id: uint  key: PositionKey  index: optional<uint> }
class SetRequest(msgspec.Struct, frozen=True):
    """Set a position, forwards or backwards; None deletes it. Refused with `error` while a member has its lease."""

    request_id: bare.UInt
    key: PositionKey
    index: bare.UInt | None


# type SetResponse struct { request_id: uint  before: optional<uint> }
class SetResponse(msgspec.Struct, frozen=True):
    """The answer to a set. before: the index that was kept before, or None."""

    request_id: bare.UInt
    before: bare.UInt | None


# type Lease struct { partition: uint  fence: uint }
class Lease(msgspec.Struct, frozen=True):
    """The right to process a partition. A later holder has a higher fence, also after a restart of the node."""

    partition: bare.UInt
    fence: bare.UInt


# type LeaseRequest struct { request_id: uint  client_id: str  stream_name: str  member_id: str  partitions: uint
#   holding: list<Lease>  leave: bool }
class LeaseRequest(msgspec.Struct, frozen=True):
    """Join the members that share a stream, renew the leases, or leave.

    A member renews its leases at least every third of `ttl_ms`.

    request_id: rises with each request of a member; only the answer
    to the latest one counts. A request with a lower id changes nothing. The same request may be sent again. member_id:
    belongs to one process at a time. partitions: how many the stream has. holding: the leases that the member still
    processes. A lease that it does not name is given up, whether or not the node asked for it with `release`.
    """

    request_id: bare.UInt
    client_id: str
    stream_name: str
    member_id: str
    partitions: bare.UInt
    holding: list[Lease]
    leave: bool


# type LeaseResponse struct { request_id: uint  leases: list<Lease>  release: list<uint>  ttl_ms: uint  members: uint }
class LeaseResponse(msgspec.Struct, frozen=True):
    """The answer to a lease request.

    leases: the leases that the member has until `ttl_ms` after it sent the request. A lease of `holding` that is
    missing here is lost, and the member must stop processing at once. release: partitions to give up soon, for other
    members; the member holds them until it does.
    """

    request_id: bare.UInt
    leases: list[Lease]
    release: list[bare.UInt]
    ttl_ms: bare.UInt
    members: bare.UInt


FENCED_SAVE = Protocol("node/index_save/1", FencedSave, SaveResponse)
POSITIONS = Protocol("node/index_list/1", PositionsRequest, PositionsResponse)
SET_POSITION = Protocol("node/index_set/1", SetRequest, SetResponse)
LEASE = Protocol("node/lease/1", LeaseRequest, LeaseResponse)
"""The protocols of our own, each with its request and its answer."""
