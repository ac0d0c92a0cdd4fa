"""Protocols of our own for consumers' positions, beyond the specification: sent to the index service.

`node/index_save/1` is a save that is answered, and refused from who has lost its lease; `node/index_list/1` shows who
consumes what; `node/index_set/1` is the operator's; `node/lease/1` shares the partitions of a stream among the members
of one client id. What cannot be served is answered with `error`. docs/wire.md describes them for others.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol


# type FencedSave struct { request_id: uint  client_id: str  stream_name: str  partition: uint  index: uint
#   fence: optional<uint> }
class FencedSave(msgspec.Struct, frozen=True):
    """fence: of the lease that this consumer believes to hold; None for a consumer that shares with nobody."""

    request_id: bare.UInt
    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    fence: bare.UInt | None


# type SaveStatus enum { OK FENCED }
class SaveStatus(enum.IntEnum):
    """FENCED: somebody else has the partition now; nothing was saved."""

    OK = 0
    FENCED = 1


# type SaveResponse struct { request_id: uint  status: SaveStatus  index: uint }
class SaveResponse(msgspec.Struct, frozen=True):
    """index: the one now kept, the highest ever saved."""

    request_id: bare.UInt
    status: SaveStatus
    index: bare.UInt


# type SavedPosition struct { client_id: str  stream_name: str  partition: uint  index: uint  saved_us: u64
#   holder: optional<str> }
class SavedPosition(msgspec.Struct, frozen=True):
    """One consumer's next index to read in one partition; holder: the member that has its lease now."""

    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    saved_us: bare.U64
    holder: str | None


# type PositionKey struct { client_id: str  stream_name: str  partition: uint }
class PositionKey(msgspec.Struct, frozen=True):
    client_id: str
    stream_name: str
    partition: bare.UInt


# type PositionsRequest struct { request_id: uint  stream_name: optional<str>  client_id: optional<str>
#   after: optional<PositionKey>  limit: uint }
class PositionsRequest(msgspec.Struct, frozen=True):
    """Saved positions of one stream, one client, both, or all; by client, stream and partition, beyond `after`."""

    request_id: bare.UInt
    stream_name: str | None
    client_id: str | None
    after: PositionKey | None
    limit: bare.UInt


# type PositionsResponse struct { request_id: uint  positions: list<SavedPosition>  more: bool }
class PositionsResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    positions: list[SavedPosition]
    more: bool


# type SetRequest struct { request_id: uint  key: PositionKey  index: optional<uint> }
class SetRequest(msgspec.Struct, frozen=True):
    """Set a position, also back; None deletes it. Refused with `error` while a member holds its lease."""

    request_id: bare.UInt
    key: PositionKey
    index: bare.UInt | None


# type SetResponse struct { request_id: uint  before: optional<uint> }
class SetResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    before: bare.UInt | None


# type Lease struct { partition: uint  fence: uint }
class Lease(msgspec.Struct, frozen=True):
    """The right to process a partition; a later holder has a higher fence, over restarts of the node too."""

    partition: bare.UInt
    fence: bare.UInt


# type LeaseRequest struct { request_id: uint  client_id: str  stream_name: str  member_id: str  partitions: uint
#   holding: list<Lease>  leave: bool }
class LeaseRequest(msgspec.Struct, frozen=True):
    """Join, renew (at least every third of the answer's `ttl_ms`) or leave the members that share a stream.

    request_id: rises with each request of a member; only what answers its latest one counts. A lower one is taken as
    overtaken and changes nothing; the same request may be sent again. member_id: of one process at a time.
    partitions: how many the stream has. holding: the leases this member still processes; one that it does not name is
    given up, asked back with `release` or not.
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
    """leases: what this member has until `ttl_ms` after it sent the request; release: partitions to give up soon, for
    others, still held until then. A lease of `holding` that is missing here has been lost: stop at once."""

    request_id: bare.UInt
    leases: list[Lease]
    release: list[bare.UInt]
    ttl_ms: bare.UInt
    members: bare.UInt


FENCED_SAVE = Protocol("node/index_save/1", FencedSave, SaveResponse)
POSITIONS = Protocol("node/index_list/1", PositionsRequest, PositionsResponse)
SET_POSITION = Protocol("node/index_set/1", SetRequest, SetResponse)
LEASE = Protocol("node/lease/1", LeaseRequest, LeaseResponse)
