"""The messages between the members of a cluster, and those that tell about the cluster (docs/wire.md).

A message that one member sends to another for a client has two hops more: MEMBER, and an envelope, whose value says for
which shard the message is and who its client is.
"""

from __future__ import annotations

from typing import Literal, cast

import msgspec

import bare
from ockam.actors.address import Address, local
from ockam.identity.identity import Identity, Source
from ockam.protocol import Protocol, ProtocolError

CLUSTER = local("cluster")
"""The address of the cluster worker of each member."""
MEMBER = local("cluster_member")
"""The first hop of each message that a member sends to another one for a client, and of its proof before these.

No worker has this address. `stream_node.fleet.cluster.router.Router` takes these messages at once, so that the
connection between the members waits for the mailboxes that get them."""


# type MemberEnvelope struct {
#   shard: uint, moves: uint, source: string, name: string, peer: string, frame_bytes_max: uint
# }
class MemberEnvelope(msgspec.Struct, frozen=True):
    """The data about a message that one member sends to another one."""

    shard: bare.UInt  # the shard for which the message is
    moves: bare.UInt  # how many members have passed the message on
    source: str  # with `name`, the identity that the client has proved
    name: str
    peer: str  # the `host:port` of the client
    frame_bytes_max: bare.UInt  # the largest frame that can carry an answer to the client, in bytes

    @property
    def identity(self) -> Identity:
        return Identity(cast(Source, self.source), self.name)


_encode = bare.Encoder(MemberEnvelope).encode
_decode = bare.Decoder(MemberEnvelope).decode


def envelope_hop(envelope: MemberEnvelope) -> Address:
    return local(_encode(envelope))


def read_envelope(hop: Address) -> MemberEnvelope:
    """Returns the envelope of a hop. Raises ProtocolError."""
    try:
        return _decode(hop.value)
    except bare.DecodeError as error:
        raise ProtocolError(f"an envelope of the cluster: {error}") from error


# type LinkRequest struct { name: string, nonce: data }
class LinkRequest(msgspec.Struct, frozen=True):
    """The first message of a member to another one. name: the member that has made the connection."""

    name: str
    nonce: bytes


# type LinkResponse struct { nonce: data, proof: data }
class LinkResponse(msgspec.Struct, frozen=True):
    nonce: bytes
    proof: bytes


# type ProveRequest struct { proof: data }
class ProveRequest(msgspec.Struct, frozen=True):
    proof: bytes


# type Nothing struct { nothing: bool }
class Nothing(msgspec.Struct, frozen=True):
    nothing: bool = False


# type Mark struct { id: u64, shard: uint }
class Mark(msgspec.Struct, frozen=True):
    """A message that the owner of a shard sends back when all messages before it have arrived."""

    id: bare.U64
    shard: bare.UInt


# type ClusterStatusRequest struct { request_id: uint }
class ClusterStatusRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt


# type MemberStatus struct { name: string, address: string, lives: bool, leaves: bool, shards: uint }
class MemberStatus(msgspec.Struct, frozen=True):
    """The state of one member."""

    name: str
    address: str
    lives: bool  # whether the member that answers counts this one as alive
    leaves: bool  # whether this one gives its shards away
    shards: bare.UInt


# type ShardStatus struct { owner: string, epoch: uint }
class ShardStatus(msgspec.Struct, frozen=True):
    owner: str
    epoch: bare.UInt


# type ClusterStatus struct { request_id: uint, name: string, members: list<MemberStatus>, shards: list<ShardStatus> }
class ClusterStatus(msgspec.Struct, frozen=True):
    """The state of a cluster. name: the member that answers. shards: all 256, in the order of their numbers."""

    request_id: bare.UInt
    name: str
    members: list[MemberStatus]
    shards: list[ShardStatus]


# type DrainRequest struct { request_id: uint, name: string, leaves: bool }
class DrainRequest(msgspec.Struct, frozen=True):
    """An operator's request that a member gives its shards away, or takes shards again."""

    request_id: bare.UInt
    name: str
    leaves: bool  # whether the member gives its shards away; False: it takes shards again


LINK = Protocol("node/cluster_link/1", LinkRequest, LinkResponse)
PROVE = Protocol("node/cluster_prove/1", ProveRequest, Nothing)
MARK = Protocol("node/cluster_mark/1", Mark, Mark)
STATUS = Protocol("node/cluster/1", ClusterStatusRequest, ClusterStatus)
DRAIN = Protocol("node/cluster_drain/1", DrainRequest, ClusterStatus)

Role = Literal[b"caller", b"called"]
