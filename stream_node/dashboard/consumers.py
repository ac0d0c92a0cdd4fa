"""The pages of consumers: how far each one is, who holds its leases, and the editing of its positions."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response

from access.rights import STREAM_RIGHTS, Right
from stream_client import ClientError, Stream, StreamClient, set_position
from stream_client.arguments import StartLike
from stream_node.cli.values import UsageError, parse_start
from stream_node.dashboard.finding import Asked, FindConsumers, find
from stream_node.dashboard.listing import (
    ROWS,
    ConsumerRow,
    PositionRow,
    consumer_rows,
    list_infos,
    list_saved,
    permitted,
    position_rows,
    show_rows,
    shown_rows,
)
from stream_node.dashboard.page import Page, check_typed, number_of
from stream_node.http.problems import Problem
from stream_node.worker_place import has_own_databases


async def show_consumers(page: Page) -> Response:
    """Returns the list of the consumers that the user may see. Those that are farthest behind come first."""
    search, first = page.query.get("search", ""), page.count("first", 0)
    page.need(Right.INDEX)
    async with page.client() as client:
        if has_own_databases(page.call.parts.config):
            saved, infos = await list_saved(client), await permitted(list_infos(client))
            rows = [
                each
                for each in consumer_rows(infos, saved)
                if search.lower() in f"{each.client_id}\n{each.stream}".lower()
            ]
            shown = show_rows(page, sorted(rows, key=lambda row: -(row.lag or 0)))
        else:
            asked = Asked(search, "lag", first, ROWS, page.edges(STREAM_RIGHTS), page.edges(Right.INDEX))
            found = await find(page.call.parts.runner, asked, FindConsumers)
            for row in found.rows:
                saved = await list_saved(client, stream_name=row.stream, client_id=row.client_id)
                row.holders = sorted({each.holder for each in saved if each.holder is not None})
            shown = shown_rows(found.rows, found.first, found.total)
    return page.show("consumers.html", active="consumers", shown=shown, search=search)


async def show_consumer(page: Page) -> Response:
    """Returns the page of one consumer of one stream: its position in each partition, with a form that sets it."""
    client_id, stream = page.query.get("client", ""), page.query.get("stream", "")
    async with page.client() as client:
        row, positions, ends = await _find(client, client_id, stream)
    return page.show(
        "consumer.html",
        active="consumers",
        row=row,
        positions=positions,
        ends=ends,
        may_index=page.may(Right.INDEX, client_id),
    )


async def change_position(page: Page) -> Response:
    """Sets the position of a consumer in one partition or in all. The node refuses it while a member has the lease."""
    fields = await page.form()
    client_id, stream, to = fields.get("client", ""), fields.get("stream", ""), fields.get("to", "").strip()
    only = None if fields.get("partition", "all") == "all" else number_of(fields, "partition")
    try:
        start = parse_start(to.replace(",", ""), datetime.now(UTC))
    except UsageError as error:
        raise Problem(400, "invalid-request", str(error)) from error
    async with page.client() as client:
        partitions = [
            each for each in (await client.get_stream(stream)).partitions if only is None or each.partition == only
        ]
        if not partitions:
            raise Problem(404, "no-such-partition", f"{stream} has no partition {only}")
        # Every partition is checked before the first position is set.
        indexes = {each.partition: await _index_in(each, start) for each in partitions}
        told: list[str] = []
        try:
            for number, index in indexes.items():
                before = await set_position(client, client_id, stream, number, index)
                told.append(f"partition {number} from {'none' if before is None else before} to {index}")
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


async def _index_in(partition: Stream, start: StartLike) -> int:
    """Returns the index that a start means in a partition. Raises Problem if it is beyond the end."""
    index = start if isinstance(start, int) else await partition.find_index(start)
    end = (await partition.info()).next_index
    if index > end:
        detail = f"partition {partition.partition} ends at {end}; choose an index up to there, or last; nothing is set"
        raise Problem(400, "invalid-request", detail)
    return index


async def forget_consumer(page: Page) -> Response:
    """Deletes the positions of a consumer in one stream, if its name was typed again."""
    fields = await page.form()
    client_id, stream = fields.get("client", ""), fields.get("stream", "")
    check_typed(fields, client_id)
    async with page.client() as client:
        saved = await list_saved(client, stream_name=stream, client_id=client_id)
        for each in saved:
            await set_position(client, client_id, stream, each.partition, None)
    done = f"The positions of {client_id} in {stream} are forgotten. If it runs again, it begins anew."
    return page.go("/consumers", done=done)


async def _find(
    client: StreamClient, client_id: str, stream: str
) -> tuple[ConsumerRow, list[PositionRow], dict[int, int]]:
    """Returns a consumer, its positions, and the next index of each partition of its stream. Raises Problem."""
    saved = await list_saved(client, stream_name=stream, client_id=client_id)
    if not saved:
        detail = f"no position of {client_id!r} in {stream!r} is saved, or you may not see it"
        raise Problem(404, "no-such-consumer", detail)
    infos = await permitted(list_infos(client, stream))
    (row,) = consumer_rows(infos, saved)
    return row, position_rows(infos, saved), {each.partition: each.next_index for each in infos}
