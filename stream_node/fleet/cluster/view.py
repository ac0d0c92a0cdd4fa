"""ClusterView: what one member has read about its cluster in the database."""

from __future__ import annotations

import msgspec

UNOWNED = ""
"""The owner of a shard that no member owns."""


class StoredMember(msgspec.Struct, frozen=True):
    """A member of the cluster, as the database has it.
    address: the `host:port` at which the other members reach it. token: a random text that stands for its process;
    empty if the member was fenced. beats: how often it has written that it lives. leaves: it gives its shards away."""

    name: str
    address: str
    token: str
    beats: int
    leaves: bool


class Shard(msgspec.Struct, frozen=True):
    """A shard, as the database has it. owner: the name of a member, or UNOWNED. epoch: rises with every new owner."""

    owner: str
    epoch: int


class ClusterView(msgspec.Struct, frozen=True):
    members: dict[str, StoredMember]
    shards: tuple[Shard, ...]

    def owned_by(self, name: str) -> list[int]:
        return [number for number, shard in enumerate(self.shards) if shard.owner == name]
