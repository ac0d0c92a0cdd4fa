"""The statistics of a member, for the dashboard, the metrics and the command line. It counts nothing itself."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stream_node.fleet.cluster.hand_overs import HandOver
from stream_node.fleet.cluster.router import RouterStatistics
from stream_node.fleet.cluster.view import ClusterView, Shard, StoredMember


class PeerStatistics(msgspec.Struct, frozen=True):
    """One member of the cluster, as a member sees it; also that member itself. leaves: whether it gives its shards
    away. is_fenced: whether another member has taken its shards because it was silent: then it can write nothing more.
    silent_s: for how long it has not written that it lives. shards: how many it owns."""

    name: str
    address: str
    lives: bool
    leaves: bool
    is_fenced: bool
    silent_s: float
    shards: int


class MemberStatistics(msgspec.Struct, frozen=True):
    """The statistics of a member.

    shards: how many it serves. members: how many live. taken, given: the shards that it took and gave away since its
    start. fenced: the members that it has fenced. beats_failed: the beats that an unreachable or slow database made
    fail. peers: all members by name. owners: all shards with their owners and epochs, by number. unowned_s: by number,
    for how long each shard without an owner has had none. hand_overs: the latest first. moved: by reason, the shards
    with a new owner since the start of this member. is_fixed: whether each shard has its owner for good.
    """

    name: str
    shards: int
    members: int
    taken: int
    given: int
    fenced: int
    beats_failed: int
    router: RouterStatistics
    peers: tuple[PeerStatistics, ...]
    owners: tuple[Shard, ...]
    unowned_s: dict[int, float] = {}
    hand_overs: tuple[HandOver, ...] = ()
    moved: dict[str, int] = {}
    is_fixed: bool = False


def peer_statistics(
    view: ClusterView, members: Iterable[tuple[StoredMember, bool, float]]
) -> tuple[PeerStatistics, ...]:
    """Returns the statistics of members. members: each with whether it lives, and for how many seconds it is silent."""
    return tuple(
        PeerStatistics(
            member.name,
            member.address,
            lives,
            member.leaves,
            not member.token,
            silent_s,
            len(view.owned_by(member.name)),
        )
        for member, lives, silent_s in members
    )
