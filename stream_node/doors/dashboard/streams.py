"""The pages of streams and consumers: lists of all, a page for each one, and forms that change a stream or consumer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from starlette.responses import Response

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from stream_client import ClientError, Retention, StreamClient, StreamInfo, StreamNotFound, set_position
from stream_node.care.unread import count_unread
from stream_node.cli.values import UsageError, parse_duration, parse_size
from stream_node.doors.dashboard import listing
from stream_node.doors.dashboard.page import DashboardPage, begin_of, number_of
from stream_node.doors.http.problems import Problem
from stream_node.fleet.worker_place import has_own_databases

Rates: TypeAlias = Callable[[], dict[str, float] | None]
"""Returns the messages per second of each stream; None if they are not known yet."""
PARTITIONS_MADE_MAX = 1_000
"""The largest number of partitions that the form makes. A larger number is more likely a mistake."""


async def show_all(rates_of: Rates, page: DashboardPage) -> Response:
    search, order = page.get("search"), page.get("order", "name")
    if order not in listing.ORDERS:
        possible = ", ".join(listing.ORDERS)
        raise Problem(400, "invalid-request", f"streams are ordered by {possible}, not by {order[:40]!r}")
    page.need(STREAM_RIGHTS)
    first, rates = page.count("first", 0), rates_of()
    if has_own_databases(page.call.parts.config):
        # Each worker has some partitions of a stream in a database of its own.
        async with page.client() as client:
            infos, saved = await listing.list_infos(client), await listing.permitted(listing.list_saved(client))
        rows = [row for row in listing.stream_rows(infos, saved, rates) if search.lower() in row.name.lower()]
        shown = listing.cut_rows(sorted(rows, key=listing.ORDERS[order]), first)
    else:
        asked = listing.Asked(search, order, first, page.edges(STREAM_RIGHTS), page.edges(Right.INDEX), rates)
        shown = await listing.find(page.call.parts.runner, asked, listing.find_streams)
    return page.show("streams.html", shown=shown, search=search, order=order, orders=list(listing.ORDERS))


async def show(rates_of: Rates, page: DashboardPage) -> Response:
    name = page.get("name")
    page.need(Right.READ | Right.WRITE | Right.ADMIN | Right.DELETE, name)
    async with page.client() as client:
        infos = await listing.list_infos(client, name)
        if not infos:
            # This call raises the error that names similar streams.
            await client.get_stream(name)
            raise StreamNotFound(f"there is no stream {name!r}")
        saved = await listing.permitted(listing.list_saved(client, stream_name=name))
    (row,) = listing.stream_rows(infos, saved, rates_of())
    config = page.call.parts.config
    return page.show(
        "stream.html",
        row=row,
        infos=infos,
        consumers=listing.consumer_rows(infos, saved),
        holders={each.partition: each for each in saved if each.holder is not None},
        default_retention=Retention(config.retention_age_s, config.retention_messages, config.retention_bytes),
    )


async def create(page: DashboardPage) -> Response:
    name, partitions = page.get("name"), page.whole("partitions")
    if not 1 <= partitions <= PARTITIONS_MADE_MAX:
        detail = f"the number of partitions is from 1 to {PARTITIONS_MADE_MAX:,}"
        raise Problem(400, "invalid-request", detail)
    async with page.client() as client:
        made = await client.create_partitioned(name or None, partitions)
    return page.go("/stream", name=made.name, done=f"The stream {made.name} is there.")


async def push(page: DashboardPage) -> Response:
    """Pushes one message. Without a partition, the key chooses it; without a key, it is chosen at random."""
    name = page.get("name")
    number = page.whole("partition") if page.get("partition") else None
    data = _data(page.get("data"), page.get("form", "text"))
    key = page.get("key").encode() or None
    async with page.client() as client:
        stream = await client.get_stream(name)
        if number is not None:
            partition = stream.get_partition(number)
        else:
            partition = random.choice(stream.partitions) if key is None else stream.partition_for(key)
        index = await partition.push(data, key=key)
    done = f"Message {index:,} is stored in partition {partition.partition}."
    return page.go("/messages", stream=name, partition=partition.partition, start=max(0, index - 9), done=done)


async def set_retention(page: DashboardPage) -> Response:
    name = page.get("name")
    retention = None if page.get("default") else _retention(page)
    async with page.client() as client:
        for partition in (await client.get_stream(name)).partitions:
            await partition.set_retention(retention)
    return page.go("/stream", name=name, done="The retention is set. Messages beyond it are being deleted.")


async def truncate(page: DashboardPage) -> Response:
    name = page.get("name")
    page.check_typed(name)
    partition, before = page.whole("partition"), page.whole("before")
    async with page.client() as client:
        answer = await (await client.get_stream(name)).get_partition(partition).truncate(before)
    return page.go("/stream", name=name, done=f"{answer.deleted:,} messages are deleted.")


async def delete(page: DashboardPage) -> Response:
    name = page.get("name")
    page.check_typed(name)
    async with page.client() as client:
        deleted = await (await client.get_stream(name)).delete()
    return page.go("/streams", done=f"The stream {name} is deleted, with {deleted:,} messages.")


def _data(text: str, form: str) -> bytes:
    # A browser sends the lines of a field with CR LF.
    if form != "hex":
        return text.replace("\r\n", "\n").encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Problem(400, "invalid-request", "this is not hexadecimal: write two digits for each byte") from error


def _retention(page: DashboardPage) -> Retention:
    age, messages, size = (page.get(name).strip() for name in ("age", "messages", "size"))
    if messages and not (messages.isascii() and messages.isdecimal() and len(messages) < 19):
        raise Problem(400, "invalid-request", "the number of messages to keep must be a whole number")
    try:
        return Retention(
            parse_duration(age) if age else None,
            int(messages) if messages else None,
            parse_size(size) if size else None,
        )
    except UsageError as error:
        raise Problem(400, "invalid-request", str(error)) from error


async def show_consumers(page: DashboardPage) -> Response:
    search, first = page.get("search"), page.count("first", 0)
    page.need(Right.INDEX)
    asked = listing.Asked(search, "lag", first, page.edges(STREAM_RIGHTS), page.edges(Right.INDEX))
    async with page.client() as client:
        if has_own_databases(page.call.parts.config):
            saved, infos = await listing.list_saved(client), await listing.permitted(listing.list_infos(client))
            rows = [row for row in listing.consumer_rows(infos, saved) if asked.finds(row.client_id, row.stream)]
            shown = listing.cut_rows(sorted(rows, key=lambda row: -(row.lag or 0)), first)
        else:
            shown = await listing.find(page.call.parts.runner, asked, listing.find_consumers)
            for row in shown.rows:
                saved = await listing.list_saved(client, stream_name=row.stream, client_id=row.client_id)
                row.holders = sorted({each.holder for each in saved if each.holder is not None})
    return page.show("consumers.html", shown=shown, search=search)


async def show_consumer(page: DashboardPage) -> Response:
    client_id, stream = page.get("client"), page.get("stream")
    async with page.client() as client:
        saved = await listing.list_saved(client, stream_name=stream, client_id=client_id)
        if not saved:
            detail = f"no position of {client_id!r} in {stream!r} is saved, or you may not see it"
            raise Problem(404, "no-such-consumer", detail)
        infos = await listing.permitted(listing.list_infos(client, stream))
    (row,) = listing.consumer_rows(infos, saved)
    return page.show(
        "consumer.html",
        row=row,
        positions=saved,
        lags=count_unread(saved, infos)[client_id, stream],
        ends={each.partition: each.next_index for each in infos},
    )


class ChangeRow(NamedTuple):
    """The effects of a change of a position. again: stored messages that are read again; skipped: those never read.
    unread: the lag after the change. holder: the member with the lease, for which the node refuses the change."""

    partition: int
    before: int | None
    then: int
    again: int
    skipped: int
    unread: int
    holder: str | None


async def preview_position(page: DashboardPage) -> Response:
    """Shows what a change of a position would do, and changes nothing. Its form sets exactly these positions."""
    client_id, stream = page.get("client"), page.get("stream")
    async with page.client() as client:
        saved = {
            each.partition: each for each in await listing.list_saved(client, stream_name=stream, client_id=client_id)
        }
        places = await _places(client, stream, page)
    rows = []
    for info, index in places:
        position = saved.get(info.partition)
        # Without a position, or with one of a former stream, a consumer begins with the first message.
        is_of_this = position is not None and getattr(position, "created_us", 0) in (0, info.created_us)
        before = position.index if position is not None and is_of_this else None
        now, then = (max(each or 0, info.first_index) for each in (before, index))
        holder = None if position is None else position.holder
        # A consumer whose position is beyond the end has read only the messages that are there.
        change = (
            max(0, min(now, info.next_index) - then),
            max(0, min(then, info.next_index) - now),
            max(0, info.next_index - then),
        )
        rows.append(ChangeRow(info.partition, before, index, *change, holder))
    indexes = ",".join(f"{row.partition}={row.then}" for row in rows)
    return page.show("position.html", client_id=client_id, stream=stream, rows=rows, indexes=indexes)


async def change_position(page: DashboardPage) -> Response:
    """Sets the position of a consumer in one partition or in all. The node refuses it while a member has the lease."""
    client_id, stream = page.get("client"), page.get("stream")
    async with page.client() as client:
        # Every partition is checked before the first position is set.
        places = await _places(client, stream, page)
        told: list[str] = []
        try:
            for info, index in places:
                before = await set_position(client, client_id, stream, info.partition, index)
                told.append(f"partition {info.partition} from {'none' if before is None else before} to {index}")
        except ClientError as error:
            if told:
                raise Problem(
                    409,
                    "partly-set",
                    f"{error}. Set before this error: {', '.join(told)}; the others are as they were.",
                ) from error
            raise
    more = f" and {len(told) - 10:,} more" if len(told) > 10 else ""
    done = f"The position of {client_id} is set: {', '.join(told[:10])}{more}."
    return page.go("/consumer", client=client_id, stream=stream, done=done)


async def _places(client: StreamClient, stream: str, page: DashboardPage) -> list[tuple[StreamInfo, int]]:
    """Returns each partition that a form sets, with its new index: from `indexes` (a preview) or from `to`."""
    fixed = _fixed(page.get("indexes")) if page.get("indexes") else {}
    only = None if page.get("partition", "all") == "all" else page.whole("partition")
    start = 0 if fixed else begin_of(page.get("to"))
    places: list[tuple[StreamInfo, int]] = []
    for each in (await client.get_stream(stream)).partitions:
        if each.partition not in fixed if fixed else only not in (None, each.partition):
            continue
        begin = fixed.get(each.partition, start)
        index = begin if isinstance(begin, int) else await each.find_index(begin)
        info = await each.info()
        if index > info.next_index:
            detail = f"partition {each.partition} ends at {info.next_index}; choose an index up to there, or last"
            raise Problem(400, "invalid-request", f"{detail}; nothing is set")
        places.append((info, index))
    if not places:
        raise Problem(404, "no-such-partition", f"{stream} has no partition {only}")
    return places


def _fixed(text: str) -> dict[int, int]:
    pairs = [each.partition("=") for each in text.split(",")]
    return {number_of(a, "indexes"): number_of(b, "indexes") for a, _, b in pairs}


async def forget_consumer(page: DashboardPage) -> Response:
    client_id, stream = page.get("client"), page.get("stream")
    page.check_typed(client_id)
    async with page.client() as client:
        saved = await listing.list_saved(client, stream_name=stream, client_id=client_id)
        for each in saved:
            await set_position(client, client_id, stream, each.partition, None)
    done = f"The positions of {client_id} in {stream} are forgotten. If it runs again, it begins anew."
    return page.go("/consumers", done=done)
