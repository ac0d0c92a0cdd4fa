"""Lists everything that the user may see: streams with their partitions, and consumers with their positions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from index_service.extensions import SavedPosition
from stream_client import AccessDenied, StreamClient, StreamInfo, list_positions
from stream_node.care.unread import count_unread
from stream_node.doors.dashboard.page import DashboardPage
from stream_node.doors.http.data.places import find_partitions

ROWS = 50

T = TypeVar("T")


class StreamRow(msgspec.Struct, frozen=True):
    """One stream. first: its first partition. rate: messages per second lately; None if unknown.
    lag: the largest lag of a consumer; None without consumers."""

    name: str
    partitions: int
    first: StreamInfo
    messages: int
    size_bytes: int
    newest_us: int | None
    rate: float | None
    lag: int | None


class PositionLine(msgspec.Struct, frozen=True):
    """A saved position with its partition. lag: None if there is no such partition, or the user may not see it."""

    position: SavedPosition
    lag: int | None


class ConsumerRow(msgspec.Struct):
    """One consumer of one stream. lag: the sum over its partitions, if known. saved_us: its last progress.
    holders: the members that have leases of its partitions."""

    client_id: str
    stream: str
    positions: int
    lag: int | None
    saved_us: int
    holders: list[str] = []


class Shown(msgspec.Struct, frozen=True):
    """The rows of one page. before, after: the first row of the page before and of the page after; None without one."""

    rows: list[Any]
    first: int
    total: int
    before: int | None
    after: int | None


async def list_infos(client: StreamClient, name: str | None = None) -> list[StreamInfo]:
    return [each async for each in client.list_streams()] if name is None else await find_partitions(client, name)


async def list_saved(
    client: StreamClient, *, stream_name: str | None = None, client_id: str | None = None
) -> list[SavedPosition]:
    return [each async for each in list_positions(client, stream_name=stream_name, client_id=client_id)]


async def permitted(asked: Awaitable[list[T]]) -> list[T]:
    """Returns a list, or an empty one if the user has no right to see it."""
    try:
        return await asked
    except AccessDenied:
        return []


def stream_rows(infos: list[StreamInfo], saved: list[SavedPosition], rates: dict[str, float] | None) -> list[StreamRow]:
    lags: dict[str, int] = {}
    for each in consumer_rows(infos, saved):
        if each.lag is not None:
            lags[each.stream] = max(lags.get(each.stream, 0), each.lag)
    return [
        StreamRow(
            name=name,
            partitions=len(own),
            first=own[0],
            messages=sum(each.count for each in own),
            size_bytes=sum(each.size_bytes for each in own),
            newest_us=max((each.last_time_us for each in own if each.last_time_us is not None), default=None),
            rate=None if rates is None else rates.get(name, 0.0),
            lag=lags.get(name),
        )
        for name, own in ((name, list(group)) for name, group in groupby(infos, key=lambda info: info.stream_name))
    ]


def consumer_rows(infos: list[StreamInfo], saved: list[SavedPosition]) -> list[ConsumerRow]:
    rows = []
    for key, unread in count_unread(saved, infos).items():
        rows.append(ConsumerRow(*key, 0, sum(unread.values()) if unread else None, 0, []))
    by_key = {(each.client_id, each.stream): each for each in rows}
    for each in saved:
        row = by_key[each.client_id, each.stream_name]
        row.positions += 1
        row.saved_us = max(row.saved_us, each.saved_us)
        if each.holder is not None and each.holder not in row.holders:
            row.holders.append(each.holder)
    return rows


def position_rows(infos: list[StreamInfo], saved: list[SavedPosition]) -> list[PositionLine]:
    ((_, unread),) = count_unread(saved, infos).items()
    return [PositionLine(each, unread.get(each.partition)) for each in saved]


def show_rows(page: DashboardPage, rows: Sequence[Any]) -> Shown:
    """Returns one page of the rows. The parameter `first` of the query is the number of its first row."""
    return cut_rows(rows, page.count("first", 0))


def cut_rows(rows: Sequence[Any], first: int, make: Callable[[Any], Any] = lambda row: row) -> Shown:
    """Returns the page that begins with a row; one behind the last page is the last one. make: completes a row."""
    first = min(first, max(0, len(rows) - 1) // ROWS * ROWS)
    return shown_rows(list(map(make, rows[first : first + ROWS])), first, len(rows))


def shown_rows(rows: list[Any], first: int, total: int) -> Shown:
    """Returns a page that has been cut already. first: the number of its first row. total: the number of all rows."""
    after = first + ROWS
    return Shown(rows, first, total, max(0, first - ROWS) if first else None, after if after < total else None)
