"""`GET /v1/streams/{name}`: a page of messages as JSON or as lines, or all messages as they come (`follow`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ockam.identity.rules.rights import Right
from ockam.protocol import REFUSAL
from stream_client import AccessDenied, FromIndex, LimitExceeded, NotSupported, RequestRefused
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.data import reading
from stream_node.doors.http.data.follow import EVENTS, follow
from stream_node.doors.http.data.places import get_partition
from stream_node.doors.http.data.query import Base64, PartitionNumber, bytes_of, path_index, read_query, stream_name
from stream_node.doors.http.data.records import JSON, LINES, RAW
from stream_node.doors.http.paging import answer_in_parts, answer_raw, pull_counted
from stream_node.doors.http.problems import Problem

LIMIT = 100
LIMIT_MAX = 1_000
WAIT_S_MAX = 60.0


class PullQuery(msgspec.Struct, frozen=True):
    """The parameters of a pull.

    start: where reading begins: an index, `earliest`, `latest` (only messages that are stored from now on), or a time.
    limit: the largest number of messages of a page.
    wait: how many seconds to wait for a message, if there is none.
    partition: the number of the partition. key, key_base64: the key whose partition is meant.
    data: how the data of messages is shown.
    """

    start: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": reading.FROM})] = msgspec.field(
        default="earliest", name="from"
    )
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    wait: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)] = 0.0
    partition: PartitionNumber | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    data: reading.Form = "auto"


class MessageQuery(msgspec.Struct, frozen=True):
    """The parameters of a request for one message. partition: the number of its partition.

    key, key_base64: the key whose partition is meant."""

    partition: PartitionNumber | None = None
    key: str | None = None
    key_base64: Base64 | None = None


class MessagePage(msgspec.Struct, frozen=True):
    """A page of messages.

    first_index, next_index: the index of the earliest stored message, and the one that the next message will get.
    resume_index: where the next page begins: send it as `from`.
    """

    stream: str
    partition: int
    first_index: int
    next_index: int
    resume_index: int
    messages: list[reading.DataMessage]


async def pull(call: HttpCall) -> Response:
    name, query = stream_name(call.request), read_query(call.request, PullQuery)
    kind = _accepted(call.request, (JSON, LINES, EVENTS))
    start = reading.parse_from(query.start)
    key = bytes_of(query.key, query.key_base64, "key")
    if kind == EVENTS:
        return await follow(call, name, query.partition, key, start, query.data)
    async with call.client() as client:
        stream, info = await get_partition(call, client, name, query.partition, key, Right.READ)
        found = await reading.read_found(call.memory, stream, start, query.limit, query.wait)
    headers = _headers(found, name, info.partition)
    if kind == LINES:
        return answer_in_parts(_lines(found, query.data), headers, LINES)
    page = MessagePage(name, info.partition, found.first_index, found.next_index, found.resume_index, [])
    return answer_in_parts(_page(page, found, query.data), headers, JSON)


def _lines(found: reading.PageMessages, form: reading.Form) -> Iterator[bytes]:
    if found.messages:
        yield from reading.joined(found.messages, form, b"\n")
        yield b"\n"


def _page(page: MessagePage, found: reading.PageMessages, form: reading.Form) -> Iterator[bytes]:
    """Returns a page with its messages. page: the page without messages."""
    yield msgspec.json.encode(page).removesuffix(b"]}")
    yield from reading.joined(found.messages, form, b",")
    yield b"]}\n"


async def pull_message(call: HttpCall) -> Response:
    name, index = stream_name(call.request), path_index(call.request, "index")
    query = read_query(call.request, MessageQuery)
    key = bytes_of(query.key, query.key_base64, "key")
    async with call.client() as client:
        stream, info = await get_partition(call, client, name, query.partition, key, Right.READ)
        try:
            page = await pull_counted(call.memory, stream, FromIndex(index), 1)
        except (AccessDenied, LimitExceeded, NotSupported):
            raise
        except RequestRefused as error:
            raise Problem(500, "damaged-message", str(error).removeprefix(REFUSAL)) from error
    if not page.messages or page.messages[0].index != index:
        # The page has the present bounds, and the description can be older.
        first, end = page.first_index or 0, page.next_index or 0
        has = f"those from {first} to {end - 1}" if first < end else "none"
        detail = f"partition {info.partition} of {name!r} has no message {index}; it has {has}"
        raise Problem(404, "no-such-message", detail)
    message = page.messages[0]
    # A message is data of somebody, so a browser must save it, not show it as a page of this site.
    headers = {
        "Stream-Partition": str(info.partition),
        "Stream-Index": str(index),
        "Stream-Time": reading.time_text(message.time_us),
        "Content-Disposition": "attachment",
    }
    return answer_raw(message.data, headers, RAW)


def _headers(found: reading.PageMessages, name: str, partition: int) -> dict[str, str]:
    path = f"/v1/streams/{quote(name, safe='')}?partition={partition}&from={found.resume_index}"
    return {
        "Stream-Partition": str(partition),
        "Stream-First-Index": str(found.first_index),
        "Stream-Next-Index": str(found.next_index),
        "Stream-Resume-Index": str(found.resume_index),
        "Link": f'<{path}>; rel="next"',
        "Vary": "Accept",
    }


def _accepted(request: Request, kinds: tuple[str, ...]) -> str:
    """Returns the type that the header Accept prefers, or the first one. Raises Problem if none fits."""
    ranges: list[tuple[float, str]] = []
    for part in ",".join(request.headers.getlist("accept")).split(","):
        kind, *parameters = (each.strip().lower() for each in part.split(";"))
        weights = [each[2:] for each in parameters if each.startswith("q=")]
        ranges.append((_weight(weights[0]) if weights else 1.0, kind))
    if ranges == [(1.0, "")]:
        return kinds[0]
    for weight, kind in sorted(ranges, key=lambda each: -each[0]):
        found = [each for each in kinds if kind in (each, "*/*", each.partition("/")[0] + "/*")]
        if found and weight > 0:
            return found[0]
    raise Problem(406, "not-acceptable", f"this path answers with {', '.join(kinds)}; name one in the header Accept")


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
