"""The pages of streams: the list of all streams, one stream in detail, and forms to change it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from stream_client import Retention, StreamNotFound
from stream_node.cli.values import UsageError, parse_duration, parse_size
from stream_node.doors.dashboard import listing
from stream_node.doors.dashboard.page import DashboardPage, check_typed, number_of
from stream_node.doors.http.problems import Problem
from stream_node.fleet.worker_place import has_own_databases

ORDERS: dict[str, Callable[[listing.StreamRow], Any]] = {
    "name": lambda row: row.name,
    "rate": lambda row: -(row.rate or 0),
    "size": lambda row: -row.size_bytes,
    "messages": lambda row: -row.messages,
    "lag": lambda row: -(row.lag or 0),
}
PARTITIONS_MADE_MAX = 1_000
"""The largest number of partitions that the form makes. A larger number is more likely a mistake."""


class Streams:
    def __init__(self, rates: Callable[[], dict[str, float] | None]) -> None:
        self._rates = rates

    async def show_all(self, page: DashboardPage) -> Response:
        search, order = page.query.get("search", ""), page.query.get("order", "name")
        if order not in ORDERS:
            raise Problem(400, "invalid-request", f"streams are ordered by {', '.join(ORDERS)}, not by {order[:40]!r}")
        page.need(STREAM_RIGHTS)
        first, rates = page.count("first", 0), self._rates()
        if has_own_databases(page.call.parts.config):
            # Each worker has some partitions of a stream in a database of its own.
            async with page.client() as client:
                infos, saved = await listing.list_infos(client), await listing.permitted(listing.list_saved(client))
            rows = [row for row in listing.stream_rows(infos, saved, rates) if search.lower() in row.name.lower()]
            shown = listing.show_rows(page, sorted(rows, key=ORDERS[order]))
        else:
            asked = listing.Asked(search, order, first, page.edges(STREAM_RIGHTS), page.edges(Right.INDEX), rates)
            shown = await listing.find(page.call.parts.runner, asked, listing.find_streams)
        return page.show(
            "streams.html",
            shown=shown,
            search=search,
            order=order,
            orders=list(ORDERS),
            may_create=page.may(Right.CREATE),
        )

    async def show(self, page: DashboardPage) -> Response:
        name = page.query.get("name", "")
        page.need(Right.READ | Right.WRITE | Right.ADMIN | Right.DELETE, name)
        async with page.client() as client:
            infos = await listing.list_infos(client, name)
            if not infos:
                # Raises the error with similar names.
                await client.get_stream(name)
                raise StreamNotFound(f"there is no stream {name!r}")
            saved = await listing.permitted(listing.list_saved(client, stream_name=name))
        (row,) = listing.stream_rows(infos, saved, self._rates())
        return page.show(
            "stream.html",
            row=row,
            infos=infos,
            consumers=listing.consumer_rows(infos, saved),
            holders={each.partition: each for each in saved if each.holder is not None},
            default_retention=_default_retention(page),
            may_read=page.may(Right.READ, name),
            may_write=page.may(Right.WRITE, name),
            may_admin=page.may(Right.ADMIN, name),
            may_delete=page.may(Right.DELETE, name),
        )

    async def create(self, page: DashboardPage) -> Response:
        fields = await page.form()
        name, partitions = fields.get("name", ""), number_of(fields, "partitions")
        if not 1 <= partitions <= PARTITIONS_MADE_MAX:
            detail = f"the number of partitions is from 1 to {PARTITIONS_MADE_MAX:,}"
            raise Problem(400, "invalid-request", detail)
        async with page.client() as client:
            made = await client.create_partitioned(name or None, partitions)
        return page.go("/stream", name=made.name, done=f"The stream {made.name} is there.")

    async def push(self, page: DashboardPage) -> Response:
        """Pushes one message. Without a partition, the key chooses it; without a key, it is chosen at random."""
        fields = await page.form()
        name = fields.get("name", "")
        number = number_of(fields, "partition") if fields.get("partition") else None
        data = _data(fields.get("data", ""), fields.get("form", "text"))
        key = fields.get("key", "").encode() or None
        async with page.client() as client:
            stream = await client.get_stream(name)
            if number is not None:
                partition = stream.get_partition(number)
            else:
                partition = random.choice(stream.partitions) if key is None else stream.partition_for(key)
            index = await partition.push(data, key=key)
        done = f"Message {index:,} is stored in partition {partition.partition}."
        return page.go("/messages", stream=name, partition=partition.partition, start=max(0, index - 9), done=done)

    async def set_retention(self, page: DashboardPage) -> Response:
        fields = await page.form()
        name = fields.get("name", "")
        retention = None if fields.get("default") else _retention(fields)
        async with page.client() as client:
            for partition in (await client.get_stream(name)).partitions:
                await partition.set_retention(retention)
        return page.go("/stream", name=name, done="The retention is set. Messages beyond it are being deleted.")

    async def truncate(self, page: DashboardPage) -> Response:
        fields = await page.form()
        name = fields.get("name", "")
        check_typed(fields, name)
        partition, before = number_of(fields, "partition"), number_of(fields, "before")
        async with page.client() as client:
            answer = await (await client.get_stream(name)).get_partition(partition).truncate(before)
        return page.go("/stream", name=name, done=f"{answer.deleted:,} messages are deleted.")

    async def delete(self, page: DashboardPage) -> Response:
        fields = await page.form()
        name = fields.get("name", "")
        check_typed(fields, name)
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


def _retention(fields: dict[str, str]) -> Retention:
    age, messages, size = (fields.get(name, "").strip() for name in ("age", "messages", "size"))
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


def _default_retention(page: DashboardPage) -> Retention:
    config = page.call.parts.config
    return Retention(config.retention_age_s, config.retention_messages, config.retention_bytes)
