"""METRICS: the list of all metrics of a node. `tools/reference_metrics.py` makes `docs/metrics.md` from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from block_node.backfill.health_machine import SourceStatistics
from block_node.backfill.metrics import METRICS as BACKFILL
from block_node.backfill.state import BackfillStatistics
from block_node.grpc.calls.statistics import COUNTED, GrpcCallStatistics
from stream_node import __version__
from stream_node.care.trouble import TROUBLE_KINDS, TroubleKind
from stream_node.doors.metrics.snapshot import (
    OTHERS,
    WHOLE,
    ConsumerFigures,
    Kind,
    Metric,
    Part,
    Snapshot,
    StreamFigures,
    Values,
)
from stream_node.fleet.cluster.hand_overs import REASONS
from stream_node.fleet.mirror.protocol import PRIMARIES, MirrorCondition, MirrorState
from stream_node.node.block_services import BlockServicesStatistics

T = TypeVar("T")

CONNECTION_SOURCES = ("anonymous", "certificate", "token")


def _traffic(snapshot: Snapshot, name: str) -> float:
    tcp = snapshot.statistics.tcp
    return float(getattr(tcp.past, name) + sum(getattr(each, name) for each in tcp.connections))


def _endings(snapshot: Snapshot, kind: str) -> dict[str, float]:
    found = [each for each in snapshot.endings if each.kind == kind]
    return {each.name: each.ends_s for each in found[: snapshot.parts.config.metrics_names_max]}


_tcp = Part(lambda s: s.statistics.tcp)
_memory = Part(lambda s: s.statistics.tcp.memory)
_limits = Part(lambda s: s.statistics.limits)
_access = Part(lambda s: s.statistics.access)
_channels = Part(lambda s: s.statistics.channels)
_http = Part(lambda s: s.statistics.http)
_grpc = Part(lambda s: s.statistics.grpc)
_traces = Part(lambda s: s.statistics.traces)

PEERS = (
    WHOLE(
        "certificate_end_timestamp_seconds",
        lambda s: _endings(s, "certificate"),
        "When the first certificate in a file ends, by the setting that names the file.",
        "setting",
    ),
    WHOLE(
        "token_end_timestamp_seconds",
        lambda s: _endings(s, "token"),
        "When a token ends. Tokens without an end, and those beyond metrics_names_max that end later, are left out.",
        "token",
    ),
    _tcp(
        "connections",
        lambda e: {source: e.identities.get(source, 0) for source in CONNECTION_SOURCES},
        "Open connections, by how the peer proved its identity.",
        "identity",
    ),
    _tcp("connections_accepted_total", lambda e: e.accepted, "Accepted connections."),
    _tcp("connections_closed_total", lambda e: e.closed, "Connections that have ended.", "reason"),
    _tcp(
        "slow_consumers_total",
        lambda e: e.closed.get("slow_consumer", 0),
        "Connections closed because the peer did not take its answers.",
    ),
    _tcp("tls_handshakes", lambda e: e.handshakes, "TLS handshakes under way."),
    WHOLE("received_messages_total", lambda s: _traffic(s, "received"), "Messages from peers."),
    WHOLE("received_bytes_total", lambda s: _traffic(s, "received_bytes"), "Bytes of these messages, without TLS."),
    WHOLE("sent_messages_total", lambda s: _traffic(s, "sent"), "Messages to peers."),
    WHOLE("sent_bytes_total", lambda s: _traffic(s, "sent_bytes"), "Bytes sent to peers."),
    _memory("in_flight_bytes", lambda e: e.size_bytes, "Memory for requests and answers of all peers."),
    _memory("in_flight_bytes_max", lambda e: e.bytes_max, "The most that this memory may be."),
    _memory("unsent_bytes", lambda e: e.unread_bytes, "Answers that peers have not taken yet."),
    _memory("waiting_pulls_bytes", lambda e: e.parked_bytes, "Memory of pulls that wait for a message."),
    _limits("identities", lambda e: e.identities, "Identities that use something at present."),
    _limits("limits_refused_total", lambda e: e.refused, "Requests refused by a limit per identity.", "limit"),
    _limits("limits_slowed_total", lambda e: e.slowed, "Waits before reading from an identity.", "limit"),
    _access("access_rules", lambda e: e.rules, "Rules in force."),
    _access(
        "access_refused_total",
        lambda e: e.refused,
        "Requests refused by the rules, by the right that was missing.",
        "right",
    ),
    _access("access_refused_by_rule_total", lambda e: e.refused_by_rule, "Requests that a rule forbids.", "rule"),
    _access("access_reloads_failed_total", lambda e: e.reloads_failed, "Changed rules that were not valid."),
    _access("audit_failures_total", lambda e: e.audit_failed, "Lines that could not be written to the audit log."),
    _channels("channels", lambda e: e.open, "Open secure channels."),
    _channels(
        "channels_refused_total",
        lambda e: e.refused,
        "Refused secure channels, and first messages that begin none.",
        "reason",
    ),
)
GRPC = (
    _grpc("grpc_connections", lambda e: e.open, "Open gRPC connections."),
    _grpc("grpc_calls_open", lambda e: e.open_calls, "Open gRPC calls."),
    _grpc("grpc_unfinished_bytes", lambda e: e.unfinished_bytes, "What has come of large unfinished gRPC messages."),
    _grpc("grpc_calls_total", lambda e: e.calls, "Ended gRPC calls.", "status"),
    _grpc(
        "grpc_connections_closed_total",
        lambda e: e.closed,
        "gRPC connections that have ended or were refused.",
        "reason",
    ),
)
HTTP = (
    _http("http_connections", lambda e: e.open, "Open HTTP connections."),
    _http("http_body_bytes", lambda e: e.body_bytes, "Bytes of bodies that HTTP requests under way hold."),
    _http("http_requests_total", lambda e: e.requests, "Answered HTTP requests.", "status"),
    _http(
        "http_connections_closed_total",
        lambda e: e.closed,
        "HTTP connections that the node has refused or closed.",
        "reason",
    ),
)
TRACES = (
    _traces(
        "trace_spans_total",
        lambda e: {"exported": e.exported, "failed": e.failed, "dropped": e.dropped},
        "Spans that the collector of traces has accepted, that it could not be sent, and that were dropped unsent.",
        "result",
    ),
    _traces("trace_spans_waiting", lambda e: e.waiting, "Spans that wait for the collector of traces."),
)


def _stream(name: str, read: Callable[[StreamFigures], float | None], text: str) -> Metric:
    def values(snapshot: Snapshot) -> dict[str, float]:
        found = ((each.name, read(each)) for each in snapshot.figures.streams)
        return {name: value for name, value in found if value is not None}

    return WHOLE(name, values, text, "stream")


def _consumer(name: str, read: Callable[[ConsumerFigures], float | None], text: str) -> Metric:
    def values(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
        found = (((each.client_id, each.stream), read(each)) for each in snapshot.figures.consumers)
        return {names: value for names, value in found if value is not None}

    return WHOLE(name, values, text, "client", "stream")


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1e6


_node = Part(lambda s: s.statistics.node)
_mailboxes = Part(lambda s: s.mailboxes)
_condition = Part(lambda s: s.parts.condition)
_counters = Part(lambda s: s.parts.services.directory.counters)
_services = Part(lambda s: s.statistics.services)
_index = Part(lambda s: s.statistics.services.index)
_leases = Part(lambda s: s.statistics.services.index.leases)
_storage = Part(lambda s: s.statistics.storage)
_histograms = Part(lambda s: s.parts.runner.writer)


def _count(snapshot: Snapshot) -> Values:
    """Returns the number of troubles of each kind, also of the kinds without any; None if the troubles are unknown."""
    if snapshot.troubles is None:
        return None
    return {str(kind): float(len(snapshot.troubles.by_kind.get(kind, ()))) for kind in TROUBLE_KINDS}


def _lasting(snapshot: Snapshot, kind: TroubleKind) -> dict[tuple[str, ...], float]:
    """Returns how long each trouble of one kind lasts, by its subject. The longest one without a name is OTHERS."""
    troubles = [] if snapshot.troubles is None else snapshot.troubles.by_kind.get(kind, [])
    names_max = snapshot.parts.config.metrics_names_max
    found = {trouble.subject: trouble.lasts_s for trouble in troubles[:names_max]}
    for trouble in troubles[names_max : names_max + 1]:
        found[(OTHERS,) * len(trouble.subject)] = trouble.lasts_s
    return found


TROUBLES = (
    WHOLE("troubles", _count, "Things that are wrong now, as the dashboard names them.", "kind"),
    WHOLE(
        "consumer_stuck_seconds",
        lambda s: _lasting(s, "consumer_stuck"),
        "How long a consumer makes no progress although messages wait. Consumers that are not stuck are left out; the "
        "longest time of those beyond metrics_names_max has the name _others.",
        "client",
        "stream",
    ),
    WHOLE(
        "publisher_silent_seconds",
        lambda s: _lasting(s, "publisher_silent"),
        "How long a stream with a steady publisher gets no messages. Other streams are left out; "
        "the longest time of those beyond metrics_names_max has the name _others.",
        "stream",
    ),
)


STREAMS_NAMED_MAX = 100
"""The largest number of mirrors that the metrics name: those with the most messages of lag, then the longest lag."""


def _conditions(snapshot: Snapshot) -> Values:
    found = Counter(each.condition for each in snapshot.statistics.services.mirrors)
    return {condition.name.lower(): found[condition] for condition in MirrorCondition}


def _by_stream(snapshot: Snapshot, join: Callable[[list[MirrorState]], float]) -> dict[str, float]:
    streams: dict[str, list[MirrorState]] = {}
    for each in snapshot.statistics.services.mirrors:
        if each.condition not in PRIMARIES:
            streams.setdefault(each.stream_name, []).append(each)
    named = sorted(streams, key=lambda name: (-_lag(streams[name]), -_lag_s(streams[name]), name))
    return {name: join(streams[name]) for name in named[:STREAMS_NAMED_MAX]}


def _lag(states: list[MirrorState]) -> float:
    return sum(each.lag for each in states)


def _lag_s(states: list[MirrorState]) -> float:
    return max(each.lag_us for each in states) / 1e6


MIRROR_METRICS = (
    WHOLE("mirrors", _conditions, "Partitions that are mirrors, or fence their former source.", "condition"),
    WHOLE(
        "mirror_lag_messages",
        lambda s: _by_stream(s, _lag),
        "Messages that a mirror lacked when it last heard of its source.",
        "stream",
    ),
    WHOLE(
        "mirror_lag_seconds",
        lambda s: _by_stream(s, _lag_s),
        "For how long a mirror has lacked messages of its source, or has not reached it.",
        "stream",
    ),
)

_forwarding = Part(lambda s: s.statistics.services.forwarding)

FORWARDING = (
    _forwarding(
        "forwarding_addresses",
        lambda e: {"connected": float(e.addresses - e.away), "away": float(e.away)},
        "Addresses that clients have registered at the forwarding service, by whether their client is there.",
        "client",
    ),
    _forwarding("forwarding_messages_waiting", lambda e: e.waiting, "Stored messages that their clients have not got."),
    _forwarding(
        "forwarding_messages_forwarded_total",
        lambda e: e.forwarded,
        "Messages sent on to clients; one that was not confirmed comes again, and counts again.",
    ),
    _forwarding("forwarding_messages_stored_total", lambda e: e.stored, "Messages stored for clients."),
    _forwarding(
        "forwarding_messages_refused_total",
        lambda e: e.refused,
        "Messages not passed on: nobody was connected, too much waited already, or they did not fit.",
    ),
)

NODE = (
    WHOLE("info", lambda s: {__version__: 1.0}, "1, with the version of the program.", "version"),
    WHOLE(
        "writing", lambda s: s.parts.runner.is_writing, "1 while the writing thread writes; 0 after it has given up."
    ),
    _condition("draining", lambda e: e.is_draining, "1 while the node stops."),
    _node("workers", lambda e: e.workers, "Addresses of workers."),
    _node("worker_crashes_total", lambda e: e.crashes, "Crashes of workers."),
    _node("worker_restarts_total", lambda e: e.restarts, "Workers that were started again after their end."),
    _node("workers_given_up_total", lambda e: e.given_up, "Workers that ended too often to be started again."),
    _node("messages_routed_total", lambda e: e.routed, "Messages put into mailboxes."),
    _node("messages_dropped_total", lambda e: e.dropped, "Messages that were not delivered.", "reason"),
    _mailboxes("mailbox_messages", lambda e: e.messages, "Messages that wait in the mailboxes of all workers."),
    _mailboxes("mailbox_bytes", lambda e: e.size_bytes, "Payloads of these messages."),
    _mailboxes("mailboxes_full", lambda e: e.full, "Full mailboxes; connections that feed them are not read."),
)
STREAMS = (
    _counters("pushes_total", lambda e: e.pushes, "Pushes that were stored and confirmed."),
    _counters("push_bytes_total", lambda e: e.push_bytes, "Data of pushes and copies that were handed to the disk."),
    _counters("pushes_failed_total", lambda e: e.pushes_failed, "Pushes that could not be stored."),
    _counters(
        "confirm_seconds",
        lambda e: e.confirm_seconds,
        "Time from the arrival of the first push of a batch to the confirms after the sync, once for each push.",
        kind="histogram",
    ),
    _counters("pulls_total", lambda e: e.pages, "Answered pulls and bulk reads."),
    _counters("pulled_messages_total", lambda e: e.pulled, "Messages in the answers to pulls and bulk reads."),
    _counters("pulled_bytes_total", lambda e: e.pulled_bytes, "Answers to pulls and bulk reads."),
    _counters("pulls_failed_total", lambda e: e.pulls_failed, "Pulls and bulk reads whose messages could not be read."),
    _counters("creates_failed_total", lambda e: e.creates_failed, "Streams that could not be created."),
    _counters(
        "requests_refused_total",
        lambda e: e.refused,
        "Requests to streams that were not valid, or not possible, such as pushes to a mirror.",
    ),
    _services("partitions", lambda e: e.streams, "Partitions of all streams."),
    _counters(
        "retention_lag_seconds",
        lambda e: e.retention_lag_s(),
        "For how long messages beyond a retention have been waiting to be deleted; 0 if there are none.",
    ),
    _stream("stream_written_messages_total", lambda e: e.written, "Messages ever stored in a stream."),
    _stream("stream_messages", lambda e: e.messages, "Messages kept in a stream."),
    _stream("stream_bytes", lambda e: e.size_bytes, "Data kept in a stream."),
    _stream("stream_partitions", lambda e: e.partitions, "Partitions of a stream."),
    _stream(
        "stream_oldest_message_timestamp_seconds",
        lambda e: _seconds(e.oldest_us),
        "Time of the oldest message that is kept.",
    ),
)
CONSUMERS = (
    _consumer("consumer_lag_messages", lambda e: e.lag, "Messages after the saved positions of a consumer."),
    _consumer(
        "consumer_last_progress_timestamp_seconds",
        lambda e: _seconds(e.saved_us),
        "When a consumer saved a position last.",
    ),
    _index("positions_saved_total", lambda e: e.saves, "Saved positions."),
    _index("positions_read_total", lambda e: e.gets, "Requests for a position."),
    _index("positions_refused_total", lambda e: e.refused, "Requests about positions and leases that were not valid."),
    _index("positions_fenced_total", lambda e: e.fenced, "Positions refused for an old lease."),
    _leases("lease_groups", lambda e: e.groups, "Groups of consumers in memory."),
    _leases("lease_members", lambda e: e.members, "Members of these groups."),
    _leases("leases", lambda e: e.held, "Leased partitions."),
    _leases("leases_given_total", lambda e: e.given, "Leases that were given."),
    _leases("leases_expired_total", lambda e: e.expired, "Leases whose member was silent."),
)
STORAGE = (
    _storage("commits_total", lambda e: e.commits, "Committed transactions, each with a sync."),
    _histograms("commit_seconds", lambda e: e.commit_seconds, "Time of a transaction with its sync.", kind="histogram"),
    _histograms(
        "sync_seconds", lambda e: e.sync_seconds, "Time of a commit alone, most of which is its sync.", kind="histogram"
    ),
    _histograms("batch_messages", lambda e: e.batch_rows, "Messages in one transaction.", kind="histogram"),
    _storage("stored_messages_total", lambda e: e.rows, "Messages in committed transactions."),
    _storage("reads_total", lambda e: e.reads, "Reads of the database."),
    _storage("storage_failures_total", lambda e: e.failed, "Reads and writes that failed."),
    _storage("writes_waiting", lambda e: e.writes_waiting, "Writes that wait for the writing thread."),
    _storage("reads_waiting", lambda e: e.reads_waiting, "Reads that wait for a reading thread."),
    _storage("checkpoints_total", lambda e: e.checkpoints, "Checkpoints of the write-ahead log."),
    _storage("checkpoint_failures_total", lambda e: e.checkpoint_failures, "Failed checkpoints."),
    WHOLE("file_bytes", lambda s: s.files, "Size of the SQLite database, and of its write-ahead log.", "file"),
    _condition("free_disk_bytes", lambda e: e.free_disk_bytes, "Free space of the disk with the data."),
    _condition("refusing_pushes", lambda e: e.refusing_pushes, "1 while the disk is too full for pushes."),
)


_member = Part(lambda snapshot: snapshot.statistics.cluster)

CLUSTER = (
    _member("cluster_members", lambda m: m.members, "The members of the cluster that live, as far as this node knows."),
    _member("cluster_shards", lambda m: m.shards, "The shards that this node serves, of 256."),
    _member("cluster_links", lambda m: m.router.links, "The members to which this node is connected."),
    _member(
        "cluster_messages_waiting",
        lambda m: m.router.waiting,
        "Messages that wait here until a member serves their shard.",
    ),
    _member("cluster_shards_taken_total", lambda m: m.taken, "Shards that this node has taken."),
    _member("cluster_shards_given_total", lambda m: m.given, "Shards that this node has given to other members."),
    _member(
        "cluster_owned_shards",
        lambda m: {peer.name: float(peer.shards) for peer in m.peers},
        "The shards that each member owns, as this node knows it.",
        "member",
    ),
    _member("cluster_unowned_shards", lambda m: len(m.unowned_s), "The shards that no member owns."),
    _member(
        "cluster_epochs",
        lambda m: sum(each.epoch for each in m.owners),
        "The sum of the epochs of all shards. It rises by one whenever a shard gets a new owner.",
    ),
    _member(
        "cluster_shards_moved_total",
        lambda m: {str(reason): float(m.moved.get(reason, 0)) for reason in REASONS},
        "Shards that got a new owner, as this node has seen it: nobody owned them (free), the owner before was "
        "silent (fenced), stops or is drained (left), or the new one has joined (joined).",
        "reason",
    ),
    _member(
        "cluster_fenced_total",
        lambda m: m.fenced,
        "Members that this node has fenced, because they did not write in time.",
    ),
    _member(
        "cluster_beats_failed_total",
        lambda m: m.beats_failed,
        "Beats of this node that failed, because the database was not reached.",
    ),
    _member(
        "cluster_messages_sent_total",
        lambda m: {name: float(count) for name, count in m.router.sent.items()},
        "Messages of clients that this node has sent to other members.",
        "member",
    ),
)


def _part(find: Callable[[BlockServicesStatistics], T | None], prefix: str = "stream_node_") -> Part[T]:
    return Part(lambda s: None if (blocks := s.statistics.services.blocks) is None else find(blocks), prefix)


_store = _part(lambda blocks: blocks.node.store)
_publish = _part(lambda blocks: blocks.node.publish)
_subscribe = _part(lambda blocks: blocks.readers.subscribe)
_block_access = _part(lambda blocks: blocks.readers.access)
_backfill = _part(lambda blocks: blocks.backfill, prefix="")
_block_grpc = _part(lambda blocks: blocks.grpc)
_reference = _part(lambda blocks: blocks.grpc, prefix="blocknode_")
_reference_node = _part(lambda blocks: None if blocks.grpc is None else blocks.node, prefix="blocknode_")


def _of_backfill(field: str, name: str, kind: str, text: str) -> Metric:
    """Returns a metric of backfill. A counter is `untyped`, because its name does not end in `_total`."""

    def read(backfill: BackfillStatistics) -> Values:
        found = getattr(backfill if hasattr(backfill, field) else backfill.counters, field)
        # The problem is a text; its metric says only whether there is one.
        return found if found is None else float(bool(found) if field == "problem" else found)

    return _backfill(name, read, text, kind="gauge" if kind == "gauge" else "untyped")


def _of_source(name: str, read: Callable[[SourceStatistics], float], text: str, kind: Kind = "untyped") -> Metric:
    return _backfill(name, lambda e: {each.name: float(read(each)) for each in e.sources}, text, "source", kind=kind)


def _counted(name: str) -> Callable[[GrpcCallStatistics], Values]:
    return lambda calls: calls.counted[name]


GRPC_BLOCK_METRICS = (
    _block_grpc(
        "grpc_publisher_window_closed_seconds_max",
        lambda e: e.window_closed_s,
        "The longest time for which a publisher could send nothing, because the node held it back or had not read yet. "
        "Real publishers leave after 0.5 to 15 seconds. The last hundred hosts and identities that published have one.",
        "publisher",
    ),
    _reference_node("app_state_status", lambda e: 0 if e.publish is None else 1, "0: the node starts. 1: it runs."),
    _reference_node("app_historical_oldest_block", lambda e: e.store.first_block, "Number of the lowest block."),
    _reference_node("app_historical_newest_block", lambda e: e.store.last_block, "Number of the highest block."),
    _reference_node(
        "publisher_latest_block_number_acknowledged",
        lambda e: None if e.publish is None else e.publish.last_block,
        "Number of the highest acknowledged block.",
    ),
    _reference("publisher_open_connections", lambda e: e.publishers, "Publishers."),
    _reference(
        "publisher_lowest_block_number_inbound", lambda e: e.lowest_inbound, "The lowest block that one sends now."
    ),
    _reference(
        "publisher_highest_block_number_inbound", lambda e: e.highest_inbound, "The highest block that one sends now."
    ),
    _reference("subscriber_open_connections", lambda e: e.subscribe.sessions, "Subscriptions."),
    *(_reference(f"{name}_total", _counted(name), text) for name, text in COUNTED.items()),
)
"""The metrics of a node that speaks gRPC. Those with the prefix `blocknode_` are named as in the reference block
node, for its dashboards; they are of gRPC alone."""
BLOCK_METRICS = (
    _store("blocks", lambda e: e.blocks, "Blocks that can be read."),
    _store("block_bytes", lambda e: e.size_bytes, "Size of these blocks."),
    _store("block_first", lambda e: e.first_block, "Number of the lowest block."),
    _store("block_last", lambda e: e.last_block, "Number of the highest block."),
    _store("blocks_stored_total", lambda e: e.stored, "Blocks stored."),
    _store("blocks_evicted_total", lambda e: e.evicted, "Blocks deleted by retention."),
    _store(
        "blocks_damaged",
        lambda e: e.damaged,
        "Stored blocks whose bytes were found damaged or gone, and that did not come again.",
    ),
    _store("blocks_mended_total", lambda e: e.mended, "Blocks stored again in the stead of damaged ones."),
    _store("blocks_failed_total", lambda e: e.failed, "Blocks that could not be stored."),
    _publish("block_publishers", lambda e: e.publishers, "Connected publishers."),
    _publish(
        "block_publishers_lost_total",
        lambda e: e.publishers_lost,
        "Publishers that disconnected without ending their stream, or whose stream the node ended for a fault.",
    ),
    _publish("block_last_acknowledged", lambda e: e.last_block, "Number of the highest acknowledged block."),
    _publish("block_next", lambda e: e.next_block, "Number of the lowest block that nobody sends and the node lacks."),
    _publish("blocks_in_flight", lambda e: e.in_flight.blocks, "Blocks that are accepted and not durable yet."),
    _publish("block_queued_bytes", lambda e: e.in_flight.queued_bytes, "Memory of items that wait for the plugins."),
    _publish("blocks_expired_total", lambda e: e.in_flight.expired, "Blocks taken away from slow publishers."),
    _publish("blocks_refused_total", lambda e: e.refused_blocks, "Blocks refused."),
    _publish("block_acknowledgements_total", lambda e: e.acknowledgements, "Acknowledgements."),
    _publish("block_resends_asked_total", lambda e: e.resends_asked, "Requests to send a block again."),
    _publish(
        "block_publish_failures_total", lambda e: e.node_failures, "Failures of the node while blocks were published."
    ),
    _publish(
        "block_catch_up_stalled",
        lambda e: e.catch_up_stalled,
        "1 while the node gets no closer to the newest offered block.",
    ),
    _subscribe("block_subscribers", lambda e: e.sessions, "Subscriptions."),
    _subscribe(
        "block_subscriptions_ended_total", lambda e: e.ended, "Subscriptions that ended or were refused.", "status"
    ),
    _block_access("block_answers_total", lambda e: e.answers, "Answers to requests for one block.", "status"),
    *(_of_backfill(*each) for each in BACKFILL),
    _of_source(
        "backfill_source_healthy",
        lambda e: not e.failures,
        "1 if the source has not failed since its last success.",
        "gauge",
    ),
    _of_source(
        "backfill_source_disagrees",
        lambda e: bool(e.other_chain),
        "1 if the source has another chain than this node, or than the other sources of an empty node.",
        "gauge",
    ),
    _of_source("backfill_source_blocks", lambda e: e.blocks, "Blocks fetched from the source."),
    _of_source("backfill_source_errors", lambda e: e.errors, "Failures of the source."),
)


GROUPS: dict[str, tuple[Metric, ...]] = {
    "What is wrong now": TROUBLES,
    "Node": NODE,
    "Streams": STREAMS,
    "Consumers": CONSUMERS,
    "Mirrors": MIRROR_METRICS,
    "Forwarding": FORWARDING,
    "Storage": STORAGE,
    "Peers": PEERS,
    "HTTP": HTTP,
    "gRPC": (*GRPC, *GRPC_BLOCK_METRICS),
    "Traces": TRACES,
    "Cluster": CLUSTER,
    "Blocks": BLOCK_METRICS,
}
METRICS: tuple[Metric, ...] = tuple(metric for group in GROUPS.values() for metric in group)
