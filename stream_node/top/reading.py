"""Asks a node for everything that the live view shows. What the node refuses or does not know becomes a note."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from time import monotonic
from typing import NamedTuple, TypeVar

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
from stream_node.node.node_status import ADDRESS, NODE_STATUS, NodeStatus
from stream_node.node.node_status import NodeStatusRequest as NodeStatusRequest
from stream_service.extensions import StreamInfo

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
    """The answers of a node at one time. at_s: on this machine's steady clock. notes: why a part is missing."""

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
        streams = await self._maybe("streams", self._streams, told) or []
        positions = await self._maybe("consumers", self._positions, told) or []
        notes += told
        return streams, positions

    async def _maybe(self, what: str, ask: Callable[[], Awaitable[T]], notes: list[str]) -> T | None:
        """Asks for one part. Returns None, with a note, if the node refuses or cannot read it."""
        try:
            return await ask()
        except (NodeFailed, RequestRefused, UnexpectedAnswer) as error:
            notes.append(f"{what}: {error}")
            return None

    async def _streams(self) -> list[StreamInfo]:
        found: list[StreamInfo] = []
        async for each in self._client.list_streams(self._prefix):
            found.append(each)
            if self._is_full(found):
                break
        return found

    def _is_full(self, rows: Sequence[object]) -> bool:
        return self._rows_max is not None and len(rows) >= self._rows_max

    async def _positions(self) -> list[SavedPosition]:
        found: list[SavedPosition] = []
        async for each in list_positions(self._client):
            if each.stream_name.startswith(self._prefix):
                found.append(each)
            if self._is_full(found):
                break
        return found

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
        since_us = max(position.saved_us, await _first_unread_us(client, position))
        if found is None or (now_us - since_us) / 1e6 > found.silent_s:
            found = SilentConsumer(position.client_id, position.stream_name, (now_us - since_us) / 1e6)
    return found


async def _first_unread_us(client: StreamClient, position: SavedPosition) -> int:
    try:
        stream = (await client.get_stream(position.stream_name)).get_partition(position.partition)
        page = await stream.pull_page(FromIndex(position.index), 1)
    except ClientError:
        return 0
    return page.messages[0].time_us if page.messages else 0
