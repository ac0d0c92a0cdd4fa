"""Follows a partition by server-sent events: every message as it is stored, until the peer or the node ends it.
The id of an event is the index after its message and the creation time of the partition. A browser sends the last id
again as `Last-Event-ID`: it misses no message, and gets an error if the partition was made again meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from stream_client import ClientClosed, ClientError, ConnectionLost, StreamClient, StreamInfo, StreamNotFound
from stream_client.arguments import StartLike
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.data.places import find_partition, get_partition, partition_at
from stream_node.doors.http.data.query import INDEX_MAX
from stream_node.doors.http.data.reading import NODE_WAIT_S_MAX, Form, PageMessages, pieces_of, read_found
from stream_node.doors.http.identity import identify
from stream_node.doors.http.paging import gathered
from stream_node.doors.http.problems import Problem, problem_of
from stream_service.names import stream_address

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
        is_remembered = name in call.known.of(call.parts.services.directory.changes)
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
    """An answer of events. Its end closes the generator of the events, even if that was never read."""

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
    """Yields the events of a page, in pieces. created_us: when the partition was created."""
    for message in found.messages:
        yield b"id: %d-%d\ndata: " % (message.index + 1, created_us)
        yield from pieces_of(message, form)
        yield b"\n\n"


def _last_event_id(request: Request) -> tuple[int | None, int | None]:
    """Returns the index and the creation time in the header Last-Event-ID, None for what is missing. Raises Problem."""
    text = request.headers.get("last-event-id", "")
    if not text:
        return None, None
    index, dash, created = text.partition("-")
    parts = (index, created) if dash else (index,)
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 and int(part) <= INDEX_MAX for part in parts):
        raise Problem(400, "invalid-request", "Last-Event-ID is the id of an event: an index, or an index and a time")
    return int(index), int(created) if dash else None
