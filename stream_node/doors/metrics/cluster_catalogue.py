"""The metrics of a node as a member of its cluster."""

from __future__ import annotations

from stream_node.doors.metrics.family import Part
from stream_node.fleet.cluster.hand_overs import REASONS

_member = Part(lambda snapshot: snapshot.statistics.cluster)

CLUSTER = (
    _member.gauge(
        "cluster_members", lambda m: m.members, "The members of the cluster that live, as far as this node knows."
    ),
    _member.gauge("cluster_shards", lambda m: m.shards, "The shards that this node serves, of 256."),
    _member.gauge("cluster_links", lambda m: m.router.links, "The members to which this node is connected."),
    _member.gauge(
        "cluster_messages_waiting",
        lambda m: m.router.waiting,
        "Messages that wait here until a member serves their shard.",
    ),
    _member.counter("cluster_shards_taken_total", lambda m: m.taken, "Shards that this node has taken."),
    _member.counter(
        "cluster_shards_given_total", lambda m: m.given, "Shards that this node has given to other members."
    ),
    _member.gauge(
        "cluster_owned_shards",
        lambda m: {peer.name: float(peer.shards) for peer in m.peers},
        "The shards that each member owns, as this node knows it.",
        "member",
    ),
    _member.gauge("cluster_unowned_shards", lambda m: len(m.unowned_s), "The shards that no member owns."),
    _member.gauge(
        "cluster_epochs",
        lambda m: sum(each.epoch for each in m.owners),
        "The sum of the epochs of all shards. It rises by one whenever a shard gets a new owner.",
    ),
    _member.counter(
        "cluster_shards_moved_total",
        lambda m: {str(reason): float(m.moved.get(reason, 0)) for reason in REASONS},
        "Shards that got a new owner, as this node has seen it: nobody owned them (free), the owner before was "
        "silent (fenced), stops or is drained (left), or the new one has joined (joined).",
        "reason",
    ),
    _member.counter(
        "cluster_fenced_total",
        lambda m: m.fenced,
        "Members that this node has fenced, because they did not write in time.",
    ),
    _member.counter(
        "cluster_beats_failed_total",
        lambda m: m.beats_failed,
        "Beats of this node that failed, because the database was not reached.",
    ),
    _member.counter(
        "cluster_messages_sent_total",
        lambda m: {name: float(count) for name, count in m.router.sent.items()},
        "Messages of clients that this node has sent to other members.",
        "member",
    ),
)
