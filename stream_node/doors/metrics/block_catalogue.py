"""The metrics of a node that keeps blocks. Those of backfill have the names of its specification."""

from __future__ import annotations

from collections.abc import Callable

from block_node.backfill.metrics import MORE, SPECIFIED
from block_node.backfill.statistics import BackfillStatistics
from stream_node.doors.metrics.family import Kind, Metric, Values, figures_of
from stream_node.node.block_services import BlockServicesStatistics

_figure = figures_of(lambda snapshot: snapshot.statistics.services.blocks)


def _block(name: str, kind: Kind, text: str, read: Callable[[BlockServicesStatistics], Values], *labels: str) -> Metric:
    return Metric(name, kind, text, _figure(read), labels)


def _of_backfill(field: str, name: str, text: str) -> Metric:
    """Returns a metric of backfill. Its name is not what Prometheus expects of a counter, so it has no type."""

    def read(blocks: BlockServicesStatistics) -> float | None:
        backfill: BackfillStatistics = blocks.backfill
        found = getattr(backfill if hasattr(backfill, field) else backfill.counters, field)
        # The problem is a text; its metric says only whether there is one.
        return found if found is None else float(bool(found) if field == "problem" else found)

    return _block(name, "untyped", text, read)


def _publishing(field: str) -> Callable[[BlockServicesStatistics], Values]:
    def read(blocks: BlockServicesStatistics) -> Values:
        publish = blocks.node.publish
        if publish is None:
            return None
        value = getattr(publish, field) if hasattr(publish, field) else getattr(publish.in_flight, field)
        return None if value is None else float(value)

    return read


def _by_source(read: Callable[[BackfillStatistics], dict[str, float]]) -> Callable[[BlockServicesStatistics], Values]:
    return lambda blocks: read(blocks.backfill)


PREFIX = "stream_node_block"

BLOCK_METRICS = (
    _block(f"{PREFIX}s", "gauge", "Blocks that can be read.", lambda b: b.node.store.blocks),
    _block(f"{PREFIX}_bytes", "gauge", "Size of these blocks.", lambda b: b.node.store.size_bytes),
    _block(f"{PREFIX}_first", "gauge", "Number of the lowest block.", lambda b: b.node.store.first_block),
    _block(f"{PREFIX}_last", "gauge", "Number of the highest block.", lambda b: b.node.store.last_block),
    _block(f"{PREFIX}s_stored_total", "counter", "Blocks stored.", lambda b: b.node.store.stored),
    _block(f"{PREFIX}s_evicted_total", "counter", "Blocks deleted by retention.", lambda b: b.node.store.evicted),
    _block(
        f"{PREFIX}s_damaged",
        "gauge",
        "Stored blocks whose bytes were found damaged or gone, and that did not come again.",
        lambda b: b.node.store.damaged,
    ),
    _block(
        f"{PREFIX}s_mended_total",
        "counter",
        "Blocks stored again in the stead of damaged ones.",
        lambda b: b.node.store.mended,
    ),
    _block(f"{PREFIX}s_failed_total", "counter", "Blocks that could not be stored.", lambda b: b.node.store.failed),
    _block(f"{PREFIX}_publishers", "gauge", "Connected publishers.", _publishing("publishers")),
    _block(
        f"{PREFIX}_publishers_lost_total",
        "counter",
        "Publishers that disconnected without ending their stream, or whose stream the node ended for a fault.",
        _publishing("publishers_lost"),
    ),
    _block(
        f"{PREFIX}_last_acknowledged", "gauge", "Number of the highest acknowledged block.", _publishing("last_block")
    ),
    _block(
        f"{PREFIX}_next",
        "gauge",
        "Number of the lowest block that nobody sends and the node lacks.",
        _publishing("next_block"),
    ),
    _block(f"{PREFIX}s_in_flight", "gauge", "Blocks that are accepted and not durable yet.", _publishing("blocks")),
    _block(
        f"{PREFIX}_queued_bytes", "gauge", "Memory of items that wait for the plugins.", _publishing("queued_bytes")
    ),
    _block(f"{PREFIX}s_expired_total", "counter", "Blocks taken away from slow publishers.", _publishing("expired")),
    _block(f"{PREFIX}s_refused_total", "counter", "Blocks refused.", _publishing("refused_blocks")),
    _block(f"{PREFIX}_acknowledgements_total", "counter", "Acknowledgements.", _publishing("acknowledgements")),
    _block(f"{PREFIX}_resends_asked_total", "counter", "Requests to send a block again.", _publishing("resends_asked")),
    _block(
        f"{PREFIX}_publish_failures_total",
        "counter",
        "Failures of the node while blocks were published.",
        _publishing("node_failures"),
    ),
    _block(
        f"{PREFIX}_catch_up_stalled",
        "gauge",
        "1 while the node gets no closer to the newest offered block.",
        _publishing("catch_up_stalled"),
    ),
    _block(f"{PREFIX}_subscribers", "gauge", "Subscriptions.", lambda b: b.readers.subscribe.sessions),
    _block(
        f"{PREFIX}_subscriptions_ended_total",
        "counter",
        "Subscriptions that ended or were refused.",
        lambda b: b.readers.subscribe.ended,
        "status",
    ),
    _block(
        f"{PREFIX}_answers_total",
        "counter",
        "Answers to requests for one block.",
        lambda b: b.readers.access.answers,
        "status",
    ),
    *(_of_backfill(field, name, text) for field, name, _, text in (*SPECIFIED, *MORE)),
    _block(
        "backfill_source_healthy",
        "gauge",
        "1 if the source has not failed since its last success.",
        _by_source(lambda b: {each.name: float(not each.failures) for each in b.sources}),
        "source",
    ),
    _block(
        "backfill_source_disagrees",
        "gauge",
        "1 if the source has another chain than this node, or than the other sources of an empty node.",
        _by_source(lambda b: {each.name: float(bool(each.other_chain)) for each in b.sources}),
        "source",
    ),
    _block(
        "backfill_source_blocks",
        "untyped",
        "Blocks fetched from the source.",
        _by_source(lambda b: {each.name: float(each.blocks) for each in b.sources}),
        "source",
    ),
    _block(
        "backfill_source_errors",
        "untyped",
        "Failures of the source.",
        _by_source(lambda b: {each.name: float(each.errors) for each in b.sources}),
        "source",
    ),
)
