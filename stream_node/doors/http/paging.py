"""Reads messages for an answer over HTTP, after the memory for them is counted.
The size of a message is known only after reading. So before a page that is large, waits, or belongs to a partition
elsewhere, the first message is pulled without its data. A request that waits for this message holds no memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from itertools import chain

from starlette.responses import Response, StreamingResponse

from stream_client import FromIndex, Page, Stream
from stream_client.arguments import StartLike, encoded, start_of
from stream_client.consume.reader import patience_for
from stream_client.core.calls import answer_of
from stream_node.doors.http.memory import RequestMemory
from stream_node.node.inside_clients import InsideStream
from stream_service.extensions import CUT_PULL, CutPage, CutPull
from stream_service.limits import StreamLimits
from stream_service.page_codec import PackedMessages

BESIDE_BYTES = StreamLimits().key_bytes_max + StreamLimits().headers_bytes_max
COPIES = 3
"""A page from the node itself is in memory this many times: as bytes, as payload, and as messages."""
OVERHEAD_BYTES = 500
"""The memory of one message beside its data and key."""
HEADER_BYTES = 150
"""The memory of one header of a message beside its value."""
PART_BYTES = 64 * 1024
"""An answer is sent in parts of about this size, so that its encoded form is never in memory as a whole."""


async def pull_cut(stream: Stream, start: StartLike, limit: int, data_bytes_max: int, wait_s: float = 0.0) -> CutPage:
    """Returns a page with only the first `data_bytes_max` bytes of each message."""
    request = CutPull(0, start_of(start), limit, int(wait_s * 1000), data_bytes_max)
    call = stream.session.core.call(stream.handle, encoded(CUT_PULL, request), patience=patience_for(wait_s))
    return answer_of(await stream.session.answered(call, wait_s), CUT_PULL)


async def pull_counted(
    memory: RequestMemory, stream: Stream, start: StartLike, limit: int, wait_s: float = 0.0
) -> Page:
    """Returns a page as `Stream.pull_page` does. Its bytes stay counted in `memory` as `made_bytes`."""
    memory.note(made_bytes=0)
    # Nearly every page has the usual size, and is read at once if the worker of the partition is here.
    if isinstance(stream, InsideStream):
        async with memory.making(memory.page_bytes * COPIES):
            found = await stream.pull_small(start, limit, memory.page_bytes + BESIDE_BYTES)
        if found is not None and (found.messages or not wait_s):
            memory.note(made_bytes=_page_memory_bytes(found))
            return found
        memory.note(made_bytes=0)
        if found is not None:
            start = found.resume_index
    first = await pull_cut(stream, start, min(limit, 1), 0, wait_s)
    if not first.messages:
        return Page((), first.first_index, first.next_index, first.resume_index)
    at = first.messages[0]
    async with memory.making(max(memory.page_bytes, at.size_bytes) * COPIES):
        page = await stream.pull_page(FromIndex(at.index), limit)
    memory.note(made_bytes=_page_memory_bytes(page))
    return page


def cut_bytes(messages: int, data_bytes_max: int) -> int:
    return messages * (data_bytes_max + BESIDE_BYTES) * COPIES


def _page_memory_bytes(page: Page) -> int:
    if isinstance(page.messages, PackedMessages) and page.messages.is_plain:
        return OVERHEAD_BYTES * len(page.messages) + page.messages.data_bytes
    return sum(
        OVERHEAD_BYTES + len(each.data) + len(each.key or b"") + sum(HEADER_BYTES + len(h.value) for h in each.headers)
        for each in page.messages
    )


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields pieces of an answer, joined to parts of at least PART_BYTES. Only the last part may be smaller."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def answer_in_parts(pieces: Iterable[bytes], headers: Mapping[str, str], media_type: str) -> Response:
    """Returns an answer in parts. The next part is made when the previous one was sent."""
    parts = gathered(pieces)
    begin = next(parts, b"")
    following = next(parts, None)
    if following is None:
        return Response(begin, headers=dict(headers), media_type=media_type)

    async def send() -> AsyncGenerator[bytes]:
        for part in chain((begin, following), parts):
            yield part

    return StreamingResponse(send(), headers=dict(headers), media_type=media_type)


def answer_raw(data: bytes, headers: Mapping[str, str], media_type: str) -> Response:
    pieces = (data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES))
    return answer_in_parts(pieces, {"content-length": str(len(data)), **headers}, media_type)
