"""A cluster: several nodes, its members, that serve the streams of one database together.

Each stream belongs to a shard, and each shard has one owner among the members (`plan_machine`). A member that gets a
message for a stream of another one sends it there (`router`, `link`). The database keeps who is a member and who owns
what (`tables`), and lets no member write that another one has replaced (`storage.contract.Session.fence`).

- `ClusterMember` is the membership of one node: it beats, takes shards, gives them away, and leaves.
- `Router` tells which streams other members serve, and sends messages there.
- `ClusterWorker` takes the messages of other members, and tells clients about the cluster.
- `shard_of` computes the shard of a stream from its address.
"""

from cluster.hand_overs import HandOver
from cluster.member import ClusterMember, ShardServices
from cluster.router import Router, RouterStatistics
from cluster.shards import SHARDS, shard_of
from cluster.statistics import MemberStatistics, PeerStatistics
from cluster.view import Member, Shard, View
from cluster.worker import ClusterWorker

__all__ = [
    "SHARDS",
    "ClusterMember",
    "ClusterWorker",
    "HandOver",
    "Member",
    "MemberStatistics",
    "PeerStatistics",
    "Router",
    "RouterStatistics",
    "Shard",
    "ShardServices",
    "View",
    "shard_of",
]
