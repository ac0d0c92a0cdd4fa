"""The metrics of the peers of a node: their connections, their identities, what was refused, HTTP, and traces."""

from __future__ import annotations

from collections.abc import Callable

from ockam.tracing.statistics import TracingStatistics
from stream_node.doors.metrics.family import WHOLE, Part, Values
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


_tcp = Part(lambda s: s.statistics.tcp)
_memory = Part(lambda s: s.statistics.tcp.memory)
_limits = Part(lambda s: s.statistics.limits)
_access = Part(lambda s: s.statistics.access)
_channels = Part(lambda s: s.statistics.channels)
_http = Part(lambda s: s.statistics.http)
_grpc = Part(lambda s: s.statistics.grpc)
_traces = Part(lambda s: s.statistics.traces)

PEERS = (
    WHOLE.gauge(
        "certificate_end_timestamp_seconds",
        _endings("certificate"),
        "When the first certificate in a file ends, by the setting that names the file.",
        "setting",
    ),
    WHOLE.gauge(
        "token_end_timestamp_seconds",
        _endings("token"),
        "When a token ends. Tokens without an end, and those beyond metrics_names_max that end later, are left out.",
        "token",
    ),
    _tcp.gauge(
        "connections",
        lambda e: {source: e.identities.get(source, 0) for source in CONNECTION_SOURCES},
        "Open connections, by how the peer proved its identity.",
        "identity",
    ),
    _tcp.counter("connections_accepted_total", lambda e: e.accepted, "Accepted connections."),
    _tcp.counter("connections_closed_total", lambda e: e.closed, "Connections that have ended.", "reason"),
    _tcp.counter(
        "slow_consumers_total",
        lambda e: e.closed.get("slow_consumer", 0),
        "Connections closed because the peer did not take its answers.",
    ),
    _tcp.gauge("tls_handshakes", lambda e: e.handshakes, "TLS handshakes under way."),
    WHOLE.counter("received_messages_total", _traffic("received"), "Messages from peers."),
    WHOLE.counter("received_bytes_total", _traffic("received_bytes"), "Bytes of these messages, without TLS."),
    WHOLE.counter("sent_messages_total", _traffic("sent"), "Messages to peers."),
    WHOLE.counter("sent_bytes_total", _traffic("sent_bytes"), "Bytes sent to peers."),
    _memory.gauge("in_flight_bytes", lambda e: e.size_bytes, "Memory for requests and answers of all peers."),
    _memory.gauge("in_flight_bytes_max", lambda e: e.bytes_max, "The most that this memory may be."),
    _memory.gauge("unsent_bytes", lambda e: e.unread_bytes, "Answers that peers have not taken yet."),
    _memory.gauge("waiting_pulls_bytes", lambda e: e.parked_bytes, "Memory of pulls that wait for a message."),
    _limits.gauge("identities", lambda e: e.identities, "Identities that use something at present."),
    _limits.counter("limits_refused_total", lambda e: e.refused, "Requests refused by a limit per identity.", "limit"),
    _limits.counter("limits_slowed_total", lambda e: e.slowed, "Waits before reading from an identity.", "limit"),
    _access.gauge("access_rules", lambda e: e.rules, "Rules in force."),
    _access.counter(
        "access_refused_total",
        lambda e: e.refused,
        "Requests refused by the rules, by the right that was missing.",
        "right",
    ),
    _access.counter(
        "access_refused_by_rule_total", lambda e: e.refused_by_rule, "Requests that a rule forbids.", "rule"
    ),
    _access.counter("access_reloads_failed_total", lambda e: e.reloads_failed, "Changed rules that were not valid."),
    _access.counter(
        "audit_failures_total", lambda e: e.audit_failed, "Lines that could not be written to the audit log."
    ),
    _channels.gauge("channels", lambda e: e.open, "Open secure channels."),
    _channels.counter(
        "channels_refused_total", lambda e: e.refused, "Refused beginnings of secure channels.", "reason"
    ),
)
GRPC = (
    _grpc.gauge("grpc_connections", lambda e: e.open, "Open gRPC connections."),
    _grpc.gauge("grpc_calls_open", lambda e: e.open_calls, "Open gRPC calls."),
    _grpc.gauge(
        "grpc_unfinished_bytes", lambda e: e.unfinished_bytes, "What has come of large unfinished gRPC messages."
    ),
    _grpc.counter("grpc_calls_total", lambda e: e.calls, "Ended gRPC calls.", "status"),
    _grpc.counter(
        "grpc_connections_closed_total",
        lambda e: e.closed,
        "gRPC connections that the node has refused or closed.",
        "reason",
    ),
)
HTTP = (
    _http.gauge("http_connections", lambda e: e.open, "Open HTTP connections."),
    _http.gauge("http_body_bytes", lambda e: e.body_bytes, "Bytes of bodies that HTTP requests under way hold."),
    _http.counter("http_requests_total", lambda e: e.requests, "Answered HTTP requests.", "status"),
    _http.counter(
        "http_connections_closed_total",
        lambda e: e.closed,
        "HTTP connections that the node has refused or closed.",
        "reason",
    ),
)
TRACES = (
    _traces.counter(
        "trace_spans_total",
        _spans,
        "Spans that the collector of traces has accepted, that it could not be sent, and that were dropped unsent.",
        "result",
    ),
    _traces.gauge("trace_spans_waiting", lambda e: e.waiting, "Spans that wait for the collector of traces."),
)
