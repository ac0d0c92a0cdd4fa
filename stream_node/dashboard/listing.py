"""Lists everything that the user may see: streams with their partitions, and consumers with their positions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from index_service.extensions import SavedPosition
from stream_client import AccessDenied, StreamClient, StreamInfo, list_positions
from stream_node.dashboard.page import Page
from stream_node.unread import count_unread

PARTITIONS_MAX = 10_000
"""The largest number of partitions, and of positions, that one page asks for."""
ROWS = 50
"""The number of rows of a page."""

T = TypeVar("T")


class StreamRow(msgspec.Struct):
    """One stream. messages, size_bytes: what is stored in all partitions. newest_us: the time of the newest message.

    rate: messages per second lately; None if unknown. lag: the largest lag of a consumer; None without consumers.
    """

    name: str
    partitions: list[StreamInfo]
    messages: int = 0
    size_bytes: int = 0
    newest_us: int | None = None
    rate: float | None = None
    lag: int | None = None


class PositionRow(msgspec.Struct, frozen=True):
    """A saved position with its partition. lag: None if there is no such partition, or the user may not see it."""

    position: SavedPosition
    lag: int | None


class ConsumerRow(msgspec.Struct):
    """One consumer of one stream. lag: the sum over its partitions. saved_us: its last progress."""

    client_id: str
    stream: str
    positions: list[PositionRow]
    lag: int | None
    saved_us: int
    holders: list[str]


class Shown(msgspec.Struct, frozen=True):
    """The rows of one page. before, after: the first row of the page before and of the page after; None without such
    a page."""

    rows: list[object]
    first: int
    total: int
    before: int | None
    after: int | None


async def list_infos(client: StreamClient, prefix: str = "") -> list[StreamInfo]:
    """Returns at most PARTITIONS_MAX partitions whose stream's name begins with `prefix`."""
    found: list[StreamInfo] = []
    async for each in client.list_streams(prefix):
        found.append(each)
        if len(found) >= PARTITIONS_MAX:
            break
    return found


async def list_saved(
    client: StreamClient, *, stream_name: str | None = None, client_id: str | None = None
) -> list[SavedPosition]:
    """Returns at most PARTITIONS_MAX saved positions."""
    found: list[SavedPosition] = []
    async for each in list_positions(client, stream_name=stream_name, client_id=client_id):
        found.append(each)
        if len(found) >= PARTITIONS_MAX:
            break
    return found


async def permitted(asked: Awaitable[list[T]]) -> list[T]:
    """Returns a list, or an empty one if the user has no right to see it."""
    try:
        return await asked
    except AccessDenied:
        return []


def by_place(infos: list[StreamInfo]) -> dict[tuple[str, int], StreamInfo]:
    return {(each.stream_name, each.partition): each for each in infos}


def stream_rows(
    infos: list[StreamInfo], saved: list[SavedPosition], find_rate: Callable[[str], float | None]
) -> list[StreamRow]:
    """Returns a row for each stream, in the order of the names."""
    rows: dict[str, StreamRow] = {}
    for info in infos:
        row = rows.setdefault(info.stream_name, StreamRow(info.stream_name, []))
        row.partitions.append(info)
        row.messages += info.next_index - info.first_index
        row.size_bytes += info.size_bytes
        if info.last_time_us is not None:
            row.newest_us = max(row.newest_us or 0, info.last_time_us)
    for each in consumer_rows(infos, saved):
        found = rows.get(each.stream)
        if found is not None and each.lag is not None:
            found.lag = max(found.lag or 0, each.lag)
    for row in rows.values():
        row.rate = find_rate(row.name)
    return list(rows.values())


def consumer_rows(infos: list[StreamInfo], saved: list[SavedPosition]) -> list[ConsumerRow]:
    """Returns a row for each consumer of each stream, in the order of the names."""
    unread = count_unread(saved, infos)
    rows: dict[tuple[str, str], ConsumerRow] = {}
    for each in saved:
        row = rows.setdefault(
            (each.client_id, each.stream_name), ConsumerRow(each.client_id, each.stream_name, [], None, 0, [])
        )
        lags = unread[each.client_id, each.stream_name]
        row.positions.append(PositionRow(each, lags.get(each.partition)))
        row.lag = sum(lags.values()) if lags else None
        row.saved_us = max(row.saved_us, each.saved_us)
        if each.holder is not None and each.holder not in row.holders:
            row.holders.append(each.holder)
    return list(rows.values())


def show_rows(page: Page, rows: list[T]) -> Shown:
    """Returns one page of the rows. The parameter `first` of the query is the number of its first row."""
    first = min(page.count("first", 0), max(0, len(rows) - 1) // ROWS * ROWS)
    after = first + ROWS
    return Shown(
        list(rows[first:after]),
        first,
        len(rows),
        max(0, first - ROWS) if first else None,
        after if after < len(rows) else None,
    )
