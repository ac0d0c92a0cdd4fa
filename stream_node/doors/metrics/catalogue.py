"""METRICS: the list of all metrics of a node. `tools/reference_metrics.py` makes `docs/metrics.md` from it."""

from __future__ import annotations

from collections.abc import Callable

from stream_node.doors.metrics.block_catalogue import BLOCK_METRICS
from stream_node.doors.metrics.cluster_catalogue import CLUSTER
from stream_node.doors.metrics.family import Metric, Values, node_metric
from stream_node.doors.metrics.mirror_catalogue import MIRROR_METRICS
from stream_node.doors.metrics.peer_catalogue import HTTP, PEERS, TRACES
from stream_node.doors.metrics.reading import ConsumerFigures, StreamFigures
from stream_node.doors.metrics.snapshot import Snapshot
from stream_node.doors.metrics.trouble_catalogue import TROUBLES


def _streams(read: Callable[[StreamFigures], float | None]) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> dict[str, float]:
        found = ((each.name, read(each)) for each in snapshot.streams)
        return {name: value for name, value in found if value is not None}

    return values


def _consumers(read: Callable[[ConsumerFigures, Snapshot], float | None]) -> Callable[[Snapshot], Values]:
    def values(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
        found = (((each.client_id, each.stream), read(each, snapshot)) for each in snapshot.consumers)
        return {names: value for names, value in found if value is not None}

    return values


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1e6


NODE = (
    node_metric("info", "gauge", "1, with the version of the program.", lambda s: {s.version: 1.0}, "version"),
    node_metric(
        "writing", "gauge", "1 while the writing thread writes; 0 after it has given up.", lambda s: s.is_writing
    ),
    node_metric("draining", "gauge", "1 while the node stops.", lambda s: s.condition.is_draining),
    node_metric("workers", "gauge", "Addresses of workers.", lambda s: s.statistics.node.workers),
    node_metric(
        "worker_restarts_total",
        "counter",
        "Crashes of workers, each with a restart.",
        lambda s: s.statistics.node.crashes,
    ),
    node_metric("messages_routed_total", "counter", "Messages put into mailboxes.", lambda s: s.statistics.node.routed),
    node_metric(
        "messages_dropped_total",
        "counter",
        "Messages that were not delivered.",
        lambda s: s.statistics.node.dropped,
        "reason",
    ),
    node_metric(
        "mailbox_messages",
        "gauge",
        "Messages that wait in the mailboxes of all workers.",
        lambda s: s.mailboxes.messages,
    ),
    node_metric("mailbox_bytes", "gauge", "Payloads of these messages.", lambda s: s.mailboxes.size_bytes),
    node_metric(
        "mailboxes_full",
        "gauge",
        "Full mailboxes; connections that feed them are not read.",
        lambda s: s.mailboxes.full,
    ),
)
STREAMS = (
    node_metric("pushes_total", "counter", "Pushes that were stored and confirmed.", lambda s: s.counters.pushes),
    node_metric(
        "push_bytes_total",
        "counter",
        "Data of pushes and copies that were handed to the disk.",
        lambda s: s.counters.push_bytes,
    ),
    node_metric(
        "pushes_failed_total", "counter", "Pushes that could not be stored.", lambda s: s.counters.pushes_failed
    ),
    node_metric(
        "confirm_seconds",
        "histogram",
        "Time from the arrival of the first push of a batch to the confirms after the sync, once for each push.",
        lambda s: s.counters.confirm_seconds,
    ),
    node_metric("pulls_total", "counter", "Answered pulls.", lambda s: s.counters.pages),
    node_metric("pulled_messages_total", "counter", "Messages in the answers to pulls.", lambda s: s.counters.pulled),
    node_metric("pulled_bytes_total", "counter", "Answers to pulls.", lambda s: s.counters.pulled_bytes),
    node_metric(
        "pulls_failed_total", "counter", "Pulls whose messages could not be read.", lambda s: s.counters.pulls_failed
    ),
    node_metric(
        "creates_failed_total", "counter", "Streams that could not be created.", lambda s: s.counters.creates_failed
    ),
    node_metric(
        "requests_refused_total", "counter", "Requests to streams that were not valid.", lambda s: s.counters.refused
    ),
    node_metric("partitions", "gauge", "Partitions of all streams.", lambda s: s.statistics.services.streams),
    node_metric(
        "retention_lag_seconds",
        "gauge",
        "For how long messages beyond a retention have been waiting to be deleted; 0 if there are none.",
        lambda s: s.counters.retention_lag_s(),
    ),
    node_metric(
        "stream_written_messages_total",
        "counter",
        "Messages ever stored in a stream.",
        _streams(lambda e: e.written),
        "stream",
    ),
    node_metric("stream_messages", "gauge", "Messages kept in a stream.", _streams(lambda e: e.messages), "stream"),
    node_metric("stream_bytes", "gauge", "Data kept in a stream.", _streams(lambda e: e.size_bytes), "stream"),
    node_metric("stream_partitions", "gauge", "Partitions of a stream.", _streams(lambda e: e.partitions), "stream"),
    node_metric(
        "stream_oldest_message_timestamp_seconds",
        "gauge",
        "Time of the oldest message that is kept.",
        _streams(lambda e: _seconds(e.oldest_us)),
        "stream",
    ),
)
CONSUMERS = (
    node_metric(
        "consumer_lag_messages",
        "gauge",
        "Messages after the saved positions of a consumer.",
        _consumers(lambda e, s: e.lag),
        "client",
        "stream",
    ),
    node_metric(
        "consumer_last_progress_timestamp_seconds",
        "gauge",
        "When a consumer saved a position last.",
        _consumers(lambda e, s: _seconds(e.saved_us)),
        "client",
        "stream",
    ),
    node_metric("positions_saved_total", "counter", "Saved positions.", lambda s: s.statistics.services.index.saves),
    node_metric(
        "positions_read_total", "counter", "Requests for a position.", lambda s: s.statistics.services.index.gets
    ),
    node_metric(
        "positions_refused_total",
        "counter",
        "Requests about positions and leases that were not valid.",
        lambda s: s.statistics.services.index.refused,
    ),
    node_metric(
        "positions_fenced_total",
        "counter",
        "Positions refused for an old lease.",
        lambda s: s.statistics.services.index.fenced,
    ),
    node_metric(
        "lease_groups", "gauge", "Groups of consumers in memory.", lambda s: s.statistics.services.index.leases.groups
    ),
    node_metric(
        "lease_members", "gauge", "Members of these groups.", lambda s: s.statistics.services.index.leases.members
    ),
    node_metric("leases", "gauge", "Leased partitions.", lambda s: s.statistics.services.index.leases.held),
    node_metric(
        "leases_given_total", "counter", "Leases that were given.", lambda s: s.statistics.services.index.leases.given
    ),
    node_metric(
        "leases_expired_total",
        "counter",
        "Leases whose member was silent.",
        lambda s: s.statistics.services.index.leases.expired,
    ),
)
STORAGE = (
    node_metric(
        "commits_total", "counter", "Committed transactions, each with a sync.", lambda s: s.statistics.storage.commits
    ),
    node_metric(
        "commit_seconds", "histogram", "Time of a transaction with its sync.", lambda s: s.histograms.commit_seconds
    ),
    node_metric(
        "sync_seconds",
        "histogram",
        "Time of a commit alone, most of which is its sync.",
        lambda s: s.histograms.sync_seconds,
    ),
    node_metric("batch_messages", "histogram", "Messages in one transaction.", lambda s: s.histograms.batch_rows),
    node_metric(
        "stored_messages_total", "counter", "Messages in committed transactions.", lambda s: s.statistics.storage.rows
    ),
    node_metric("reads_total", "counter", "Reads of the database.", lambda s: s.statistics.storage.reads),
    node_metric(
        "storage_failures_total", "counter", "Reads and writes that failed.", lambda s: s.statistics.storage.failed
    ),
    node_metric(
        "writes_waiting",
        "gauge",
        "Writes that wait for the writing thread.",
        lambda s: s.statistics.storage.writes_waiting,
    ),
    node_metric(
        "reads_waiting", "gauge", "Reads that wait for a reading thread.", lambda s: s.statistics.storage.reads_waiting
    ),
    node_metric(
        "checkpoints_total",
        "counter",
        "Checkpoints of the write-ahead log.",
        lambda s: s.statistics.storage.checkpoints,
    ),
    node_metric(
        "checkpoint_failures_total",
        "counter",
        "Failed checkpoints.",
        lambda s: s.statistics.storage.checkpoint_failures,
    ),
    node_metric("file_bytes", "gauge", "Size of the database, and of its write-ahead log.", lambda s: s.files, "file"),
    node_metric(
        "free_disk_bytes", "gauge", "Free space of the disk with the data.", lambda s: s.condition.free_disk_bytes
    ),
    node_metric(
        "refusing_pushes", "gauge", "1 while the disk is too full for pushes.", lambda s: s.condition.refusing_pushes
    ),
)
GROUPS: dict[str, tuple[Metric, ...]] = {
    "What is wrong now": TROUBLES,
    "Node": NODE,
    "Streams": STREAMS,
    "Consumers": CONSUMERS,
    "Mirrors": MIRROR_METRICS,
    "Storage": STORAGE,
    "Peers": PEERS,
    "HTTP": HTTP,
    "Traces": TRACES,
    "Cluster": CLUSTER,
    "Blocks": BLOCK_METRICS,
}
"""The metrics in groups, as `docs/metrics.md` shows them."""
METRICS: tuple[Metric, ...] = tuple(metric for group in GROUPS.values() for metric in group)
