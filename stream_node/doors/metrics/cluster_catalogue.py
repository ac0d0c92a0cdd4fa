"""The metrics of a node as a member of its cluster."""

from __future__ import annotations

from stream_node.doors.metrics.family import figures_of, node_metric
from stream_node.fleet.cluster.hand_overs import REASONS

_member = figures_of(lambda snapshot: snapshot.statistics.cluster)

CLUSTER = (
    node_metric(
        "cluster_members",
        "gauge",
        "The members of the cluster that live, as far as this node knows.",
        _member(lambda m: m.members),
    ),
    node_metric("cluster_shards", "gauge", "The shards that this node serves, of 256.", _member(lambda m: m.shards)),
    node_metric(
        "cluster_links",
        "gauge",
        "The members to which this node is connected.",
        _member(lambda m: m.router.links),
    ),
    node_metric(
        "cluster_messages_waiting",
        "gauge",
        "Messages that wait here until a member serves their shard.",
        _member(lambda m: m.router.waiting),
    ),
    node_metric(
        "cluster_shards_taken_total", "counter", "Shards that this node has taken.", _member(lambda m: m.taken)
    ),
    node_metric(
        "cluster_shards_given_total",
        "counter",
        "Shards that this node has given to other members.",
        _member(lambda m: m.given),
    ),
    node_metric(
        "cluster_owned_shards",
        "gauge",
        "The shards that each member owns, as this node knows it.",
        _member(lambda m: {peer.name: float(peer.shards) for peer in m.peers}),
        "member",
    ),
    node_metric(
        "cluster_unowned_shards", "gauge", "The shards that no member owns.", _member(lambda m: len(m.unowned_s))
    ),
    node_metric(
        "cluster_epochs",
        "gauge",
        "The sum of the epochs of all shards. It rises by one whenever a shard gets a new owner.",
        _member(lambda m: sum(each.epoch for each in m.owners)),
    ),
    node_metric(
        "cluster_shards_moved_total",
        "counter",
        "Shards that got a new owner, as this node has seen it: nobody owned them (free), the owner before was "
        "silent (fenced), stops or is drained (left), or the new one has joined (joined).",
        _member(lambda m: {str(reason): float(m.moved.get(reason, 0)) for reason in REASONS}),
        "reason",
    ),
    node_metric(
        "cluster_fenced_total",
        "counter",
        "Members that this node has fenced, because they did not write in time.",
        _member(lambda m: m.fenced),
    ),
    node_metric(
        "cluster_beats_failed_total",
        "counter",
        "Beats of this node that failed, because the database was not reached.",
        _member(lambda m: m.beats_failed),
    ),
    node_metric(
        "cluster_messages_sent_total",
        "counter",
        "Messages of clients that this node has sent to other members.",
        _member(lambda m: {name: float(count) for name, count in m.router.sent.items()}),
        "member",
    ),
)
