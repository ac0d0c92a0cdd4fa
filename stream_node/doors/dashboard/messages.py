"""The pages of messages: a list that goes both ways and follows new messages, and one message in every form."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import Right
from stream_client import NEW, AccessDenied, ClientError, FromIndex, Stream, StreamNotFound
from stream_node.cli.streams.messages import LOOKED_MAX, Match, ndjson_line
from stream_node.doors.dashboard.decoding import VIEWS, Decoded, decode
from stream_node.doors.dashboard.page import DashboardPage, begin_of, number_of
from stream_node.doors.http.paging import COPIES, answer_raw, cut_bytes, pull_counted, pull_cut
from stream_node.doors.http.problems import Problem
from stream_service.extensions import CutMessage

ROWS = 25
ROW_BYTES_MAX = 2_000
MESSAGE_BYTES_MAX = 256 * 1024
"""The number of bytes that the page of one message shows. The whole message can always be downloaded."""
FOLLOWED_MAX = 500
"""The number of new messages after which a page stops following, so that it does not grow without end."""
LOOKED_MOST = 1_000_000
LOOKED_AT_ONCE = 500
LOOK_S = 3.0
"""How long one search takes at most. The page shows how far it came, and goes on from there."""
FILE_BYTES_MAX = 16 * 1024 * 1024
WAIT_S = 4.0


class MessageRow(msgspec.Struct, frozen=True):
    """A row of the list. message: its beginning; None if it cannot be read, and `decoded` has the reason."""

    index: int
    message: CutMessage | None
    decoded: Decoded
    key: str = ""


async def show_messages(page: DashboardPage) -> Response:
    """Shows messages from an index or a time on, or those that match in a bounded part of the partition."""
    name, number, view = _place(page)
    start = begin_of(page.get("start").strip() or "first")
    search = {each: page.get(each) for each in ("key", "header", "content")}
    match = Match.of(*search.values())
    async with page.client() as client:
        whole = await client.get_stream(name)
        stream = whole.get_partition(number)
        info = await stream.info()
        if start == NEW:
            first = info.next_index
        else:
            index = start if isinstance(start, int) else await stream.find_index(start)
            first = max(info.first_index, min(index, info.next_index))
        if match is None:
            rows = await read_rows(page, stream, first, min(ROWS, max(0, info.next_index - first)), view)
            after = rows[-1].index + 1 if rows else first
        else:
            end = min(info.next_index, first + page.count("most", LOOKED_MAX, LOOKED_MOST))
            rows, after = await _search(page, stream, first, end, view, match)
    return page.show(
        "messages.html",
        stream=name,
        partition=number,
        partitions=[each.partition for each in whole.partitions],
        info=info,
        rows=rows,
        first=first,
        before=max(info.first_index, first - ROWS) if first > info.first_index else None,
        after=after if after < info.next_index else None,
        looked=None if match is None else after - first,
        search={each: text for each, text in search.items() if text},
        most=page.count("most", LOOKED_MAX),
        last=max(info.first_index, info.next_index - ROWS),
        view=view,
        views=VIEWS,
        start=page.get("start"),
        follows=bool(page.get("follow")),
    )


async def save_messages(page: DashboardPage) -> Response:
    """Sends the messages with the indexes of the query as a file, which `stream-node push --ndjson` reads."""
    name, number, _ = _place(page)
    indexes = [number_of(each, "indexes") for each in page.get("indexes").split(",")]
    if len(indexes) > ROWS:
        raise Problem(400, "invalid-request", f"a file of this page has at most {ROWS} messages")
    async with page.client() as client:
        stream = (await client.get_stream(name)).get_partition(number)
        # The sizes come first, without data, so that the memory for the data is counted before it is read.
        async with page.call.memory.making(cut_bytes(len(indexes), 0)):
            heads = [await pull_cut(stream, FromIndex(each), 1, 0) for each in indexes]
        _check_stored(indexes, [message.index for head in heads for message in head.messages])
        size_bytes = sum(message.size_bytes for head in heads for message in head.messages)
        if size_bytes > FILE_BYTES_MAX:
            detail = (
                f"these messages have {size_bytes:,} bytes, and a file of this page has at most {FILE_BYTES_MAX:,}; "
                f"use stream-node pull {name} --partition {number} --index {indexes[0]} --ndjson"
            )
            raise Problem(413, "file-too-large", detail)
        async with page.call.memory.making(COPIES * size_bytes + cut_bytes(len(indexes), 0)):
            pages = [await stream.pull_page(FromIndex(each), 1) for each in indexes]
    messages = [message for each in pages for message in each.messages]
    # Retention may have deleted messages between the two readings.
    _check_stored(indexes, [message.index for message in messages])
    headers = {"content-disposition": f'attachment; filename="{_file_name(name)}-{number}-{indexes[0]}.ndjson"'}
    lines = [ndjson_line(message, number) for message in messages]
    return answer_raw(b"".join(lines), headers, "application/x-ndjson")


def _check_stored(indexes: Sequence[int], found: Sequence[int]) -> None:
    gone = [str(each) for each in indexes if each not in found]
    if gone:
        detail = f"the node has deleted these messages since the page was shown: {', '.join(gone)}; show the page again"
        raise Problem(404, "no-such-message", detail)


async def _search(
    page: DashboardPage, stream: Stream, first: int, end: int, view: str, match: Match
) -> tuple[list[MessageRow], int]:
    """Returns the messages from `first` to before `end` that match or are damaged, and the index behind the last one
    that was read. Ends earlier after LOOK_S seconds."""
    rows: list[MessageRow] = []
    at, gives_up_s, count = first, trio.current_time() + LOOK_S, LOOKED_AT_ONCE
    while at < end and len(rows) < ROWS and trio.current_time() < gives_up_s:
        try:
            found = await pull_counted(page.call.memory, stream, FromIndex(at), min(count, end - at))
        except (AccessDenied, StreamNotFound):
            raise
        except ClientError as error:
            # A damaged message fails each page that it is on, so it is found by halves. The search goes on behind it.
            if min(count, end - at) > 1:
                count = min(count, end - at) // 2
                continue
            rows.append(MessageRow(at, None, Decoded("error", f"this message cannot be searched: {error}")))
            at, count = at + 1, LOOKED_AT_ONCE
            continue
        for each in found.messages:
            if match.fits(each) and each.index < end:
                beginning = each.data[:ROW_BYTES_MAX]
                cut = CutMessage(each.index, each.time_us, each.key, list(each.headers), len(each.data), beginning)
                rows.append(_row(cut, view))
                if len(rows) == ROWS:
                    return rows, each.index + 1
        at = found.resume_index if found.messages else end
    return rows, min(at, end)


async def show_next(page: DashboardPage) -> Response:
    """Returns the rows of new messages, for a list that follows them. Waits up to WAIT_S seconds for a message."""
    name, number, view = _place(page)
    start, shown = page.count("start", 0), page.count("shown", 0)
    async with page.client() as client:
        stream = (await client.get_stream(name)).get_partition(number)
        # The wait asks for no data, so it holds no memory. An empty answer after it is no error: the page asks again.
        limit = ROWS if (await pull_cut(stream, FromIndex(start), 1, 0, WAIT_S)).messages else 0
        async with page.call.memory.making(cut_bytes(limit, ROW_BYTES_MAX)):
            found = await pull_cut(stream, FromIndex(start), limit, ROW_BYTES_MAX)
    rows = [_row(each, view) for each in found.messages]
    return page.show(
        "message_rows.html",
        stream=name,
        partition=number,
        rows=list(reversed(rows)),
        view=view,
        start=found.resume_index if rows else start,
        shown=shown + len(rows),
        missed=rows[0].index - start if rows else 0,
        ends=shown + len(rows) >= FOLLOWED_MAX,
        follows=True,
        is_new=True,
    )


async def show_message(page: DashboardPage) -> Response:
    name, number, view = _place(page)
    index = page.count("index", 0)
    async with page.client() as client:
        stream = (await client.get_stream(name)).get_partition(number)
        info = await stream.info()
        rows = await read_rows(page, stream, index, 1, view, MESSAGE_BYTES_MAX)
    row = rows[0] if rows else None
    # For a deleted message, the node returns a later one.
    if row is None or row.index != index:
        has = f"those from {info.first_index} to {info.next_index - 1}" if info.count else "none"
        detail = f"{name}/{number} has no message {index}; it has {has}"
        raise Problem(404, "no-such-message", detail)
    headers = [] if row.message is None else [(each.name, shown_bytes(each.value)) for each in row.message.headers]
    return page.show(
        "message.html", stream=name, partition=number, row=row, headers=headers, info=info, view=view, views=VIEWS
    )


async def send_raw(page: DashboardPage) -> Response:
    name, number, _ = _place(page)
    index = page.count("index", 0)
    async with page.client() as client:
        stream = (await client.get_stream(name)).get_partition(number)
        found = await pull_counted(page.call.memory, stream, FromIndex(index), 1)
    if not found.messages or found.messages[0].index != index:
        raise Problem(404, "no-such-message", f"{name}/{number} has no message {index}")
    file = f"{_file_name(name)}-{number}-{index}.bin"
    headers = {"content-disposition": f'attachment; filename="{file}"'}
    return answer_raw(found.messages[0].data, headers, "application/octet-stream")


def _file_name(stream: str) -> str:
    return re.sub("[^A-Za-z0-9._-]", "_", stream)[:80]


async def read_rows(
    page: DashboardPage, stream: Stream, first: int, count: int, view: str, bytes_max: int = ROW_BYTES_MAX
) -> list[MessageRow]:
    """Returns the messages from an index on. The row of a message that the node cannot read has the reason."""
    rows: list[MessageRow] = []
    at, end, step = first, first + count, count
    async with page.call.memory.making(cut_bytes(count, bytes_max)):
        while at < end:
            try:
                found = await pull_cut(stream, FromIndex(at), min(step, end - at), bytes_max)
            except (AccessDenied, StreamNotFound):
                raise
            except ClientError as error:
                # A damaged message fails the page that it is on. Read alone, only the damaged one fails.
                if step == 1:
                    rows.append(MessageRow(at, None, Decoded("error", str(error))))
                    at += 1
                step = 1
                continue
            if not found.messages:
                break
            rows += [_row(each, view, bytes_max) for each in found.messages if each.index < end]
            at = found.resume_index
    return rows


def _row(message: CutMessage, view: str, bytes_max: int = ROW_BYTES_MAX) -> MessageRow:
    key = "" if message.key is None else shown_bytes(message.key)
    decoded = decode(message.data, view, bytes_max, message.size_bytes, is_short=bytes_max == ROW_BYTES_MAX)
    return MessageRow(message.index, message, decoded, key)


def shown_bytes(value: bytes) -> str:
    """Returns the beginning of a key or of a header's value: text as it is, other bytes as hexadecimal digits."""
    found = decode(value, "text", 1_000)
    return found.text if found.view == "text" else f"0x{value[:500].hex()}"


def _place(page: DashboardPage) -> tuple[str, int, str]:
    view = page.get("view", "auto")
    if view not in VIEWS:
        raise Problem(400, "invalid-request", f"messages are shown as {', '.join(VIEWS)}, not as {view[:40]!r}")
    name = page.get("stream")
    page.need(Right.READ, name)
    return name, page.count("partition", 0), view
