"""ClusterView: what one member has read about its cluster in the database."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec

from ockam.actors.address import Address
from stream_service.names import ADDRESS_PREFIX

UNOWNED = ""
"""The owner of a shard that no member owns."""


class StoredMember(msgspec.Struct, frozen=True):
    """A member of the cluster, as the database has it."""

    name: str
    address: str  # the `host:port` at which the other members reach it
    token: str  # a random text that stands for its process; empty if it was fenced
    beats: int  # how often it has written that it lives
    leaves: bool  # whether it gives its shards away


class Shard(msgspec.Struct, frozen=True):
    """A shard, as the database has it. owner: the name of a member, or UNOWNED. epoch: rises with every new owner."""

    owner: str
    epoch: int


class ClusterView(msgspec.Struct, frozen=True):
    members: dict[str, StoredMember]
    shards: tuple[Shard, ...]

    def owned_by(self, name: str) -> list[int]:
        return [number for number, shard in enumerate(self.shards) if shard.owner == name]


SHARDS = 256
"""The number of shards. It never changes: every member computes the shard of a stream from its address."""
_PREFIX = ADDRESS_PREFIX.encode()
_BY_DIGITS = {b"%02x" % shard: shard for shard in range(SHARDS)}


def shard_of(stream: Address) -> int:
    """Returns the shard of a stream: the first two hexadecimal digits of the hash in its address."""
    return _BY_DIGITS[stream.value[len(_PREFIX) : len(_PREFIX) + 2]]


def find_shard(address: Address) -> int | None:
    if not address.value.startswith(_PREFIX):
        return None
    return _BY_DIGITS.get(address.value[len(_PREFIX) : len(_PREFIX) + 2])


def choose_owner(shard: int, members: Collection[str]) -> str | None:
    """Returns the member to which a shard belongs, or None if there are no members.
    Every member computes the same (rendezvous hashing). When a member comes or goes, only its own shards move."""
    return max(members, key=lambda name: hashlib.sha256(f"{shard}\0{name}".encode()).digest(), default=None)
