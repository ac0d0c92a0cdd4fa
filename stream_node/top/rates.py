"""Computes a view of a node from two readings: rates, latency, lag, and an order of rows. It asks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from stream_node.care.unread import count_unread
from stream_node.top.reading import BlockStatus, Reading
from stream_service.extensions import StreamInfo

SortKey: TypeAlias = Literal["rate", "lag", "size", "messages", "name"]
SORT_KEYS: Final[tuple[SortKey, ...]] = ("rate", "lag", "size", "messages", "name")


class StreamRate(msgspec.Struct, frozen=True):
    """One stream with its partitions. messages_per_s: None after one reading, or for a new stream. lag: the largest lag
    of a consumer; None without any. newest_us: the time of its newest message; None without any."""

    stream: str
    partitions: int
    messages: int
    bytes: int
    messages_per_s: float | None
    lag: int | None
    newest_us: int | None


class ConsumerRate(msgspec.Struct, frozen=True):
    """One consumer of one stream. partitions: those with a position. members: those that hold leases. messages_per_s:
    the rise of its positions; None as above. is_beyond_end: whether a position is beyond the end."""

    client: str
    stream: str
    partitions: int
    members: int
    lag: int
    messages_per_s: float | None
    saved_us: int
    is_beyond_end: bool


class NodeRates(msgspec.Struct, frozen=True):
    """How busy a node is. Rates are None after one reading only.
    commit_ms: the average duration of a commit, for which each confirm waits; None without commits."""

    seconds: float | None = None
    messages_per_s: float | None = None
    commits_per_s: float | None = None
    reads_per_s: float | None = None
    commit_ms: float | None = None


class TopView(msgspec.Struct, frozen=True):
    """Everything that one drawing shows, with rows in the wanted order. The fields before `rates` are those of
    `stream_node.node.node_status.NodeStatus`; None: the node did not report it."""

    now_us: int | None
    version: str | None
    schema_version: int | None
    uptime_s: float | None
    connections: int | None
    waiting: int | None
    failed: int | None
    refused: int | None
    memory_bytes: int | None
    free_disk_bytes: int | None
    refusing_pushes: bool | None
    write_failure: str | None
    rates: NodeRates
    streams: list[StreamRate]
    consumers: list[ConsumerRate]
    blocks: BlockStatus | None
    notes: list[str]


STATUS_FIELDS = (
    *("now_us", "version", "schema_version", "connections", "waiting", "failed", "refused", "memory_bytes"),
    *("free_disk_bytes", "refusing_pushes", "write_failure"),
)
"""The fields that a view copies from the status of the node. They are None without a status."""


def make_view(before: Reading | None, now: Reading, sort: SortKey) -> TopView:
    """Returns the view of the later reading. before: the earlier reading; None: there are no rates."""
    # The counters of a node that was restarted began anew, so their differences mean nothing.
    if before is not None and _restarted(before, now):
        before = None
    seconds = None if before is None else now.at_s - before.at_s
    consumers = _consumers(before, now, seconds)
    # A stream shows the lag of its slowest consumer.
    lags: dict[str, int] = {}
    for each in consumers:
        lags[each.stream] = max(each.lag, lags.get(each.stream, 0))
    streams = _streams(before, now, seconds, lags)
    size, lag = STREAM_ORDER[sort], CONSUMER_ORDER.get(sort, CONSUMER_ORDER["lag"])
    streams.sort(key=lambda row: (-size(row), row.stream))
    consumers.sort(key=lambda row: (-lag(row), row.client, row.stream))
    status = now.status
    return TopView(
        uptime_s=None if status is None else max(0, status.now_us - status.started_us) / 1e6,
        **{name: getattr(status, name, None) for name in STATUS_FIELDS},
        rates=_rates(before, now, seconds),
        streams=streams,
        consumers=consumers,
        blocks=now.blocks,
        notes=now.notes,
    )


STREAM_ORDER: Final[dict[SortKey, Callable[[StreamRate], float]]] = {
    "rate": lambda row: row.messages_per_s or 0,
    "lag": lambda row: row.lag or 0,
    "size": lambda row: row.bytes,
    "messages": lambda row: row.messages,
    "name": lambda row: 0,
}
CONSUMER_ORDER: Final[dict[SortKey, Callable[[ConsumerRate], float]]] = {
    "rate": lambda row: row.messages_per_s or 0,
    "lag": lambda row: row.lag,
    "name": lambda row: 0,
}
"""The values by which rows are sorted, the largest first, for each sort key; then by name, or by lag."""


def _restarted(before: Reading, now: Reading) -> bool:
    return before.status is not None and now.status is not None and before.status.started_us != now.status.started_us


def _rates(before: Reading | None, now: Reading, seconds: float | None) -> NodeRates:
    if before is None or before.status is None or now.status is None or not seconds:
        return NodeRates()
    old, new = before.status, now.status
    commits = new.commits - old.commits
    return NodeRates(
        seconds=seconds,
        messages_per_s=(new.messages - old.messages) / seconds,
        commits_per_s=commits / seconds,
        reads_per_s=(new.reads - old.reads) / seconds,
        commit_ms=(new.commit_us - old.commit_us) / commits / 1000 if commits else None,
    )


def _streams(before: Reading | None, now: Reading, seconds: float | None, lags: dict[str, int]) -> list[StreamRate]:
    # A stream that was deleted and made again has another time of creation, and no rate.
    ends = (
        {(each.stream_name, each.partition, each.created_us): each.next_index for each in before.streams}
        if before
        else {}
    )
    rows: dict[str, list[StreamInfo]] = {}
    for each in now.streams:
        rows.setdefault(each.stream_name, []).append(each)

    def rate(each: StreamInfo) -> float | None:
        end = ends.get((each.stream_name, each.partition, each.created_us))
        return None if end is None or not seconds else (each.next_index - end) / seconds

    return [
        StreamRate(
            name,
            len(parts),
            sum(each.count for each in parts),
            sum(each.size_bytes for each in parts),
            _sum(list(map(rate, parts))),
            lags.get(name),
            max((each.last_time_us for each in parts if each.last_time_us is not None), default=None),
        )
        for name, parts in rows.items()
    ]


def _consumers(before: Reading | None, now: Reading, seconds: float | None) -> list[ConsumerRate]:
    ends = {(each.stream_name, each.partition): each.next_index for each in now.streams}
    unread = count_unread(now.positions, now.streams)
    earlier = (
        {(each.client_id, each.stream_name, each.partition): each.index for each in before.positions} if before else {}
    )
    rows: dict[tuple[str, str], list[tuple[float | None, int, str | None]]] = {}
    beyond_end: set[tuple[str, str]] = set()
    for each in now.positions:
        # A position of a stream that is not there, or may not be seen, is not compared with an end.
        if each.index > ends.get((each.stream_name, each.partition), each.index):
            beyond_end.add((each.client_id, each.stream_name))
        index = earlier.get((each.client_id, each.stream_name, each.partition))
        rate = None if index is None or not seconds else (each.index - index) / seconds
        rows.setdefault((each.client_id, each.stream_name), []).append((rate, each.saved_us, each.holder))
    return [
        ConsumerRate(
            client=client,
            stream=stream,
            partitions=len(parts),
            members=len({holder for *_, holder in parts if holder is not None}),
            lag=sum(unread[client, stream].values()),
            messages_per_s=_sum([rate for rate, _, _ in parts]),
            saved_us=max(saved_us for _, saved_us, _ in parts),
            is_beyond_end=(client, stream) in beyond_end,
        )
        for (client, stream), parts in rows.items()
    ]


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
