"""The metrics of a node as a member of its cluster."""

from __future__ import annotations

from collections.abc import Callable

from cluster.member import MemberStatistics
from stream_node.metrics.family import Values, node_metric
from stream_node.metrics.snapshot import Snapshot


def _member(read: Callable[[MemberStatistics], Values]) -> Callable[[Snapshot], Values]:
    """Returns a function that reads one figure of the membership, if the node is in a cluster."""

    def values(snapshot: Snapshot) -> Values:
        found = snapshot.statistics.cluster
        return None if found is None else read(found)

    return values


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
