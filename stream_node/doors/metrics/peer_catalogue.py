"""The metrics of the peers of a node: their connections, their identities, what was refused, HTTP, and traces."""

from __future__ import annotations

from collections.abc import Callable

from ockam.tracing.statistics import TracingStatistics
from stream_node.doors.metrics.family import Values, figures_of, node_metric
from stream_node.doors.metrics.snapshot import Snapshot

CONNECTION_SOURCES = ("anonymous", "certificate", "token")
"""The ways in which the peer of a connection can have proved its identity."""


def _traffic(name: str) -> Callable[[Snapshot], Values]:
    """Returns a function that sums a field of `Traffic` over all connections, open or ended."""

    def values(snapshot: Snapshot) -> float:
        tcp = snapshot.statistics.tcp
        return float(getattr(tcp.past, name) + sum(getattr(each, name) for each in tcp.connections))

    return values


def _endings(kind: str) -> Callable[[Snapshot], Values]:
    """Returns a function that reads when the certificates, or the first tokens, end."""

    def values(snapshot: Snapshot) -> dict[str, float]:
        found = [each for each in snapshot.endings if each.kind == kind]
        return {each.name: each.ends_s for each in found[: snapshot.names_max]}

    return values


def _spans(statistics: TracingStatistics) -> Values:
    return {"exported": statistics.exported, "failed": statistics.failed, "dropped": statistics.dropped}


_access = figures_of(lambda snapshot: snapshot.statistics.access)
_channels = figures_of(lambda snapshot: snapshot.statistics.channels)
_http = figures_of(lambda snapshot: snapshot.statistics.http)
_traces = figures_of(lambda snapshot: snapshot.statistics.traces)

PEERS = (
    node_metric(
        "certificate_end_timestamp_seconds",
        "gauge",
        "When the first certificate in a file ends, by the setting that names the file.",
        _endings("certificate"),
        "setting",
    ),
    node_metric(
        "token_end_timestamp_seconds",
        "gauge",
        "When a token ends. Tokens without an end, and those beyond metrics_names_max that end later, are left out.",
        _endings("token"),
        "token",
    ),
    node_metric(
        "connections",
        "gauge",
        "Open connections, by how the peer proved its identity.",
        lambda s: {source: s.statistics.tcp.identities.get(source, 0) for source in CONNECTION_SOURCES},
        "identity",
    ),
    node_metric("connections_accepted_total", "counter", "Accepted connections.", lambda s: s.statistics.tcp.accepted),
    node_metric(
        "connections_closed_total",
        "counter",
        "Connections that have ended.",
        lambda s: s.statistics.tcp.closed,
        "reason",
    ),
    node_metric(
        "slow_consumers_total",
        "counter",
        "Connections closed because the peer did not take its answers.",
        lambda s: s.statistics.tcp.closed.get("slow_consumer", 0),
    ),
    node_metric("tls_handshakes", "gauge", "TLS handshakes under way.", lambda s: s.statistics.tcp.handshakes),
    node_metric("received_messages_total", "counter", "Messages from peers.", _traffic("received")),
    node_metric("received_bytes_total", "counter", "Bytes of these messages, without TLS.", _traffic("received_bytes")),
    node_metric("sent_messages_total", "counter", "Messages to peers.", _traffic("sent")),
    node_metric("sent_bytes_total", "counter", "Bytes sent to peers.", _traffic("sent_bytes")),
    node_metric(
        "in_flight_bytes",
        "gauge",
        "Memory for requests and answers of all peers.",
        lambda s: s.statistics.tcp.memory.size_bytes,
    ),
    node_metric(
        "in_flight_bytes_max", "gauge", "The most that this memory may be.", lambda s: s.statistics.tcp.memory.bytes_max
    ),
    node_metric(
        "unsent_bytes",
        "gauge",
        "Answers that peers have not taken yet.",
        lambda s: s.statistics.tcp.memory.unread_bytes,
    ),
    node_metric(
        "waiting_pulls_bytes",
        "gauge",
        "Memory of pulls that wait for a message.",
        lambda s: s.statistics.tcp.memory.parked_bytes,
    ),
    node_metric(
        "identities", "gauge", "Identities that use something at present.", lambda s: s.statistics.limits.identities
    ),
    node_metric(
        "limits_refused_total",
        "counter",
        "Requests refused by a limit per identity.",
        lambda s: s.statistics.limits.refused,
        "limit",
    ),
    node_metric(
        "limits_slowed_total",
        "counter",
        "Waits before reading from an identity.",
        lambda s: s.statistics.limits.slowed,
        "limit",
    ),
    node_metric("access_rules", "gauge", "Rules in force.", _access(lambda e: e.rules)),
    node_metric(
        "access_refused_total",
        "counter",
        "Requests refused by the rules, by the right that was missing.",
        _access(lambda e: e.refused),
        "right",
    ),
    node_metric(
        "access_refused_by_rule_total",
        "counter",
        "Requests that a rule forbids.",
        _access(lambda e: e.refused_by_rule),
        "rule",
    ),
    node_metric(
        "access_reloads_failed_total",
        "counter",
        "Changed rules that were not valid.",
        _access(lambda e: e.reloads_failed),
    ),
    node_metric(
        "audit_failures_total",
        "counter",
        "Lines that could not be written to the audit log.",
        _access(lambda e: e.audit_failed),
    ),
    node_metric("channels", "gauge", "Open secure channels.", _channels(lambda e: e.open)),
    node_metric(
        "channels_refused_total",
        "counter",
        "Refused beginnings of secure channels.",
        _channels(lambda e: e.refused),
        "reason",
    ),
)
HTTP = (
    node_metric("http_connections", "gauge", "Open HTTP connections.", _http(lambda e: e.open)),
    node_metric(
        "http_body_bytes", "gauge", "Bytes of bodies that HTTP requests under way hold.", _http(lambda e: e.body_bytes)
    ),
    node_metric(
        "http_requests_total",
        "counter",
        "Answered HTTP requests.",
        _http(lambda e: e.requests),
        "status",
    ),
    node_metric(
        "http_connections_closed_total",
        "counter",
        "HTTP connections that the node has refused or closed.",
        _http(lambda e: e.closed),
        "reason",
    ),
)
TRACES = (
    node_metric(
        "trace_spans_total",
        "counter",
        "Spans that the collector of traces has accepted, that it could not be sent, and that were dropped unsent.",
        _traces(_spans),
        "result",
    ),
    node_metric(
        "trace_spans_waiting",
        "gauge",
        "Spans that wait for the collector of traces.",
        _traces(lambda e: e.waiting),
    ),
)
