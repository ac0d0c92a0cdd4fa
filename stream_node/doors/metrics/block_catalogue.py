"""The metrics of a node that keeps blocks. Those of backfill have the names of its specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from block_node.backfill.health_machine import SourceStatistics
from block_node.backfill.metrics import METRICS
from block_node.backfill.state import BackfillStatistics
from block_node.grpc.calls.statistics import COUNTED, GrpcCallStatistics
from stream_node.doors.metrics.snapshot import Kind, Metric, Part, Values
from stream_node.node.block_services import BlockServicesStatistics

T = TypeVar("T")


def _part(find: Callable[[BlockServicesStatistics], T | None], prefix: str = "stream_node_") -> Part[T]:
    return Part(lambda s: None if (blocks := s.statistics.services.blocks) is None else find(blocks), prefix)


_store = _part(lambda blocks: blocks.node.store)
_publish = _part(lambda blocks: blocks.node.publish)
_subscribe = _part(lambda blocks: blocks.readers.subscribe)
_access = _part(lambda blocks: blocks.readers.access)
_backfill = _part(lambda blocks: blocks.backfill, prefix="")
_grpc = _part(lambda blocks: blocks.grpc)
_reference = _part(lambda blocks: blocks.grpc, prefix="blocknode_")
_reference_node = _part(lambda blocks: None if blocks.grpc is None else blocks.node, prefix="blocknode_")


def _of_backfill(field: str, name: str, kind: str, text: str) -> Metric:
    """Returns a metric of backfill. A counter has no type: its name is not one that Prometheus expects of a counter."""

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
    _grpc(
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
    _access("block_answers_total", lambda e: e.answers, "Answers to requests for one block.", "status"),
    *(_of_backfill(*each) for each in METRICS),
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
