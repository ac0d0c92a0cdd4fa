"""The pages of consumers: how far each one is, who holds its leases, and the editing of its positions."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from stream_client import ClientError, StreamClient, StreamInfo, set_position
from stream_node.care.unread import count_unread
from stream_node.doors.dashboard import listing
from stream_node.doors.dashboard.page import DashboardPage, begin_of, check_typed, number_of
from stream_node.doors.http.problems import Problem
from stream_node.fleet.worker_place import has_own_databases


async def show_consumers(page: DashboardPage) -> Response:
    search, first = page.query.get("search", ""), page.count("first", 0)
    page.need(Right.INDEX)
    asked = listing.Asked(search, "lag", first, page.edges(STREAM_RIGHTS), page.edges(Right.INDEX))
    async with page.client() as client:
        if has_own_databases(page.call.parts.config):
            saved, infos = await listing.list_saved(client), await listing.permitted(listing.list_infos(client))
            rows = [row for row in listing.consumer_rows(infos, saved) if asked.finds(row.client_id, row.stream)]
            shown = listing.show_rows(page, sorted(rows, key=lambda row: -(row.lag or 0)))
        else:
            shown = await listing.find(page.call.parts.runner, asked, listing.find_consumers)
            for row in shown.rows:
                saved = await listing.list_saved(client, stream_name=row.stream, client_id=row.client_id)
                row.holders = sorted({each.holder for each in saved if each.holder is not None})
    return page.show("consumers.html", shown=shown, search=search)


async def show_consumer(page: DashboardPage) -> Response:
    client_id, stream = page.query.get("client", ""), page.query.get("stream", "")
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
        may_index=page.may(Right.INDEX, client_id),
    )


class ChangeRow(NamedTuple):
    """What setting a position from `before` to `then` does. again, skipped: stored messages read again, or not at all.
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
    fields = await page.form()
    client_id, stream = fields.get("client", ""), fields.get("stream", "")
    async with page.client() as client:
        saved = {
            each.partition: each for each in await listing.list_saved(client, stream_name=stream, client_id=client_id)
        }
        places = await _places(client, stream, fields)
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
    return page.show(
        "position.html",
        client_id=client_id,
        stream=stream,
        rows=rows,
        indexes=",".join(f"{row.partition}={row.then}" for row in rows),
    )


async def change_position(page: DashboardPage) -> Response:
    """Sets the position of a consumer in one partition or in all. The node refuses it while a member has the lease."""
    fields = await page.form()
    client_id, stream = fields.get("client", ""), fields.get("stream", "")
    async with page.client() as client:
        # Every partition is checked before the first position is set.
        places = await _places(client, stream, fields)
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


async def _places(client: StreamClient, stream: str, fields: dict[str, str]) -> list[tuple[StreamInfo, int]]:
    """Returns each partition that a form sets, with its new index: from `indexes` (a preview) or from `to`."""
    fixed = _fixed(fields["indexes"]) if "indexes" in fields else {}
    only = None if fields.get("partition", "all") == "all" else number_of(fields, "partition")
    start = 0 if fixed else begin_of(fields.get("to", ""))
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
    return {number_of({"indexes": a}, "indexes"): number_of({"indexes": b}, "indexes") for a, _, b in pairs}


async def forget_consumer(page: DashboardPage) -> Response:
    fields = await page.form()
    client_id, stream = fields.get("client", ""), fields.get("stream", "")
    check_typed(fields, client_id)
    async with page.client() as client:
        saved = await listing.list_saved(client, stream_name=stream, client_id=client_id)
        for each in saved:
            await set_position(client, client_id, stream, each.partition, None)
    done = f"The positions of {client_id} in {stream} are forgotten. If it runs again, it begins anew."
    return page.go("/consumers", done=done)
