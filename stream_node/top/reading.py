"""Asks a node for everything that the live view shows, and computes the view from two readings: rates, lag, order.
If the node refuses a part or does not know it, the reading has a note in its place."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from time import monotonic
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import trio

from block_node.protocol_reading import STATUS, StatusRequest
from index_service.extensions import SavedPosition
from stream_client import (
    ClientError,
    FromIndex,
    NodeFailed,
    RequestRefused,
    RequestTimeout,
    StreamClient,
    UnexpectedAnswer,
    list_positions,
)
from stream_node.care.unread import count_unread
from stream_node.node.node_status import ADDRESS, NODE_STATUS, NodeStatus
from stream_node.node.node_status import NodeStatusRequest as NodeStatusRequest
from stream_service.extensions import StreamInfo

RowT = TypeVar("RowT", StreamInfo, SavedPosition)
T = TypeVar("T")

PARTITIONS_MAX = 10_000
"""The largest number of partitions, and of positions, in a reading of the live view: more would keep the node busy."""
STATUS_WAIT_S = 4.0
"""How long the reader waits for a status. A node without this service does not answer; one whose database is
silent answers after `stream_node.care.write_trials.TRIAL_S_MAX`."""


class BlockStatus(msgspec.Struct, frozen=True):
    """The blocks of a block node. first, last: the lowest and highest readable one. missing: those between them.
    next_expected: the block that a publisher should send next; None: none, or unknown."""

    chain: str
    first: int | None
    last: int | None
    missing: int
    next_expected: int | None


class Reading(msgspec.Struct, frozen=True):
    """The answers of a node at one time. at_s: on this machine's steady clock. notes: why parts are missing."""

    at_s: float
    status: NodeStatus | None
    streams: list[StreamInfo]
    positions: list[SavedPosition]
    blocks: BlockStatus | None
    notes: list[str]


class NodeReader:
    """Reads a node again and again. prefix: only streams whose names begin with this text, and their consumers.
    rows_max: the largest number of partitions, and of positions, that are read; None reads all."""

    def __init__(self, client: StreamClient, prefix: str = "", rows_max: int | None = PARTITIONS_MAX) -> None:
        self._client = client
        self._prefix = prefix
        self._rows_max = rows_max
        self._has_status = True

    async def read(self) -> Reading:
        """Asks the node. Raises ClientError if the node cannot be reached, or does not answer."""
        notes: list[str] = []
        rows: tuple[list[StreamInfo], list[SavedPosition]] | None = None
        # The status comes first: a node whose database is silent reports it, and does not answer the rest.
        status = await self._maybe("the node", self._status, notes)
        with trio.move_on_after(STATUS_WAIT_S):
            rows = await self._rows(notes)
        if rows is None and not notes:
            # There are many rows, or the database is silent.
            status = await self._maybe("the node", self._status, notes)
            if status is not None and status.write_failure is not None:
                rows = [], []
                notes += [f"{each}: not answered within {STATUS_WAIT_S:g} s" for each in ("streams", "consumers")]
        streams, positions = rows or await self._rows(notes)
        if status is None and not notes:
            # The streams were listed just now, so the node is there: it was slow, or lacks this service.
            status = await self._status()
            self._has_status = status is not None
        blocks = None
        if status is not None and status.chain is not None:
            chain = status.chain
            blocks = await self._maybe("blocks", lambda: self._blocks(chain), notes)
        if self._is_full(streams) or self._is_full(positions):
            notes.append(f"only the first {self._rows_max:,} partitions and positions are read; name a --prefix")
        return Reading(monotonic(), status, streams, positions, blocks, notes)

    async def _rows(self, notes: list[str]) -> tuple[list[StreamInfo], list[SavedPosition]]:
        told: list[str] = []
        streams = await self._maybe("streams", lambda: self._read(self._client.list_streams(self._prefix)), told)
        positions = await self._maybe("consumers", lambda: self._read(list_positions(self._client)), told)
        notes += told
        return streams or [], positions or []

    async def _maybe(self, what: str, ask: Callable[[], Awaitable[T]], notes: list[str]) -> T | None:
        """Asks for one part. Returns None, with a note, if the node refuses or cannot read it."""
        try:
            return await ask()
        except (NodeFailed, RequestRefused, UnexpectedAnswer) as error:
            notes.append(f"{what}: {error}")
            return None

    async def _read(self, rows: AsyncIterable[RowT]) -> list[RowT]:
        found: list[RowT] = []
        async for each in rows:
            if each.stream_name.startswith(self._prefix):
                found.append(each)
            if self._is_full(found):
                break
        return found

    def _is_full(self, rows: Sequence[object]) -> bool:
        return self._rows_max is not None and len(rows) >= self._rows_max

    async def _status(self) -> NodeStatus | None:
        if not self._has_status:
            return None
        with trio.move_on_after(STATUS_WAIT_S):
            try:
                return await self._client.session.ask(ADDRESS, NODE_STATUS, NodeStatusRequest(0))
            except RequestTimeout:
                pass
        return None

    async def _blocks(self, chain: str) -> BlockStatus:
        found = await self._client.session.ask("block_status", STATUS, StatusRequest(0, True))
        ranges = [] if found.detail is None else found.detail.available
        missing = sum(after.first_block - before.last_block - 1 for before, after in pairwise(ranges))
        return BlockStatus(chain, found.first_available, found.last_available, missing, found.next_expected)


class SilentConsumer(NamedTuple):
    client: str
    stream: str
    silent_s: float


async def find_silent(client: StreamClient, reading: Reading) -> SilentConsumer | None:
    """Returns the consumer that is behind and without progress for the longest time, counted from its last save or
    its first unread message, whichever is later; None if none is behind."""
    infos = {(each.stream_name, each.partition): each for each in reading.streams}
    now_us = time.time_ns() // 1000 if reading.status is None else reading.status.now_us
    found: SilentConsumer | None = None
    for position in sorted(reading.positions, key=lambda each: each.saved_us):
        # The time since the last progress bounds a silence, and falls along the positions. So no later position has a
        # longer silence.
        if found is not None and (now_us - position.saved_us) / 1e6 <= found.silent_s:
            break
        info = infos.get((position.stream_name, position.partition))
        if info is None or max(position.index, info.first_index) >= info.next_index:
            continue
        since_us = position.saved_us
        with suppress(ClientError):
            stream = (await client.get_stream(position.stream_name)).get_partition(position.partition)
            for first_unread in (await stream.pull_page(FromIndex(position.index), 1)).messages:
                since_us = max(since_us, first_unread.time_us)
        silent_s = (now_us - since_us) / 1e6
        if found is None or silent_s > found.silent_s:
            found = SilentConsumer(position.client_id, position.stream_name, silent_s)
    return found


SortKey: TypeAlias = Literal["rate", "lag", "size", "messages", "name"]
SORT_KEYS: Final[tuple[SortKey, ...]] = ("rate", "lag", "size", "messages", "name")


class StreamRate(msgspec.Struct, frozen=True):
    """One stream with its partitions. messages_per_s: None after one reading, or for a new stream. lag: the largest lag
    of a consumer; None without consumers. newest_us: the time of its newest message; None without messages."""

    stream: str
    partitions: int
    messages: int
    bytes: int
    messages_per_s: float | None
    lag: int | None
    newest_us: int | None


class ConsumerRate(msgspec.Struct, frozen=True):
    """One consumer of one stream. partitions: those with a position. members: those that hold leases. messages_per_s:
    the rise of its positions; None after one reading, or if it is new. is_beyond_end: whether a position is beyond
    the end of its stream."""

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


STATUS_FIELDS = frozenset(TopView.__struct_fields__) & frozenset(NodeStatus.__struct_fields__)
"""The fields that a view copies from the status of the node. They are None without a status."""


def make_view(before: Reading | None, now: Reading, sort: SortKey) -> TopView:
    """Returns the view of the later reading. before: the earlier reading; None: there are no rates."""
    # The counters of a node that was restarted began anew, so their differences mean nothing.
    if before and before.status and now.status and before.status.started_us != now.status.started_us:
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
        rates=_rates(before.status if before else None, status, seconds),
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
"""The values by which rows are sorted, largest first; equal ones by name. Other keys sort consumers by lag."""


def _rates(old: NodeStatus | None, new: NodeStatus | None, seconds: float | None) -> NodeRates:
    if old is None or new is None or not seconds:
        return NodeRates()
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
    earlier = before.streams if before else ()
    ends = {(each.stream_name, each.partition, each.created_us): each.next_index for each in earlier}
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
    before_positions = before.positions if before else ()
    earlier = {(each.client_id, each.stream_name, each.partition): each.index for each in before_positions}
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
