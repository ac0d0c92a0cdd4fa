"""The metrics of consumers and producers, under the names of the reference programs, so that dashboards keep working.

Three names are missing: the reference programs never record `/streams/delta`; `/streams/waiter/…` describes waiters,
which do not exist here; `/streams/producers` counts pings, which our producers do not send."""

from __future__ import annotations

from collections.abc import Mapping

from cardinal_streams.machines.consumer_events import ConsumerStatistics, UnorderedStatistics
from cardinal_streams.machines.reassembly_events import ReassemblyStatistics
from cardinal_streams.produce.producer import ProducerStatistics


def consumer_metrics(
    statistics: ConsumerStatistics,
    lags: Mapping[str, int] | None = None,
    reorg_age_s: float = 0.0,
    stalled_s: float = 0.0,
) -> dict[str, float]:
    """Returns the metrics of a `ChainConsumer` by name. The parameters come from `Consumption.lags`,
    `Updates.reorg_age_s` and `Updates.stalled_s`. `/streams/reorg/age` and `/streams/stalled/age` are metrics of this
    package."""
    chain = statistics.chain
    return {
        **_reassembly_metrics(statistics.reassembly, statistics.bad_messages),
        "/streams/omp/height": chain.head_number or 0,
        "/streams/omp/pending": chain.chain_length + chain.waiting,
        "/streams/omp/queued": chain.waiting,
        "/streams/reorg/exec": chain.updates_with_removals + chain.reverts,
        "/streams/reorg/add": chain.added,
        "/streams/reorg/drop": chain.removed,
        "/streams/reorg/age": reorg_age_s,
        "/streams/stalled/age": stalled_s,
        **_lag_metrics(lags or {}),
    }


def unordered_metrics(statistics: UnorderedStatistics, lags: Mapping[str, int] | None = None) -> dict[str, float]:
    return {**_reassembly_metrics(statistics.reassembly, statistics.bad_messages), **_lag_metrics(lags or {})}


def producer_metrics(statistics: ProducerStatistics) -> dict[str, float]:
    """Returns the metrics of a producer: `/streams/skipped` is the share of blocks, from 0 to 1, sent before."""
    blocks = statistics.blocks_sent + statistics.blocks_skipped
    return {"/streams/skipped": statistics.blocks_skipped / blocks if blocks else 0.0}


def _reassembly_metrics(statistics: ReassemblyStatistics, bad_messages: int) -> dict[str, float]:
    return {
        "/streams/con/pending": statistics.incomplete,
        "/streams/con/messages": statistics.messages,
        "/streams/con/failures": statistics.refused + bad_messages,
        "streams/kafka/heartbeat": statistics.pings,
    }


def _lag_metrics(lags: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for source, lag in lags.items():
        topic, _, partition = source.rpartition(":")
        found[f"streams/kafka/{topic}/{partition}/lag"] = lag
    return found
