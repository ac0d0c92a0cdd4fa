"""`GET /v1/streams/{name}`: a page of messages as JSON or as lines, or all messages as they come (`follow`).

`follow` answers with server-sent events. The id of an event is the index after its message and the creation time of the
partition. A browser sends the last id again as `Last-Event-ID`: it misses no message, and gets an error if the
partition was made again meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import chain
from typing import Annotated
from urllib.parse import quote

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import REFUSAL
from stream_client import (
    AccessDenied,
    ClientClosed,
    ClientError,
    ConnectionLost,
    FromIndex,
    LimitExceeded,
    NotSupported,
    RequestRefused,
    StreamClient,
    StreamInfo,
    StreamNotFound,
)
from stream_client.arguments import StartLike
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.data import records
from stream_node.doors.http.data.places import (
    INDEX_MAX,
    Base64,
    PartitionNumber,
    bytes_of,
    find_partition,
    get_partition,
    partition_at,
    path_index,
    read_query,
    stream_name,
)
from stream_node.doors.http.data.records import (
    JSON,
    LINES,
    NODE_WAIT_S_MAX,
    RAW,
    Form,
    PageMessages,
    pieces_of,
    read_found,
)
from stream_node.doors.http.guard import identify
from stream_node.doors.http.paging import answer_in_parts, answer_raw, gathered, pull_counted
from stream_node.doors.http.problems import Problem, problem_of
from stream_service.names import stream_address

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

    start: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": records.FROM})] = msgspec.field(
        default="earliest", name="from"
    )
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    wait: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)] = 0.0
    partition: PartitionNumber | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    data: records.Form = "auto"


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
    messages: list[records.DataMessage]


async def pull(call: HttpCall) -> Response:
    name, query = stream_name(call.request), read_query(call.request, PullQuery)
    kind = _accepted(call.request, (JSON, LINES, EVENTS))
    start = records.parse_from(query.start)
    key = bytes_of(query.key, query.key_base64, "key")
    if kind == EVENTS:
        return await follow(call, name, query.partition, key, start, query.data)
    async with call.client() as client:
        stream, info = await get_partition(call, client, name, query.partition, key, Right.READ)
        found = await records.read_found(call.memory, stream, start, query.limit, query.wait)
    headers = _headers(found, name, info.partition)
    if kind == LINES:
        end = [b"\n"] if found.messages else []
        return answer_in_parts(chain(records.joined(found.messages, query.data, b"\n"), end), headers, LINES)
    # The page without messages is taken apart, and the messages are put into it.
    page = MessagePage(name, info.partition, found.first_index, found.next_index, found.resume_index, [])
    begin = msgspec.json.encode(page).removesuffix(b"]}")
    pieces = chain([begin], records.joined(found.messages, query.data, b","), [b"]}\n"])
    return answer_in_parts(pieces, headers, JSON)


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
        "Stream-Time": records.time_text(message.time_us),
        "Content-Disposition": "attachment",
    }
    return answer_raw(message.data, headers, RAW)


def _headers(found: records.PageMessages, name: str, partition: int) -> dict[str, str]:
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
    """Returns the type that the header Accept prefers, or the first one. Raises Problem if no type fits."""
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


EVENTS = "text/event-stream"
PAGE_MESSAGES = 100
"""The number of messages that are read at once. One page of one follower is in memory at a time."""
HEARTBEAT_S = 10.0
"""After this time without a message, a comment is sent, so that proxies keep the connection open."""


async def follow(
    call: HttpCall, name: str, partition: int | None, key: bytes | None, start: StartLike, form: Form
) -> Response:
    next_index, created_us = _last_event_id(call.request)
    start = start if next_index is None else next_index
    # The first page is read before the answer begins, so that errors have their status.
    async with call.client() as client:
        is_remembered = name in call.clients.known_partitions(call.parts.services.directory.changes)
        stream, info = await get_partition(call, client, name, partition, key, Right.READ)
        # A remembered creation time can be outdated: a new mirror takes the creation time of its source.
        if is_remembered:
            info = await find_partition(client, name, info.partition) or info
        if created_us not in (None, info.created_us):
            raise StreamNotFound(
                f"partition {info.partition} of {name!r} has been deleted, and created again since the event with this "
                "id; read from earliest, without Last-Event-ID"
            )
        found = await read_found(call.memory, stream, start, PAGE_MESSAGES)
    headers = {"Stream-Partition": str(info.partition), "Vary": "Accept", "X-Accel-Buffering": "no"}
    return _Follow(_events(call, info, found, form), headers)


class _Follow(StreamingResponse):
    """An answer of events. Its end closes the generator of the events, even if no event was read."""

    def __init__(self, events: AsyncGenerator[bytes], headers: dict[str, str]) -> None:
        super().__init__(events, headers=headers, media_type=EVENTS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _events(call: HttpCall, followed: StreamInfo, found: PageMessages, form: Form) -> AsyncGenerator[bytes]:
    """Yields the events. followed: the partition, as it was when the request came. found: the first page to send."""
    # An event without data only sets the id: a peer that connects again before the first message goes on at this id.
    at = found.messages[0].index if found.messages else found.resume_index
    yield b"retry: 1000\nid: %d-%d\n\n" % (at, followed.created_us)
    sent_s = trio.current_time()
    address = stream_address(followed.stream_name, followed.partition)
    worker: Worker | None = None
    try:
        # The answer to HEAD ends with its headers.
        while not (call.parts.condition.is_draining or call.request.method == "HEAD"):
            if found.messages:
                for part in gathered(_events_of(found, followed.created_us, form)):
                    yield part
                sent_s = trio.current_time()
            elif trio.current_time() >= sent_s + HEARTBEAT_S:
                yield b": waiting\n\n"
                sent_s = trio.current_time()
            # Sending the page can have taken long, and the token may have been revoked or replaced meanwhile.
            await identify(call.request, call.parts.authenticator)
            # A client inside the node is held for one page only, so followers do not keep others out.
            async with call.client() as client:
                # Sending the page can have taken long. A deleted partition does not answer, and a new one with the same
                # name counts from 0, so that its messages would be missed. A new partition has a new worker.
                found_worker = call.parts.node.find_worker(address)
                if found_worker is None or found_worker is not worker:
                    await _check_same(call, client, followed)
                    worker = found_worker
                stream = partition_at(call, client, followed.stream_name, followed.partition)
                found = await read_found(call.memory, stream, found.resume_index, PAGE_MESSAGES, NODE_WAIT_S_MAX)
    except (ClientError, Problem) as error:
        if call.parts.condition.is_draining:
            return
        if isinstance(error, ClientClosed | ConnectionLost):
            detail = "the node has ended this connection, because its tokens or rules have changed; connect again"
            problem = Problem(503, "connection-lost", detail, members={"retriable": True, "in_doubt": False})
        else:
            problem = problem_of(error, is_read=True) if isinstance(error, ClientError) else error
        yield b"event: problem\ndata: %b\n\n" % bytes(problem.response().body)


async def _check_same(call: HttpCall, client: StreamClient, followed: StreamInfo) -> None:
    """Raises StreamNotFound for a deleted or new partition, and Problem if the caller may not read it any more."""
    name = followed.stream_name
    now = await find_partition(client, name, followed.partition)
    if now is None:
        call.check(Demand(Right.READ, name))
        raise StreamNotFound(f"partition {followed.partition} of {name!r} has been deleted")
    if now.created_us != followed.created_us:
        raise StreamNotFound(f"partition {followed.partition} of {name!r} has been deleted, and created again")


def _events_of(found: PageMessages, created_us: int, form: Form) -> Iterator[bytes]:
    for message in found.messages:
        yield b"id: %d-%d\ndata: " % (message.index + 1, created_us)
        yield from pieces_of(message, form)
        yield b"\n\n"


def _last_event_id(request: Request) -> tuple[int | None, int | None]:
    """Returns the index and the creation time in the header Last-Event-ID; None for a missing one. Raises Problem."""
    text = request.headers.get("last-event-id", "")
    if not text:
        return None, None
    index, dash, created = text.partition("-")
    parts = (index, created) if dash else (index,)
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 and int(part) <= INDEX_MAX for part in parts):
        raise Problem(400, "invalid-request", "Last-Event-ID is the id of an event: an index, or an index and a time")
    return int(index), int(created) if dash else None
