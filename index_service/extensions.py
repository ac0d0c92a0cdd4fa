"""The messages of our own protocols for the positions of consumers. The specification does not have them.

Clients send them to the index service:

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
    """A request to save a position. fence: the fence of the consumer's lease; None for a consumer without leases."""

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
    """The answer to a fenced save. index: the saved position now, which is the highest index ever saved."""

    request_id: bare.UInt
    status: SaveStatus
    index: bare.UInt


# type SavedPosition struct { client_id: str  stream_name: str  partition: uint  index: uint  saved_us: u64
#   holder: optional<str> }
class SavedPosition(msgspec.Struct, frozen=True):
    """The saved position of a consumer in one partition.

    index: the next index to read. saved_us: when it was saved, in microseconds since 1970. holder: the member that has
    the lease of the partition now, or None.
    """

    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    saved_us: bare.U64
    holder: str | None


# type PositionKey struct { client_id: str  stream_name: str  partition: uint }
class PositionKey(msgspec.Struct, frozen=True):
    """The key of a saved position: the consumer, the stream and the partition."""

    client_id: str
    stream_name: str
    partition: bare.UInt


# type PositionsRequest struct { request_id: uint  stream_name: optional<str>  client_id: optional<str>
#   after: optional<PositionKey>  limit: uint }
class PositionsRequest(msgspec.Struct, frozen=True):
    """A request for a page of saved positions: of one stream, of one client, of both, or of all.

    after: the last position of the page before; None for the first page. Positions are sorted by client, stream and
    partition.
    """

    request_id: bare.UInt
    stream_name: str | None
    client_id: str | None
    after: PositionKey | None
    limit: bare.UInt


# type PositionsResponse struct { request_id: uint  positions: list<SavedPosition>  more: bool }
class PositionsResponse(msgspec.Struct, frozen=True):
    """A page of saved positions. more: whether further positions follow."""

    request_id: bare.UInt
    positions: list[SavedPosition]
    more: bool


# type SetRequest struct { request_id: uint  key: PositionKey  index: optional<uint> }
class SetRequest(msgspec.Struct, frozen=True):
    """A request to set a position to any index, or to delete it (None). It is refused while a member has the lease."""

    request_id: bare.UInt
    key: PositionKey
    index: bare.UInt | None


# type SetResponse struct { request_id: uint  before: optional<uint> }
class SetResponse(msgspec.Struct, frozen=True):
    """The answer to a set request. before: the saved index before the change, or None if there was none."""

    request_id: bare.UInt
    before: bare.UInt | None


# type Lease struct { partition: uint  fence: uint }
class Lease(msgspec.Struct, frozen=True):
    """The right to process a partition. Each later holder gets a higher fence, even after a restart of the node."""

    partition: bare.UInt
    fence: bare.UInt


# type LeaseRequest struct { request_id: uint  client_id: str  stream_name: str  member_id: str  partitions: uint
#   holding: list<Lease>  leave: bool }
class LeaseRequest(msgspec.Struct, frozen=True):
    """A request of a member to join the group that shares a stream, to renew its leases, or to leave the group.

    A member must renew its leases at least every third of `ttl_ms`.

    request_id: rises with each request of a member. Only the answer to the latest request counts, and a request with a
    lower id has no effect. The same request may be sent again. member_id: used by only one process at a time.
    partitions: the number of partitions of the stream. holding: the leases that the member still processes. All its
    other leases end, whether or not the node asked for them with `release`.
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
"""The protocol of leases. All four protocols are our own; each is defined by its name, its request and its answer."""
