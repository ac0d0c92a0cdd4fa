"""The messages of this project's own protocols for the positions and leases of consumers. The specification lacks them.

- `node/index_load/1` reads the positions of a consumer, with the incarnation of the stream to which each belongs.
- `node/index_save/2` saves a position and gets an answer. The save is refused if the consumer has lost its lease, or if
  the position was changed by somebody else. Version 1 knows only leases.
- `node/index_list/2` lists positions, each with the holder of its lease. Version 1 omits the incarnation of the stream.
- `node/index_set/1` sets or deletes a position, for an operator.
- `node/lease/2` divides the partitions of a stream among the members of a group: the consumers with one client id. Its
  answer can wait until there is something to do for the member. Version 1 is answered at once.

A stream that was deleted and created again is another incarnation. If the service cannot serve a request, it answers
with `error`. docs/wire.md describes these protocols.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol


# type FencedSave struct { request_id: uint  client_id: str  stream_name: str  partition: uint  index: uint
#   fence: optional<uint> }
class FencedSave(msgspec.Struct, frozen=True):
    """A request to save a position. `fence`: the number of the consumer's lease; None for a consumer without leases."""

    request_id: bare.UInt
    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt
    fence: bare.UInt | None


# type SaveStatus enum { OK FENCED RESET }
class SaveStatus(enum.IntEnum):
    """The result of a FencedSave.

    OK: the position is saved, unless a higher position was saved before.
    FENCED: nothing was saved, because the fence of the request is not the newest one of the partition.
    RESET: nothing was saved, because the position was set, deleted or made anew after the consumer loaded it. Only a
        MarkedSave gets this answer. The consumer loads the position again.
    """

    OK = 0
    FENCED = 1
    RESET = 2


# type SaveResponse struct { request_id: uint  status: SaveStatus  index: uint }
class SaveResponse(msgspec.Struct, frozen=True):
    """The answer to a FencedSave. `index` is the position that is now stored. It can be higher than the index of the
    request; 0 if no position is stored."""

    request_id: bare.UInt
    status: SaveStatus
    index: bare.UInt


# type MarkedSave struct { request_id: uint  client_id: str  stream_name: str  partition: uint  index: uint
#   fence: optional<uint>  created_us: u64  generation: u64 }
class MarkedSave(FencedSave, frozen=True):
    """A FencedSave that says to which incarnation of the stream the position belongs.

    created_us: the creation time of the stream that the consumer reads, in microseconds since 1970; 0: unknown. If the
        stored position is of another incarnation, this save replaces it, also by a lower index.
    generation: the generation of the loaded position, or the one in the answer to the consumer's last save.
    """

    created_us: bare.U64
    generation: bare.U64


# type MarkedResponse struct { request_id: uint  status: SaveStatus  index: uint  generation: u64 }
class MarkedResponse(SaveResponse, frozen=True):
    """The answer to a MarkedSave. `generation`: the generation of the stored position after an OK; otherwise 0."""

    generation: bare.U64


LOAD_PARTITIONS_MAX = 1_000


# type LoadRequest struct { request_id: uint  client_id: str  stream_name: str  partitions: list<uint>  creates: bool }
class LoadRequest(msgspec.Struct, frozen=True):
    """A request for the positions of one client in some partitions of a stream. `creates` is whether a missing position
    is created, with index 0. A consumer that wants to save needs this."""

    request_id: bare.UInt
    client_id: str
    stream_name: str
    partitions: list[bare.UInt]
    creates: bool


# type LoadedPosition struct { index: uint  saved_us: u64  created_us: u64  generation: u64 }
class LoadedPosition(msgspec.Struct, frozen=True):
    """A position as a consumer loads it. Its times are in microseconds since 1970."""

    index: bare.UInt  # the next index that the consumer will read
    saved_us: bare.U64
    created_us: bare.U64  # the creation time of the position's stream; 0: unknown
    # changes when somebody sets the position, or when the position of another incarnation replaces it; it is then not
    # before `saved_us`, and a save keeps it
    generation: bare.U64


# type LoadResponse struct { request_id: uint  positions: list<optional<LoadedPosition>> }
class LoadResponse(msgspec.Struct, frozen=True):
    """The answer to a LoadRequest. `positions`: in the order of the request; None for a missing position."""

    request_id: bare.UInt
    positions: list[LoadedPosition | None]


# type SavedPosition struct { client_id: str  stream_name: str  partition: uint  index: uint  saved_us: u64
#   holder: optional<str> }
class SavedPosition(msgspec.Struct, frozen=True):
    """The saved position of a consumer in one partition: the next index that the consumer will read, when it was saved
    (microseconds since 1970), and the member that has the lease of the partition now, if one has it."""

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
    """A request for a page of saved positions, sorted by client, stream and partition."""

    request_id: bare.UInt
    stream_name: str | None  # list only the positions of this stream; None: of all
    client_id: str | None  # list only the positions of this client; None: of all
    after: PositionKey | None  # the last position of the previous page; None for the first page
    limit: bare.UInt  # the most positions of the page; the service can send fewer


# type PositionsResponse struct { request_id: uint  positions: list<SavedPosition>  more: bool }
class PositionsResponse(msgspec.Struct, frozen=True):
    """A page of saved positions. `more`: whether further positions follow after this page."""

    request_id: bare.UInt
    positions: list[SavedPosition]
    more: bool


# type MarkedPosition struct { client_id: str  stream_name: str  partition: uint  index: uint  saved_us: u64
#   holder: optional<str>  created_us: u64  generation: u64 }
class MarkedPosition(SavedPosition, frozen=True):
    """A SavedPosition with the incarnation of the stream to which it belongs. `LoadedPosition` describes the fields."""

    created_us: bare.U64
    generation: bare.U64


# type MarkedPositions struct { request_id: uint  positions: list<MarkedPosition>  more: bool }
class MarkedPositions(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    positions: list[MarkedPosition]
    more: bool


# type SetRequest struct { request_id: uint  key: PositionKey  index: optional<uint> }
class SetRequest(msgspec.Struct, frozen=True):
    """A request to set a position, even to a lower index, or to delete it. Refused while a member has the lease."""

    request_id: bare.UInt
    key: PositionKey
    index: bare.UInt | None


# type SetResponse struct { request_id: uint  before: optional<uint> }
class SetResponse(msgspec.Struct, frozen=True):
    """The answer to a SetRequest. `before` is the index that was saved before, or None if there was no position."""

    request_id: bare.UInt
    before: bare.UInt | None


# type Lease struct { partition: uint  fence: uint }
class Lease(msgspec.Struct, frozen=True):
    """The right of one member to process a partition. `fence`: the number of the lease, which is higher than that of
    every earlier lease of the partition, even after a restart of the node."""

    partition: bare.UInt
    fence: bare.UInt


# type LeaseRequest struct { request_id: uint  client_id: str  stream_name: str  member_id: str  partitions: uint
#   holding: list<Lease>  leave: bool }
class LeaseRequest(msgspec.Struct, frozen=True):
    """A member's request to join a group, to renew the member's leases, or to leave the group.

    A group is the consumers that share the partitions of a stream under one client id. A member must renew its leases
    at intervals of at most a third of `ttl_ms`, the time to live in the answer.

    request_id: a number that rises with each request of a member. The member must use only the answer to its latest
        request. A request with a lower id changes nothing. The same request can be sent again.
    holding: the leases of the partitions that the member still processes. The member gives up all its other leases,
        even if the node did not ask for them with `release`.
    """

    request_id: bare.UInt
    client_id: str
    stream_name: str
    member_id: str  # the name of the member; only one process must use it at a time
    partitions: bare.UInt  # of the stream
    holding: list[Lease]
    leave: bool


# type WaitingLeaseRequest struct { request_id: uint  client_id: str  stream_name: str  member_id: str  partitions: uint
#   holding: list<Lease>  leave: bool  wait_ms: uint }
class WaitingLeaseRequest(LeaseRequest, frozen=True):
    """A LeaseRequest whose answer can wait, so that a member learns at once which partitions it gets or should give up.

    wait_ms: how long the answer waits, in milliseconds. An answer does not wait if its leases differ from `holding`, or
        if it has a `release`. The service waits at most a third of `ttl_ms`. The leases are renewed when the request
        comes, not when it is answered. A later request of the member ends the wait of an earlier one without an answer.
    """

    wait_ms: bare.UInt


# type LeaseResponse struct { request_id: uint  leases: list<Lease>  release: list<uint>  ttl_ms: uint  members: uint }
class LeaseResponse(msgspec.Struct, frozen=True):
    """The answer to a LeaseRequest.

    leases: the leases that the member can use until `ttl_ms` after it sent the request. If a lease from `holding` of
        the request is missing here, the member has lost this lease and must stop processing the partition at once.
    release: the partitions that the member should give up soon, so that other members get them. Until the member gives
        them up, it keeps their leases.
    """

    request_id: bare.UInt
    leases: list[Lease]
    release: list[bare.UInt]
    ttl_ms: bare.UInt  # the time to live of a lease
    members: bare.UInt  # the number of members of the group


LOAD_POSITIONS = Protocol("node/index_load/1", LoadRequest, LoadResponse)
FENCED_SAVE = Protocol("node/index_save/1", FencedSave, SaveResponse)
MARKED_SAVE = Protocol("node/index_save/2", MarkedSave, MarkedResponse)
POSITIONS = Protocol("node/index_list/1", PositionsRequest, PositionsResponse)
MARKED_POSITIONS = Protocol("node/index_list/2", PositionsRequest, MarkedPositions)
SET_POSITION = Protocol("node/index_set/1", SetRequest, SetResponse)
LEASE = Protocol("node/lease/1", LeaseRequest, LeaseResponse)
WAITING_LEASE = Protocol("node/lease/2", WaitingLeaseRequest, LeaseResponse)


def lease_payload(request: LeaseRequest, response: LeaseResponse) -> bytes:
    """Encodes the answer to a request, in the protocol of the request."""
    protocol = WAITING_LEASE if isinstance(request, WaitingLeaseRequest) else LEASE
    return protocol.encode_response(response)


def leave_payload(request: LeaseRequest) -> bytes:
    """Encodes the request by which the member of `request` leaves its group, with the number of that request."""
    leave = LeaseRequest(
        request.request_id, request.client_id, request.stream_name, request.member_id, request.partitions, [], True
    )
    return LEASE.encode_request(leave)
