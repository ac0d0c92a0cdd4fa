"""What `--json` of the commands `stream-node cluster` promises."""

from __future__ import annotations

import msgspec


class ClusterMember(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    address: str
    state: str
    shards: int


class ClusterShard(msgspec.Struct, forbid_unknown_fields=True):
    owner: str
    epoch: int


class ClusterStatus(msgspec.Struct, forbid_unknown_fields=True):
    asked: str
    members: list[ClusterMember]
    unowned: int
    shards: list[ClusterShard]


CLUSTER_SCHEMAS: dict[str, type[msgspec.Struct]] = {"cluster status": ClusterStatus, "cluster drain": ClusterStatus}
